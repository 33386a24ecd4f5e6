//! A model, a method and an optimizer as one program: micro-step, update, evaluation, generation.

use std::collections::BTreeMap;

use plimsoll_graph::ops::{GlobalNorm, HYPER_LEN};
use plimsoll_graph::{
    BatchShape, Cadence, Class, DType, Extent, Graph, GraphError, Matrix, Phase, Program, Role, ScheduleGraph,
    ScheduleId, Shape, Slot, SlotId, SlotTable, StreamId, UpdateOperands, differentiate, fuse_backward, fuse_forward,
};

use crate::forward::Forward;
use crate::inference::{generating, places_beside};
use crate::registry::Registry;
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
    /// Keep a float32 copy of trained sixteen-bit weights.
    pub master: bool,
}

impl Recipe {
    /// Gradients are summed over micro-batches in the precision the optimizer works in.
    fn grad_dtype(&self) -> DType {
        if self.master { DType::F32 } else { self.compute }
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

impl AsRef<Program> for Built {
    fn as_ref(&self) -> &Program {
        &self.program
    }
}

/// What training keeps for one parameter.
#[derive(Debug, Clone)]
pub struct Trained {
    pub parameter: String,
    pub grad: SlotId,
    /// In the order of its optimizer's states.
    pub states: Vec<SlotId>,
    pub master: Option<SlotId>,
}

/// Sequences sampled side by side during training at most.
pub(crate) const SAMPLE_SEQUENCES: usize = 16;

/// Builds the program for micro-batches of the given shape.
pub fn build(
    model: &Architecture,
    head: &dyn Head,
    recipe: &Recipe,
    batch: BatchShape,
    loss_chunks: usize,
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
        let mut graph = Forward::new(&registry, slots, &inputs, training).loss(loss_chunks)?;
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
    let grads = differentiate(&mut micro_step, &mut slots, &values, recipe.grad_dtype())?;
    fuse_backward(&mut micro_step);
    let states = trained.iter().zip(grads).map(|(parameter, grad)| training_slots(&mut slots, recipe, parameter, grad));
    let states = states.collect::<Result<Vec<Trained>, GraphError>>()?;
    let update = update(&slots, recipe, &inputs, &trained, &states)?;

    let schedule = |graph, cadence, recorded| ScheduleGraph { graph, cadence, recorded };
    let mut schedules = BTreeMap::from([
        (ScheduleId::MICRO_STEP, schedule(micro_step, Cadence::MicroBatch, true)),
        (ScheduleId::UPDATE, schedule(update, Cadence::Update, true)),
        (ScheduleId::EVALUATE, schedule(evaluate, Cadence::Aside, true)),
    ]);
    schedules.extend(text);
    let program = Program { batch, slots, schedules };
    Ok(Built { program, parameters: registry.into_parameters(), inputs, trained: states })
}

/// Memory for what a parameter's optimizer keeps.
fn training_slots(
    slots: &mut SlotTable,
    recipe: &Recipe,
    parameter: &Parameter,
    grad: SlotId,
) -> Result<Trained, GraphError> {
    let layer = slots.get(parameter.slot).layer;
    let mut add = |kind: &str, shape, storage| {
        let (name, role) = (format!("{kind}:{}", parameter.name), Role::OptimizerState);
        slots.add(Slot { name, shape, storage, role, extent: Extent::Fixed, layer })
    };
    let states = recipe.groups[parameter.group].optimizer.states(parameter.shape, &matrices(parameter));
    let states = states.into_iter().map(|state| add(state.name, state.shape, state.storage));
    let states = states.collect::<Result<_, _>>()?;
    let master = match recipe.master {
        true => Some(add("master", parameter.shape, DType::F32.into())?),
        false => None,
    };
    Ok(Trained { parameter: parameter.name.clone(), grad, states, master })
}

fn matrices(parameter: &Parameter) -> Vec<Matrix> {
    parameter.tensors.iter().map(|t| Matrix { first_row: t.first_row, shape: t.shape }).collect()
}

/// The update: the norm over all gradients, then one optimizer step per parameter.
fn update(
    slots: &SlotTable,
    recipe: &Recipe,
    inputs: &Inputs,
    trained: &[&Parameter],
    states: &[Trained],
) -> Result<Graph, ModelError> {
    let mut graph = Graph::new();
    graph.set_phase(Phase::Update);
    let mut operands = vec![graph.slot(slots, inputs.clip)?];
    for state in states {
        operands.push(graph.slot(slots, state.grad)?);
    }
    let clip = graph.apply(GlobalNorm { max_norm: recipe.clip }, &operands, "clip", Class::NONE)?;
    for (parameter, trained) in trained.iter().zip(states) {
        graph.set_layer(slots.get(parameter.slot).layer);
        let matrices = matrices(parameter);
        let operands = UpdateOperands {
            parameter: graph.slot(slots, parameter.slot)?,
            gradient: graph.slot(slots, trained.grad)?,
            states: trained.states.iter().map(|&s| graph.slot(slots, s)).collect::<Result<_, _>>()?,
            hyper: graph.slot(slots, inputs.hyper[parameter.group])?,
            clip,
            master: trained.master.map(|m| graph.slot(slots, m)).transpose()?,
            matrices: &matrices,
        };
        recipe.groups[parameter.group].optimizer.update(&mut graph, &operands)?;
    }
    Ok(graph)
}
