//! A model on a device: micro-steps, updates, evaluation and sampling, all inside the planned arena.

use plimsoll_data::{Capacity, DataError, Dataset, ExampleRef, Feed, MicroBatch, pack_groups};
use plimsoll_graph::ops::PAIR_STATS;
use plimsoll_graph::{BatchShape, SlotId};
use plimsoll_models::{Built, Head, OptimizerKind, Parameter, rotary_table};
use plimsoll_plan::{Chosen, Region};
use plimsoll_runtime::{Active, Backend, Executor, Run};

use crate::prepare::capacity;
use crate::{Model, PairMetrics, Spec, TrainError, weights};

pub struct Session {
    executor: Executor,
    built: Built,
    pub(crate) model: Model,
    pub(crate) recipe: plimsoll_models::Recipe,
    seed: u64,
    new_head: bool,
}

/// What one update did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdateResult {
    /// Mean over the loss-bearing tokens of the update, or over its pairs.
    pub loss: f64,
    pub grad_norm: f64,
    pub tokens: usize,
    pub sequences: usize,
    /// The share of the micro-batches' token slots that held a token.
    pub fill_rate: f64,
    /// With a score head.
    pub pairs: Option<PairMetrics>,
}

/// What a dataset's loss is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Mean over the loss-bearing tokens, or over the pairs.
    pub loss: f64,
    /// Tokens that bear loss, or all tokens of the pairs.
    pub tokens: usize,
    pub sequences: usize,
    /// With a score head.
    pub pairs: Option<PairMetrics>,
}

impl Session {
    /// Takes the arena and fills in weights: from the model's files, or drawn from the seed.
    pub(crate) fn start(
        spec: &Spec,
        backend: Box<dyn Backend>,
        chosen: &Chosen,
        built: Built,
        paranoid: bool,
    ) -> Result<Self, TrainError> {
        let checkpoint = weights::open(&spec.model, &built.parameters)?;
        let executor = Executor::new(backend, chosen.plan.clone(), paranoid)?;
        let new_head = checkpoint.as_ref().is_some_and(|files| weights::lacks_score(files, &built.parameters));
        let (model, recipe) = (spec.model.clone(), spec.recipe.clone());
        let mut session = Self { executor, built, model, recipe, seed: spec.seed, new_head };
        let positions = session.executor.plan().batch.max_length;
        let rotary = session.built.inputs.rotary;
        session.executor.write_slot(rotary, &rotary_table(&spec.model.config, positions))?;
        weights::fill(&mut session, checkpoint.as_ref())?;
        Ok(session)
    }

    pub fn parameters(&self) -> &[Parameter] {
        &self.built.parameters
    }

    pub fn executor(&mut self) -> &mut Executor {
        &mut self.executor
    }

    /// Whether the model's files have no score head, so that a new one was drawn.
    pub fn has_new_head(&self) -> bool {
        self.new_head
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// The float32 copy of a trained sixteen-bit parameter, where there is one.
    pub(crate) fn master_of(&self, parameter: &str) -> Option<SlotId> {
        self.built.state.iter().find(|s| s.parameter == parameter).and_then(|s| s.master)
    }

    /// Where some rows of a slot lie.
    pub(crate) fn part_region(&self, slot: SlotId, first_row: usize, rows: usize) -> Region {
        let whole = self.executor.plan().slot(slot);
        let row_bytes = whole.bytes / self.executor.plan().slots.get(slot).shape.rows();
        Region { offset: whole.offset + first_row * row_bytes, bytes: rows * row_bytes, ..whole }
    }

    /// The gradient summed up since the last update, of one parameter.
    pub fn gradient(&self, parameter: &str) -> Result<Option<Vec<f32>>, TrainError> {
        let Some(state) = self.built.state.iter().find(|s| s.parameter == parameter) else { return Ok(None) };
        let elements = self.executor.plan().slots.get(state.grad).shape.elements();
        let mut values = vec![0f32; elements];
        self.executor.read_slot(state.grad, &mut values)?;
        Ok(Some(values))
    }

    pub(crate) fn max_length(&self) -> usize {
        self.executor.plan().batch.max_length
    }

    pub fn capacity(&self) -> Capacity {
        capacity(self.executor.plan().batch, self.recipe.head.group())
    }

    /// Bins the examples of one update, whole groups of them.
    pub fn pack(&self, examples: &[ExampleRef]) -> Result<Vec<MicroBatch>, DataError> {
        let max_length = self.executor.plan().batch.max_length;
        pack_groups(examples, self.recipe.head.group(), max_length, self.capacity())
    }

    /// Loads a micro-batch for a device that may want its planned shape filled.
    pub(crate) fn load_whole(&mut self, batch: &MicroBatch) -> Result<Active, TrainError> {
        if self.executor.backend().fixed_shape() {
            let shape = self.executor.plan().batch;
            return self.load_batch(&filled_up(batch, shape, self.recipe.head));
        }
        self.load_batch(batch)
    }

    fn load_batch(&mut self, batch: &MicroBatch) -> Result<Active, TrainError> {
        let inputs = self.built.inputs;
        self.executor.write_slot(inputs.tokens, &batch.tokens)?;
        self.executor.write_slot(inputs.targets, &batch.targets)?;
        self.executor.write_slot(inputs.positions, &batch.positions)?;
        self.executor.write_slot(inputs.row_ids, &batch.row_ids)?;
        self.executor.write_slot(inputs.boundaries, &batch.cu_seqlens)?;
        Ok(Active { tokens: batch.len(), sequences: batch.sequences() })
    }

    /// Runs the micro-steps of one update and returns the loss; gradients are left summed up.
    pub fn accumulate(&mut self, batches: &[MicroBatch], step: u64) -> Result<f64, TrainError> {
        let terms: usize = batches.iter().map(|batch| self.loss_terms(batch)).sum();
        self.begin_update(terms as u64, step)?;
        for batch in batches {
            self.micro_step(batch)?;
        }
        self.read_loss()
    }

    /// `terms` is what the loss of the whole update is a mean of.
    fn begin_update(&mut self, terms: u64, step: u64) -> Result<(), TrainError> {
        let inputs = self.built.inputs;
        let key = [self.seed as u32, (self.seed >> 32) as u32, step as u32, (step >> 32) as u32];
        self.executor.write_slot(inputs.rng_key, &key)?;
        self.executor.write_slot(inputs.loss_scale, &[1.0 / terms.max(1) as f32])?;
        self.clear_loss()
    }

    fn micro_step(&mut self, batch: &MicroBatch) -> Result<(), TrainError> {
        let active = self.load_whole(batch)?;
        Ok(self.executor.run(Run::MicroStep, active)?)
    }

    /// What the loss is a mean of: tokens, or pairs.
    fn loss_terms(&self, batch: &MicroBatch) -> usize {
        match self.recipe.head {
            Head::Vocabulary => batch.loss_tokens(),
            Head::Score => batch.sequences() / 2,
        }
    }

    fn clear_loss(&mut self) -> Result<(), TrainError> {
        let inputs = self.built.inputs;
        self.executor.write_slot(inputs.loss, &[0f64])?;
        if let Some(stats) = inputs.pair_stats {
            self.executor.write_slot(stats, &[0f64; PAIR_STATS])?;
        }
        Ok(())
    }

    /// What was counted since the loss was last cleared; `None` without a score head.
    fn read_pairs(&self) -> Result<Option<PairMetrics>, TrainError> {
        let Some(slot) = self.built.inputs.pair_stats else { return Ok(None) };
        let mut stats = [0f64; PAIR_STATS];
        self.executor.read_slot(slot, &mut stats)?;
        Ok(Some(PairMetrics::from_stats(stats)))
    }

    fn read_loss(&self) -> Result<f64, TrainError> {
        let mut loss = [0f64];
        self.executor.read_slot(self.built.inputs.loss, &mut loss)?;
        Ok(loss[0])
    }

    /// Applies the summed gradients. Returns their norm before clipping; if it is not finite, nothing was applied.
    pub fn apply(&mut self, step: u64, lr: f64) -> Result<f64, TrainError> {
        let inputs = self.built.inputs;
        let correction = |beta: f32| (1.0 - f64::from(beta).powi(step.min(i32::MAX as u64) as i32)) as f32;
        let hyper = match self.recipe.optimizer {
            OptimizerKind::AdamW { beta1, beta2, .. } => [lr as f32, correction(beta1), correction(beta2), step as f32],
            OptimizerKind::Sgd { .. } => [lr as f32, 1.0, 1.0, step as f32],
        };
        self.executor.write_slot(inputs.hyper, &hyper)?;
        self.executor.run(Run::Update, Active { tokens: 0, sequences: 0 })?;
        let mut clip = [0f32; 2];
        self.executor.read_slot(inputs.clip, &mut clip)?;
        Ok(f64::from(clip[0]))
    }

    /// One whole update. A loss or a gradient that is not a number stops before the weights are touched.
    pub fn update(&mut self, batches: &[MicroBatch], step: u64, lr: f64) -> Result<UpdateResult, TrainError> {
        let loss = self.accumulate(batches, step)?;
        let grad_norm = self.apply_checked(loss, step, lr)?;
        let tokens = batches.iter().map(MicroBatch::len).sum();
        let sequences = batches.iter().map(MicroBatch::sequences).sum();
        let fill_rate = tokens as f64 / (batches.len() * self.capacity().tokens).max(1) as f64;
        Ok(UpdateResult { loss, grad_norm, tokens, sequences, fill_rate, pairs: self.read_pairs()? })
    }

    /// As [`Session::update`], with the feed's next update, one micro-batch at a time.
    pub fn update_from(&mut self, feed: &mut Feed, step: u64, lr: f64) -> Result<UpdateResult, TrainError> {
        let head = feed.next_update()?;
        let terms = match self.recipe.head {
            Head::Vocabulary => head.loss_tokens,
            Head::Score => head.sequences / 2,
        };
        self.begin_update(terms, step)?;
        while let Some(batch) = feed.next_batch()? {
            self.micro_step(&batch)?;
        }
        let loss = self.read_loss()?;
        let grad_norm = self.apply_checked(loss, step, lr)?;
        let (tokens, sequences) = (head.tokens as usize, head.sequences as usize);
        Ok(UpdateResult { loss, grad_norm, tokens, sequences, fill_rate: head.fill_rate, pairs: self.read_pairs()? })
    }

    fn apply_checked(&mut self, loss: f64, step: u64, lr: f64) -> Result<f64, TrainError> {
        if !loss.is_finite() {
            return Err(TrainError::NotANumber { step, loss });
        }
        let norm = self.apply(step, lr)?;
        if !norm.is_finite() {
            return Err(TrainError::BadGradient { step, norm });
        }
        Ok(norm)
    }

    /// The mean loss over a dataset.
    pub fn evaluate(&mut self, data: &Dataset) -> Result<Evaluation, TrainError> {
        let (mut terms, mut tokens, mut sequences) = (0, 0, 0);
        self.executor.write_slot(self.built.inputs.loss_scale, &[1f32])?;
        self.clear_loss()?;
        let mut batches = data.sequential(self.capacity())?;
        while let Some(batch) = batches.next_batch()? {
            let active = self.load_whole(batch)?;
            self.executor.run(Run::Evaluate, active)?;
            terms += self.loss_terms(batch);
            tokens += if self.recipe.head == Head::Score { batch.len() } else { batch.loss_tokens() };
            sequences += batch.sequences();
        }
        let loss = self.read_loss()? / terms.max(1) as f64;
        Ok(Evaluation { loss, tokens, sequences, pairs: self.read_pairs()? })
    }

    /// Continues each prompt with its likeliest tokens until `stop` or `max_new` of them.
    pub fn sample(
        &mut self,
        prompts: &[Vec<u32>],
        stop: Option<u32>,
        max_new: usize,
    ) -> Result<Vec<Vec<u32>>, TrainError> {
        if prompts.is_empty() {
            return Ok(Vec::new());
        }
        let Some(&buffer) = self.executor.results(Run::Sample).first() else { return Err(TrainError::NoText) };
        let (rows, vocab) = (buffer.shape.rows(), buffer.shape.cols());
        let batch = self.executor.plan().batch;
        let side_by_side = rows.min((batch.tokens / batch.max_length).max(1));
        let mut answers = Vec::with_capacity(prompts.len());
        for group in prompts.chunks(side_by_side) {
            let mut texts: Vec<Vec<u32>> = group.to_vec();
            let mut done = vec![false; texts.len()];
            for _ in 0..max_new {
                for (text, done) in texts.iter().zip(&mut done) {
                    *done |= text.is_empty() || text.len() >= batch.max_length;
                }
                let open: Vec<usize> = (0..texts.len()).filter(|&i| !done[i]).collect();
                if open.is_empty() {
                    break;
                }
                let flat = flat_batch(open.iter().map(|&i| texts[i].as_slice()));
                let active = self.load_batch(&flat)?;
                self.executor.run(Run::Sample, active)?;
                let mut logits = vec![0f32; open.len() * vocab];
                self.executor.read_result(&buffer, &mut logits)?;
                for (&i, row) in open.iter().zip(logits.chunks_exact(vocab)) {
                    let token = likeliest(row);
                    texts[i].push(token);
                    done[i] |= Some(token) == stop;
                }
            }
            let new = texts.into_iter().zip(group).map(|(text, prompt)| text[prompt.len()..].to_vec());
            answers.extend(new);
        }
        Ok(answers)
    }
}

/// The micro-batch with every token slot taken: the rest is sequences of token 0 without loss, then empty ones.
/// Where sequences are compared, each of these stands beside an empty one, so that the pair does not count.
fn filled_up(batch: &MicroBatch, shape: BatchShape, head: Head) -> MicroBatch {
    let mut full = batch.clone();
    while full.len() < shape.tokens {
        let length = (shape.tokens - full.len()).min(shape.max_length);
        full.tokens.extend(vec![0; length]);
        full.targets.extend(vec![plimsoll_data::NO_LOSS; length]);
        full.positions.extend(0..length as i32);
        full.row_ids.extend(vec![0; length]);
        full.cu_seqlens.extend(vec![full.tokens.len() as i32; head.group()]);
    }
    full.cu_seqlens.resize(shape.sequences + 1, shape.tokens as i32);
    full
}

/// Sequences one behind another, without targets.
fn flat_batch<'a>(sequences: impl Iterator<Item = &'a [u32]>) -> MicroBatch {
    let mut flat = MicroBatch { cu_seqlens: vec![0], ..MicroBatch::default() };
    for tokens in sequences {
        flat.tokens.extend(tokens.iter().map(|t| t.cast_signed()));
        flat.positions.extend(0..tokens.len() as i32);
        flat.cu_seqlens.push(flat.tokens.len() as i32);
    }
    flat.targets = vec![plimsoll_data::NO_LOSS; flat.tokens.len()];
    flat.row_ids = vec![0; flat.tokens.len()];
    flat
}

fn likeliest(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(index, _)| index as u32)
}
