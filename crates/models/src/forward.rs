//! The forward graph over flat tokens: walks a model's description and wires its registered parameters.

mod cached;
mod mlp;

use std::collections::HashMap;

use plimsoll_graph::ops::{
    AdapterUp, Adapters, Add, Attention, Cols, Dest, Dropout, Embed, HeadNorm, InnerDropout, LastLogits, LastRows,
    Linear, Mask, PositionBias, QkvLayout, RmsNorm, Rope, Scale,
};
use plimsoll_graph::{Chunks, Class, Code, Graph, SlotId, SlotTable, StreamId, ValueId};

use crate::ModelError;
use crate::architecture::{AttentionModule, Block, Branch, Keys, Module, Norm, Projection, Residual, Stack};
use crate::head::{HeadRows, LossOperands, LossTerm, ReferenceOperands};
use crate::program::Inputs;
use crate::registry::{BlockNames, Registry, adapted, head_slot};

pub(crate) use cached::TextStep;

/// Where the model's own dropout counts from; below it are the parameters, after which adapters' is named.
const FIRST_SITE: u32 = 1 << 20;

/// A graph in the making.
pub(crate) struct Forward<'a> {
    registry: &'a Registry<'a>,
    slots: &'a SlotTable,
    inputs: &'a Inputs,
    /// Dropout is for training only.
    training: bool,
    /// Whether adapters take part.
    adapted: bool,
    /// Whether rows see what the cache keeps of their sequences, and which rows they are.
    text: Option<TextStep>,
    graph: Graph,
    /// The stream whose rows are at hand.
    stream: StreamId,
    /// Whether the rows at hand are those of sequences' last tokens, no longer of all.
    last_only: bool,
    /// Their ids, once somebody has asked.
    last_row_ids: Option<ValueId>,
    /// Rows that an MLP works on at a time.
    mlp_rows: usize,
    /// Which of these chunks is at hand, if rows are divided.
    chunk: Option<usize>,
    /// The ids of each chunk's rows, once somebody has asked.
    row_ids_in_chunks: HashMap<StreamId, Vec<ValueId>>,
    /// What stacks that have run have made of their streams.
    outputs: HashMap<StreamId, ValueId>,
    /// What the stack at hand adds to scores.
    position_bias: Option<ValueId>,
    /// Places so far where elements are dropped.
    dropouts: u32,
}

/// The residual stream: its rows so far, and a branch that is still to be added to them.
#[derive(Clone, Copy)]
struct Rows {
    sum: ValueId,
    branch: Option<ValueId>,
}

impl<'a> Forward<'a> {
    pub(crate) fn new(registry: &'a Registry<'a>, slots: &'a SlotTable, inputs: &'a Inputs, training: bool) -> Self {
        Self {
            registry,
            slots,
            inputs,
            training,
            adapted: true,
            text: None,
            graph: Graph::new(),
            stream: StreamId::MAIN,
            last_only: false,
            last_row_ids: None,
            mlp_rows: usize::MAX,
            chunk: None,
            row_ids_in_chunks: HashMap::new(),
            outputs: HashMap::new(),
            position_bias: None,
            dropouts: 0,
        }
    }

    /// Forward pass and loss. The gradient is not here yet.
    pub(crate) fn loss(mut self, chunks: Chunks) -> Result<Graph, ModelError> {
        let (head, inputs) = (self.registry.head, self.inputs);
        self.mlp_rows = chunks.mlp_rows(self.registry.batch);
        let chunks = chunks.loss;
        let marks = inputs.marks.map(|slot| self.slot(slot)).transpose()?;
        let reference = match head.has_reference() {
            true => Some(self.reference(marks, chunks)?),
            false => None,
        };
        let hidden = self.hidden(head.rows())?;
        let vocabulary = match head.uses_vocabulary() {
            true => Some(self.vocabulary()?),
            false => None,
        };
        let weights = head.weights().iter().map(|w| self.weight(&head_slot(&w.name))).collect::<Result<_, _>>()?;
        let [targets, boundaries] = [inputs.targets, inputs.main().boundaries].map(|slot| self.slot(slot));
        let labels = inputs.labels.map(|slot| self.slot(slot)).transpose()?;
        let stats = inputs.stats.map(|slot| self.slot(slot)).transpose()?;
        let mut terms = Vec::new();
        for term in &inputs.terms {
            terms.push(LossTerm { scale: self.slot(term.scale)?, loss: self.slot(term.loss)? });
        }
        head.loss(LossOperands {
            graph: &mut self.graph,
            hidden,
            vocabulary,
            weights,
            targets: targets?,
            labels,
            marks,
            reference,
            boundaries: boundaries?,
            terms,
            stats,
            softcap: self.registry.model.head.softcap,
            chunks,
            training: self.training,
        })?;
        Ok(self.graph)
    }

    /// What the model was before training: itself without its adapters, whose pass is over before the other begins. Where
    /// there are none, marks say at each sequence's last token what the host found then.
    fn reference(&mut self, marks: Option<ValueId>, chunks: usize) -> Result<ValueId, ModelError> {
        if self.registry.recipe.lora.is_none() {
            let boundaries = self.slot(self.inputs.main().boundaries)?;
            let marks = marks.expect("registered without adapters");
            return Ok(self.graph.apply(LastRows, &[marks, boundaries], "reference", Class::NONE)?);
        }
        self.adapted = false;
        let found = self.likelihoods(chunks);
        self.adapted = true;
        self.outputs.clear();
        found
    }

    /// What the head takes of a model as it is for a reference.
    fn likelihoods(&mut self, chunks: usize) -> Result<ValueId, ModelError> {
        let head = self.registry.head;
        let hidden = self.hidden(head.rows())?;
        let boundaries = self.slot(self.inputs.main().boundaries)?;
        let (vocabulary, targets) = (self.vocabulary()?, self.slot(self.inputs.targets)?);
        let softcap = self.registry.model.head.softcap;
        let graph = &mut self.graph;
        Ok(head.reference(ReferenceOperands { graph, hidden, vocabulary, targets, boundaries, softcap, chunks })?)
    }

    /// Forward pass to what the model is a reference for, which the host reads.
    pub(crate) fn reference_only(mut self, chunks: Chunks) -> Result<Graph, ModelError> {
        self.mlp_rows = chunks.mlp_rows(self.registry.batch);
        let found = self.likelihoods(chunks.loss)?;
        self.graph.results.push(found);
        Ok(self.graph)
    }

    /// Forward pass to the logits of each sequence's last token, which the host reads. No others are ever whole.
    pub(crate) fn last_logits(mut self) -> Result<Graph, ModelError> {
        let hidden = self.hidden(HeadRows::Tokens)?;
        let (vocabulary, boundaries) = (self.vocabulary()?, self.slot(self.inputs.main().boundaries)?);
        let sequences = self.inputs.cache.as_ref().expect("a program that generates has a cache").count;
        let op = LastLogits { softcap: self.registry.model.head.softcap, sequences };
        let logits = self.graph.apply(op, &[hidden, vocabulary, boundaries], "logits", Class::NONE)?;
        self.graph.results.push(logits);
        Ok(self.graph)
    }

    fn slot(&mut self, slot: SlotId) -> Result<ValueId, ModelError> {
        Ok(self.graph.slot(self.slots, slot)?)
    }

    fn weight(&mut self, name: &str) -> Result<ValueId, ModelError> {
        let slot = self.registry.slot(name).unwrap_or_else(|| panic!("no parameter {name}"));
        self.slot(slot)
    }

    fn vocabulary(&mut self) -> Result<ValueId, ModelError> {
        self.weight(if self.registry.model.head.tied { "embed" } else { "head" })
    }

    /// Tokens to the normalised hidden state before the head: a row for each token, or for each sequence. Nothing behind
    /// the last attention mixes tokens, so a head that reads last tokens alone needs no others from there on.
    fn hidden(&mut self, rows: HeadRows) -> Result<ValueId, ModelError> {
        let model = self.registry.model;
        let mut first_layer = 0;
        for (index, stack) in model.stacks.iter().enumerate() {
            let layers = stack.blocks.len() as u32;
            if self.is_kept(stack.stream) {
                first_layer += layers;
                continue;
            }
            self.position_bias = self.position_bias(index, stack)?;
            let is_last = std::ptr::eq(stack, &model.stacks[model.stacks.len() - 1]);
            let last_tokens = is_last && rows == HeadRows::LastTokens;
            let output = self.stack(stack, first_layer, last_tokens)?;
            self.outputs.insert(stack.stream, output);
            first_layer += layers;
        }
        let hidden = self.outputs[&StreamId::MAIN];
        match model.head.scale {
            1.0 => Ok(hidden),
            factor => Ok(self.graph.apply(Scale { factor }, &[hidden], "scaled", Class::NONE)?),
        }
    }

    /// The bias that all blocks of a stack add to their scores, if it has one.
    fn position_bias(&mut self, index: usize, stack: &Stack) -> Result<Option<ValueId>, ModelError> {
        let Some(buckets) = self.inputs.position_buckets[index] else { return Ok(None) };
        let name = format!("{}position_bias", stack.prefix);
        let operands = [self.weight(&name)?, self.slot(buckets)?];
        Ok(Some(self.graph.apply(PositionBias, &operands, &format!("{name}.spread"), Class::NONE)?))
    }

    fn stack(&mut self, stack: &'a Stack, first_layer: u32, last_tokens: bool) -> Result<ValueId, ModelError> {
        let model = self.registry.model;
        self.stream = stack.stream;
        let (table, tokens) = (self.weight("embed")?, self.slot(self.stream_inputs().tokens)?);
        let (scale, padding) = (model.embedding.scale, model.embedding.padding);
        let embed = Embed { dtype: self.registry.recipe.compute, scale, padding };
        let name = format!("{}embedded", stack.prefix);
        let mut x = self.graph.apply(embed, &[table, tokens], &name, Class("embedded"))?;
        x = self.dropped(x, Class::NONE)?;
        if let Some(norm) = &stack.input_norm {
            x = self.plain_norm(x, norm, &format!("{}input_norm", stack.prefix), Class("input_norm"))?;
        }
        let mut rows = Rows { sum: x, branch: None };
        for (index, block) in stack.blocks.iter().enumerate() {
            let names = BlockNames::new(stack, index, first_layer + index as u32);
            self.graph.set_layer(Some(names.layer));
            let last_tokens = last_tokens && index + 1 == stack.blocks.len();
            rows = match block.residual {
                Residual::Sequential => self.sequential(rows, block, &names, last_tokens)?,
                Residual::Parallel => self.parallel(rows, block, &names)?,
            };
        }
        self.graph.set_layer(None);
        if last_tokens && !self.last_only {
            let sum = self.summed(rows)?;
            rows = Rows { sum: self.last_rows(sum)?, branch: None };
        }
        let name = format!("{}final", stack.prefix);
        let labels = (format!("{name}_input"), Class::NONE, format!("{name}_norm"), Class::NONE);
        let normed = self.norm(rows, &stack.final_norm, &format!("{}norm", stack.prefix), labels)?.1;
        self.dropped(normed, Class::NONE)
    }

    /// Each branch reads the sum that the one before it went into.
    fn sequential(
        &mut self,
        mut rows: Rows,
        block: &'a Block,
        names: &BlockNames,
        last_tokens: bool,
    ) -> Result<Rows, ModelError> {
        let is_attention = |branch: &Branch| matches!(branch.module, Module::Attention(_));
        let last_attention = block.branches.iter().rposition(is_attention);
        for (index, branch) in block.branches.iter().enumerate() {
            let (sum, normed) = self.branch_norm(rows, branch, index == 0, names)?;
            let (mut sum, last_here) = (sum, last_tokens && last_attention == Some(index));
            let output = match &branch.module {
                Module::Attention(module) => {
                    let mut attended = self.attention(normed, module, names)?;
                    if last_here {
                        self.last_only = true;
                        (sum, attended) = (self.last_rows(sum)?, self.last_rows(attended)?);
                    }
                    self.project(attended, names, &module.output, Class::NONE)?
                }
                Module::Mlp(module) => self.mlp(normed, module, names)?,
            };
            rows = Rows { sum, branch: Some(self.branch_output(output, branch, names)?) };
        }
        Ok(rows)
    }

    /// All branches read the first one's norm, and all outputs are added at once.
    fn parallel(&mut self, rows: Rows, block: &'a Block, names: &BlockNames) -> Result<Rows, ModelError> {
        let (sum, normed) = self.branch_norm(rows, &block.branches[0], true, names)?;
        let mut total: Option<ValueId> = None;
        for branch in &block.branches {
            let output = match &branch.module {
                Module::Attention(module) => {
                    let attended = self.attention(normed, module, names)?;
                    self.project(attended, names, &module.output, Class::NONE)?
                }
                Module::Mlp(module) => self.mlp(normed, module, names)?,
            };
            let output = self.branch_output(output, branch, names)?;
            total = Some(match total {
                Some(total) => {
                    self.graph.apply(Add, &[total, output], &format!("{}.branches", names.own), Class::NONE)?
                }
                None => output,
            });
        }
        Ok(Rows { sum, branch: total })
    }

    /// The residual sum that a branch begins with, and its norm. The first one carries the earlier blocks' work into this
    /// one, and so has no class of its own: recompute begins with it.
    fn branch_norm(
        &mut self,
        rows: Rows,
        branch: &Branch,
        first: bool,
        names: &BlockNames,
    ) -> Result<(ValueId, ValueId), ModelError> {
        let (summed, class) = match first {
            true => ("layer_input", Class::NONE),
            false => (branch.classes.summed, Class(branch.classes.summed)),
        };
        let normed = branch.classes.normed;
        let labels = (format!("{}.{summed}", names.own), class, format!("{}.{normed}", names.own), Class(normed));
        self.norm(rows, &branch.norm, &format!("{}.{}", names.own, branch.norm.name), labels)
    }

    fn branch_output(&mut self, output: ValueId, branch: &Branch, names: &BlockNames) -> Result<ValueId, ModelError> {
        let class = Class(branch.classes.out);
        let normed = match &branch.out_norm {
            Some(norm) => self.plain_norm(output, norm, &format!("{}.{}", names.own, norm.name), class)?,
            None => output,
        };
        self.dropped(normed, class)
    }

    /// The rows with the model's own dropout; `row_ids` and the key make recomputed ones the same.
    fn dropped(&mut self, x: ValueId, class: Class) -> Result<ValueId, ModelError> {
        let p = self.registry.model.dropout;
        if !self.training || p == 0.0 {
            return Ok(x);
        }
        let site = FIRST_SITE + self.dropouts;
        self.dropouts += 1;
        let operands = [x, self.row_ids()?, self.slot(self.inputs.rng_key)?];
        let name = format!("{}.dropped", self.graph.value(x).name);
        Ok(self.graph.apply(Dropout { p, site }, &operands, &name, class)?)
    }

    fn stream_inputs(&self) -> crate::StreamInputs {
        self.inputs.streams[self.stream.0 as usize]
    }

    /// The rows of sequences' last tokens: too few for a class of their own.
    fn last_rows(&mut self, x: ValueId) -> Result<ValueId, ModelError> {
        let boundaries = self.slot(self.stream_inputs().boundaries)?;
        let name = format!("{}.last", self.graph.value(x).name);
        Ok(self.graph.apply(LastRows, &[x, boundaries], &name, Class::NONE)?)
    }

    /// The ids of the rows at hand, which say what is dropped of them: the same as if all rows were there.
    fn row_ids(&mut self) -> Result<ValueId, ModelError> {
        let all = self.slot(self.stream_inputs().row_ids)?;
        if let Some(chunk) = self.chunk {
            return self.chunk_row_ids(all, chunk);
        }
        if self.last_only && self.last_row_ids.is_none() {
            self.last_row_ids = Some(self.last_rows(all)?);
        }
        Ok(self.last_row_ids.unwrap_or(all))
    }

    fn summed(&mut self, rows: Rows) -> Result<ValueId, ModelError> {
        match rows.branch {
            Some(branch) => Ok(self.graph.apply(Add, &[rows.sum, branch], "final_sum", Class::NONE)?),
            None => Ok(rows.sum),
        }
    }

    /// The residual sum (if a branch is waiting to be added) and its norm, in one operator.
    fn norm(
        &mut self,
        Rows { sum, branch }: Rows,
        norm: &Norm,
        parameter: &str,
        (summed, summed_class, normed, normed_class): (String, Class, String, Class),
    ) -> Result<(ValueId, ValueId), ModelError> {
        let op = RmsNorm { eps: norm.eps, weight: norm.weight, offset: norm.offset, residual: branch.is_some() };
        let mut operands = vec![sum];
        operands.extend(branch);
        if norm.weight {
            operands.push(self.weight(parameter)?);
        }
        let rstd = format!("{normed}.rstd");
        let names = [(&*summed, summed_class), (&*normed, normed_class), (&*rstd, Class::NONE)];
        let outputs = self.graph.apply_all(op, &operands, &names[usize::from(branch.is_none())..])?;
        Ok(if branch.is_some() { (outputs[0], outputs[1]) } else { (sum, outputs[0]) })
    }

    /// A norm that is on no residual stream.
    fn plain_norm(&mut self, x: ValueId, norm: &Norm, parameter: &str, class: Class) -> Result<ValueId, ModelError> {
        let labels = (String::new(), Class::NONE, format!("{parameter}.normed"), class);
        Ok(self.norm(Rows { sum: x, branch: None }, norm, parameter, labels)?.1)
    }

    /// What each token takes from those it sees, not yet projected.
    fn attention(
        &mut self,
        x: ValueId,
        module: &'a AttentionModule,
        names: &BlockNames,
    ) -> Result<ValueId, ModelError> {
        if self.is_cached() {
            return self.cached_attention(x, module, names);
        }
        let label = |class: &str| format!("{}.{class}", names.own);
        let queries = self.stream;
        let mut operands = Vec::new();
        let (layout, keys) = match &module.keys {
            Keys::Own => {
                let qkv = self.project(x, names, &module.input, Class("qkv"))?;
                operands.push(self.positioned(qkv, module, names)?);
                (QkvLayout::Fused, queries)
            }
            Keys::Stream { stream, projection } => {
                operands.push(self.project(x, names, &module.input, Class("cross_q"))?);
                operands.push(self.source_keys(*stream, projection, names)?);
                (QkvLayout::FusedKeyValue, *stream)
            }
        };
        operands.push(self.slot(self.stream_inputs().boundaries)?);
        if layout != QkvLayout::Fused {
            operands.push(self.slot(self.inputs.streams[keys.0 as usize].boundaries)?);
        }
        let bias = self.position_bias.filter(|_| module.position_bias);
        operands.extend(bias);
        let streams = self.registry.batch.streams;
        let op = Attention {
            heads: module.heads,
            layout,
            mask: module.mask,
            scale: module.scale,
            softcap: module.softcap,
            bias: bias.is_some(),
            max_length: streams[queries].max_length,
            max_keys: streams[keys].max_length,
        };
        let cross = if layout == QkvLayout::Fused { "attn" } else { "cross" };
        let (out, lse) = (label(&format!("{cross}_out")), label(&format!("{cross}_lse")));
        let class = if layout == QkvLayout::Fused { Class("attn_out") } else { Class("cross_out") };
        debug_assert!(
            layout == QkvLayout::Fused || module.mask == Mask::Full,
            "other streams have no order with this one"
        );
        Ok(self.graph.apply_all(op, &operands, &[(&*out, class), (&*lse, Class::NONE)])?[0])
    }

    /// Queries and keys normalised and rotated, in the model's order.
    fn positioned(
        &mut self,
        qkv: ValueId,
        module: &AttentionModule,
        names: &BlockNames,
    ) -> Result<ValueId, ModelError> {
        let after_rotary = module.qk_norm.is_some_and(|norm| norm.after_rotary);
        let mut qkv = qkv;
        if !after_rotary {
            qkv = self.qk_norm(qkv, module, names)?;
        }
        if let (true, Some(rotary), Some(table)) = (module.rotary, &self.registry.model.rotary, self.inputs.rotary) {
            let (table, positions) = (self.slot(table)?, self.slot(self.stream_inputs().positions)?);
            let op = Rope { heads: module.heads, rotated: rotary.dims, inverse: false };
            let name = format!("{}.rotated", names.own);
            qkv = self.graph.apply(op, &[qkv, table, positions], &name, Class("rotated"))?;
        }
        if after_rotary { self.qk_norm(qkv, module, names) } else { Ok(qkv) }
    }

    fn qk_norm(&mut self, qkv: ValueId, module: &AttentionModule, names: &BlockNames) -> Result<ValueId, ModelError> {
        let Some(norm) = module.qk_norm else { return Ok(qkv) };
        let op = HeadNorm { heads: module.heads, eps: norm.eps, weight: norm.weight, offset: norm.offset };
        let mut operands = vec![qkv];
        if norm.weight {
            for side in ["q_norm", "k_norm"] {
                operands.push(self.weight(&format!("{}.{side}", names.own))?);
            }
        }
        let (normed, rstd) = (format!("{}.qk_norm", names.own), format!("{}.qk_norm.rstd", names.own));
        let labels = [(&*normed, Class("qk_norm")), (&*rstd, Class::NONE)];
        Ok(self.graph.apply_all(op, &operands, &labels)?[0])
    }

    /// The adapters' product, and onto it one product for all layers that share the input: the big one is the cheaper
    /// place to add up.
    fn project(
        &mut self,
        x: ValueId,
        names: &BlockNames,
        projection: &Projection,
        class: Class,
    ) -> Result<ValueId, ModelError> {
        let prefix = format!("{}.{}", names.own, projection.name);
        let onto = self.adapters(x, &prefix, projection)?;
        if self.registry.slot(&format!("{prefix}.weight")).is_some() {
            let mut operands = self.operands(x, &prefix, projection.bias)?;
            operands.extend(onto);
            let dest = if onto.is_some() { Dest::Accumulate } else { Dest::Fresh };
            let op =
                Linear { bias: projection.bias, dest, fp8: self.multiplies_codes(operands[1]), ..Linear::forward() };
            return Ok(self.graph.apply(op, &operands, &prefix, class)?);
        }
        // Only where some layers are trained otherwise than others, which rules out adapters.
        assert!(onto.is_none(), "adapters leave the base whole");
        let (mut y, mut start) = (None, 0);
        for (layer, rows) in &projection.layers {
            let mut operands = self.operands(x, &format!("{prefix}.{layer}"), projection.bias)?;
            operands.extend(y);
            let op = Linear {
                bias: projection.bias,
                dest: if y.is_some() { Dest::Overwrite } else { Dest::Fresh },
                cols: Some(Cols { start, len: *rows, total: projection.out_features() }),
                fp8: self.multiplies_codes(operands[1]),
                ..Linear::forward()
            };
            y = Some(self.graph.apply(op, &operands, &prefix, class)?);
            start += rows;
        }
        Ok(y.expect("a projection has layers"))
    }

    /// Whether a product takes this weight's codes.
    fn multiplies_codes(&self, weight: ValueId) -> bool {
        let format = self.graph.value(weight).storage.blocks;
        self.registry.recipe.fp8_products && format.is_some_and(|format| format.code == Code::E4m3)
    }

    /// The input, the weight of that name and its bias, if there is one.
    fn operands(&mut self, x: ValueId, name: &str, bias: bool) -> Result<Vec<ValueId>, ModelError> {
        let mut operands = vec![x, self.weight(&format!("{name}.weight"))?];
        if bias {
            operands.push(self.weight(&format!("{name}.bias"))?);
        }
        Ok(operands)
    }

    /// What the adapters of a projection add to it; `None` if it has none. Adapters that read the same input drop the same
    /// elements of it.
    fn adapters(&mut self, x: ValueId, prefix: &str, projection: &Projection) -> Result<Option<ValueId>, ModelError> {
        let Some(lora) = self.registry.recipe.lora.as_ref().filter(|_| self.adapted) else { return Ok(None) };
        let blocks: Vec<_> = adapted(projection, lora).into_iter().map(|(_, columns)| columns).collect();
        if blocks.is_empty() {
            return Ok(None);
        }
        let (a, b) = (self.weight(&format!("{prefix}.lora_A"))?, self.weight(&format!("{prefix}.lora_B"))?);
        let site = self.registry.position(&format!("{prefix}.lora_A")) as u32;
        let dropout = (self.training && lora.dropout > 0.0).then_some(InnerDropout { p: lora.dropout, site });
        let mut operands = vec![x, a];
        if dropout.is_some() {
            operands.extend([self.row_ids()?, self.slot(self.inputs.rng_key)?]);
        }
        let op = Linear { dropout, ..Linear::forward() };
        let low_rank = self.graph.apply(op, &operands, &format!("{prefix}.low_rank"), Class("adapter"))?;
        let adapters = Adapters { alpha: lora.scale(), blocks, total: projection.out_features() };
        let adapted =
            self.graph.apply(AdapterUp(adapters), &[low_rank, b], &format!("{prefix}.adapted"), Class::NONE)?;
        Ok(Some(adapted))
    }
}
