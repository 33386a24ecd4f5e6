//! Models that are started to evaluate or to generate: weights and one layer's activations, far less than training takes.

use plimsoll_graph::{BatchShape, ScheduleId, StreamShape, Streams};
use plimsoll_models::{Built, Purpose, build_inference};
use plimsoll_plan::{Budgets, Chosen, DeviceProfile, Fixed, ForwardRequest, Predicted, estimate, plan_forward};
use plimsoll_runtime::Backend;

use crate::prepare::{Process, Surroundings, start};
use crate::{DataMemory, Prepared, Spec, TrainError};

/// What a model is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inference {
    /// With `text`, also what the model itself says.
    Evaluate { text: bool },
    /// So many sequences side by side at most, of up to the run's greatest length.
    Generate { sequences: usize },
}

/// Tokens of prompts that are taken in at a time, from the fastest to what takes least memory.
const PREFILL_TOKENS: [usize; 3] = [512, 128, 32];
/// Tokens evaluated at a time, where sequences are that long.
const EVALUATED_TOKENS: usize = 4096;
/// So many times as many sequences as there would be of the greatest length, as most are shorter.
const SHORTER: usize = 16;
/// Tokens whose logits are evaluated at a time.
const LOSS_ROWS: usize = 256;

impl Inference {
    /// Micro-batches to consider, the best first.
    fn batches(self, spec: &Spec) -> Vec<BatchShape> {
        let (length, group) = (spec.max_length, spec.task.group());
        match self {
            Inference::Evaluate { .. } => {
                let lengths = Streams::new(&vec![length; spec.model.config.streams()]);
                let most = (EVALUATED_TOKENS / (group * length)).max(1);
                let counts = std::iter::successors(Some(most), |&n| (n > 1).then_some(n / 2));
                let shape = |groups: usize| {
                    let longest = groups * group;
                    BatchShape::with_filling(lengths.map(|length| longest * length), lengths, SHORTER * longest, group)
                };
                counts.map(shape).collect()
            }
            Inference::Generate { sequences } => {
                let counts = std::iter::successors(Some(sequences.max(1)), |&n| (n > 1).then_some(n / 2));
                let mut shapes = Vec::new();
                for sequences in counts {
                    let shape = |tokens| StreamShape { tokens, sequences, max_length: length };
                    for tokens in PREFILL_TOKENS {
                        let tokens = tokens.min(sequences * length);
                        let streams = match spec.model.config.streams() {
                            // Every sequence has a token in a step.
                            1 => Streams::one(shape(tokens.max(sequences))),
                            // What an encoder reads comes whole; sequences themselves grow from one token.
                            _ => Streams::new(&[shape(sequences), shape(tokens.max(length))]),
                        };
                        shapes.push(BatchShape { streams });
                    }
                }
                shapes.dedup();
                shapes
            }
        }
    }

    fn build(self, spec: &Spec, batch: BatchShape) -> Result<Built, TrainError> {
        let purpose = match self {
            Inference::Evaluate { text } => Purpose::Evaluate { loss_chunks: batch.tokens().div_ceil(LOSS_ROWS), text },
            Inference::Generate { .. } => Purpose::Generate,
        };
        Ok(build_inference(&spec.model.config, &*spec.task.head(), &spec.recipe, batch, purpose)?)
    }

    /// One step: a token of every sequence, or a micro-batch evaluated.
    fn predicted(self, spec: &Spec, batch: BatchShape, device: &DeviceProfile) -> Result<Predicted, TrainError> {
        let main = batch.main();
        let (id, tokens) = match self {
            Inference::Evaluate { .. } => (ScheduleId::EVALUATE, main.tokens),
            Inference::Generate { .. } => (ScheduleId::DECODE, main.sequences),
        };
        let mut streams: Vec<StreamShape> = batch.streams.as_slice().to_vec();
        streams[0].tokens = tokens;
        let built = self.build(spec, BatchShape { streams: Streams::new(&streams) })?;
        let step = estimate(built.program.graph(id), device);
        let tokens_per_s = tokens as f64 / step.seconds;
        Ok(Predicted { step_ms: step.seconds * 1e3, tokens_per_s, bound_by: step.bound_by(), limits: step.shares() })
    }
}

/// Plans without touching a device. Of the specification, what is about training does not matter.
pub fn plan_inference(
    spec: &Spec,
    inference: Inference,
    device: &DeviceProfile,
    budgets: Budgets,
    fixed: Fixed,
) -> Result<Chosen<Built>, TrainError> {
    let build = |batch| inference.build(spec, batch);
    let batches = inference.batches(spec);
    let mut chosen = plan_forward(&ForwardRequest { build: &build, batches: &batches, device, budgets, fixed })?;
    chosen.report.predicted = inference.predicted(spec, chosen.batch, device)?;
    Ok(chosen)
}

/// As [`prepare`](crate::prepare), for a model that is not trained.
pub fn prepare_inference(
    spec: &Spec,
    inference: Inference,
    backend: Box<dyn Backend>,
    device: &DeviceProfile,
    budgets: Budgets,
    data: &DataMemory<'_>,
    paranoid: bool,
) -> Result<Prepared, TrainError> {
    let plan = |fixed| plan_inference(spec, inference, device, budgets, fixed);
    let smallest = *inference.batches(spec).last().expect("there is always one");
    let process = Process::Measured;
    start(&Surroundings { spec, device, budgets, data, process, plan: &plan, smallest }, backend, paranoid, &mut |_| {})
}
