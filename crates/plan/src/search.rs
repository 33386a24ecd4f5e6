//! Which plan: micro-batch, loss chunks, and how much to recompute.
//!
//! Recompute is one dial. Classes are ordered once by the bytes they free for the time they cost;
//! turning the dial drops the first class layer by layer, then the next. Memory falls along the dial
//! and time rises, so for each micro-batch the first position that fits is the fastest one, and is
//! found by bisection over lower bounds. Only the winner is laid out and verified.
//!
//! Where an update is one micro-batch, its backward pass may update each parameter itself. That frees gradients for less
//! than recompute costs, but an update can then no longer be left out as a whole: it is tried where not everything fits
//! without.
//!
//! Where it is allowed, what only adapters' gradients need of the forward pass may be kept in eight bits: programs that do
//! so are tried beside those that do not, and taken where they are clearly faster or the only ones that fit.
//!
//! Micro-batch and chunks are the decisions that show in the bits of a result: they decide in which order sums are made.
//! Chunks other than the fastest for a micro-batch are taken only where they gain clearly, and an MLP is divided only where
//! no smaller micro-batch would do the same.

mod chunks;
mod curve;
mod keeping;
mod known;
mod lowest;
mod saving;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use plimsoll_graph::{BatchShape, Cadence, Chunks, Class, Program, ScheduleGraph, Streams};

use self::known::{Known, Position};
use crate::assemble::{Laid, Plan, assemble_laid};
use crate::recompute::{Drops, droppable};
use crate::recorded::recorded_bytes;
use crate::report::Report;
use crate::time::Estimate;
use crate::verify::verify;
use crate::{Backing, DeviceProfile, PlanError};

pub(crate) mod summary;

pub use curve::speed_curve;
pub use keeping::KeepPin;
pub(crate) use known::with_drops;
pub use saving::{SavePin, WRITER_BYTES};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The fastest plan within the budget.
    Fastest,
    /// The smallest plan there is.
    Lowest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    pub gpu_bytes: u64,
    pub host_bytes: u64,
}

/// Memory no plan controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed {
    pub gpu_context_bytes: u64,
    pub host_process_bytes: u64,
    pub host_data_bytes: u64,
}

/// Decisions the user made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins {
    pub micro_batch_tokens: Option<usize>,
    pub loss_chunks: Option<usize>,
    pub mlp_chunks: Option<usize>,
    pub recompute: Option<BTreeMap<String, usize>>,
    pub update_in_backward: Option<bool>,
    pub keep: KeepPin,
    pub save: SavePin,
}

/// The decisions that a program is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Variant {
    pub batch: BatchShape,
    pub chunks: Chunks,
    /// Whether the backward pass updates each parameter as soon as its gradient is complete.
    pub update_in_backward: bool,
    /// Whether what only adapters' gradients need of the forward pass is kept rounded to eight bits.
    pub keep_fp8: bool,
}

/// Makes the program of a variant, with whatever else the caller wants to have of the one that is chosen.
pub type Build<'a, B, E> = dyn Fn(Variant) -> Result<B, E> + 'a;

/// Where an update is given in tokens, a micro-batch has places for sequences of this part of the greatest length; shorter
/// ones leave some of its token slots empty. A place costs little memory, but an operator looks at every one.
const SHORT_SEQUENCES: usize = 16;

pub struct Request<'a, B, E> {
    pub build: &'a Build<'a, B, E>,
    /// Sequences of one update: exact, unless `tokens` is given.
    pub sequences: usize,
    /// The most tokens of an update that is given in tokens; `sequences` is then the fewest that fill it.
    pub tokens: Option<usize>,
    /// Sequences that must share a micro-batch: 1, or 2 where they are compared with each other.
    pub group: usize,
    /// Longest sequence of each stream.
    pub max_length: Streams<usize>,
    /// Whether the loss has logits that can be divided into chunks.
    pub chunked_loss: bool,
    /// Whether parameters may be updated before all gradients are there; if not, what stands against it.
    pub update_in_backward: Result<(), String>,
    pub device: &'a DeviceProfile,
    pub budgets: Budgets,
    pub fixed: Fixed,
    pub goal: Goal,
    pub pins: Pins,
}

/// The plan that was picked, with its decisions and what the builder made for it.
#[derive(Debug)]
pub struct Chosen<B> {
    pub built: B,
    pub plan: Plan,
    pub batch: BatchShape,
    pub chunks: Chunks,
    pub update_in_backward: bool,
    pub drops: Drops,
    pub report: Report,
}

/// Micro-batches beyond this bring no more speed on any known device.
const MICRO_BATCH_TOKENS_MAX: usize = 65_536;
/// Two plans whose speeds differ by less are equally fast; the smaller one is taken.
pub const SAME_SPEED: f64 = 0.005;
/// What smaller loss chunks must gain before they are taken although the larger ones fit: they change the bits.
const CHUNKS_GAIN: f64 = 0.01;
/// What values that are kept rounded must gain over those kept as they are.
const KEEP_GAIN: f64 = 0.01;

/// Positions of the dial tried before the first one that fits, if memory fell all along it.
const BUMPS: usize = 2;
/// Positions of the dial tried behind one whose addresses take more than their lower bound.
const LAYOUT_STEPS: usize = 8;

/// One point of the search.
#[derive(Debug, Clone)]
struct Candidate {
    variant: Variant,
    /// Position of the recompute dial.
    level: usize,
    arena_bytes: u64,
    /// Beside the arena, if schedules are recorded.
    recorded_bytes: u64,
    step: Estimate,
}

/// Finds, lays out and verifies the plan that meets the request.
pub fn plan<B, E>(request: &Request<B, E>) -> Result<Chosen<B>, E>
where
    B: AsRef<Program>,
    E: From<PlanError>,
{
    let search = Search::new(request)?;
    let Chosen { built, plan, batch, chunks, update_in_backward, drops, report } = search.choose()?;
    drop(search);
    let built = Rc::into_inner(built).expect("nothing but the search shared it");
    Ok(Chosen { built, plan, batch, chunks, update_in_backward, drops, report })
}

struct Search<'a, B, E> {
    request: &'a Request<'a, B, E>,
    /// What is left of the budget for the arena.
    arena_budget: u64,
    /// Positions of the dial, fastest first; pinned recompute leaves only one.
    dial: Vec<Drops>,
    /// What a snapshot of a checkpoint takes; 0 if there is to be none.
    snapshot_bytes: u64,
    known: RefCell<HashMap<Variant, Rc<Known<B>>>>,
}

impl<'a, B: AsRef<Program>, E: From<PlanError>> Search<'a, B, E> {
    fn new(request: &'a Request<'a, B, E>) -> Result<Self, E> {
        let lengths = request.max_length;
        if request.sequences == 0 || lengths.as_slice().contains(&0) {
            return Err(PlanError::Batch("an update needs at least one sequence of at least one token".into()).into());
        }
        if !request.sequences.is_multiple_of(request.group) {
            let (sequences, group) = (request.sequences, request.group);
            let reason = format!("an update of {sequences} sequences is not made of groups of {group}");
            return Err(PlanError::Batch(reason).into());
        }
        let fixed = request.fixed;
        let arena_budget = match request.device.backing {
            Backing::Gpu => request.budgets.gpu_bytes.saturating_sub(fixed.gpu_context_bytes),
            Backing::Host => {
                request.budgets.host_bytes.saturating_sub(fixed.host_process_bytes + fixed.host_data_bytes)
            }
        };
        let dial = vec![Drops::default()];
        let mut search = Self { request, arena_budget, dial, snapshot_bytes: 0, known: RefCell::default() };
        search.check_chunks()?;
        search.check_update_in_backward()?;
        search.snapshot_bytes = search.measure_snapshot()?;
        if request.device.backing == Backing::Host {
            search.arena_budget = arena_budget.saturating_sub(search.pinned_snapshot_bytes());
        }
        search.dial = search.make_dial()?;
        Ok(search)
    }

    /// The plan that meets the request.
    fn choose(&self) -> Result<Chosen<Rc<B>>, E> {
        self.check_host()?;
        let ranked = match self.request.goal {
            Goal::Fastest => self.fastest_that_fit()?,
            Goal::Lowest => Vec::new(),
        };
        // What its addresses cost a candidate may make another one faster.
        let mut best: Option<Candidate> = None;
        for candidate in ranked {
            let faster = |other: &Candidate| candidate.step.seconds * (1.0 + SAME_SPEED) < other.step.seconds;
            if best.as_ref().is_none_or(faster)
                && let Some(laid_out) = self.laid_out(&candidate)?
                && best.as_ref().is_none_or(|best| laid_out.step.seconds < best.step.seconds)
            {
                best = Some(laid_out);
            }
        }
        if let Some(best) = best {
            return self.chosen(&best);
        }
        // The last resort, and the plan that a refusal names: it may lie a little before the end of the dial.
        let lowest = self.lowest_laid_out()?;
        match self.laid_out(&lowest)?.filter(|_| self.fits(&lowest)) {
            Some(laid_out) => self.chosen(&laid_out),
            None => Err(self.refusal(&lowest)?.into()),
        }
    }

    /// Only updates of one micro-batch can be done in its backward pass, and only if nothing has to see all gradients first.
    fn check_update_in_backward(&self) -> Result<(), PlanError> {
        if self.request.pins.update_in_backward != Some(true) {
            return Ok(());
        }
        let whole = self.batches()?.iter().any(|batch| self.accumulation(*batch) == 1);
        let against = match &self.request.update_in_backward {
            Err(reason) => reason.clone(),
            Ok(()) if !whole => "an update of several micro-batches sums their gradients up first".to_owned(),
            Ok(()) => return Ok(()),
        };
        let key = "plan.update_in_backward".to_owned();
        Err(PlanError::Pin { reason: format!("`{key}` is true, but {against}"), key })
    }

    /// When gradients become weights: the ways to consider for a micro-batch, the one that can leave updates out first.
    fn ways(&self, batch: BatchShape) -> &'static [bool] {
        let possible = self.request.update_in_backward.is_ok() && self.accumulation(batch) == 1;
        match (self.request.pins.update_in_backward, possible) {
            (Some(true), true) => &[true],
            (Some(true), false) => &[],
            (None, true) => &[false, true],
            (Some(false), _) | (None, false) => &[false],
        }
    }

    /// On a GPU the host holds only what no plan controls; if even that is too much, say so first.
    fn check_host(&self) -> Result<(), PlanError> {
        let (_, host) = self.memories(None);
        let (needed_bytes, budget_bytes) = (host.total(), self.request.budgets.host_bytes);
        if self.request.device.backing == Backing::Host || needed_bytes <= budget_bytes {
            return Ok(());
        }
        Err(PlanError::DoesNotFit {
            memory: "host",
            budget_bytes,
            needed_bytes,
            largest: host.rows(),
            alternatives: Vec::new(),
        })
    }

    /// Micro-batches to consider, largest first. Each divides the update exactly, unless the user set one.
    fn batches(&self) -> Result<Vec<BatchShape>, PlanError> {
        let Request { sequences, group, max_length: lengths, .. } = *self.request;
        let max_length = lengths.main();
        // The main stream has so many token slots, the others as many sequences of their own greatest length.
        let shape = |tokens: usize| {
            let own = match self.request.tokens {
                Some(_) => SHORT_SEQUENCES * group * tokens.div_ceil(max_length),
                None => sequences,
            };
            let mut slots: Vec<usize> = lengths.as_slice().iter().map(|length| tokens / max_length * length).collect();
            slots[0] = tokens;
            BatchShape::with_filling(Streams::new(&slots), lengths, own, group)
        };
        if let Some(tokens) = self.request.pins.micro_batch_tokens {
            if tokens < group * max_length {
                let what = if group == 1 { "one sequence".to_owned() } else { format!("a group of {group} sequences") };
                let needed = group * max_length;
                let reason = format!(
                    "`plan.micro_batch_tokens` is {tokens}, but {what} may have {needed} tokens (data.max_length)"
                );
                return Err(PlanError::Pin { key: "plan.micro_batch_tokens".into(), reason });
            }
            return Ok(vec![shape(tokens)]);
        }
        let (groups, group_tokens) = (sequences / group, group * max_length);
        let divisors = (1..=groups).rev().filter(|m| groups.is_multiple_of(*m));
        let small_enough = divisors.filter(|&m| m == 1 || m * group_tokens <= MICRO_BATCH_TOKENS_MAX);
        Ok(small_enough.map(|m| shape(m * group_tokens)).collect())
    }

    fn accumulation(&self, batch: BatchShape) -> usize {
        let Request { sequences, group, .. } = *self.request;
        let main = batch.main();
        (sequences / group).div_ceil((main.tokens / (group * main.max_length)).max(1))
    }

    fn known(&self, variant: Variant) -> Result<Rc<Known<B>>, E> {
        if let Some(known) = self.known.borrow().get(&variant) {
            return Ok(known.clone());
        }
        let known = Rc::new(Known::new((self.request.build)(variant)?, self.request.device));
        self.known.borrow_mut().insert(variant, known.clone());
        Ok(known)
    }

    /// The smallest micro-batch with the most chunks of the loss, updated as most others are: what the dial is made for.
    fn smallest(&self) -> Result<Variant, PlanError> {
        let batch = *self.batches()?.last().expect("there is always a micro-batch of one group");
        let loss = *self.loss_chunks(batch).last().expect("there is always a number of chunks");
        let mlp = self.mlp_chunks(batch)?[0];
        Ok(Variant { batch, chunks: Chunks { loss, mlp }, update_in_backward: false, keep_fp8: self.keeps()[0] })
    }

    /// Orders classes by bytes freed per second spent, each given those before it.
    fn make_dial(&self) -> Result<Vec<Drops>, E> {
        let (known, device) = (self.known(self.smallest()?)?, self.request.device);
        let mut schedules = known.schedules();
        let trained = schedules.find(|(schedule, _)| schedule.cadence == Cadence::MicroBatch);
        let (ScheduleGraph { graph, .. }, known) = trained.expect("a program trains micro-batches");
        let classes = droppable(graph);
        // Bytes kept between forward and backward, as the peak shows them, and seconds of the micro-step.
        let measure = |drops: &Drops| {
            let sizes = known.sizing.with(graph, drops, device);
            (sizes.bytes, sizes.time.seconds)
        };
        // The least of some positions.
        let least = |ends: &[Drops], on_the_way: bool| {
            ends.iter().map(|drops| measure(&Drops { on_the_way, ..drops.clone() }).0).min()
        };
        let on_the_way = |ends: &[Drops]| least(ends, true) <= least(ends, false);
        if let Some(pinned) = &self.request.pins.recompute {
            let drops = pinned_drops(pinned, &classes)?;
            return Ok(vec![Drops { on_the_way: on_the_way(std::slice::from_ref(&drops)), ..drops }]);
        }
        let mut dial = vec![Drops::default()];
        let mut left: Vec<(Class, usize)> = classes.into_iter().map(|(class, layers)| (class, layers.len())).collect();
        let mut current = measure(&Drops::default());
        while !left.is_empty() {
            let base = dial.last().expect("starts with one").clone();
            let scored = left.iter().enumerate().map(|(index, &(class, layers))| {
                let drops = with(&base, class, layers);
                let (bytes, seconds) = measure(&drops);
                let freed = current.0 as f64 - bytes as f64;
                (index, freed / (seconds - current.1).max(1e-9), (bytes, seconds))
            });
            let (index, score, measured) = scored.max_by(|a, b| a.1.total_cmp(&b.1)).expect("some are left");
            if score <= 0.0 {
                break;
            }
            let (class, layers) = left.swap_remove(index);
            left.sort();
            dial.extend((1..=layers).map(|k| with(&base, class, k)));
            current = measured;
        }
        // Where that makes the smallest plan no larger. All alike, so that time and memory stay in order along the dial.
        let ends: Vec<Drops> = class_ends(&dial).into_iter().map(|level| dial[level].clone()).collect();
        if on_the_way(&ends) {
            dial.iter_mut().for_each(|drops| drops.on_the_way = true);
        }
        Ok(dial)
    }

    fn position(&self, level: usize) -> Position<'_> {
        (level, &self.dial[level])
    }

    fn evaluate(&self, variant: Variant, level: usize) -> Result<Candidate, E> {
        let (known, device) = (self.known(variant)?, self.request.device);
        let (mut ends, mut launches, mut step) = (Vec::new(), 0, Estimate::default());
        for (schedule, known) in known.schedules() {
            let sizes = known.sizes(schedule, self.position(level), device);
            ends.push(known.base + sizes.bytes);
            launches += if schedule.recorded { sizes.launches } else { 0 };
            step = match schedule.cadence {
                Cadence::MicroBatch => sizes.time.then(self.accumulation(variant.batch) as f64, &step),
                Cadence::Update => sizes.time.then(1.0, &step),
                Cadence::Aside => step,
            };
        }
        let arena_bytes = known.ground.arena_bytes(ends.into_iter()) as u64;
        Ok(Candidate { variant, level, arena_bytes, recorded_bytes: recorded_bytes(launches, device), step })
    }

    /// Of what recorded schedules would take, that which they do.
    fn recorded(&self, candidate: &Candidate) -> u64 {
        if self.request.device.records { candidate.recorded_bytes } else { 0 }
    }

    fn fits(&self, candidate: &Candidate) -> bool {
        candidate.arena_bytes + self.recorded(candidate) <= self.arena_budget
    }

    /// The first position of the dial that fits, if the last one does.
    fn first_fit(&self, variant: Variant) -> Result<Option<Candidate>, E> {
        let keep_all = self.evaluate(variant, 0)?;
        if self.fits(&keep_all) {
            return Ok(Some(keep_all));
        }
        let mut fitting = self.evaluate(variant, self.dial.len() - 1)?;
        if !self.fits(&fitting) {
            return Ok(None);
        }
        let (mut too_big, mut fits) = (0, self.dial.len() - 1);
        while fits - too_big > 1 {
            let middle = self.evaluate(variant, (too_big + fits) / 2)?;
            if self.fits(&middle) {
                fits = middle.level;
                fitting = middle;
            } else {
                too_big = middle.level;
            }
        }
        // Where a class is dropped in its last layer too, what rebuilds it may take more than what it frees.
        for level in (too_big.saturating_sub(BUMPS)..too_big).rev() {
            let candidate = self.evaluate(variant, level)?;
            if self.fits(&candidate) {
                fitting = candidate;
            }
        }
        Ok(Some(fitting))
    }

    /// Candidates that fit, best first.
    fn fastest_that_fit(&self) -> Result<Vec<Candidate>, E> {
        let fastest = |found: &[Candidate]| found.iter().map(|c| c.step.seconds).fold(f64::INFINITY, f64::min);
        let mut found: Vec<Candidate> = Vec::new();
        for &keep_fp8 in self.keeps() {
            let exact = fastest(&found);
            let fitting = self.fitting(keep_fp8)?.into_iter();
            found.extend(fitting.filter(|candidate| candidate.step.seconds * (1.0 + KEEP_GAIN) < exact));
        }
        let best = fastest(&found);
        // Equally fast ones first, smallest among them first; then the others by speed.
        found.sort_by(|a, b| {
            let class = |c: &Candidate| if c.step.seconds <= best * (1.0 + SAME_SPEED) { 0 } else { 1 };
            let size = |c: &Candidate| if class(c) == 0 { c.arena_bytes } else { 0 };
            (class(a), size(a)).cmp(&(class(b), size(b))).then(a.step.seconds.total_cmp(&b.step.seconds))
        });
        Ok(found)
    }

    /// The fastest that fit of all micro-batches worth considering.
    fn fitting(&self, keep_fp8: bool) -> Result<Vec<Candidate>, E> {
        let mut found: Vec<Candidate> = Vec::new();
        for batch in self.batches()? {
            for &update_in_backward in self.ways(batch) {
                let fitting = self.fastest_chunks(batch, update_in_backward, keep_fp8)?;
                let keeps_all = fitting.iter().any(|candidate| candidate.level == 0);
                found.extend(fitting);
                // Nothing is gained where everything fits already.
                if keeps_all {
                    break;
                }
            }
            if found.iter().any(|c| c.level == 0) && self.smaller_is_slower(batch) {
                break;
            }
        }
        Ok(found)
    }

    /// Of one micro-batch: candidates that fit, those with more chunks only where they are clearly faster.
    fn fastest_chunks(&self, batch: BatchShape, update_in_backward: bool, keep_fp8: bool) -> Result<Vec<Candidate>, E> {
        let (mut found, mut larger_chunks) = (Vec::new(), None::<f64>);
        for chunks in self.chunks(batch)? {
            let variant = Variant { batch, chunks, update_in_backward, keep_fp8 };
            let Some(candidate) = self.first_fit(variant)? else { continue };
            let (keeps_all, seconds) = (candidate.level == 0, candidate.step.seconds);
            if larger_chunks.is_none_or(|larger| seconds * (1.0 + CHUNKS_GAIN) < larger) {
                larger_chunks = Some(seconds);
                found.push(candidate);
            }
            // Smaller chunks or micro-batches than one that keeps everything can only be slower.
            if keeps_all {
                break;
            }
        }
        Ok(found)
    }

    /// Is the micro-batch so small that half of it would clearly be slower?
    fn smaller_is_slower(&self, batch: BatchShape) -> bool {
        (batch.tokens() as f64) < 64.0 * self.request.device.half_rate_tokens
    }

    /// The graphs of a candidate's program, laid out.
    fn laid(&self, candidate: &Candidate) -> Result<Vec<Rc<Laid>>, E> {
        let (known, at) = (self.known(candidate.variant)?, self.position(candidate.level));
        Ok(known.schedules().map(|(schedule, known)| known.laid(schedule, at, self.request.device)).collect())
    }

    /// What a candidate's arena takes once it is laid out.
    fn laid_bytes(&self, candidate: &Candidate) -> Result<u64, E> {
        let (known, laid) = (self.known(candidate.variant)?, self.laid(candidate)?);
        let ends = known.schedules().zip(&laid).map(|((_, known), laid)| known.base + laid.bytes);
        Ok(known.ground.arena_bytes(ends) as u64)
    }

    /// A candidate with its addresses.
    fn assembled(&self, candidate: &Candidate) -> Result<Plan, E> {
        let known = self.known(candidate.variant)?;
        let Program { batch, slots, schedules } = (*known.built).as_ref();
        let schedules = schedules.iter().map(|(&id, schedule)| {
            let graph = with_drops(schedule, &self.dial[candidate.level]).into_owned();
            (id, ScheduleGraph { graph, ..*schedule })
        });
        let program = Program { batch: *batch, slots: slots.clone(), schedules: schedules.collect() };
        Ok(assemble_laid(&program, &self.laid(candidate)?))
    }

    fn class_ends(&self) -> Vec<usize> {
        class_ends(&self.dial)
    }

    /// The candidate whose addresses fit, this one or one a little further along the dial: fragmentation may cost more than
    /// the lower bound says.
    fn laid_out(&self, candidate: &Candidate) -> Result<Option<Candidate>, E> {
        let last = (candidate.level + LAYOUT_STEPS).min(self.dial.len() - 1);
        for level in candidate.level..=last {
            let candidate = self.evaluate(candidate.variant, level)?;
            if self.laid_bytes(&candidate)? + self.recorded(&candidate) <= self.arena_budget {
                return Ok(Some(candidate));
            }
        }
        Ok(None)
    }

    /// Addresses, proof and report.
    fn chosen(&self, candidate: &Candidate) -> Result<Chosen<Rc<B>>, E> {
        let plan = self.assembled(candidate)?;
        verify(&plan).map_err(PlanError::from)?;
        let report = self.report(&plan, candidate)?;
        let Variant { batch, chunks, update_in_backward, .. } = candidate.variant;
        let (built, drops) = (self.known(candidate.variant)?.built.clone(), self.dial[candidate.level].clone());
        Ok(Chosen { built, plan, batch, chunks, update_in_backward, drops, report })
    }
}

type Droppable = BTreeMap<Class, BTreeSet<Option<u32>>>;

/// Positions of the dial at which a class has just been dropped in all its layers.
fn class_ends(dial: &[Drops]) -> Vec<usize> {
    let classes = |level: usize| dial[level].classes.len();
    (0..dial.len()).filter(|&l| l + 1 == dial.len() || classes(l + 1) != classes(l)).collect()
}

fn with(base: &Drops, class: Class, layers: usize) -> Drops {
    let mut drops = base.clone();
    drops.classes.insert(class, layers);
    drops
}

fn pinned_drops(pinned: &BTreeMap<String, usize>, classes: &Droppable) -> Result<Drops, PlanError> {
    let mut drops = Drops::default();
    for (name, &layers) in pinned {
        let Some((&class, having)) = classes.iter().find(|(c, _)| c.0 == name) else {
            let known: Vec<&str> = classes.keys().map(|c| c.0).collect();
            let reason = format!("unknown class `{name}` in `plan.recompute`; expected one of {}", known.join(", "));
            return Err(PlanError::Pin { key: format!("plan.recompute.{name}"), reason });
        };
        let available = having.len();
        if layers > available {
            let reason = match available {
                1 => format!("`plan.recompute.{name}` is {layers}, but only 1 layer has that class"),
                _ => format!("`plan.recompute.{name}` is {layers}, but only {available} layers have that class"),
            };
            return Err(PlanError::Pin { key: format!("plan.recompute.{name}"), reason });
        }
        drops.classes.insert(class, layers);
    }
    Ok(drops)
}
