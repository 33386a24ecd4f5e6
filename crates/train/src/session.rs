//! A model on a device: micro-steps, updates and evaluation, all inside the planned arena.

use std::iter::repeat;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_data::{
    Capacity, DataError, Dataset, ExampleRef, Feed, FillShape, MicroBatch, PerStream, TokenStream, pack_groups,
};
use plimsoll_graph::{ScheduleId, SlotId, StreamShape, Streams};
use plimsoll_models::{Built, Inputs, Parameter, ParameterKind, Recipe, position_buckets, rotary_table};
use plimsoll_plan::{Plan, Region};
use plimsoll_runtime::weights::Checkpoint;
use plimsoll_runtime::{Active, ActiveStream, Backend, BadNumber, Executor};

use crate::bits::BitsPerByte;
use crate::checkpoint::PlanPosition;
use crate::loss_scale::{LossScale, LossScaling};
use crate::prepare::{capacity, per_stream};
use crate::references::References;
use crate::{
    Amounts, Bad, Ending, LossPart, Metrics, Model, Sampling, Spec, Task, TextComparison, TrainError, weights,
};

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
    pub(crate) comparison: Option<TextComparison>,
    plan: PlanPosition,
    scaling: LossScaling,
    /// Where gradients are those of a scaled loss.
    loss_scale: Option<LossScale>,
    /// Of losses that compare with a model that is no longer there.
    references: Option<References>,
    /// Numbers of a micro-batch's tokens, on their way to the device.
    marks: Vec<f32>,
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
    /// Rows that texts were generated for, where `bleu` is among the metrics.
    pub bleu_rows: Option<u64>,
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
        paranoid: bool,
    ) -> Result<Self, TrainError> {
        let executor = Executor::new(backend, plan, paranoid)?;
        let (model, task, recipe) = (spec.model.clone(), spec.task.clone(), spec.recipe.clone());
        let scaling = LossScaling::default();
        let loss_scale = recipe.scaled_loss.then(|| LossScale::new(&scaling));
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
            comparison: None,
            plan: position,
            scaling,
            loss_scale,
            references: None,
            marks: Vec::new(),
        })
    }

    /// Fills in weights: from the model's files, or drawn from the seed.
    pub(crate) fn fill_weights(
        &mut self,
        checkpoint: Option<&Checkpoint>,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TrainError> {
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

    /// How the scale of the loss begins and goes on, where the recipe has one.
    pub fn set_loss_scaling(&mut self, scaling: LossScaling) {
        self.loss_scale = self.recipe.scaled_loss.then(|| LossScale::new(&scaling));
        self.scaling = scaling;
    }

    pub(crate) fn loss_scale(&self) -> Option<LossScale> {
        self.loss_scale
    }

    /// Goes on with the scale of a checkpoint.
    pub(crate) fn restore_loss_scale(&mut self, saved: Option<LossScale>) {
        self.loss_scale = self.loss_scale.map(|new| saved.unwrap_or(new));
    }

    /// What the loss, and so every gradient, is multiplied by.
    fn scale(&self) -> f64 {
        self.loss_scale.map_or(1.0, |state| state.scale)
    }

    /// Tells the scale of the loss what became of an update. Whether one whose gradients were not finite may fare better
    /// under the smaller scale that the next has.
    pub(crate) fn rescale(&mut self, grad_norm: f64) -> bool {
        let Self { loss_scale: Some(state), scaling, .. } = self else { return false };
        if grad_norm.is_finite() {
            state.applied(scaling);
            return false;
        }
        state.overflowed(scaling)
    }

    /// What a step line says of the scale.
    fn with_scale(&self, metrics: Metrics) -> Metrics {
        match self.loss_scale {
            Some(state) => metrics.with("loss_scale", state.scale).with("skipped", state.skipped as f64),
            None => metrics,
        }
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

    /// The gradient summed up since the last update, of one parameter; `None` where it does not outlive its use.
    pub fn gradient(&self, parameter: &str) -> Result<Option<Vec<f32>>, TrainError> {
        let trained = self.built.trained.iter().find(|s| s.parameter == parameter);
        let Some(grad) = trained.and_then(|trained| trained.grad) else { return Ok(None) };
        let elements = self.executor.plan().slots.get(grad).shape.elements();
        let mut values = vec![0f32; elements];
        self.executor.read_slot(grad, &mut values)?;
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

    /// Whether the loss compares with the model as it was, and nothing of that will be left.
    pub fn needs_references(&self) -> bool {
        self.executor.plan().schedules.contains_key(&ScheduleId::REFERENCE)
    }

    pub(crate) fn set_references(&mut self, references: References) {
        self.references = Some(references);
    }

    /// From now on the loss compares with the model as it is, on these sequences. Training asks about whole datasets.
    pub fn keep_reference(&mut self, update: &PackedUpdate) -> Result<(), TrainError> {
        let references = References::of_batches(self, &update.batches)?;
        self.set_references(references);
        Ok(())
    }

    /// How likely the model as it is finds the answer of each of the micro-batch's sequences, which is then filled up.
    pub(crate) fn reference_log_probs(&mut self, batch: &mut MicroBatch) -> Result<Vec<f32>, TrainError> {
        let mut found = vec![0f32; batch.sequences()];
        self.fill_up(batch);
        let active = self.load(batch)?;
        self.executor.run(ScheduleId::REFERENCE, active)?;
        let result = self.executor.results(ScheduleId::REFERENCE)[0];
        self.executor.read_result(&result, &mut found)?;
        Ok(found)
    }

    /// Writes a micro-batch to the device.
    pub(crate) fn load(&mut self, batch: &MicroBatch) -> Result<Active, TrainError> {
        let Self { executor, built: Built { inputs, .. }, references, marks, .. } = self;
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
        if let Some(slot) = inputs.marks {
            match references {
                Some(references) => references.mark(batch, marks)?,
                // Without numbers, as where time is taken: any will do.
                None if batch.marks.is_empty() => {
                    marks.clear();
                    marks.resize(batch.len(), 0.0);
                }
                None => marks.clone_from(&batch.marks),
            }
            executor.write_slot(slot, marks)?;
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
        self.read_update_loss()
    }

    /// The loss of the update whose micro-steps have run, without its scale.
    fn read_update_loss(&self) -> Result<f64, TrainError> {
        Ok(self.read_loss(repeat(1.0))? / self.scale())
    }

    fn begin_update(&mut self, amounts: &Amounts, step: u64) -> Result<(), TrainError> {
        let key = [self.seed as u32, (self.seed >> 32) as u32, step as u32, (step >> 32) as u32];
        self.executor.write_slot(self.built.inputs.rng_key, &key)?;
        let scale = self.scale();
        let scales: Vec<f64> = self.task.loss_parts(amounts).iter().map(|part| part.scale() * scale).collect();
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

    /// Whether micro-steps apply their gradients themselves.
    pub fn updates_in_backward(&self) -> bool {
        self.built.updates_in_backward()
    }

    /// What the update takes from the host.
    fn write_numbers(&mut self, step: u64, lr: f64) -> Result<(), TrainError> {
        let inverse = self.scale().recip() as f32;
        let Self { executor, built: Built { inputs, .. }, recipe, .. } = self;
        if let Some(unscale) = inputs.unscale {
            executor.write_slot(unscale, &[inverse])?;
        }
        for (group, &hyper) in recipe.groups.iter().zip(&inputs.hyper) {
            executor.write_slot(hyper, &group.optimizer.hyper(step, lr * group.lr_factor))?;
        }
        Ok(())
    }

    /// Applies the summed gradients. Returns their norm before clipping; if it is not finite, nothing was applied. Where
    /// micro-steps apply them, this is only what the norm was.
    pub fn apply(&mut self, step: u64, lr: f64) -> Result<f64, TrainError> {
        if !self.updates_in_backward() {
            self.write_numbers(step, lr)?;
            let nothing = Active::nothing(self.executor.plan().batch);
            self.executor.run(ScheduleId::UPDATE, nothing)?;
        }
        let Self { executor, built: Built { inputs, .. }, .. } = self;
        let mut clip = [0f32; 2];
        executor.read_slot(inputs.clip, &mut clip)?;
        Ok(f64::from(clip[0]))
    }

    /// One whole update. A loss or a gradient that is not a number stops before the weights are touched; where gradients
    /// overflow for the scale of the loss, the update is left out and the next has a smaller scale.
    pub fn update(&mut self, update: &PackedUpdate, step: u64, lr: f64) -> Result<UpdateResult, TrainError> {
        if self.updates_in_backward() {
            assert_eq!(update.batches.len(), 1, "its own backward pass applies an update");
            self.write_numbers(step, lr)?;
        }
        let loss = self.accumulate(update, step)?;
        let grad_norm = self.apply_checked(loss, step, lr)?;
        let (amounts, slots) = (update.amounts, update.batches.len() * self.shapes().main().tokens);
        let fill_rate = amounts.tokens as f64 / slots.max(1) as f64;
        let metrics = self.with_scale(self.read_metrics()?);
        Ok(UpdateResult { loss, grad_norm, amounts, fill_rate, metrics })
    }

    /// As [`Session::accumulate`], with the feed's next update, one micro-batch at a time. What has still to be done of the
    /// update is to apply it. `tick` gets the micro-batches done and all.
    pub(crate) fn accumulate_from(
        &mut self,
        feed: &mut Feed,
        (step, lr): (u64, f64),
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<Accumulated, TrainError> {
        let head = feed.next_update()?;
        let amounts = Amounts::from(&head);
        if self.updates_in_backward() {
            assert_eq!(head.micro_batches, 1, "its own backward pass applies an update");
            self.write_numbers(step, lr)?;
        }
        self.begin_update(&amounts, step)?;
        let mut done = 0;
        while let Some(mut batch) = feed.next_batch()? {
            self.fill_up(&mut batch);
            self.micro_step(&batch)?;
            done += 1;
            tick(done, head.micro_batches);
        }
        let (loss, metrics) = (self.read_update_loss()?, self.with_scale(self.read_metrics()?));
        Ok(Accumulated { loss, amounts, fill_rate: head.fill_rate, metrics })
    }

    /// Throws away what was accumulated, so that the next update begins with none of it.
    pub(crate) fn discard(&mut self) -> Result<(), TrainError> {
        let Self { executor, built, .. } = self;
        built.trained.iter().filter_map(|trained| trained.grad).try_for_each(|grad| Ok(executor.clear_slot(grad)?))
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
        let touched = self.updates_in_backward();
        if !loss.is_finite() {
            return Err(Bad::Loss { loss, origin: None }.stops(step, touched));
        }
        let norm = self.apply(step, lr)?;
        let helps = self.rescale(norm);
        if !norm.is_finite() && !helps {
            return Err(Bad::Gradient { norm, origin: None }.stops(step, touched));
        }
        Ok(norm)
    }

    /// The mean loss over a dataset, and what the task reports of it.
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
        drop(batches);
        let (metrics, bleu_rows) = match self.bleu(data)? {
            Some((score, rows)) => (metrics.with("bleu", score), Some(rows)),
            None => (metrics, None),
        };
        Ok(Evaluation { loss, tokens, sequences, metrics, bleu_rows })
    }

    /// Continues each prompt with its likeliest tokens until `stop` or `max_new` of them. A model with an encoder reads the
    /// prompts there and begins texts of its own.
    pub fn sample(
        &mut self,
        prompts: &[Vec<u32>],
        stop: Option<u32>,
        max_new: usize,
    ) -> Result<Vec<Vec<u32>>, TrainError> {
        if prompts.is_empty() {
            return Ok(Vec::new());
        }
        let ending = Ending { stop: stop.into_iter().collect(), max_new };
        let all = self.generate(prompts, &Sampling::GREEDY, &ending, &mut |_, _| ControlFlow::Continue(()))?;
        Ok(all.into_iter().map(|generated| generated.tokens).collect())
    }
}
