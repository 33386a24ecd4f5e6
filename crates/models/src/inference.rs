//! Programs that train nothing: weights, inputs, and the activations of one layer at a time.

use std::collections::BTreeMap;

use plimsoll_graph::ops::Mask;
use plimsoll_graph::{
    BatchShape, Cadence, DType, Extent, Graph, Program, Role, ScheduleGraph, ScheduleId, Shape, Slot, SlotId,
    SlotTable, fuse_forward,
};

use crate::architecture::{AttentionModule, Block, Keys, Module};
use crate::forward::Forward;
use crate::registry::Registry;
use crate::{Architecture, Built, Head, Inputs, Lora, ModelError, Recipe};

/// What a program without training is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The loss over a dataset, with the logits in so many chunks.
    Evaluate { loss_chunks: usize },
    /// Text: as many sequences side by side as the micro-batch has places for, each up to its greatest length. The
    /// micro-batch bounds how many tokens of prompts are taken in at a time.
    Generate,
}

/// Keys and values of sequences that are generated.
#[derive(Debug, Clone)]
pub struct CacheInputs {
    /// Of each row of the micro-batch: where its sequence's keys and values are kept; less than zero for rows that fill up.
    pub places: SlotId,
    /// Sequences side by side.
    pub count: usize,
    pub(crate) layers: Vec<LayerCache>,
}

/// One layer's part.
#[derive(Debug, Clone)]
pub(crate) struct LayerCache {
    pub slot: SlotId,
    /// Rows for each sequence.
    pub capacity: usize,
    pub window: Option<usize>,
}

impl CacheInputs {
    /// A layer keeps whole sequences, or, where a window bounds what is seen, as many tokens as one micro-batch can see.
    pub(crate) fn register(
        slots: &mut SlotTable,
        model: &Architecture,
        compute: DType,
        batch: BatchShape,
        count: usize,
    ) -> Result<Self, ModelError> {
        let main = batch.main();
        let mut add = |name: String, dims: &[usize], dtype: DType, role, extent, layer| {
            slots.add(Slot { name, shape: Shape::new(dims), storage: dtype.into(), role, extent, layer })
        };
        let places = add("places".to_owned(), &[main.tokens], DType::I32, Role::Input, Extent::TOKENS, None)?;
        let longest_run = main.tokens.min(main.max_length);
        let mut layers = Vec::new();
        for (_, _, layer, block) in model.blocks() {
            let Some((module, window)) = cacheable(block) else {
                return Err(ModelError::NoGeneration(model.family.model_type));
            };
            // One that no sequence fills hides nothing.
            let window = window.filter(|&window| window < main.max_length);
            let seen = window.map_or(main.max_length, |window| window.saturating_add(longest_run - 1));
            let capacity = seen.min(main.max_length);
            let dims = [count * capacity, 2 * module.heads.kv_cols()];
            let slot = add(format!("cache.{layer}"), &dims, compute, Role::Cache, Extent::Fixed, Some(layer))?;
            layers.push(LayerCache { slot, capacity, window });
        }
        Ok(Self { places, count, layers })
    }
}

/// A block's only attention and its window, if it looks at earlier tokens of its own sequence and at nothing else.
fn cacheable(block: &Block) -> Option<(&AttentionModule, Option<usize>)> {
    let mut attention = block.branches.iter().filter_map(|branch| match &branch.module {
        Module::Attention(module) => Some(module),
        Module::Mlp(_) => None,
    });
    let (Some(module), None) = (attention.next(), attention.next()) else { return None };
    match (&module.keys, module.mask) {
        (Keys::Own, Mask::Causal { window }) if !module.position_bias => Some((module, window)),
        _ => None,
    }
}

impl Architecture {
    /// Whether text can be generated token by token.
    pub fn generates(&self) -> bool {
        self.streams() == 1 && self.blocks().all(|(_, _, _, block)| cacheable(block).is_some())
    }
}

impl Recipe {
    /// That of a program that trains nothing.
    pub fn forward_only(lora: Option<Lora>, compute: DType) -> Self {
        let (freeze, groups) = (Vec::new(), Vec::new());
        Self { lora, freeze, groups, clip: None, compute, master: false, scaled_loss: false }
    }
}

/// Builds a program that trains nothing, for micro-batches of the given shape.
pub fn build_inference(
    model: &Architecture,
    head: &dyn Head,
    recipe: &Recipe,
    batch: BatchShape,
    purpose: Purpose,
) -> Result<Built, ModelError> {
    assert_eq!(batch.streams.len(), model.streams(), "a micro-batch has the model's streams");
    if let Some(lora) = &recipe.lora {
        lora.check(&model.linear_layers())?;
    }
    let mut slots = SlotTable::default();
    let mut inputs = Inputs::register(&mut slots, model, head, recipe, batch)?;
    if purpose == Purpose::Generate {
        if !head.uses_vocabulary() || !model.generates() {
            return Err(ModelError::NoGeneration(model.family.model_type));
        }
        inputs.cache = Some(CacheInputs::register(&mut slots, model, recipe.compute, batch, batch.main().sequences)?);
    }
    let registry = Registry::new(model, head, recipe, batch, &mut slots)?;
    let schedules = match purpose {
        Purpose::Evaluate { loss_chunks } => {
            let mut graph = Forward::new(&registry, &slots, &inputs, false).loss(loss_chunks)?;
            fuse_forward(&mut graph);
            BTreeMap::from([(ScheduleId::EVALUATE, aside(graph, true))])
        }
        Purpose::Generate => generating(&registry, &slots, &inputs)?,
    };
    let program = Program { batch, slots, schedules };
    Ok(Built { program, parameters: registry.into_parameters(), inputs, trained: Vec::new() })
}

/// One graph, run over many tokens of a few prompts or over one token of each sequence. Only the latter has the same shape
/// every time.
pub(crate) fn generating(
    registry: &Registry,
    slots: &SlotTable,
    inputs: &Inputs,
) -> Result<BTreeMap<ScheduleId, ScheduleGraph>, ModelError> {
    let graph = Forward::new(registry, slots, inputs, false).generate()?;
    Ok(BTreeMap::from([(ScheduleId::PREFILL, aside(graph.clone(), false)), (ScheduleId::DECODE, aside(graph, true))]))
}

fn aside(graph: Graph, recorded: bool) -> ScheduleGraph {
    ScheduleGraph { graph, cadence: Cadence::Aside, recorded }
}
