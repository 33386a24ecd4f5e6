//! A model, a method and an optimizer as one program: micro-step, update, evaluation, generation.

use std::collections::BTreeMap;

use plimsoll_graph::ops::HYPER_LEN;
use plimsoll_graph::{
    BatchShape, Cadence, Chunks, DType, Extent, Graph, GraphError, Program, Role, ScheduleGraph, ScheduleId, Shape,
    Slot, SlotId, SlotTable, StreamId, WeightFormat, differentiate, differentiate_transient, fuse_backward,
    fuse_forward, keep_rounded, sink_gradients,
};

use crate::forward::Forward;
use crate::inference::{generating, places_beside};
use crate::registry::Registry;
use crate::update::{training_slots, update, update_in_backward};
use crate::{Architecture, CacheInputs, Head, Lora, ModelError, Parameter, ParameterGroup};

/// What is trained, and how numbers are stored.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// With an adapter, the base is frozen.
    pub lora: Option<Lora>,
    /// Hugging Face names with `*`.
    pub freeze: Vec<String>,
    /// The last one has whatever no other has.
    pub groups: Vec<ParameterGroup>,
    pub clip: Option<f32>,
    /// Weights and activations.
    pub compute: DType,
    /// How frozen weights of projections are stored where not as they are computed with.
    pub base: Option<WeightFormat>,
    /// Whether weights of [`WeightFormat::E4m3`] are multiplied as codes, by rows that are rounded to such.
    pub fp8_products: bool,
    /// Whether what only adapters' gradients need of the forward pass is kept rounded: see [`keep_rounded`].
    pub keep_fp8: bool,
    /// Keep a float32 copy of trained sixteen-bit weights.
    pub master: bool,
    /// Gradients are those of a loss that the host multiplies by a number; the update takes it out again.
    pub scaled_loss: bool,
}

impl Recipe {
    /// Gradients are summed over micro-batches in the precision the optimizer works in.
    fn grad_dtype(&self) -> DType {
        if self.master { DType::F32 } else { self.compute }
    }

    /// Whether nothing of the base is trained.
    pub fn freezes_base(&self) -> bool {
        self.lora.is_some() || self.groups.is_empty()
    }

    /// Whether a parameter can be updated before all other gradients are there.
    pub fn updates_one_by_one(&self) -> bool {
        self.clip.is_none() && !self.scaled_loss
    }

    pub(crate) fn group_of(&self, hf_name: &str, shape: &Shape) -> usize {
        self.groups.iter().position(|group| group.has(hf_name, shape)).unwrap_or(self.groups.len().saturating_sub(1))
    }
}

/// Slots of one stream that the host fills in.
#[derive(Debug, Clone, Copy)]
pub struct StreamInputs {
    pub tokens: SlotId,
    pub positions: SlotId,
    pub row_ids: SlotId,
    pub boundaries: SlotId,
}

/// Slots of one part of the loss.
#[derive(Debug, Clone, Copy)]
pub struct TermInputs {
    /// The part's weight, over what it is a mean of in the whole update.
    pub scale: SlotId,
    pub loss: SlotId,
}

/// Slots the host fills in before a schedule runs or reads after it.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// Of each stream, the main one's first.
    pub streams: Vec<StreamInputs>,
    /// Of each token of the main stream.
    pub targets: SlotId,
    /// Of each sequence of the main stream; only there if the head takes labels.
    pub labels: Option<SlotId>,
    /// Of each token of the main stream; only there if the head takes marks.
    pub marks: Option<SlotId>,
    /// Of each part of the loss.
    pub terms: Vec<TermInputs>,
    /// What the head counts; only there if it does.
    pub stats: Option<SlotId>,
    pub rng_key: SlotId,
    /// Only there if the program generates text.
    pub cache: Option<CacheInputs>,
    /// Only there if the model rotates positions.
    pub rotary: Option<SlotId>,
    /// Of each stack: the bucket of each distance, only there if its scores have a bias by distance.
    pub position_buckets: Vec<Option<SlotId>>,
    /// Of each parameter group.
    pub hyper: Vec<SlotId>,
    /// Global gradient norm and clip factor of the last update.
    pub clip: SlotId,
    /// The inverse of what the loss is multiplied by; only there if it is.
    pub unscale: Option<SlotId>,
}

impl Inputs {
    pub(crate) fn register(
        slots: &mut SlotTable,
        model: &Architecture,
        head: &dyn Head,
        recipe: &Recipe,
        batch: BatchShape,
    ) -> Result<Self, GraphError> {
        let mut add = |name: &str, dims: &[usize], dtype: DType, role, extent| {
            let (name, shape, storage) = (name.to_owned(), Shape::new(dims), dtype.into());
            slots.add(Slot { name, shape, storage, role, extent, layer: None })
        };
        let mut streams = Vec::new();
        for (stream, shape) in batch.streams.iter() {
            let prefix = if stream == StreamId::MAIN { "" } else { "source." };
            let mut per_token = |name: &str| {
                add(&format!("{prefix}{name}"), &[shape.tokens], DType::I32, Role::Input, Extent::Tokens(stream))
            };
            let (tokens, positions, row_ids) = (per_token("tokens")?, per_token("positions")?, per_token("row_ids")?);
            let (name, ends) = (format!("{prefix}boundaries"), [shape.sequences + 1]);
            let boundaries = add(&name, &ends, DType::I32, Role::Input, Extent::Boundaries(stream))?;
            streams.push(StreamInputs { tokens, positions, row_ids, boundaries });
        }
        let main = batch.main();
        let rotary = match &model.rotary {
            Some(rotary) => {
                let dims = [main.max_length, rotary.dims];
                Some(add("rotary", &dims, DType::F32, Role::Input, Extent::Fixed)?)
            }
            None => None,
        };
        let mut position_buckets = Vec::new();
        for stack in &model.stacks {
            position_buckets.push(match &stack.position_bias {
                Some(_) => {
                    let (name, length) =
                        (format!("{}position_buckets", stack.prefix), batch.streams[stack.stream].max_length);
                    Some(add(&name, &[2 * length - 1], DType::I32, Role::Input, Extent::Fixed)?)
                }
                None => None,
            });
        }
        let labels = match head.has_labels() {
            true => Some(add("labels", &[main.sequences], DType::I32, Role::Input, Extent::SEQUENCES)?),
            false => None,
        };
        let marks = match takes_marks(head, recipe) {
            true => Some(add("marks", &[main.tokens], DType::F32, Role::Input, Extent::TOKENS)?),
            false => None,
        };
        let mut terms = Vec::new();
        for term in 0..head.terms() {
            let scale = add(&format!("loss_scale.{term}"), &[1], DType::F32, Role::Input, Extent::Fixed)?;
            let loss = add(&format!("loss.{term}"), &[1], DType::F64, Role::Loss, Extent::Fixed)?;
            terms.push(TermInputs { scale, loss });
        }
        let stats = match head.stats() {
            0 => None,
            count => Some(add("stats", &[count], DType::F64, Role::Loss, Extent::Fixed)?),
        };
        let unscale = match recipe.scaled_loss {
            true => Some(add("unscale", &[1], DType::F32, Role::Input, Extent::Fixed)?),
            false => None,
        };
        let hyper = (0..recipe.groups.len())
            .map(|group| add(&format!("hyper.{group}"), &[HYPER_LEN], DType::F32, Role::Input, Extent::Fixed));
        Ok(Self {
            hyper: hyper.collect::<Result<_, _>>()?,
            streams,
            targets: add("targets", &[main.tokens], DType::I32, Role::Input, Extent::TOKENS)?,
            labels,
            marks,
            terms,
            stats,
            rng_key: add("rng_key", &[4], DType::U32, Role::Input, Extent::Fixed)?,
            rotary,
            cache: None,
            position_buckets,
            unscale,
            clip: add("clip", &[2], DType::F32, Role::OptimizerState, Extent::Fixed)?,
        })
    }

    pub fn main(&self) -> StreamInputs {
        self.streams[0]
    }
}

/// Where everything is trained, there are no adapters to switch off: the reference is what the host found before training,
/// which marks carry.
fn takes_marks(head: &dyn Head, recipe: &Recipe) -> bool {
    head.has_marks() || (head.has_reference() && recipe.lora.is_none())
}

/// A program, and what the host needs to know to feed it.
#[derive(Debug, Clone)]
pub struct Built {
    pub program: Program,
    pub parameters: Vec<Parameter>,
    pub inputs: Inputs,
    /// Memory that is neither read from nor written to a model file: gradients, optimizer states, masters.
    pub trained: Vec<Trained>,
}

impl Built {
    /// Whether micro-steps apply their gradients themselves, so that there is no update to run behind them.
    pub fn updates_in_backward(&self) -> bool {
        self.trained.iter().all(|trained| trained.grad.is_none())
    }
}

impl AsRef<Program> for Built {
    fn as_ref(&self) -> &Program {
        &self.program
    }
}

/// What training keeps for one parameter.
#[derive(Debug, Clone)]
pub struct Trained {
    pub parameter: String,
    /// None where it does not outlive the micro-step.
    pub grad: Option<SlotId>,
    /// In the order of its optimizer's states.
    pub states: Vec<SlotId>,
    pub master: Option<SlotId>,
}

/// Sequences sampled side by side during training at most.
pub(crate) const SAMPLE_SEQUENCES: usize = 16;

/// When gradients become weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applied {
    /// Behind all micro-steps of an update.
    Behind,
    /// In the backward pass, each as soon as it is complete.
    InBackward,
}

/// Builds the program for micro-batches of the given shape.
pub fn build(
    model: &Architecture,
    head: &dyn Head,
    recipe: &Recipe,
    batch: BatchShape,
    chunks: Chunks,
) -> Result<Built, ModelError> {
    build_applying(Applied::Behind, model, head, recipe, batch, chunks)
}

/// As [`build`], for updates of a single micro-batch: its backward pass updates each parameter as soon as the gradient is
/// complete and the parameter has been read for the last time. The same bits with fewer gradients in memory. Only for
/// recipes that neither clip nor scale the loss: both need all gradients before the first update.
pub fn build_updating_in_backward(
    model: &Architecture,
    head: &dyn Head,
    recipe: &Recipe,
    batch: BatchShape,
    chunks: Chunks,
) -> Result<Built, ModelError> {
    assert!(recipe.updates_one_by_one(), "the recipe's updates need all gradients");
    build_applying(Applied::InBackward, model, head, recipe, batch, chunks)
}

fn build_applying(
    applied: Applied,
    model: &Architecture,
    head: &dyn Head,
    recipe: &Recipe,
    batch: BatchShape,
    chunks: Chunks,
) -> Result<Built, ModelError> {
    assert_eq!(batch.streams.len(), model.streams(), "a micro-batch has the model's streams");
    if let Some(lora) = &recipe.lora {
        lora.check(&model.linear_layers())?;
    }
    let mut slots = SlotTable::default();
    let mut inputs = Inputs::register(&mut slots, model, head, recipe, batch)?;
    if head.uses_vocabulary() && model.generates() {
        let places = places_beside(batch);
        inputs.cache = Some(CacheInputs::register(&mut slots, model, recipe.compute, batch, places)?);
    }
    let registry = Registry::new(model, head, recipe, batch, &mut slots)?;
    let forward = |slots: &SlotTable, training| -> Result<Graph, ModelError> {
        let mut graph = Forward::new(&registry, slots, &inputs, training).loss(chunks)?;
        fuse_forward(&mut graph);
        Ok(graph)
    };
    let evaluate = forward(&slots, false)?;
    let text = match inputs.cache {
        Some(_) => generating(&registry, &slots, &inputs)?,
        None => BTreeMap::new(),
    };
    let mut micro_step = forward(&slots, true)?;

    let trained: Vec<&Parameter> = registry.parameters().iter().filter(|p| p.trainable).collect();
    if trained.is_empty() {
        return Err(ModelError::Method("nothing is left to train: the freeze patterns cover every parameter".into()));
    }
    let values: Vec<_> = trained.iter().map(|p| micro_step.slot(&slots, p.slot)).collect::<Result<_, _>>()?;
    let schedule = |graph, cadence, recorded| ScheduleGraph { graph, cadence, recorded };
    let mut schedules = BTreeMap::from([(ScheduleId::EVALUATE, schedule(evaluate, Cadence::Aside, true))]);
    let states = match applied {
        Applied::Behind => {
            let grads = differentiate(&mut micro_step, &mut slots, &values, recipe.grad_dtype())?;
            improve(&mut micro_step, recipe)?;
            let grads = grads.into_iter().map(Some);
            let states = training_slots(&mut slots, recipe, &trained, grads)?;
            let update = update(&slots, recipe, &inputs, &trained, &states)?;
            schedules.insert(ScheduleId::UPDATE, schedule(update, Cadence::Update, true));
            states
        }
        Applied::InBackward => {
            let grads = differentiate_transient(&mut micro_step, &values, recipe.grad_dtype())?;
            improve(&mut micro_step, recipe)?;
            let states = training_slots(&mut slots, recipe, &trained, std::iter::repeat(None))?;
            update_in_backward(&mut micro_step, &slots, recipe, &inputs, &trained, &states, &grads)?;
            states
        }
    };
    schedules.insert(ScheduleId::MICRO_STEP, schedule(micro_step, Cadence::MicroBatch, true));
    if let (true, None) = (head.has_reference(), &recipe.lora) {
        let graph = Forward::new(&registry, &slots, &inputs, false).reference_only(chunks)?;
        schedules.insert(ScheduleId::REFERENCE, schedule(graph, Cadence::Aside, false));
    }
    schedules.extend(text);
    let program = Program { batch, slots, schedules };
    Ok(Built { program, parameters: registry.into_parameters(), inputs, trained: states })
}

/// Passes over what differentiation has made.
fn improve(graph: &mut Graph, recipe: &Recipe) -> Result<(), GraphError> {
    fuse_backward(graph);
    sink_gradients(graph);
    if recipe.keep_fp8 { keep_rounded(graph) } else { Ok(()) }
}
