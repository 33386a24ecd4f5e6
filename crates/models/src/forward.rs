//! The forward graph of a decoder over flat tokens, wired from its registered parameters.

use plimsoll_graph::ops::{
    AdapterUp, Adapters, Attention, Cols, Dest, Embed, Gated, HeadNorm, InnerDropout, LastLogits, LastRows, Linear,
    PairLoss, RmsNorm, Rope, VocabLoss, added_inside,
};
use plimsoll_graph::{Class, Graph, SlotId, SlotTable, ValueId};

use crate::decoder::{Decoder, Projection};
use crate::program::Inputs;
use crate::{Head, ModelError};

/// Sequences sampled side by side at most; their logits are the only full ones there ever are.
const SAMPLE_SEQUENCES: usize = 16;

/// A graph in the making.
pub(crate) struct Forward<'a> {
    decoder: &'a Decoder<'a>,
    slots: &'a SlotTable,
    inputs: &'a Inputs,
    /// Dropout is for training only.
    training: bool,
    graph: Graph,
    /// Whether the rows at hand are those of sequences' last tokens, no longer of all.
    last_only: bool,
    /// Their ids, once somebody has asked.
    last_row_ids: Option<ValueId>,
}

impl<'a> Forward<'a> {
    pub(crate) fn new(decoder: &'a Decoder<'a>, slots: &'a SlotTable, inputs: &'a Inputs, training: bool) -> Self {
        Self { decoder, slots, inputs, training, graph: Graph::new(), last_only: false, last_row_ids: None }
    }

    /// Forward pass and loss. The gradient is not here yet.
    pub(crate) fn loss(mut self, loss_chunks: usize) -> Result<Graph, ModelError> {
        let hidden = self.hidden()?;
        let [scale, loss] = [self.inputs.loss_scale, self.inputs.loss].map(|s| self.slot(s));
        match self.inputs.pair_stats {
            None => {
                let head = self.head();
                let targets = self.slot(self.inputs.targets);
                let op = VocabLoss { softcap: None, chunks: loss_chunks, grad: None };
                self.graph.apply(op, &[hidden, head, targets, scale, loss], "loss", Class::NONE)?;
            }
            Some(stats) => {
                let score = self.weight("score");
                let [boundaries, stats] = [self.inputs.boundaries, stats].map(|s| self.slot(s));
                let operands = [hidden, score, boundaries, scale, loss, stats];
                let names = [("loss", Class::NONE), ("pair_stats", Class::NONE)];
                self.graph.apply_all(PairLoss { grad: None }, &operands, &names)?;
            }
        }
        Ok(self.graph)
    }

    /// Forward pass to the logits of each sequence's last token, which the host reads. A score head has none.
    pub(crate) fn sample(mut self) -> Result<Graph, ModelError> {
        if self.decoder.recipe.head == Head::Score {
            return Ok(self.graph);
        }
        let hidden = self.hidden()?;
        let head = self.head();
        let boundaries = self.slot(self.inputs.boundaries);
        let op = LastLogits { softcap: None, sequences: self.decoder.batch.sequences.min(SAMPLE_SEQUENCES) };
        let logits = self.graph.apply(op, &[hidden, head, boundaries], "logits", Class::NONE)?;
        self.graph.results.push(logits);
        Ok(self.graph)
    }

    fn slot(&mut self, slot: SlotId) -> ValueId {
        self.graph.slot(self.slots, slot)
    }

    fn weight(&mut self, name: &str) -> ValueId {
        let slot = self.decoder.slot(name).unwrap_or_else(|| panic!("no parameter {name}"));
        self.slot(slot)
    }

    fn head(&mut self) -> ValueId {
        self.weight(if self.decoder.config.tied { "embed" } else { "head" })
    }

    /// Tokens to the normalised hidden state before the head: a row for each token, or, with a score head, for each
    /// sequence. Nothing behind the last attention mixes tokens, and only a sequence's last one is scored.
    fn hidden(&mut self) -> Result<ValueId, ModelError> {
        let (table, tokens) = (self.weight("embed"), self.slot(self.inputs.tokens));
        let embed = Embed { dtype: self.decoder.recipe.compute };
        let mut x = self.graph.apply(embed, &[table, tokens], "embedded", Class("embedded"))?;
        let mut branch = None;
        let (layers, scored) = (self.decoder.config.layers, self.decoder.recipe.head == Head::Score);
        for layer in 0..layers {
            self.graph.set_layer(Some(layer as u32));
            let names = ("layer_input", Class::NONE, "attn_norm");
            let (mut input, normed) = self.norm(x, branch, layer, "input_layernorm", names)?;
            let mut attended = self.attention(normed, layer)?;
            if layer + 1 == layers && scored {
                self.last_only = true;
                (input, attended) = (self.last_rows(input)?, self.last_rows(attended)?);
            }
            let [_, out_projection, ..] = self.decoder.projections();
            let attended = self.project(attended, layer, &out_projection, Class::NONE)?;
            let names = ("residual_mid", Class("residual_mid"), "mlp_norm");
            let (middle, normed) = self.norm(input, Some(attended), layer, "post_attention_layernorm", names)?;
            branch = Some(self.mlp(normed, layer)?);
            x = middle;
        }
        self.graph.set_layer(None);
        if layers == 0 && scored {
            x = self.last_rows(x)?;
        }
        let weight = self.weight("norm");
        let names = [("final_input", Class::NONE), ("final_norm", Class::NONE), ("final_rstd", Class::NONE)];
        let op = RmsNorm { eps: self.decoder.config.norm_eps, weight: true, residual: branch.is_some() };
        let mut operands = vec![x];
        operands.extend(branch);
        operands.push(weight);
        let outputs = self.graph.apply_all(op, &operands, &names[usize::from(branch.is_none())..])?;
        Ok(outputs[outputs.len() - 2])
    }

    /// The rows of sequences' last tokens: too few for a class of their own.
    fn last_rows(&mut self, x: ValueId) -> Result<ValueId, ModelError> {
        let boundaries = self.slot(self.inputs.boundaries);
        let name = format!("{}.last", self.graph.value(x).name);
        Ok(self.graph.apply(LastRows, &[x, boundaries], &name, Class::NONE)?)
    }

    /// The ids of the rows at hand, which say what is dropped of them: the same as if all rows were there.
    fn row_ids(&mut self) -> Result<ValueId, ModelError> {
        let all = self.slot(self.inputs.row_ids);
        if self.last_only && self.last_row_ids.is_none() {
            self.last_row_ids = Some(self.last_rows(all)?);
        }
        Ok(self.last_row_ids.unwrap_or(all))
    }

    /// The residual sum (if a branch is waiting to be added) and its norm, in one operator.
    fn norm(
        &mut self,
        x: ValueId,
        branch: Option<ValueId>,
        layer: usize,
        parameter: &str,
        (summed_name, summed_class, normed_class): (&str, Class, &'static str),
    ) -> Result<(ValueId, ValueId), ModelError> {
        let weight = self.weight(&format!("layers.{layer}.{parameter}"));
        let op = RmsNorm { eps: self.decoder.config.norm_eps, weight: true, residual: branch.is_some() };
        let summed = format!("layers.{layer}.{summed_name}");
        let normed = format!("layers.{layer}.{normed_class}");
        let rstd = format!("{normed}.rstd");
        let names = [(&*summed, summed_class), (&*normed, Class(normed_class)), (&*rstd, Class::NONE)];
        match branch {
            Some(branch) => {
                let outputs = self.graph.apply_all(op, &[x, branch, weight], &names)?;
                Ok((outputs[0], outputs[1]))
            }
            None => Ok((x, self.graph.apply_all(op, &[x, weight], &names[1..])?[0])),
        }
    }

    /// What each token takes from those before it, not yet projected.
    fn attention(&mut self, x: ValueId, layer: usize) -> Result<ValueId, ModelError> {
        let config = self.decoder.config;
        let heads = config.heads;
        let [qkv_projection, ..] = self.decoder.projections();
        let label = |class: &str| format!("layers.{layer}.{class}");
        let mut qkv = self.project(x, layer, &qkv_projection, Class("qkv"))?;
        if config.qk_norm {
            let weights = ["q_norm", "k_norm"].map(|n| self.weight(&format!("layers.{layer}.{n}")));
            let op = HeadNorm { heads, eps: config.norm_eps, weight: true };
            let (normed, rstd) = (label("qk_norm"), label("qk_norm.rstd"));
            let names = [(&*normed, Class("qk_norm")), (&*rstd, Class::NONE)];
            qkv = self.graph.apply_all(op, &[qkv, weights[0], weights[1]], &names)?[0];
        }
        let (table, positions) = (self.slot(self.inputs.rotary), self.slot(self.inputs.positions));
        let op = Rope { heads, inverse: false };
        let rotated = self.graph.apply(op, &[qkv, table, positions], &label("rotated"), Class("rotated"))?;
        let boundaries = self.slot(self.inputs.boundaries);
        let op = Attention {
            heads,
            scale: 1.0 / (heads.head_dim as f32).sqrt(),
            window: config.windows[layer],
            max_length: self.decoder.batch.max_length,
        };
        let (out, lse) = (label("attn_out"), label("attn_lse"));
        let names = [(&*out, Class("attn_out")), (&*lse, Class::NONE)];
        Ok(self.graph.apply_all(op, &[rotated, boundaries], &names)?[0])
    }

    fn mlp(&mut self, x: ValueId, layer: usize) -> Result<ValueId, ModelError> {
        let [.., gate_up, down] = self.decoder.projections();
        let inside = self.decoder.recipe.lora.as_ref().is_some_and(|lora| added_inside(lora.r));
        let (gate_up, adapted) = if inside {
            // What the adapters add is added where the product is read next, and so never written.
            let prefix = format!("layers.{layer}.{}", gate_up.name);
            let adapted = self.low_rank_rows(x, &prefix, &gate_up)?;
            (self.base_product(x, None, &prefix, &gate_up, Class("gate_up"))?, adapted)
        } else {
            (self.project(x, layer, &gate_up, Class("gate_up"))?, None)
        };
        let (adapters, low_rank) = adapted.unzip();
        let mut operands = vec![gate_up];
        operands.extend(low_rank.into_iter().flatten());
        let op = Gated { activation: self.decoder.config.activation, adapters };
        let act = self.graph.apply(op, &operands, &format!("layers.{layer}.mlp_act"), Class("mlp_act"))?;
        self.project(act, layer, &down, Class::NONE)
    }

    /// The adapters' product, and onto it one product for all layers that share the input: the big one is the cheaper
    /// place to add up.
    fn project(
        &mut self,
        x: ValueId,
        layer: usize,
        projection: &Projection,
        class: Class,
    ) -> Result<ValueId, ModelError> {
        let prefix = format!("layers.{layer}.{}", projection.name);
        let onto = match self.low_rank_rows(x, &prefix, projection)? {
            Some((adapters, operands)) => {
                Some(self.graph.apply(AdapterUp(adapters), &operands, &format!("{prefix}.adapted"), Class::NONE)?)
            }
            None => None,
        };
        self.base_product(x, onto, &prefix, projection, class)
    }

    fn base_product(
        &mut self,
        x: ValueId,
        onto: Option<ValueId>,
        prefix: &str,
        projection: &Projection,
        class: Class,
    ) -> Result<ValueId, ModelError> {
        if self.decoder.slot(&format!("{prefix}.weight")).is_some() {
            let mut operands = self.operands(x, prefix, projection.bias);
            operands.extend(onto);
            let dest = if onto.is_some() { Dest::Accumulate } else { Dest::Fresh };
            let op = Linear { bias: projection.bias, dest, ..Linear::forward() };
            return Ok(self.graph.apply(op, &operands, prefix, class)?);
        }
        // Only where some layers are frozen and others are not, which rules out adapters.
        assert!(onto.is_none(), "adapters leave the base whole");
        let (mut y, mut start) = (None, 0);
        for (l, rows) in &projection.layers {
            let mut operands = self.operands(x, &format!("{prefix}.{l}"), projection.bias);
            operands.extend(y);
            let op = Linear {
                bias: projection.bias,
                dest: if y.is_some() { Dest::Overwrite } else { Dest::Fresh },
                cols: Some(Cols { start, len: *rows, total: projection.out_features() }),
                ..Linear::forward()
            };
            y = Some(self.graph.apply(op, &operands, prefix, class)?);
            start += rows;
        }
        Ok(y.expect("a projection has layers"))
    }

    /// The input, the weight of that name and its bias, if there is one.
    fn operands(&mut self, x: ValueId, name: &str, bias: bool) -> Vec<ValueId> {
        let mut operands = vec![x, self.weight(&format!("{name}.weight"))];
        if bias {
            operands.push(self.weight(&format!("{name}.bias")));
        }
        operands
    }

    /// The adapters of a projection, their low-rank rows and second matrices; `None` if it has none. Adapters that read the
    /// same input drop the same elements of it.
    fn low_rank_rows(
        &mut self,
        x: ValueId,
        prefix: &str,
        projection: &Projection,
    ) -> Result<Option<(Adapters, [ValueId; 2])>, ModelError> {
        let Some(lora) = &self.decoder.recipe.lora else { return Ok(None) };
        let blocks: Vec<_> = projection.adapted(lora).map(|(_, block)| block).collect();
        if blocks.is_empty() {
            return Ok(None);
        }
        let [a, b] = ["lora_A", "lora_B"].map(|side| self.weight(&format!("{prefix}.{side}")));
        let site = self.decoder.position(&format!("{prefix}.lora_A")) as u32;
        let dropout = (self.training && lora.dropout > 0.0).then_some(InnerDropout { p: lora.dropout, site });
        let mut operands = vec![x, a];
        if dropout.is_some() {
            operands.extend([self.row_ids()?, self.slot(self.inputs.rng_key)]);
        }
        let op = Linear { dropout, ..Linear::forward() };
        let low_rank = self.graph.apply(op, &operands, &format!("{prefix}.low_rank"), Class("adapter"))?;
        let adapters = Adapters { alpha: lora.scale(), blocks, total: projection.out_features() };
        Ok(Some((adapters, [low_rank, b])))
    }
}
