//! A model, a method and an optimizer as one program: micro-step, update, evaluation, sampling.

use plimsoll_graph::ops::{AdamW, GlobalNorm, HYPER_LEN, PAIR_STATS, Sgd};
use plimsoll_graph::{
    BatchShape, Class, DType, Extent, Graph, Phase, Program, Role, Shape, Slot, SlotId, SlotTable, differentiate,
};

use crate::decoder::Decoder;
use crate::forward::Forward;
use crate::{DecoderConfig, Lora, ModelError, Parameter};

/// Optimizers this version has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptimizerKind {
    AdamW { beta1: f32, beta2: f32, eps: f32, weight_decay: f32 },
    Sgd { momentum: f32, weight_decay: f32 },
}

/// What stands on top of the decoder, and with it the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Head {
    /// A distribution over the vocabulary at every token; cross entropy.
    #[default]
    Vocabulary,
    /// One number at a sequence's last token; sequences come in pairs, the preferred one first.
    Score,
}

impl Head {
    /// Sequences that only mean something together.
    pub fn group(self) -> usize {
        match self {
            Head::Vocabulary => 1,
            Head::Score => 2,
        }
    }
}

/// What is trained, and how numbers are stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    pub head: Head,
    /// With an adapter, the base is frozen.
    pub lora: Option<Lora>,
    /// Hugging Face names with `*`.
    pub freeze: Vec<String>,
    pub optimizer: OptimizerKind,
    pub clip: Option<f32>,
    /// Weights and activations.
    pub compute: DType,
    /// Moments of the optimizer.
    pub state: DType,
    /// Keep a float32 copy of trained sixteen-bit weights.
    pub master: bool,
}

impl Recipe {
    /// Gradients are summed over micro-batches in the precision the optimizer works in.
    fn grad_dtype(&self) -> DType {
        if self.master { DType::F32 } else { self.compute }
    }
}

/// Slots the host fills in before a schedule runs or reads after it.
#[derive(Debug, Clone, Copy)]
pub struct Inputs {
    pub tokens: SlotId,
    pub targets: SlotId,
    pub positions: SlotId,
    pub row_ids: SlotId,
    pub boundaries: SlotId,
    /// One over what the loss of the whole update is a mean of: loss-bearing tokens, or pairs.
    pub loss_scale: SlotId,
    pub loss: SlotId,
    /// What the loss over pairs counts; only there with a score head.
    pub pair_stats: Option<SlotId>,
    pub rng_key: SlotId,
    pub rotary: SlotId,
    pub hyper: SlotId,
    /// Global gradient norm and clip factor of the last update.
    pub clip: SlotId,
}

impl Inputs {
    fn register(slots: &mut SlotTable, config: &DecoderConfig, head: Head, batch: BatchShape) -> Self {
        let mut add = |name: &str, dims: &[usize], dtype, role, extent| {
            slots.add(Slot { name: name.to_owned(), shape: Shape::new(dims), dtype, role, extent, layer: None })
        };
        let n = batch.tokens;
        Self {
            tokens: add("tokens", &[n], DType::I32, Role::Input, Extent::Tokens),
            targets: add("targets", &[n], DType::I32, Role::Input, Extent::Tokens),
            positions: add("positions", &[n], DType::I32, Role::Input, Extent::Tokens),
            row_ids: add("row_ids", &[n], DType::I32, Role::Input, Extent::Tokens),
            boundaries: add("boundaries", &[batch.sequences + 1], DType::I32, Role::Input, Extent::Boundaries),
            loss_scale: add("loss_scale", &[1], DType::F32, Role::Input, Extent::Fixed),
            loss: add("loss", &[1], DType::F64, Role::Loss, Extent::Fixed),
            pair_stats: (head == Head::Score)
                .then(|| add("pair_stats", &[PAIR_STATS], DType::F64, Role::Loss, Extent::Fixed)),
            rng_key: add("rng_key", &[4], DType::U32, Role::Input, Extent::Fixed),
            rotary: add("rotary", &[batch.max_length, config.heads.head_dim], DType::F32, Role::Input, Extent::Fixed),
            hyper: add("hyper", &[HYPER_LEN], DType::F32, Role::Input, Extent::Fixed),
            clip: add("clip", &[2], DType::F32, Role::OptimizerState, Extent::Fixed),
        }
    }
}

/// A program, and what the host needs to know to feed it.
#[derive(Debug, Clone)]
pub struct Built {
    pub program: Program,
    pub parameters: Vec<Parameter>,
    pub inputs: Inputs,
    /// Slots that are neither read from nor written to a model file: moments, momenta, masters.
    pub state: Vec<OptimizerSlots>,
}

/// Optimizer memory of one trained parameter.
#[derive(Debug, Clone)]
pub struct OptimizerSlots {
    pub parameter: String,
    pub grad: SlotId,
    pub moments: Vec<SlotId>,
    pub master: Option<SlotId>,
}

/// Builds the program for micro-batches of the given shape.
pub fn build(
    config: &DecoderConfig,
    recipe: &Recipe,
    batch: BatchShape,
    loss_chunks: usize,
) -> Result<Built, ModelError> {
    if let Some(lora) = &recipe.lora {
        lora.check()?;
    }
    let mut slots = SlotTable::default();
    let inputs = Inputs::register(&mut slots, config, recipe.head, batch);
    let decoder = Decoder::new(config, recipe, batch, &mut slots)?;
    let evaluate = Forward::new(&decoder, &slots, &inputs, false).loss(loss_chunks)?;
    let sample = Forward::new(&decoder, &slots, &inputs, false).sample()?;
    let mut micro_step = Forward::new(&decoder, &slots, &inputs, true).loss(loss_chunks)?;

    let trained: Vec<&Parameter> = decoder.parameters().iter().filter(|p| p.trainable).collect();
    if trained.is_empty() {
        return Err(ModelError::Method("nothing is left to train: the freeze patterns cover every parameter".into()));
    }
    let values: Vec<_> = trained.iter().map(|p| micro_step.slot(&slots, p.slot)).collect();
    let grads = differentiate(&mut micro_step, &mut slots, &values, recipe.grad_dtype())?;
    let mut state = Vec::with_capacity(trained.len());
    for (parameter, grad) in trained.iter().zip(grads) {
        state.push(optimizer_slots(&mut slots, recipe, parameter, grad));
    }
    let update = update(&slots, recipe, &inputs, &trained, &state)?;
    let program = Program { batch, slots, micro_step, update, evaluate, sample };
    Ok(Built { program, parameters: decoder.into_parameters(), inputs, state })
}

fn optimizer_slots(slots: &mut SlotTable, recipe: &Recipe, parameter: &Parameter, grad: SlotId) -> OptimizerSlots {
    let layer = slots.get(parameter.slot).layer;
    let mut add = |kind: &str, dtype| {
        slots.add(Slot {
            name: format!("{kind}:{}", parameter.name),
            shape: parameter.shape,
            dtype,
            role: Role::OptimizerState,
            extent: Extent::Fixed,
            layer,
        })
    };
    let moments = match recipe.optimizer {
        OptimizerKind::AdamW { .. } => vec![add("m", recipe.state), add("v", recipe.state)],
        OptimizerKind::Sgd { momentum, .. } if momentum != 0.0 => vec![add("m", recipe.state)],
        OptimizerKind::Sgd { .. } => Vec::new(),
    };
    let master = recipe.master.then(|| add("master", DType::F32));
    OptimizerSlots { parameter: parameter.name.clone(), grad, moments, master }
}

/// The update: the norm over all gradients, then one optimizer step per parameter.
fn update(
    slots: &SlotTable,
    recipe: &Recipe,
    inputs: &Inputs,
    trained: &[&Parameter],
    state: &[OptimizerSlots],
) -> Result<Graph, ModelError> {
    let mut graph = Graph::new();
    graph.set_phase(Phase::Update);
    let hyper = graph.slot(slots, inputs.hyper);
    let mut operands = vec![graph.slot(slots, inputs.clip)];
    operands.extend(state.iter().map(|s| graph.slot(slots, s.grad)));
    let clip = graph.apply(GlobalNorm { max_norm: recipe.clip }, &operands, "clip", Class::NONE)?;
    for (parameter, state) in trained.iter().zip(state) {
        graph.set_layer(slots.get(parameter.slot).layer);
        let weight = graph.slot(slots, parameter.slot);
        let grad = graph.slot(slots, state.grad);
        let moments: Vec<_> = state.moments.iter().map(|&m| graph.slot(slots, m)).collect();
        let master = state.master.map(|m| graph.slot(slots, m));
        let unnamed = vec![("", Class::NONE); 2 + moments.len() + usize::from(master.is_some())];
        match recipe.optimizer {
            OptimizerKind::AdamW { beta1, beta2, eps, weight_decay } => {
                let op = AdamW { beta1, beta2, eps, weight_decay, master: recipe.master };
                let mut operands = vec![weight, grad, moments[0], moments[1], hyper, clip];
                operands.extend(master);
                graph.apply_all(op, &operands, &unnamed)?;
            }
            OptimizerKind::Sgd { momentum, weight_decay } => {
                let op = Sgd { momentum, weight_decay, master: recipe.master };
                let mut operands = vec![weight, grad, hyper, clip];
                operands.extend(moments);
                operands.extend(master);
                graph.apply_all(op, &operands, &unnamed)?;
            }
        }
    }
    Ok(graph)
}
