//! Programs that train nothing: weights, inputs, and the activations of one layer at a time.

use std::collections::BTreeMap;

use plimsoll_graph::ops::Mask;
use plimsoll_graph::{
    BatchShape, Cadence, Chunks, DType, Extent, Graph, Program, Role, ScheduleGraph, ScheduleId, Shape, Slot, SlotId,
    SlotTable, StreamId, StreamShape, fuse_forward,
};

use crate::architecture::{AttentionModule, Block, Keys, Module};
use crate::forward::{Forward, TextStep};
use crate::program::SAMPLE_SEQUENCES;
use crate::registry::Registry;
use crate::{Architecture, Built, Head, Inputs, Lora, ModelError, Recipe};

/// What a program without training is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The loss over a dataset, with the logits in so many chunks; with `text`, also what the model itself would say.
    Evaluate { loss_chunks: usize, text: bool },
    /// Text: as many sequences side by side as the micro-batch has places for, each up to its greatest length. The
    /// micro-batch bounds how many tokens of prompts are taken in at a time.
    Generate,
}

/// Keys and values of sequences that are generated.
#[derive(Debug, Clone)]
pub struct CacheInputs {
    /// Of each row of the micro-batch: where its sequence's keys and values are kept; less than zero for rows that fill up.
    pub places: SlotId,
    /// Only there if the model has an encoder.
    pub source: Option<SourceInputs>,
    /// Sequences side by side.
    pub count: usize,
    /// By layer; those of an encoder keep nothing.
    pub(crate) layers: BTreeMap<u32, LayerCache>,
}

/// What a sequence is conditioned on, which is taken in once.
#[derive(Debug, Clone, Copy)]
pub struct SourceInputs {
    /// Of each row of the source: as [`CacheInputs::places`].
    pub places: SlotId,
    /// Of each row of the main stream: the position of the last token of its sequence's source.
    pub last: SlotId,
}

/// One layer's part.
#[derive(Debug, Clone)]
pub(crate) struct LayerCache {
    /// Of the tokens of the sequence itself.
    pub own: Kept,
    /// Of the source's.
    pub cross: Option<Kept>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    pub slot: SlotId,
    /// Rows for each sequence.
    pub capacity: usize,
    pub window: Option<usize>,
}

impl CacheInputs {
    /// A layer keeps whole sequences, or, where a window bounds what is seen, as many tokens as one micro-batch can see.
    /// Of a source it keeps all.
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
        let mut per_token = |name: &str, stream: StreamId| {
            let dims = [batch.streams[stream].tokens];
            add(name.to_owned(), &dims, DType::I32, Role::Input, Extent::Tokens(stream), None)
        };
        let places = per_token("places", StreamId::MAIN)?;
        let source = match model.streams() {
            1 => None,
            _ => Some(SourceInputs {
                places: per_token("source.places", StreamId::SOURCE)?,
                last: per_token("source.last", StreamId::MAIN)?,
            }),
        };
        let longest_run = main.tokens.min(main.max_length);
        let mut layers = BTreeMap::new();
        for (_, _, layer, block) in model.blocks().filter(|(stack, ..)| stack.stream == StreamId::MAIN) {
            let Some(Cacheable { own, window, cross }) = cacheable(block) else {
                return Err(ModelError::NoGeneration(model.family.model_type));
            };
            let mut keep = |name: String, module: &AttentionModule, capacity: usize, window| {
                let dims = [count * capacity, 2 * module.heads.kv_cols()];
                let slot = add(name, &dims, compute, Role::Cache, Extent::Fixed, Some(layer))?;
                Ok::<_, ModelError>(Kept { slot, capacity, window })
            };
            // One that no sequence fills hides nothing.
            let window = window.filter(|&window| window < main.max_length);
            let seen = window.map_or(main.max_length, |window| window.saturating_add(longest_run - 1));
            let own = keep(format!("cache.{layer}"), own, seen.min(main.max_length), window)?;
            let cross = match cross {
                Some((module, stream)) => {
                    let capacity = batch.streams[stream].max_length;
                    Some(keep(format!("cache.{layer}.source"), module, capacity, None)?)
                }
                None => None,
            };
            layers.insert(layer, LayerCache { own, cross });
        }
        Ok(Self { places, source, count, layers })
    }
}

/// The attentions of a block whose keys can be kept.
struct Cacheable<'a> {
    /// To earlier tokens of its own sequence.
    own: &'a AttentionModule,
    window: Option<usize>,
    /// To all tokens of another stream.
    cross: Option<(&'a AttentionModule, StreamId)>,
}

/// `None` for a block that looks at anything else.
fn cacheable(block: &Block) -> Option<Cacheable<'_>> {
    let (mut own, mut cross) = (None, None);
    for branch in &block.branches {
        let Module::Attention(module) = &branch.module else { continue };
        match (&module.keys, module.mask) {
            (Keys::Own, Mask::Causal { window }) if own.is_none() => own = Some((module, window)),
            (Keys::Stream { stream, .. }, Mask::Full) if cross.is_none() => cross = Some((module, *stream)),
            _ => return None,
        }
    }
    own.map(|(own, window)| Cacheable { own, window, cross })
}

impl Architecture {
    /// Whether text can be generated token by token. What an encoder makes of its stream is made once.
    pub fn generates(&self) -> bool {
        let mut own = self.blocks().filter(|(stack, ..)| stack.stream == StreamId::MAIN);
        own.all(|(_, _, _, block)| cacheable(block).is_some())
    }
}

/// Sequences whose text an evaluation or a training run has places for: their caches then take about what a micro-batch
/// keeps for its backward pass, whose memory they use.
pub(crate) fn places_beside(batch: BatchShape) -> usize {
    let of_stream = |stream: &StreamShape| stream.tokens / stream.max_length;
    batch.streams.as_slice().iter().map(of_stream).min().unwrap_or(1).clamp(1, SAMPLE_SEQUENCES)
}

impl Recipe {
    /// That of a program that trains nothing, so that all of its base is frozen.
    pub fn forward_only(lora: Option<Lora>, compute: DType) -> Self {
        Self {
            lora,
            freeze: vec!["*".to_owned()],
            groups: Vec::new(),
            clip: None,
            compute,
            base: None,
            fp8_products: false,
            keep_fp8: false,
            master: false,
            scaled_loss: false,
        }
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
    let places = match purpose {
        Purpose::Generate => Some(batch.main().sequences),
        Purpose::Evaluate { text: true, .. } => Some(places_beside(batch)),
        Purpose::Evaluate { .. } => None,
    };
    if let Some(count) = places {
        if !head.uses_vocabulary() || !model.generates() {
            return Err(ModelError::NoGeneration(model.family.model_type));
        }
        inputs.cache = Some(CacheInputs::register(&mut slots, model, recipe.compute, batch, count)?);
    }
    let registry = Registry::new(model, head, recipe, batch, &mut slots)?;
    let mut schedules = match inputs.cache {
        Some(_) => generating(&registry, &slots, &inputs)?,
        None => BTreeMap::new(),
    };
    if let Purpose::Evaluate { loss_chunks, .. } = purpose {
        let mut graph = Forward::new(&registry, &slots, &inputs, false).loss(Chunks::loss(loss_chunks))?;
        fuse_forward(&mut graph);
        schedules.insert(ScheduleId::EVALUATE, aside(graph, true));
    }
    let program = Program { batch, slots, schedules };
    Ok(Built { program, parameters: registry.into_parameters(), inputs, trained: Vec::new() })
}

/// One graph, run over many tokens of a few prompts or over one token of each sequence. Only the latter has the same shape
/// every time. Where prompts are another stream, the former takes them in and begins the sequences, and the latter finds
/// what it has left of them.
pub(crate) fn generating(
    registry: &Registry,
    slots: &SlotTable,
    inputs: &Inputs,
) -> Result<BTreeMap<ScheduleId, ScheduleGraph>, ModelError> {
    let graph = |step| Forward::new(registry, slots, inputs, false).generate(step);
    // Products of few rows are others than those of many, so these are told apart by what is planned.
    let places = inputs.cache.as_ref().map_or(usize::MAX, |cache| cache.count);
    let decode = graph(TextStep::Decode)?.with_rows_at_most(StreamId::MAIN, places);
    Ok(BTreeMap::from([
        (ScheduleId::PREFILL, aside(graph(TextStep::Prefill)?, false)),
        (ScheduleId::DECODE, aside(decode, true)),
    ]))
}

fn aside(graph: Graph, recorded: bool) -> ScheduleGraph {
    ScheduleGraph { graph, cadence: Cadence::Aside, recorded }
}
