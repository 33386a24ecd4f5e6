//! Forward over the newest tokens of growing sequences, whose earlier keys and values are kept.

use plimsoll_graph::ops::{CacheWrite, CachedAttention};
use plimsoll_graph::{Class, Graph, ValueId};

use super::Forward;
use crate::ModelError;
use crate::architecture::AttentionModule;
use crate::registry::BlockNames;

impl<'a> Forward<'a> {
    /// To the logits of each sequence's last token, which the host reads. Keys and values stay in the cache.
    pub(crate) fn generate(mut self) -> Result<Graph, ModelError> {
        self.cached = true;
        self.last_logits()
    }

    /// What each row takes from the cached ones of its sequence and from those that come with it, not yet projected.
    pub(super) fn cached_attention(
        &mut self,
        x: ValueId,
        module: &'a AttentionModule,
        names: &BlockNames,
    ) -> Result<ValueId, ModelError> {
        let cache = self.inputs.cache.as_ref().expect("a program that generates has a cache");
        let layer = &cache.layers[names.layer as usize];
        let (capacity, window, slot, places) = (layer.capacity, layer.window, layer.slot, cache.places);
        let positions = self.stream_inputs().positions;
        let qkv = self.project(x, names, &module.input, Class("qkv"))?;
        let qkv = self.positioned(qkv, module, names)?;
        let [kept, places, positions] = [slot, places, positions].map(|slot| self.slot(slot));
        let (places, positions) = (places?, positions?);
        let write = CacheWrite { heads: module.heads, capacity };
        let kept = self.graph.apply(write, &[qkv, kept?, places, positions], "cache", Class::NONE)?;
        let AttentionModule { heads, scale, softcap, .. } = *module;
        let op = CachedAttention { heads, window, scale, softcap, capacity };
        let out = format!("{}.attn_out", names.own);
        Ok(self.graph.apply(op, &[qkv, kept, places, positions], &out, Class("attn_out"))?)
    }
}
