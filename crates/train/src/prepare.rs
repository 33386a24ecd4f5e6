//! From what was asked to a plan on a device, with the process itself measured.

use std::sync::Arc;

use plimsoll_data::{Amount, Capacity, PerStream, StreamCapacity};
use plimsoll_graph::{BatchShape, Streams};
use plimsoll_models::{Built, Recipe, build, build_updating_in_backward, weights_in_few_bits};
use plimsoll_plan::{
    Backing, Budgets, Chosen, DeviceProfile, Fixed, Goal, Picture, Pins, PlanError, Report, Request, SpeedAt, Variant,
    plan, speed_curve,
};
use plimsoll_runtime::Backend;
use plimsoll_runtime::weights::encoding_bytes;

use crate::checkpoint::PlanPosition;
use crate::memory::{peak_resident_bytes, resident_bytes, return_free_memory};
use crate::{Model, Session, Task, TrainError, weights};

/// Everything a plan depends on.
#[derive(Debug, Clone)]
pub struct Spec {
    pub model: Model,
    pub task: Arc<dyn Task>,
    pub recipe: Recipe,
    /// Sequences of one update: exact, unless `tokens` is given.
    pub sequences: usize,
    /// The most tokens of an update that is given in tokens; `sequences` is then the fewest that fill it.
    pub tokens: Option<u64>,
    pub max_length: usize,
    pub goal: Goal,
    pub pins: Pins,
    pub seed: u64,
}

impl Spec {
    /// What an update takes of the data.
    pub fn amount(&self) -> Amount {
        self.tokens.map_or(Amount::Sequences(self.sequences as u64), Amount::Tokens)
    }

    /// Whether the loss compares with the model as it was, and nothing of that will be left.
    pub fn needs_references(&self) -> bool {
        self.task.head().has_reference() && self.recipe.lora.is_none()
    }

    /// Whether parameters may be updated before all gradients are there; if not, what stands against it.
    fn update_in_backward(&self) -> Result<(), String> {
        let against = if self.recipe.scaled_loss {
            "gradients of a scaled loss may overflow, and the update is then left out (`precision: fp16`)"
        } else if self.recipe.clip.is_some() {
            "clipping takes the norm of all gradients first; set `clip: none`"
        } else if self.tokens.is_some() {
            "an update given in tokens (`batch.tokens`) may take several micro-batches"
        } else {
            return Ok(());
        };
        Err(against.to_owned())
    }

    /// The greatest length in each stream.
    fn lengths(&self) -> Streams<usize> {
        Streams::new(&vec![self.max_length; self.model.config.streams()])
    }

    /// What the host needs while the base is put into few bits.
    fn encoding_bytes(&self) -> u64 {
        let stored = weights_in_few_bits(&self.model.config, &*self.task.head(), &self.recipe).unwrap_or_default();
        let matrices = stored.iter().flat_map(|(parameter, storage)| {
            let blocks = storage.blocks.as_ref();
            parameter.tensors.iter().filter_map(move |tensor| Some(encoding_bytes(blocks?, tensor.shape.elements())))
        });
        matrices.max().unwrap_or(0)
    }

    fn check_streams(&self) -> Result<(), TrainError> {
        let model = &self.model.config;
        if model.streams() == self.task.content().streams() {
            return Ok(());
        }
        let (has, other) = if model.streams() > 1 { ("has", "seq2seq") } else { ("lacks", "sft") };
        Err(TrainError::Streams { task: self.task.name(), family: model.family.model_type, has, other })
    }

    /// The smallest micro-batch there can be: one group of sequences.
    fn smallest_batch(&self) -> BatchShape {
        let group = self.task.group();
        BatchShape::with_filling(self.lengths().map(|length| group * length), self.lengths(), group, group)
    }
}

/// What a micro-batch of this shape takes of the data. The places behind are for sequences that fill it up.
pub(crate) fn capacity(batch: BatchShape, group: usize) -> Capacity {
    let sequences = batch.own_sequences(group);
    per_stream(batch.streams.map(|stream| StreamCapacity { tokens: stream.tokens, sequences }))
}

/// One value for each stream, as the data has it.
pub(crate) fn per_stream<T: Copy>(streams: Streams<T>) -> PerStream<T> {
    match *streams.as_slice() {
        [main, source] => PerStream::with_source(main, source),
        _ => PerStream::single(streams.main()),
    }
}

/// A run ready to start.
pub struct Prepared {
    pub session: Session,
    pub report: Report,
    /// What lies where, to be drawn.
    pub picture: Picture,
}

/// What the process may still take besides arena and data once it runs: log lines, batches, a file's pieces.
const HEADROOM_BYTES: u64 = 3 << 20;

/// What reading weights from files leaves in the process: adapters beside a model from a folder used all of the above.
const FILES_BYTES: u64 = 1 << 20;

/// How much of the headroom may have been taken between planning and starting.
const STEADY_BYTES: u64 = 1 << 20;

/// What a driver's threads may add to that: in one of 100 runs on an H200, 2 MiB beyond the above.
const DRIVER_HEADROOM_BYTES: u64 = 4 << 20;

/// What a driver's queue may add where operators are launched one by one, and not replayed as they were recorded: in one
/// of 59 runs on an H200, 6.6 MiB beyond the above.
const QUEUE_HEADROOM_BYTES: u64 = 10 << 20;

/// What a driver and its libraries take on the host while everything runs for the first time, before it is measured.
const LAZY_LOADING_BYTES: u64 = 192 << 20;

/// The driver hands memory out in pages; a figure of its own may move by so much.
const PAGES_BYTES: u64 = 2 * (2 << 20);

/// How often a run is planned again because driver and libraries took more than was planned for them.
const REPLANS_MAX: usize = 3;

/// Whose memory is counted beside the plan's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// This process's, as it is now: the run will be one like it, on this machine.
    Measured,
    /// That of a run on another machine.
    Stated(u64),
}

/// Plans a run with its data, without touching a device. Also what no plan controls beside it.
pub fn plan_run(
    spec: &Spec,
    device: &DeviceProfile,
    budgets: Budgets,
    data: &DataMemory<'_>,
    process: Process,
) -> Result<(Chosen<Built>, Fixed), TrainError> {
    let plan = |fixed| plan_only(spec, device, budgets, fixed);
    let smallest = spec.smallest_batch();
    let here = Surroundings { spec, device, budgets, data, process, plan: &plan, smallest };
    let (mut chosen, fixed) = here.plan(0)?;
    let mut stated = fixed;
    if process == Process::Measured && device.backing == Backing::Host {
        // A run measures the machine and plans as this process did.
        let others =
            here.arena_on_host(&chosen.report) + fixed.host_data_bytes + chosen.report.host.categories.snapshot;
        stated.host_process_bytes = fixed.host_process_bytes.max(peak_resident_bytes().saturating_sub(others));
    }
    chosen.report.restate(&stated);
    Ok((chosen, fixed))
}

/// Plans without touching a device.
pub fn plan_only(
    spec: &Spec,
    device: &DeviceProfile,
    budgets: Budgets,
    fixed: Fixed,
) -> Result<Chosen<Built>, TrainError> {
    with_request(spec, device, budgets, fixed, plan)
}

/// What more memory than these budgets would buy.
pub fn next_gib(
    spec: &Spec,
    device: &DeviceProfile,
    budgets: Budgets,
    fixed: Fixed,
) -> Result<Vec<SpeedAt>, TrainError> {
    with_request(spec, device, budgets, fixed, speed_curve)
}

fn with_request<T>(
    spec: &Spec,
    device: &DeviceProfile,
    budgets: Budgets,
    fixed: Fixed,
    answer: impl FnOnce(&Request<'_, Built, TrainError>) -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    spec.check_streams()?;
    let head = spec.task.head();
    let make = |Variant { batch, chunks, update_in_backward, keep_fp8 }| -> Result<Built, TrainError> {
        let build = if update_in_backward { build_updating_in_backward } else { build };
        let recipe = Recipe { keep_fp8, ..spec.recipe.clone() };
        Ok(build(&spec.model.config, &*head, &recipe, batch, chunks)?)
    };
    answer(&Request {
        build: &make,
        sequences: spec.sequences,
        tokens: spec.tokens.map(|tokens| tokens as usize),
        group: spec.task.group(),
        max_length: spec.lengths(),
        chunked_loss: head.uses_vocabulary(),
        update_in_backward: spec.update_in_backward(),
        device,
        budgets,
        fixed,
        goal: spec.goal,
        pins: spec.pins.clone(),
    })
}

/// What the data takes in the host's memory.
pub struct DataMemory<'a> {
    /// As long as the run lasts.
    pub resident_bytes: u64,
    /// What is held of that already: part of what is measured, with a line of its own.
    pub held_bytes: u64,
    /// What feeding it will take, given what a micro-batch holds.
    pub feed_bytes: &'a dyn Fn(Capacity) -> u64,
}

impl DataMemory<'_> {
    /// Of runs that make their tokens up.
    pub fn none() -> Self {
        Self { resident_bytes: 0, held_bytes: 0, feed_bytes: &|_| 0 }
    }
}

/// What a run is planned and started in.
pub(crate) struct Surroundings<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) device: &'a DeviceProfile,
    pub(crate) budgets: Budgets,
    pub(crate) data: &'a DataMemory<'a>,
    pub(crate) process: Process,
    /// Plans beside what no plan controls.
    pub(crate) plan: &'a dyn Fn(Fixed) -> Result<Chosen<Built>, TrainError>,
    /// The least that a micro-batch can be.
    pub(crate) smallest: BatchShape,
}

impl Surroundings<'_> {
    /// Memory that no plan controls, as it is now. `gpu_excess_bytes` is what turned out to be lacking for driver and
    /// libraries, `later_bytes` what the process will still take.
    fn measured(&self, batch: BatchShape, gpu_excess_bytes: u64, later_bytes: u64) -> Fixed {
        let capacity = capacity(batch, self.spec.task.group());
        let host_process_bytes = match self.process {
            Process::Stated(bytes) => bytes,
            Process::Measured => {
                return_free_memory();
                (resident_bytes() + later_bytes).saturating_sub(self.data.held_bytes)
            }
        };
        Fixed {
            gpu_context_bytes: self.device.context_bytes + gpu_excess_bytes,
            host_process_bytes,
            host_data_bytes: self.data.resident_bytes + (self.data.feed_bytes)(capacity),
        }
    }

    /// What the process will take besides what it has before anything has run.
    fn later_bytes(&self) -> u64 {
        let libraries = if self.device.backing == Backing::Gpu { LAZY_LOADING_BYTES } else { 0 };
        self.headroom_bytes() + libraries
    }

    /// What the process will take besides what it has once everything has run: weights are filled in, and encoded, behind
    /// that.
    fn headroom_bytes(&self) -> u64 {
        let driver = if self.device.backing == Backing::Gpu { DRIVER_HEADROOM_BYTES } else { 0 };
        let files = if self.spec.model.weights_folder().is_some() { FILES_BYTES } else { 0 };
        HEADROOM_BYTES + driver + files + self.spec.encoding_bytes()
    }

    /// Bytes of the host that are not the process's own.
    fn arena_on_host(&self, report: &Report) -> u64 {
        if self.device.backing == Backing::Host { report.layout.arena_bytes } else { 0 }
    }

    /// A plan that fits beside what the process takes, and what that is before anything has run.
    fn plan(&self, gpu_excess_bytes: u64) -> Result<(Chosen<Built>, Fixed), TrainError> {
        let later = self.later_bytes();
        let measured = |batch| self.measured(batch, gpu_excess_bytes, later);
        // What a micro-batch holds is not known before the plan; the least it can be stands in until then.
        let before = measured(self.smallest);
        let mut chosen = match (self.plan)(before) {
            // A refusal names a budget, so it is made again with what the process takes once it has planned.
            Err(TrainError::Plan(PlanError::DoesNotFit { .. })) if measured(self.smallest) != before => {
                (self.plan)(measured(self.smallest))?
            }
            chosen => chosen?,
        };
        // Planning itself left something behind; plan again as long as that no longer fits.
        for _ in 0..REPLANS_MAX {
            let after = measured(chosen.batch);
            if self.fits(&chosen.report, &after) {
                return Ok((chosen, after));
            }
            chosen = (self.plan)(measured(chosen.batch))?;
        }
        let after = measured(chosen.batch);
        Ok((chosen, after))
    }

    /// Whether a plan fits into the host's budget beside what no plan controls.
    fn fits(&self, report: &Report, fixed: &Fixed) -> bool {
        let beside = self.device.staging_bytes + report.host.categories.snapshot;
        let needed = fixed.host_process_bytes + fixed.host_data_bytes + beside;
        self.arena_on_host(report) + needed <= self.budgets.host_bytes
    }

    /// That driver and libraries leave the host within its budget.
    fn check_host(&self, report: &Report) -> Result<(), TrainError> {
        let (needed_bytes, budget_bytes) = (report.host.planned_bytes, self.budgets.host_bytes);
        if needed_bytes <= budget_bytes {
            return Ok(());
        }
        let (largest, alternatives) = (report.host.categories.rows(), Vec::new());
        Err(PlanError::DoesNotFit { memory: "host", budget_bytes, needed_bytes, largest, alternatives }.into())
    }

    /// The true figures of what no plan controls, once the arena is taken and everything has run or will take no more.
    fn restate(&self, report: &mut Report, batch: BatchShape, used: Option<u64>, later_bytes: u64) {
        let arena = self.arena_on_host(report);
        let mut fixed = self.measured(batch, 0, later_bytes);
        // Arena and staging memory are resident by now and have their own lines.
        fixed.host_process_bytes = fixed.host_process_bytes.saturating_sub(arena + self.device.staging_bytes);
        // Reading data, planning and compiling may have needed more for a moment than the run ever will.
        let snapshot = report.host.categories.snapshot;
        let others = arena + fixed.host_data_bytes + self.device.staging_bytes + snapshot;
        fixed.host_process_bytes = fixed.host_process_bytes.max(peak_resident_bytes().saturating_sub(others));
        if let Some(used) = used {
            let planned = report.gpu.planned_bytes - report.gpu.categories.context;
            let context = (used + PAGES_BYTES).min(self.budgets.gpu_bytes).saturating_sub(planned);
            fixed.gpu_context_bytes = context;
        }
        // What the process takes differs by some pages from one look to the next; the headroom is there for them.
        let over = (fixed.host_process_bytes + others).saturating_sub(self.budgets.host_bytes);
        let spared = fixed.host_process_bytes - over.min(STEADY_BYTES).min(fixed.host_process_bytes);
        fixed.host_process_bytes = spared.max(peak_resident_bytes().saturating_sub(others));
        report.restate(&fixed);
    }
}

/// How far a run's preparation is.
#[derive(Clone, Copy, Debug)]
pub enum Preparation<'a> {
    /// The plan is made. What the process itself takes may be stated anew once everything has run.
    Planned(&'a Report),
    /// So much of the weights is filled in.
    Weights { done_bytes: u64, total_bytes: u64 },
}

/// As [`prepare_watched`], with nobody watching.
pub fn prepare(
    spec: &Spec,
    backend: Box<dyn Backend>,
    device: &DeviceProfile,
    budgets: Budgets,
    data: &DataMemory<'_>,
    paranoid: bool,
) -> Result<Prepared, TrainError> {
    prepare_watched(spec, backend, device, budgets, data, paranoid, &mut |_| {})
}

/// Plans with the process measured, takes the arena, runs everything once where that is what loads libraries, states what
/// was really taken, and fills in the weights.
pub fn prepare_watched(
    spec: &Spec,
    backend: Box<dyn Backend>,
    device: &DeviceProfile,
    budgets: Budgets,
    data: &DataMemory<'_>,
    paranoid: bool,
    watch: &mut dyn FnMut(Preparation<'_>),
) -> Result<Prepared, TrainError> {
    let plan = |fixed| plan_only(spec, device, budgets, fixed);
    let smallest = spec.smallest_batch();
    let process = Process::Measured;
    start(&Surroundings { spec, device, budgets, data, process, plan: &plan, smallest }, backend, paranoid, watch)
}

pub(crate) fn start(
    here: &Surroundings<'_>,
    mut backend: Box<dyn Backend>,
    paranoid: bool,
    watch: &mut dyn FnMut(Preparation<'_>),
) -> Result<Prepared, TrainError> {
    let Surroundings { spec, device, budgets, .. } = *here;
    let mut excess = 0;
    for _ in 0..REPLANS_MAX {
        let (chosen, _) = here.plan(excess)?;
        let picture = chosen.picture(device);
        let Chosen { built, plan, mut report, batch, chunks, .. } = chosen;
        // Files that lack something are found before memory is taken for them.
        let checkpoint = weights::open(&spec.model, &built.parameters)?;
        // Before a card has run everything once: that takes seconds.
        let is_early = backend.loads_lazily() && excess == 0;
        if is_early {
            watch(Preparation::Planned(&report));
        }
        let chunked = spec.task.head().uses_vocabulary();
        let position = PlanPosition {
            micro_batch_tokens: report.micro_batch_tokens,
            loss_chunks: chunked.then_some(chunks.loss),
            mlp_chunks: chunks.mlp,
            keep_fp8: !report.keep.is_empty(),
        };
        let snapshot_bytes = report.host.categories.snapshot;
        let mut session = Session::new(spec, backend, built, plan, position, snapshot_bytes, paranoid)?;
        if !session.executor().backend().loads_lazily() || paranoid {
            // Checked step by step, a card has not run everything yet.
            let lazily = session.executor().backend().loads_lazily();
            let later_bytes = if lazily { here.later_bytes() } else { here.headroom_bytes() };
            here.restate(&mut report, batch, None, later_bytes);
        } else {
            session.warm_up()?;
            let used = session.executor().backend().used().map_or(0, |used| used.bytes);
            let over = used.saturating_sub(report.gpu.planned_bytes);
            if over > 0 && used > budgets.gpu_bytes {
                excess += over + PAGES_BYTES;
                backend = session.release()?;
                continue;
            }
            let queue_bytes = if session.executor().backend().fixed_shape() { 0 } else { QUEUE_HEADROOM_BYTES };
            here.restate(&mut report, batch, Some(used), here.headroom_bytes() + queue_bytes);
            here.check_host(&report)?;
        }
        if !is_early && excess == 0 {
            watch(Preparation::Planned(&report));
        }
        session.fill_weights(checkpoint.as_ref(), &mut |done_bytes, total_bytes| {
            watch(Preparation::Weights { done_bytes, total_bytes });
        })?;
        return Ok(Prepared { session, report, picture });
    }
    Err(TrainError::Unsteady { times: REPLANS_MAX })
}
