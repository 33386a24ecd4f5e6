//! Forward over the newest tokens of growing sequences, whose earlier keys and values are kept, and over what they are
//! conditioned on, whose keys and values are kept for good.

use plimsoll_graph::ops::{CacheWrite, CachedAttention, QkvLayout};
use plimsoll_graph::{Class, Graph, SlotId, StreamId, ValueId};

use super::Forward;
use crate::ModelError;
use crate::architecture::{AttentionModule, Keys, Projection};
use crate::inference::{CacheInputs, Kept, LayerCache};
use crate::registry::BlockNames;

/// Which tokens a step of generation takes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextStep {
    /// Prompts; of models with an encoder, what that reads, and the first token of each sequence.
    Prefill,
    /// The newest token of each sequence.
    Decode,
}

/// What attention over a cache differs in.
struct Cached {
    layout: QkvLayout,
    kept: Kept,
    /// The cache, with everything in it that is to be seen.
    cache: ValueId,
    /// Of each row: the last position that it sees.
    last: SlotId,
    name: &'static str,
}

impl<'a> Forward<'a> {
    /// To the logits of each sequence's last token, which the host reads. Keys and values stay in the cache.
    pub(crate) fn generate(mut self, step: TextStep) -> Result<Graph, ModelError> {
        self.text = Some(step);
        self.last_logits()
    }

    /// Whether the rows at hand are of sequences that grow: those of an encoder are there all at once.
    pub(super) fn is_cached(&self) -> bool {
        self.text.is_some() && self.stream == StreamId::MAIN
    }

    /// Whether what a stack makes was kept by an earlier step.
    pub(super) fn is_kept(&self, stream: StreamId) -> bool {
        self.text == Some(TextStep::Decode) && stream != StreamId::MAIN
    }

    fn cache(&self) -> &'a CacheInputs {
        self.inputs.cache.as_ref().expect("a program that generates has a cache")
    }

    /// What each row takes from the cached ones of its sequence and from those that come with it, or from those of its
    /// source, not yet projected.
    pub(super) fn cached_attention(
        &mut self,
        x: ValueId,
        module: &'a AttentionModule,
        names: &BlockNames,
    ) -> Result<ValueId, ModelError> {
        let LayerCache { own, cross } = self.cache().layers[&names.layer];
        match &module.keys {
            Keys::Own => {
                let qkv = self.project(x, names, &module.input, Class("qkv"))?;
                let qkv = self.positioned(qkv, module, names)?;
                let (layout, kept, last) = (QkvLayout::Fused, own, self.stream_inputs().positions);
                let cache = self.keep(qkv, module, layout, kept, (self.cache().places, last))?;
                self.attend(qkv, module, Cached { layout, kept, cache, last, name: "attn_out" }, names)
            }
            Keys::Stream { stream, projection } => {
                let kept = cross.expect("registered for what attends to another stream");
                let source = self.cache().source.expect("there is another stream");
                let q = self.project(x, names, &module.input, Class("cross_q"))?;
                let layout = QkvLayout::FusedKeyValue;
                let cache = match self.text {
                    Some(TextStep::Prefill) => {
                        let kv = self.source_keys(*stream, projection, names)?;
                        let positions = self.inputs.streams[stream.0 as usize].positions;
                        self.keep(kv, module, layout, kept, (source.places, positions))?
                    }
                    _ => self.slot(kept.slot)?,
                };
                self.attend(q, module, Cached { layout, kept, cache, last: source.last, name: "cross_out" }, names)
            }
        }
    }

    /// Keys and values of another stream's tokens.
    pub(super) fn source_keys(
        &mut self,
        stream: StreamId,
        projection: &Projection,
        names: &BlockNames,
    ) -> Result<ValueId, ModelError> {
        let queries = self.stream;
        // Adapters that read the other stream drop elements by its row ids.
        self.stream = stream;
        let kv = self.project(self.outputs[&stream], names, projection, Class("cross_kv"));
        self.stream = queries;
        kv
    }

    /// The cache with the keys and values of some rows in it.
    fn keep(
        &mut self,
        rows: ValueId,
        module: &AttentionModule,
        layout: QkvLayout,
        Kept { slot, capacity, .. }: Kept,
        (places, positions): (SlotId, SlotId),
    ) -> Result<ValueId, ModelError> {
        let operands = [rows, self.slot(slot)?, self.slot(places)?, self.slot(positions)?];
        let op = CacheWrite { heads: module.heads, layout, capacity };
        Ok(self.graph.apply(op, &operands, "cache", Class::NONE)?)
    }

    fn attend(
        &mut self,
        rows: ValueId,
        module: &AttentionModule,
        Cached { layout, kept: Kept { capacity, window, .. }, cache, last, name }: Cached,
        names: &BlockNames,
    ) -> Result<ValueId, ModelError> {
        let mut operands = vec![rows, cache, self.slot(self.cache().places)?, self.slot(last)?];
        let table = self.position_bias.filter(|_| module.position_bias);
        operands.extend(table);
        // As tables are made: one column for each distance from the farthest back to the farthest ahead.
        let zero = self.registry.batch.main().max_length - 1;
        let AttentionModule { heads, scale, softcap, .. } = *module;
        let op = CachedAttention { heads, layout, window, scale, softcap, bias: table.map(|_| zero), capacity };
        Ok(self.graph.apply(op, &operands, &format!("{}.{name}", names.own), Class(name))?)
    }
}
