//! A model on a device: micro-steps, updates and evaluation, all inside the planned arena.

use std::iter::repeat;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_data::{
    Capacity, DataError, Dataset, ExampleRef, Feed, FillShape, MicroBatch, NO_LOSS, PerStream, TokenStream, pack_groups,
};
use plimsoll_graph::{ScheduleId, SlotId, StreamShape, Streams};
use plimsoll_models::{Built, Inputs, Parameter, ParameterKind, Recipe, position_buckets, rotary_table};
use plimsoll_plan::{Plan, Region};
use plimsoll_runtime::weights::Checkpoint;
use plimsoll_runtime::{Active, ActiveStream, Backend, BadNumber, Executor};

use crate::bits::BitsPerByte;
use crate::checkpoint::{BaseMark, PlanPosition};
use crate::prepare::{capacity, per_stream};
use crate::{Amounts, Ending, LossPart, Metrics, Model, Sampling, Spec, Task, TrainError, weights};

pub struct Session {
    executor: Executor,
    built: Built,
    pub(crate) model: Model,
    pub(crate) task: Arc<dyn Task>,
    pub(crate) recipe: Recipe,
    seed: u64,
    new_head: bool,
    /// Where the weights that adapters stand beside were written, if no files had them.
    base: Option<PathBuf>,
    /// Of every token; empty if nobody said.
    byte_lengths: Vec<u32>,
    plan: PlanPosition,
    /// Of host memory, for checkpoints to be written from while training goes on; 0 if training waits for them.
    snapshot_bytes: u64,
    /// What adapters stand beside; `None` where there are none.
    base_mark: Option<BaseMark>,
}

/// What one update did.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateResult {
    /// The mean over what the task's loss is a mean of: loss-bearing tokens, pairs, sequences.
    pub loss: f64,
    pub grad_norm: f64,
    pub amounts: Amounts,
    /// The share of the micro-batches' token slots that held a token.
    pub fill_rate: f64,
    /// What the task reports, by name.
    pub metrics: Metrics,
}

/// The gradients of an update are summed up; they have not been applied.
pub(crate) struct Accumulated {
    pub loss: f64,
    pub amounts: Amounts,
    pub fill_rate: f64,
    pub metrics: Metrics,
}

/// What a dataset's loss is.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// A mean as in [`UpdateResult::loss`].
    pub loss: f64,
    /// Tokens that count as evaluated.
    pub tokens: u64,
    pub sequences: u64,
    /// What the task reports, by name.
    pub metrics: Metrics,
}

/// An update's micro-batches as the device takes them, and what they had before they were filled up.
#[derive(Debug, Clone)]
pub struct PackedUpdate {
    pub batches: Vec<MicroBatch>,
    pub amounts: Amounts,
}

impl Session {
    /// Takes the arena. There are no weights in it yet.
    pub(crate) fn new(
        spec: &Spec,
        backend: Box<dyn Backend>,
        built: Built,
        plan: Plan,
        position: PlanPosition,
        snapshot_bytes: u64,
        paranoid: bool,
    ) -> Result<Self, TrainError> {
        let executor = Executor::new(backend, plan, paranoid)?;
        let (model, task, recipe) = (spec.model.clone(), spec.task.clone(), spec.recipe.clone());
        Ok(Self {
            executor,
            built,
            model,
            task,
            recipe,
            seed: spec.seed,
            new_head: false,
            base: None,
            byte_lengths: Vec::new(),
            plan: position,
            snapshot_bytes,
            base_mark: None,
        })
    }

    /// Fills in weights: from the model's files, or drawn from the seed.
    pub(crate) fn fill_weights(
        &mut self,
        checkpoint: Option<&Checkpoint>,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TrainError> {
        if self.recipe.lora.is_some() && !self.built.trained.is_empty() {
            self.base_mark = Some(BaseMark::of(checkpoint)?);
        }
        self.new_head = checkpoint.is_some_and(|files| weights::lacks_head(files, &self.built.parameters));
        if let (Some(slot), Some(rotary)) = (self.built.inputs.rotary, &self.model.config.rotary) {
            let table = rotary_table(rotary, self.max_length());
            self.executor.write_slot(slot, &table)?;
        }
        for (stack, &slot) in self.model.config.stacks.iter().zip(&self.built.inputs.position_buckets) {
            if let (Some(bias), Some(slot)) = (&stack.position_bias, slot) {
                let length = self.executor.plan().batch.streams[stack.stream].max_length;
                self.executor.write_slot(slot, &position_buckets(bias, length, length))?;
            }
        }
        weights::fill(self, checkpoint, tick)
    }

    pub(crate) fn inputs(&self) -> &Inputs {
        &self.built.inputs
    }

    /// Gives the arena back.
    pub(crate) fn release(self) -> Result<Box<dyn Backend>, TrainError> {
        Ok(self.executor.release()?)
    }

    /// How many bytes of text each token stands for, so that evaluation can report bits per byte.
    pub fn set_byte_lengths(&mut self, byte_lengths: Vec<u32>) {
        self.byte_lengths = byte_lengths;
    }

    pub fn parameters(&self) -> &[Parameter] {
        &self.built.parameters
    }

    pub fn executor(&mut self) -> &mut Executor {
        &mut self.executor
    }

    pub(crate) fn set_base(&mut self, folder: PathBuf) {
        self.base = Some(folder);
    }

    /// What a PEFT folder names as its base.
    pub(crate) fn base_name(&self) -> String {
        self.base.as_ref().map_or_else(|| self.model.name(), |folder| folder.display().to_string())
    }

    /// Whether the model's files do not have the task's head, so that a new one was drawn.
    pub fn has_new_head(&self) -> bool {
        self.new_head
    }

    /// Modules of the task's head, as Hugging Face names them.
    pub(crate) fn head_modules(&self) -> Vec<String> {
        let heads = self.parameters().iter().filter(|p| p.kind == ParameterKind::Head).flat_map(|p| &p.tensors);
        heads.map(|tensor| tensor.name.trim_end_matches(".weight").to_owned()).collect()
    }

    /// What of its plan shows in the bits of the result.
    pub(crate) fn plan_position(&self) -> PlanPosition {
        self.plan
    }

    pub(crate) fn snapshot_bytes(&self) -> u64 {
        self.snapshot_bytes
    }

    pub(crate) fn base_mark(&self) -> Option<&BaseMark> {
        self.base_mark.as_ref()
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// The float32 copy of a trained sixteen-bit parameter, where there is one.
    pub(crate) fn master_of(&self, parameter: &str) -> Option<SlotId> {
        self.built.trained.iter().find(|s| s.parameter == parameter).and_then(|s| s.master)
    }

    /// Where some rows of a slot lie.
    pub(crate) fn rows_region(&self, slot: SlotId, first_row: usize, rows: usize) -> Region {
        let whole = self.executor.plan().slot(slot);
        let row_bytes = whole.bytes / self.executor.plan().slots.get(slot).shape.rows();
        Region { offset: whole.offset + first_row * row_bytes, bytes: rows * row_bytes, ..whole }
    }

    /// The gradient summed up since the last update, of one parameter.
    pub fn gradient(&self, parameter: &str) -> Result<Option<Vec<f32>>, TrainError> {
        let Some(trained) = self.built.trained.iter().find(|s| s.parameter == parameter) else { return Ok(None) };
        let elements = self.executor.plan().slots.get(trained.grad).shape.elements();
        let mut values = vec![0f32; elements];
        self.executor.read_slot(trained.grad, &mut values)?;
        Ok(Some(values))
    }

    pub(crate) fn shapes(&self) -> Streams<StreamShape> {
        self.executor.plan().batch.streams
    }

    /// Of the main stream.
    pub fn max_length(&self) -> usize {
        self.shapes().main().max_length
    }

    pub(crate) fn max_lengths(&self) -> PerStream<usize> {
        per_stream(self.shapes().map(|stream| stream.max_length))
    }

    pub fn capacity(&self) -> Capacity {
        capacity(self.executor.plan().batch, self.task.group())
    }

    /// Bins the examples of one update, whole groups of them.
    pub fn pack(&mut self, examples: &[ExampleRef]) -> Result<PackedUpdate, DataError> {
        let mut batches = pack_groups(examples, self.task.group(), self.max_lengths(), self.capacity())?;
        let mut amounts = Amounts::default();
        for batch in &mut batches {
            amounts += Amounts::from(&*batch);
            self.fill_up(batch);
        }
        Ok(PackedUpdate { batches, amounts })
    }

    /// Takes every slot of the planned shape, for devices that compute them all.
    fn fill_up(&mut self, batch: &mut MicroBatch) {
        if self.executor.backend().fixed_shape() {
            self.fill_shape(batch);
        }
    }

    pub(crate) fn fill_shape(&self, batch: &mut MicroBatch) {
        let fill = |s: StreamShape| FillShape { tokens: s.tokens, sequences: s.sequences, max_length: s.max_length };
        batch.fill_up(&per_stream(self.shapes().map(fill)), self.task.group());
    }

    /// Writes a micro-batch to the device.
    pub(crate) fn load(&mut self, batch: &MicroBatch) -> Result<Active, TrainError> {
        let Self { executor, built: Built { inputs, .. }, .. } = self;
        for (slots, stream) in inputs.streams.iter().zip(&batch.streams) {
            executor.write_slot(slots.tokens, &stream.tokens)?;
            executor.write_slot(slots.positions, &stream.positions)?;
            executor.write_slot(slots.row_ids, &stream.row_ids)?;
            executor.write_slot(slots.boundaries, &stream.cu_seqlens)?;
        }
        executor.write_slot(inputs.targets, &batch.targets)?;
        if let Some(labels) = inputs.labels {
            executor.write_slot(labels, &batch.labels)?;
        }
        if let Some(marks) = inputs.marks {
            executor.write_slot(marks, &batch.marks)?;
        }
        let active = |stream: &TokenStream| ActiveStream { tokens: stream.len(), sequences: stream.sequences() };
        let streams: Vec<ActiveStream> = batch.streams.iter().map(active).collect();
        Ok(Active { streams: Streams::new(&streams) })
    }

    /// Runs the micro-steps of one update and returns the loss; gradients are left summed up.
    pub fn accumulate(&mut self, update: &PackedUpdate, step: u64) -> Result<f64, TrainError> {
        self.begin_update(&update.amounts, step)?;
        for batch in &update.batches {
            self.micro_step(batch)?;
        }
        self.read_loss(repeat(1.0))
    }

    fn begin_update(&mut self, amounts: &Amounts, step: u64) -> Result<(), TrainError> {
        let key = [self.seed as u32, (self.seed >> 32) as u32, step as u32, (step >> 32) as u32];
        self.executor.write_slot(self.built.inputs.rng_key, &key)?;
        let scales: Vec<f64> = self.task.loss_parts(amounts).iter().map(LossPart::scale).collect();
        self.clear_loss(&scales)
    }

    fn micro_step(&mut self, batch: &MicroBatch) -> Result<(), TrainError> {
        let active = self.load(batch)?;
        Ok(self.executor.run(ScheduleId::MICRO_STEP, active)?)
    }

    /// `scales`: what the addends of each part of the loss are multiplied by.
    fn clear_loss(&mut self, scales: &[f64]) -> Result<(), TrainError> {
        let Self { executor, built: Built { inputs, .. }, .. } = self;
        for (term, &scale) in inputs.terms.iter().zip(scales) {
            executor.write_slot(term.scale, &[scale as f32])?;
            executor.write_slot(term.loss, &[0f64])?;
        }
        if let Some(stats) = inputs.stats {
            let zeros = vec![0f64; executor.plan().slots.get(stats).shape.elements()];
            executor.write_slot(stats, &zeros)?;
        }
        Ok(())
    }

    /// What the task makes of what was counted since the loss was last cleared.
    fn read_metrics(&self) -> Result<Metrics, TrainError> {
        let Some(slot) = self.built.inputs.stats else { return Ok(self.task.metrics(&[])) };
        let mut stats = vec![0f64; self.executor.plan().slots.get(slot).shape.elements()];
        self.executor.read_slot(slot, &mut stats)?;
        Ok(self.task.metrics(&stats))
    }

    /// The sum of all parts, each multiplied once more.
    fn read_loss(&self, factors: impl IntoIterator<Item = f64>) -> Result<f64, TrainError> {
        let mut total = 0.0;
        for (term, factor) in self.built.inputs.terms.iter().zip(factors) {
            let mut loss = [0f64];
            self.executor.read_slot(term.loss, &mut loss)?;
            total += factor * loss[0];
        }
        Ok(total)
    }

    /// Applies the summed gradients. Returns their norm before clipping; if it is not finite, nothing was applied.
    pub fn apply(&mut self, step: u64, lr: f64) -> Result<f64, TrainError> {
        let Self { executor, built: Built { inputs, .. }, recipe, .. } = self;
        for (group, &hyper) in recipe.groups.iter().zip(&inputs.hyper) {
            executor.write_slot(hyper, &group.optimizer.hyper(step, lr * group.lr_factor))?;
        }
        let nothing = Active::nothing(executor.plan().batch);
        executor.run(ScheduleId::UPDATE, nothing)?;
        let mut clip = [0f32; 2];
        executor.read_slot(inputs.clip, &mut clip)?;
        Ok(f64::from(clip[0]))
    }

    /// One whole update. A loss or a gradient that is not a number stops before the weights are touched.
    pub fn update(&mut self, update: &PackedUpdate, step: u64, lr: f64) -> Result<UpdateResult, TrainError> {
        let loss = self.accumulate(update, step)?;
        let grad_norm = self.apply_checked(loss, step, lr)?;
        let (amounts, slots) = (update.amounts, update.batches.len() * self.shapes().main().tokens);
        let fill_rate = amounts.tokens as f64 / slots.max(1) as f64;
        Ok(UpdateResult { loss, grad_norm, amounts, fill_rate, metrics: self.read_metrics()? })
    }

    /// As [`Session::accumulate`], with the feed's next update, one micro-batch at a time. What has still to be done of the
    /// update is to apply it. `tick` gets the micro-batches done and all.
    pub(crate) fn accumulate_from(
        &mut self,
        feed: &mut Feed,
        step: u64,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<Accumulated, TrainError> {
        let head = feed.next_update()?;
        let amounts = Amounts::from(&head);
        self.begin_update(&amounts, step)?;
        let mut done = 0;
        while let Some(mut batch) = feed.next_batch()? {
            self.fill_up(&mut batch);
            self.micro_step(&batch)?;
            done += 1;
            tick(done, head.micro_batches);
        }
        let (loss, metrics) = (self.read_loss(repeat(1.0))?, self.read_metrics()?);
        Ok(Accumulated { loss, amounts, fill_rate: head.fill_rate, metrics })
    }

    /// Throws away what was accumulated, so that the next update begins with none of it.
    pub(crate) fn discard(&mut self) -> Result<(), TrainError> {
        let Self { executor, built, .. } = self;
        built.trained.iter().try_for_each(|trained| Ok(executor.clear_slot(trained.grad)?))
    }

    /// Runs the feed's next update operator by operator and names the first that makes a value that is not finite. Nothing
    /// is left accumulated.
    pub(crate) fn find_bad_number(&mut self, feed: &mut Feed, step: u64) -> Result<Option<BadNumber>, TrainError> {
        let head = feed.next_update()?;
        self.begin_update(&Amounts::from(&head), step)?;
        let mut found = None;
        while let (None, Some(mut batch)) = (found, feed.next_batch()?) {
            self.fill_up(&mut batch);
            let active = self.load(&batch)?;
            found = self.executor.run_checked(ScheduleId::MICRO_STEP, active)?;
        }
        self.discard()?;
        Ok(found)
    }

    fn apply_checked(&mut self, loss: f64, step: u64, lr: f64) -> Result<f64, TrainError> {
        if !loss.is_finite() {
            return Err(TrainError::NotANumber { step, loss, origin: None });
        }
        let norm = self.apply(step, lr)?;
        if !norm.is_finite() {
            return Err(TrainError::BadGradient { step, norm, origin: None });
        }
        Ok(norm)
    }

    /// The mean loss over a dataset.
    pub fn evaluate(&mut self, data: &Dataset) -> Result<Evaluation, TrainError> {
        let mut amounts = Amounts::default();
        // What the parts are means of is only known behind the last micro-batch.
        self.clear_loss(&vec![1.0; self.built.inputs.terms.len()])?;
        let mut batches = data.sequential(self.capacity())?;
        let mut bits = BitsPerByte::default();
        while let Some(batch) = batches.next_batch()? {
            amounts += Amounts::from(&*batch);
            self.fill_up(batch);
            let active = self.load(batch)?;
            self.executor.run(ScheduleId::EVALUATE, active)?;
            if self.task.reports_bits_per_byte() && !self.byte_lengths.is_empty() {
                bits.count(&self.executor, &batch.targets, &self.byte_lengths)?;
            }
        }
        let loss = self.read_loss(self.task.loss_parts(&amounts).iter().map(LossPart::scale))?;
        let (tokens, sequences) = (self.task.evaluated_tokens(&amounts), amounts.sequences);
        let metrics = self.read_metrics()?;
        let metrics = match bits.value() {
            Some(value) => metrics.with("bits_per_byte", value),
            None => metrics,
        };
        Ok(Evaluation { loss, tokens, sequences, metrics })
    }

    /// Continues each prompt with its likeliest tokens until `stop` or `max_new` of them. A model with an encoder reads the
    /// prompts there and begins texts of its own.
    pub fn sample(
        &mut self,
        prompts: &[Vec<u32>],
        stop: Option<u32>,
        max_new: usize,
    ) -> Result<Vec<Vec<u32>>, TrainError> {
        if self.built.inputs.cache.is_some() {
            let ending = Ending { stop: stop.into_iter().collect(), max_new };
            let all = self.generate(prompts, &Sampling::GREEDY, &ending, &mut |_, _| ControlFlow::Continue(()))?;
            return Ok(all.into_iter().map(|generated| generated.tokens).collect());
        }
        if prompts.is_empty() {
            return Ok(Vec::new());
        }
        let Some(&buffer) = self.executor.results(ScheduleId::SAMPLE).first() else { return Err(TrainError::NoText) };
        let (rows, vocab) = (buffer.shape.rows(), buffer.shape.cols());
        let batch = self.executor.plan().batch.main();
        let of_stream = |stream: &StreamShape| (stream.tokens / stream.max_length).max(1);
        let shapes = self.shapes();
        let side_by_side = shapes.as_slice().iter().map(of_stream).fold(rows, usize::min);
        let longest_prompt = shapes.as_slice().last().expect("there is a stream").max_length;
        let mut answers = Vec::with_capacity(prompts.len());
        for group in prompts.chunks(side_by_side) {
            let start = self.model.config.decoder_start;
            let begun = |prompt: &Vec<u32>| start.map_or_else(|| prompt.clone(), |start| vec![start]);
            let mut texts: Vec<Vec<u32>> = group.iter().map(begun).collect();
            let given: Vec<usize> = texts.iter().map(Vec::len).collect();
            let mut done: Vec<bool> = group.iter().map(|prompt| prompt.len() > longest_prompt).collect();
            for _ in 0..max_new {
                for (text, done) in texts.iter().zip(&mut done) {
                    *done |= text.is_empty() || text.len() >= batch.max_length;
                }
                let open: Vec<usize> = (0..texts.len()).filter(|&i| !done[i]).collect();
                if open.is_empty() {
                    break;
                }
                let mut flat = flat_batch(open.iter().map(|&i| texts[i].as_slice()));
                if start.is_some() {
                    flat.streams.push(flat_stream(open.iter().map(|&i| group[i].as_slice())));
                }
                let active = self.load(&flat)?;
                self.executor.run(ScheduleId::SAMPLE, active)?;
                let mut logits = vec![0f32; open.len() * vocab];
                self.executor.read_result(&buffer, &mut logits)?;
                for (&i, row) in open.iter().zip(logits.chunks_exact(vocab)) {
                    let token = likeliest(row);
                    texts[i].push(token);
                    done[i] |= Some(token) == stop;
                }
            }
            let new = texts.into_iter().zip(given).map(|(text, given)| text[given..].to_vec());
            answers.extend(new);
        }
        Ok(answers)
    }
}

/// Sequences one behind another, without targets.
pub(crate) fn flat_batch<'a>(sequences: impl Iterator<Item = &'a [u32]>) -> MicroBatch {
    let flat = flat_stream(sequences);
    MicroBatch { targets: vec![NO_LOSS; flat.tokens.len()], streams: vec![flat], ..MicroBatch::default() }
}

/// One stream of them.
pub(crate) fn flat_stream<'a>(sequences: impl Iterator<Item = &'a [u32]>) -> TokenStream {
    let mut flat = TokenStream::default();
    for tokens in sequences {
        flat.tokens.extend(tokens.iter().map(|t| t.cast_signed()));
        flat.positions.extend(0..tokens.len() as i32);
        flat.cu_seqlens.push(flat.tokens.len() as i32);
    }
    flat.row_ids = vec![0; flat.tokens.len()];
    flat
}

fn likeliest(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(index, _)| index as u32)
}
