//! Which plan: micro-batch, loss chunks, and how much to recompute.
//!
//! Recompute is one dial. Classes are ordered once by the bytes they free for the time they cost;
//! turning the dial drops the first class layer by layer, then the next. Memory falls along the dial
//! and time rises, so for each micro-batch the first position that fits is the fastest one, and is
//! found by bisection over lower bounds. Only the winner is laid out and verified.

mod lowest;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use plimsoll_graph::{BatchShape, Class, Program};

use crate::assemble::{Plan, assemble};
use crate::lifetimes::{aligned, lifetimes};
use crate::recompute::{Drops, droppable, recompute};
use crate::recorded::recorded_bytes;
use crate::report::Report;
use crate::time::{Estimate, estimate};
use crate::verify::verify;
use crate::{Backing, DeviceProfile, PlanError};

mod told;

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
    pub recompute: Option<BTreeMap<String, usize>>,
}

/// Makes the program for a micro-batch and a number of loss chunks.
pub type Build<'a> = dyn Fn(BatchShape, usize) -> Result<Program, PlanError> + 'a;

/// Where an update is given in tokens, a micro-batch has room for sequences of this part of the greatest length; shorter
/// ones leave some of its token slots empty. Room costs little memory, but an operator looks at every place.
const SHORT_SEQUENCES: usize = 16;

pub struct Request<'a> {
    pub build: &'a Build<'a>,
    /// Sequences of one update: exact, unless `tokens` is given.
    pub sequences: usize,
    /// The most tokens of an update that is given in tokens; `sequences` is then the fewest that fill it.
    pub tokens: Option<usize>,
    /// Sequences that must share a micro-batch: 1, or 2 where they are compared with each other.
    pub group: usize,
    pub max_length: usize,
    pub device: &'a DeviceProfile,
    pub budgets: Budgets,
    pub fixed: Fixed,
    pub goal: Goal,
    pub pins: Pins,
}

/// The plan that was picked, with its decisions.
#[derive(Debug, Clone)]
pub struct Chosen {
    pub plan: Plan,
    pub batch: BatchShape,
    pub loss_chunks: usize,
    pub drops: Drops,
    pub report: Report,
}

impl Chosen {
    /// Puts the measured figures of what no plan controls in place of the ones planned with.
    pub fn restate(&mut self, fixed: &Fixed) {
        let host = &mut self.report.host;
        host.categories.process = fixed.host_process_bytes;
        host.categories.data = fixed.host_data_bytes;
        host.planned_bytes = host.categories.total();
    }
}

/// Micro-batches beyond this bring no more speed on any known device.
const MICRO_BATCH_TOKENS_MAX: usize = 65_536;
/// Tokens whose logits exist at one time, from fastest to smallest.
const LOSS_ROWS: [usize; 3] = [2048, 512, 128];
/// Two plans whose speeds differ by less are equally fast; the smaller one is taken.
const SAME_SPEED: f64 = 0.01;

/// Positions of the dial tried behind one whose addresses take more than their lower bound.
const LAYOUT_STEPS: usize = 8;

/// One point of the search.
#[derive(Debug, Clone)]
struct Candidate {
    batch: BatchShape,
    loss_chunks: usize,
    /// Position of the recompute dial.
    level: usize,
    arena_bytes: u64,
    /// Beside the arena, if schedules are recorded.
    recorded_bytes: u64,
    step: Estimate,
}

/// Finds, lays out and verifies the plan that meets the request.
pub fn plan(request: &Request) -> Result<Chosen, PlanError> {
    let search = Search::new(request)?;
    search.check_host()?;
    let ranked = match request.goal {
        Goal::Fastest => search.fastest_that_fit()?,
        Goal::Lowest => Vec::new(),
    };
    for candidate in ranked {
        if let Some(chosen) = search.lay_out(candidate)? {
            return Ok(chosen);
        }
    }
    // The last resort, and the plan that a refusal names: it may lie a little before the end of the dial.
    let lowest = search.lowest_laid_out()?;
    if search.fits(&lowest)
        && let Some(chosen) = search.lay_out(lowest)?
    {
        return Ok(chosen);
    }
    Err(search.refusal()?)
}

struct Search<'a> {
    request: &'a Request<'a>,
    /// What is left of the budget for the arena.
    arena_budget: u64,
    /// Positions of the dial, fastest first; pinned recompute leaves only one.
    dial: Vec<Drops>,
    programs: RefCell<HashMap<(usize, usize), Rc<Program>>>,
}

impl<'a> Search<'a> {
    fn new(request: &'a Request<'a>) -> Result<Self, PlanError> {
        if request.sequences == 0 || request.max_length == 0 {
            return Err(PlanError::Batch("an update needs at least one sequence of at least one token".into()));
        }
        if !request.sequences.is_multiple_of(request.group) {
            return Err(PlanError::Batch(format!(
                "an update of {} sequences is not made of groups of {}",
                request.sequences, request.group
            )));
        }
        let fixed = request.fixed;
        let arena_budget = match request.device.backing {
            Backing::Gpu => request.budgets.gpu_bytes.saturating_sub(fixed.gpu_context_bytes),
            Backing::Host => {
                request.budgets.host_bytes.saturating_sub(fixed.host_process_bytes + fixed.host_data_bytes)
            }
        };
        let mut search = Self { request, arena_budget, dial: vec![Drops::default()], programs: RefCell::default() };
        search.check_loss_chunks()?;
        search.dial = search.make_dial()?;
        Ok(search)
    }

    /// Every micro-batch considered must be divisible into as many chunks as the user wants.
    fn check_loss_chunks(&self) -> Result<(), PlanError> {
        let tokens = self.batches()?.last().map_or(0, |batch| batch.tokens);
        match self.request.pins.loss_chunks {
            Some(chunks) if !(1..=tokens).contains(&chunks) => Err(PlanError::Pin(format!(
                "`plan.loss_chunks` is {chunks}, but a micro-batch of {tokens} tokens has 1 to {tokens} chunks"
            ))),
            _ => Ok(()),
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
        let Request { sequences, group, max_length, .. } = *self.request;
        // Besides the update's own sequences there is room for those that fill up an unused rest.
        let shape = |tokens: usize| {
            let filling = group * tokens.div_ceil(max_length);
            let own = match self.request.tokens {
                Some(_) => SHORT_SEQUENCES * filling,
                None => sequences,
            };
            BatchShape { tokens, sequences: own.min(tokens / group * group) + filling, max_length }
        };
        if let Some(tokens) = self.request.pins.micro_batch_tokens {
            if tokens < group * max_length {
                let what = if group == 1 { "one sequence" } else { "a pair of sequences" };
                return Err(PlanError::Pin(format!(
                    "`plan.micro_batch_tokens` is {tokens}, but {what} may have {} tokens (data.max_length)",
                    group * max_length
                )));
            }
            return Ok(vec![shape(tokens)]);
        }
        let (groups, group_tokens) = (sequences / group, group * max_length);
        let divisors = (1..=groups).rev().filter(|m| groups.is_multiple_of(*m));
        let small_enough = divisors.filter(|&m| m == 1 || m * group_tokens <= MICRO_BATCH_TOKENS_MAX);
        Ok(small_enough.map(|m| shape(m * group_tokens)).collect())
    }

    fn loss_chunks(&self, batch: BatchShape) -> Vec<usize> {
        if let Some(chunks) = self.request.pins.loss_chunks {
            return vec![chunks];
        }
        let mut chunks: Vec<usize> = LOSS_ROWS.iter().map(|rows| batch.tokens.div_ceil(*rows)).collect();
        chunks.dedup();
        chunks
    }

    fn accumulation(&self, batch: BatchShape) -> usize {
        let Request { sequences, group, .. } = *self.request;
        (sequences / group).div_ceil((batch.tokens / (group * batch.max_length)).max(1))
    }

    fn program(&self, batch: BatchShape, loss_chunks: usize) -> Result<Rc<Program>, PlanError> {
        let key = (batch.tokens, loss_chunks);
        if let Some(program) = self.programs.borrow().get(&key) {
            return Ok(program.clone());
        }
        let program = Rc::new((self.request.build)(batch, loss_chunks)?);
        self.programs.borrow_mut().insert(key, program.clone());
        Ok(program)
    }

    /// Orders classes by bytes freed per second spent, each given those before it.
    fn make_dial(&self) -> Result<Vec<Drops>, PlanError> {
        let batch = *self.batches()?.last().expect("there is always a micro-batch of one group");
        let chunks = *self.loss_chunks(batch).last().expect("there is always a number of chunks");
        let program = self.program(batch, chunks)?;
        let classes = droppable(&program.micro_step);
        if let Some(pinned) = &self.request.pins.recompute {
            return Ok(vec![pinned_drops(pinned, &classes)?]);
        }
        let mut dial = vec![Drops::default()];
        let mut left: Vec<(Class, usize)> = classes.into_iter().map(|(class, layers)| (class, layers.len())).collect();
        let mut current = self.measure(&program, &Drops::default());
        while !left.is_empty() {
            let base = dial.last().expect("starts with one").clone();
            let scored = left.iter().enumerate().map(|(index, &(class, layers))| {
                let drops = with(&base, class, layers);
                let (bytes, seconds) = self.measure(&program, &drops);
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
        Ok(dial)
    }

    /// Bytes kept between forward and backward, as the peak shows them, and seconds of the micro-step.
    fn measure(&self, program: &Program, drops: &Drops) -> (usize, f64) {
        let graph = recompute(&program.micro_step, drops);
        let found = lifetimes(&graph, &self.request.device.target);
        (found.lower_bound(graph.nodes.len()), estimate(&graph, self.request.device).seconds)
    }

    fn evaluate(&self, batch: BatchShape, loss_chunks: usize, level: usize) -> Result<Candidate, PlanError> {
        let program = self.program(batch, loss_chunks)?;
        let device = self.request.device;
        let micro_step = recompute(&program.micro_step, &self.dial[level]);
        let slots: usize = program.slots.iter().map(|(_, s)| aligned(s.bytes())).sum();
        let graphs = [&micro_step, &program.update, &program.evaluate, &program.sample];
        let bounds = graphs.iter().map(|g| lifetimes(g, &device.target).lower_bound(g.nodes.len()));
        let arena_bytes = (slots + bounds.max().unwrap_or(0)) as u64;
        let repeats = self.accumulation(batch) as f64;
        let step = estimate(&micro_step, device).then(repeats, &estimate(&program.update, device));
        // Sampling has another shape every time and is never recorded.
        let recorded_bytes = recorded_bytes(&graphs[..3], device);
        Ok(Candidate { batch, loss_chunks, level, arena_bytes, recorded_bytes, step })
    }

    /// Of what recorded schedules would take, that which they do.
    fn recorded(&self, candidate: &Candidate) -> u64 {
        if self.request.device.records { candidate.recorded_bytes } else { 0 }
    }

    fn fits(&self, candidate: &Candidate) -> bool {
        candidate.arena_bytes + self.recorded(candidate) <= self.arena_budget
    }

    /// The first position of the dial that fits, if the last one does.
    fn first_fit(&self, batch: BatchShape, loss_chunks: usize) -> Result<Option<Candidate>, PlanError> {
        let keep_all = self.evaluate(batch, loss_chunks, 0)?;
        if self.fits(&keep_all) {
            return Ok(Some(keep_all));
        }
        let mut fitting = self.evaluate(batch, loss_chunks, self.dial.len() - 1)?;
        if !self.fits(&fitting) {
            return Ok(None);
        }
        let (mut too_big, mut fits) = (0, self.dial.len() - 1);
        while fits - too_big > 1 {
            let middle = self.evaluate(batch, loss_chunks, (too_big + fits) / 2)?;
            if self.fits(&middle) {
                fits = middle.level;
                fitting = middle;
            } else {
                too_big = middle.level;
            }
        }
        Ok(Some(fitting))
    }

    /// Candidates that fit, best first.
    fn fastest_that_fit(&self) -> Result<Vec<Candidate>, PlanError> {
        let mut found: Vec<Candidate> = Vec::new();
        for batch in self.batches()? {
            for chunks in self.loss_chunks(batch) {
                let Some(candidate) = self.first_fit(batch, chunks)? else { continue };
                let keeps_all = candidate.level == 0;
                found.push(candidate);
                // Smaller chunks or micro-batches than one that keeps everything can only be slower.
                if keeps_all {
                    break;
                }
            }
            if found.iter().any(|c| c.level == 0) && self.smaller_is_slower(batch) {
                break;
            }
        }
        let best = found.iter().map(|c| c.step.seconds).fold(f64::INFINITY, f64::min);
        // Equally fast ones first, smallest among them first; then the others by speed.
        found.sort_by(|a, b| {
            let class = |c: &Candidate| if c.step.seconds <= best * (1.0 + SAME_SPEED) { 0 } else { 1 };
            let size = |c: &Candidate| if class(c) == 0 { c.arena_bytes } else { 0 };
            (class(a), size(a)).cmp(&(class(b), size(b))).then(a.step.seconds.total_cmp(&b.step.seconds))
        });
        Ok(found)
    }

    /// Is the micro-batch so small that half of it would clearly be slower?
    fn smaller_is_slower(&self, batch: BatchShape) -> bool {
        (batch.tokens as f64) < 64.0 * self.request.device.half_rate_tokens
    }

    /// A candidate with its addresses.
    fn assembled(&self, candidate: &Candidate) -> Result<Plan, PlanError> {
        let mut program = (*self.program(candidate.batch, candidate.loss_chunks)?).clone();
        program.micro_step = recompute(&program.micro_step, &self.dial[candidate.level]);
        Ok(assemble(&program, &self.request.device.target))
    }

    /// Positions of the dial at which a class has just been dropped in all its layers.
    fn class_ends(&self) -> Vec<usize> {
        let classes = |level: usize| self.dial[level].0.len();
        (0..self.dial.len()).filter(|&l| l + 1 == self.dial.len() || classes(l + 1) != classes(l)).collect()
    }

    /// Addresses, proof and report; `None` if the addresses do not fit although the lower bound does.
    fn lay_out(&self, candidate: Candidate) -> Result<Option<Chosen>, PlanError> {
        // Fragmentation may cost a little more than the bound; a few steps of the dial make up for it.
        let last = (candidate.level + LAYOUT_STEPS).min(self.dial.len() - 1);
        for level in candidate.level..=last {
            let candidate = self.evaluate(candidate.batch, candidate.loss_chunks, level)?;
            let plan = self.assembled(&candidate)?;
            if plan.arena_bytes as u64 + self.recorded(&candidate) <= self.arena_budget {
                verify(&plan)?;
                let report = self.report(&plan, &candidate)?;
                let Candidate { batch, loss_chunks, .. } = candidate;
                return Ok(Some(Chosen { plan, batch, loss_chunks, drops: self.dial[level].clone(), report }));
            }
        }
        Ok(None)
    }
}

type Droppable = BTreeMap<Class, BTreeSet<Option<u32>>>;

fn with(base: &Drops, class: Class, layers: usize) -> Drops {
    let mut drops = base.clone();
    drops.0.insert(class, layers);
    drops
}

fn pinned_drops(pinned: &BTreeMap<String, usize>, classes: &Droppable) -> Result<Drops, PlanError> {
    let mut drops = Drops::default();
    for (name, &layers) in pinned {
        let Some((&class, having)) = classes.iter().find(|(c, _)| c.0 == name) else {
            let known: Vec<&str> = classes.keys().map(|c| c.0).collect();
            return Err(PlanError::Pin(format!(
                "`plan.recompute.{name}`: nothing of that name is kept; it can be {}",
                known.join(", ")
            )));
        };
        let available = having.len();
        if layers > available {
            return Err(PlanError::Pin(format!(
                "`plan.recompute.{name}: {layers}`: the model has {available} such layers"
            )));
        }
        drops.0.insert(class, layers);
    }
    Ok(drops)
}
