//! The decoder family (Llama, Mistral, Qwen2, Qwen3) as a forward graph over flat tokens.

use std::collections::HashMap;

use plimsoll_graph::ops::{
    Attention, Cols, Dest, Embed, Gated, HeadNorm, InnerDropout, LastLogits, Linear, PairLoss, RmsNorm, Rope, VocabLoss,
};
use plimsoll_graph::{BatchShape, Class, DType, Extent, Graph, Role, Shape, Slot, SlotId, SlotTable, ValueId};

use crate::adapter::LINEAR_LAYERS;
use crate::parameters::matches;
use crate::program::Inputs;
use crate::{DecoderConfig, Head, Init, Lora, ModelError, Parameter, ParameterKind, Part, Recipe};

/// Sequences sampled side by side at most; their logits are the only full ones there ever are.
pub(crate) const SAMPLE_SEQUENCES: usize = 16;

/// Hugging Face's name of the score head's weight.
pub const SCORE_WEIGHT: &str = "score.weight";

/// One of the four places in a block where tokens meet weights; several Hugging Face layers may share it.
struct Projection {
    /// Last part of the slot's name.
    name: &'static str,
    /// Module the Hugging Face layers belong to.
    module: &'static str,
    layers: Vec<(&'static str, usize)>,
    in_features: usize,
    bias: bool,
}

impl Projection {
    fn out_features(&self) -> usize {
        self.layers.iter().map(|(_, rows)| rows).sum()
    }
}

/// Parameters and how to wire them; makes a forward graph for any purpose.
pub(crate) struct Decoder<'a> {
    config: &'a DecoderConfig,
    recipe: &'a Recipe,
    batch: BatchShape,
    parameters: Vec<Parameter>,
    by_name: HashMap<String, usize>,
}

impl<'a> Decoder<'a> {
    /// Registers a slot for every parameter.
    pub(crate) fn new(
        config: &'a DecoderConfig,
        recipe: &'a Recipe,
        batch: BatchShape,
        slots: &mut SlotTable,
    ) -> Result<Self, ModelError> {
        let mut decoder = Self { config, recipe, batch, parameters: Vec::new(), by_name: HashMap::new() };
        decoder.register(slots);
        decoder.check_freeze_patterns()?;
        Ok(decoder)
    }

    pub(crate) fn into_parameters(self) -> Vec<Parameter> {
        self.parameters
    }

    pub(crate) fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn register(&mut self, slots: &mut SlotTable) {
        let (d, vocab) = (self.config.hidden_size, self.config.vocab_size);
        let normal = Init::Normal { std: self.config.initializer_range };
        self.base(slots, "embed", None, &[("model.embed_tokens.weight", vocab)], Some(d), normal);
        for layer in 0..self.config.layers {
            self.register_layer(slots, layer);
        }
        self.base(slots, "norm", None, &[("model.norm.weight", d)], None, Init::Ones);
        match self.recipe.head {
            Head::Vocabulary if self.config.tied => {}
            Head::Vocabulary => self.base(slots, "head", None, &[("lm_head.weight", vocab)], Some(d), normal),
            Head::Score => self.register_score(slots, normal),
        }
    }

    /// A new head learns whatever the method, unless it is frozen by name.
    fn register_score(&mut self, slots: &mut SlotTable, init: Init) {
        let shape = Shape::new(&[1, self.config.hidden_size]);
        let part = Part { name: SCORE_WEIGHT.to_owned(), first_row: 0, shape };
        let trainable = !self.recipe.freeze.iter().any(|p| matches(p, SCORE_WEIGHT));
        let dtype = self.recipe.compute;
        self.add(slots, "score".to_owned(), None, dtype, vec![part], init, ParameterKind::Score, trainable);
    }

    fn register_layer(&mut self, slots: &mut SlotTable, layer: usize) {
        let (d, head_dim) = (self.config.hidden_size, self.config.heads.head_dim);
        let hf = |rest: &str| format!("model.layers.{layer}.{rest}");
        let at = Some(layer as u32);
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            let part = hf(&format!("{norm}.weight"));
            self.base(slots, &format!("layers.{layer}.{norm}"), at, &[(&part, d)], None, Init::Ones);
        }
        if self.config.qk_norm {
            for norm in ["q_norm", "k_norm"] {
                let part = hf(&format!("self_attn.{norm}.weight"));
                self.base(slots, &format!("layers.{layer}.{norm}"), at, &[(&part, head_dim)], None, Init::Ones);
            }
        }
        for projection in self.projections() {
            self.register_projection(slots, layer, &projection);
        }
    }

    fn projections(&self) -> [Projection; 4] {
        let config = self.config;
        let (d, f, heads) = (config.hidden_size, config.intermediate_size, config.heads);
        let (q, kv) = (heads.query_cols(), heads.kv * heads.head_dim);
        let [q_proj, k_proj, v_proj, o_proj, gate, up, down] = LINEAR_LAYERS;
        let attention =
            |name, layers, in_features, bias| Projection { name, module: "self_attn", layers, in_features, bias };
        let mlp =
            |name, layers, in_features| Projection { name, module: "mlp", layers, in_features, bias: config.mlp_bias };
        [
            attention("qkv", vec![(q_proj, q), (k_proj, kv), (v_proj, kv)], d, config.qkv_bias),
            attention("out", vec![(o_proj, d)], q, config.out_bias),
            mlp("gate_up", vec![(gate, f), (up, f)], d),
            mlp("down", vec![(down, d)], f),
        ]
    }

    fn register_projection(&mut self, slots: &mut SlotTable, layer: usize, projection: &Projection) {
        let hf = |l: &str, kind: &str| format!("model.layers.{layer}.{}.{l}.{kind}", projection.module);
        let prefix = format!("layers.{layer}.{}", projection.name);
        let normal = Init::Normal { std: self.config.initializer_range };
        for (kind, cols, init) in [("weight", Some(projection.in_features), normal), ("bias", None, Init::Zeros)] {
            if kind == "bias" && !projection.bias {
                continue;
            }
            let names: Vec<String> = projection.layers.iter().map(|(l, _)| hf(l, kind)).collect();
            let parts: Vec<(&str, usize)> =
                names.iter().zip(&projection.layers).map(|(n, (_, rows))| (n.as_str(), *rows)).collect();
            let fused = self.fused(layer, projection);
            let at = Some(layer as u32);
            if fused {
                self.base(slots, &format!("{prefix}.{kind}"), at, &parts, cols, init);
            } else {
                for (part, (l, _)) in parts.iter().zip(&projection.layers) {
                    self.base(slots, &format!("{prefix}.{l}.{kind}"), at, &[*part], cols, init);
                }
            }
        }
        if let Some(lora) = &self.recipe.lora {
            for (l, rows) in projection.layers.iter().filter(|(l, _)| lora.adapts(l)) {
                let module = format!("base_model.model.model.layers.{layer}.{}.{l}", projection.module);
                self.register_adapter(
                    slots,
                    &format!("{prefix}.{l}"),
                    &module,
                    layer,
                    projection.in_features,
                    *rows,
                    lora.r,
                );
            }
        }
    }

    fn register_adapter(
        &mut self,
        slots: &mut SlotTable,
        prefix: &str,
        module: &str,
        layer: usize,
        in_features: usize,
        rows: usize,
        r: usize,
    ) {
        // Kaiming uniform with a = √5, as PEFT draws A; B starts at zero so that training starts from the base.
        let bound = 1.0 / (in_features as f32).sqrt();
        for (side, shape, init) in
            [("lora_A", [r, in_features], Init::Uniform { bound }), ("lora_B", [rows, r], Init::Zeros)]
        {
            let part = Part { name: format!("{module}.{side}.weight"), first_row: 0, shape: Shape::new(&shape) };
            let dtype = self.recipe.compute;
            self.add(
                slots,
                format!("{prefix}.{side}"),
                Some(layer as u32),
                dtype,
                vec![part],
                init,
                ParameterKind::Adapter,
                true,
            );
        }
    }

    /// Registers a parameter of the base model, made of Hugging Face tensors stacked by rows.
    fn base(
        &mut self,
        slots: &mut SlotTable,
        name: &str,
        layer: Option<u32>,
        parts: &[(&str, usize)],
        cols: Option<usize>,
        init: Init,
    ) {
        let mut first_row = 0;
        let mut described = Vec::new();
        for (part, rows) in parts {
            let shape = cols.map_or_else(|| Shape::new(&[*rows]), |c| Shape::new(&[*rows, c]));
            described.push(Part { name: (*part).to_owned(), first_row, shape });
            first_row += rows;
        }
        let trainable = self.trains(parts[0].0);
        self.add(slots, name.to_owned(), layer, self.recipe.compute, described, init, ParameterKind::Base, trainable);
    }

    fn add(
        &mut self,
        slots: &mut SlotTable,
        name: String,
        layer: Option<u32>,
        dtype: DType,
        parts: Vec<Part>,
        init: Init,
        kind: ParameterKind,
        trainable: bool,
    ) {
        let rows: usize = parts.iter().map(|p| p.shape.rows()).sum();
        let shape =
            if parts[0].shape.rank() == 1 { Shape::new(&[rows]) } else { Shape::new(&[rows, parts[0].shape.cols()]) };
        // Beside adapters, the score head is one of the few things that are trained and saved.
        let small = kind == ParameterKind::Adapter || (kind == ParameterKind::Score && self.recipe.lora.is_some());
        let role = if small { Role::Adapter } else { Role::Weight };
        let slot = slots.add(Slot { name: name.clone(), shape, dtype, role, extent: Extent::Fixed, layer });
        self.by_name.insert(name.clone(), self.parameters.len());
        self.parameters.push(Parameter { name, slot, shape, kind, trainable, init, parts });
    }

    fn trains(&self, hf_name: &str) -> bool {
        self.recipe.lora.is_none() && !self.recipe.freeze.iter().any(|p| matches(p, hf_name))
    }

    /// Layers are stored together unless some of them are frozen and others are not.
    fn fused(&self, layer: usize, projection: &Projection) -> bool {
        let trains =
            |l: &str, kind: &str| self.trains(&format!("model.layers.{layer}.{}.{l}.{kind}", projection.module));
        let first = projection.layers[0].0;
        projection
            .layers
            .iter()
            .all(|(l, _)| trains(l, "weight") == trains(first, "weight") && trains(l, "bias") == trains(first, "bias"))
    }

    fn check_freeze_patterns(&self) -> Result<(), ModelError> {
        let names = || self.parameters.iter().flat_map(|p| &p.parts).map(|p| p.name.as_str());
        if let Some(unused) = self.recipe.freeze.iter().find(|pattern| !names().any(|n| matches(pattern, n))) {
            return Err(ModelError::FreezePattern(unused.clone()));
        }
        if self.config.qk_norm {
            for layer in 0..self.config.layers {
                let trains = |norm: &str| self.trains(&format!("model.layers.{layer}.self_attn.{norm}.weight"));
                if trains("q_norm") != trains("k_norm") {
                    return Err(ModelError::Method(format!(
                        "layer {layer}: q_norm and k_norm can only be frozen together; freeze `*.q_norm*` and `*.k_norm*` both"
                    )));
                }
            }
        }
        Ok(())
    }

    fn weight(&self, graph: &mut Graph, slots: &SlotTable, name: &str) -> ValueId {
        graph.slot(slots, self.slot(name).unwrap_or_else(|| panic!("no parameter {name}")))
    }

    fn slot(&self, name: &str) -> Option<SlotId> {
        self.by_name.get(name).map(|&i| self.parameters[i].slot)
    }

    /// Tokens to the normalised hidden state before the head.
    fn hidden(
        &self,
        graph: &mut Graph,
        slots: &SlotTable,
        inputs: &Inputs,
        training: bool,
    ) -> Result<ValueId, ModelError> {
        let tokens = graph.slot(slots, inputs.tokens);
        let table = self.weight(graph, slots, "embed");
        let embed = Embed { dtype: self.recipe.compute };
        let mut x = graph.apply(embed, &[table, tokens], "embedded", Class("embedded"))?;
        let mut branch = None;
        for layer in 0..self.config.layers {
            graph.set_layer(Some(layer as u32));
            let (input, normed) = self.norm(
                graph,
                slots,
                x,
                branch,
                layer,
                "input_layernorm",
                ("layer_input", Class::NONE),
                "attn_norm",
            )?;
            let attended = self.attention(graph, slots, inputs, normed, layer, training)?;
            let (middle, normed) = self.norm(
                graph,
                slots,
                input,
                Some(attended),
                layer,
                "post_attention_layernorm",
                ("residual_mid", Class("residual_mid")),
                "mlp_norm",
            )?;
            branch = Some(self.mlp(graph, slots, inputs, normed, layer, training)?);
            x = middle;
        }
        graph.set_layer(None);
        let weight = self.weight(graph, slots, "norm");
        let names = [("final_input", Class::NONE), ("final_norm", Class::NONE), ("final_rstd", Class::NONE)];
        let op = RmsNorm { eps: self.config.norm_eps, weight: true, residual: branch.is_some() };
        let mut operands = vec![x];
        operands.extend(branch);
        operands.push(weight);
        let outputs = graph.apply_all(op, &operands, &names[usize::from(branch.is_none())..])?;
        Ok(outputs[outputs.len() - 2])
    }

    /// The residual sum (if a branch is waiting to be added) and its norm, in one operator.
    fn norm(
        &self,
        graph: &mut Graph,
        slots: &SlotTable,
        x: ValueId,
        branch: Option<ValueId>,
        layer: usize,
        name: &str,
        (summed_name, summed_class): (&str, Class),
        normed_class: &'static str,
    ) -> Result<(ValueId, ValueId), ModelError> {
        let weight = self.weight(graph, slots, &format!("layers.{layer}.{name}"));
        let op = RmsNorm { eps: self.config.norm_eps, weight: true, residual: branch.is_some() };
        let label = |class: &str| format!("layers.{layer}.{class}");
        let (summed, normed, rstd) =
            (label(summed_name), label(normed_class), format!("layers.{layer}.{normed_class}.rstd"));
        match branch {
            Some(branch) => {
                let names = [(&*summed, summed_class), (&*normed, Class(normed_class)), (&*rstd, Class::NONE)];
                let outputs = graph.apply_all(op, &[x, branch, weight], &names)?;
                Ok((outputs[0], outputs[1]))
            }
            None => {
                let names = [(&*normed, Class(normed_class)), (&*rstd, Class::NONE)];
                let outputs = graph.apply_all(op, &[x, weight], &names)?;
                Ok((x, outputs[0]))
            }
        }
    }

    fn attention(
        &self,
        graph: &mut Graph,
        slots: &SlotTable,
        inputs: &Inputs,
        x: ValueId,
        layer: usize,
        training: bool,
    ) -> Result<ValueId, ModelError> {
        let heads = self.config.heads;
        let [qkv_projection, out_projection, ..] = self.projections();
        let label = |class: &str| format!("layers.{layer}.{class}");
        let mut qkv = self.project(graph, slots, inputs, x, layer, &qkv_projection, Class("qkv"), training)?;
        if self.config.qk_norm {
            let weights = ["q_norm", "k_norm"].map(|n| self.weight(graph, slots, &format!("layers.{layer}.{n}")));
            let op = HeadNorm { heads, eps: self.config.norm_eps, weight: true };
            let (normed, rstd) = (label("qk_norm"), label("qk_norm.rstd"));
            let names = [(&*normed, Class("qk_norm")), (&*rstd, Class::NONE)];
            qkv = graph.apply_all(op, &[qkv, weights[0], weights[1]], &names)?[0];
        }
        let table = graph.slot(slots, inputs.rotary);
        let positions = graph.slot(slots, inputs.positions);
        let rotated = graph.apply(
            Rope { heads, inverse: false },
            &[qkv, table, positions],
            &label("rotated"),
            Class("rotated"),
        )?;
        let boundaries = graph.slot(slots, inputs.boundaries);
        let op = Attention {
            heads,
            scale: 1.0 / (heads.head_dim as f32).sqrt(),
            window: self.config.windows[layer],
            max_length: self.batch.max_length,
        };
        let (out, lse) = (label("attn_out"), label("attn_lse"));
        let names = [(&*out, Class("attn_out")), (&*lse, Class::NONE)];
        let attended = graph.apply_all(op, &[rotated, boundaries], &names)?[0];
        self.project(graph, slots, inputs, attended, layer, &out_projection, Class::NONE, training)
    }

    fn mlp(
        &self,
        graph: &mut Graph,
        slots: &SlotTable,
        inputs: &Inputs,
        x: ValueId,
        layer: usize,
        training: bool,
    ) -> Result<ValueId, ModelError> {
        let [.., gate_up, down] = self.projections();
        let gate_up = self.project(graph, slots, inputs, x, layer, &gate_up, Class("gate_up"), training)?;
        let name = format!("layers.{layer}.mlp_act");
        let act = graph.apply(Gated(self.config.activation), &[gate_up], &name, Class("mlp_act"))?;
        self.project(graph, slots, inputs, act, layer, &down, Class::NONE, training)
    }

    /// One product for all layers that share the input, then each adapter into its own columns.
    fn project(
        &self,
        graph: &mut Graph,
        slots: &SlotTable,
        inputs: &Inputs,
        x: ValueId,
        layer: usize,
        projection: &Projection,
        class: Class,
        training: bool,
    ) -> Result<ValueId, ModelError> {
        let prefix = format!("layers.{layer}.{}", projection.name);
        let mut y = self.base_product(graph, slots, x, &prefix, projection, class)?;
        let Some(lora) = &self.recipe.lora else { return Ok(y) };
        let total = projection.out_features();
        let mut start = 0;
        for (l, rows) in &projection.layers {
            let cols = (projection.layers.len() > 1).then_some(Cols { start, len: *rows, total });
            if lora.adapts(l) {
                y = self.adapter_product(
                    graph,
                    slots,
                    inputs,
                    x,
                    y,
                    &format!("{prefix}.{l}"),
                    lora,
                    cols,
                    class,
                    training,
                )?;
            }
            start += rows;
        }
        Ok(y)
    }

    fn base_product(
        &self,
        graph: &mut Graph,
        slots: &SlotTable,
        x: ValueId,
        prefix: &str,
        projection: &Projection,
        class: Class,
    ) -> Result<ValueId, ModelError> {
        if self.slot(&format!("{prefix}.weight")).is_some() {
            let mut operands = vec![x, self.weight(graph, slots, &format!("{prefix}.weight"))];
            if projection.bias {
                operands.push(self.weight(graph, slots, &format!("{prefix}.bias")));
            }
            let op = Linear { bias: projection.bias, ..Linear::forward() };
            return Ok(graph.apply(op, &operands, prefix, class)?);
        }
        let (mut y, mut start) = (None, 0);
        for (l, rows) in &projection.layers {
            let mut operands = vec![x, self.weight(graph, slots, &format!("{prefix}.{l}.weight"))];
            if projection.bias {
                operands.push(self.weight(graph, slots, &format!("{prefix}.{l}.bias")));
            }
            operands.extend(y);
            let op = Linear {
                bias: projection.bias,
                dest: if y.is_some() { Dest::Overwrite } else { Dest::Fresh },
                cols: Some(Cols { start, len: *rows, total: projection.out_features() }),
                ..Linear::forward()
            };
            y = Some(graph.apply(op, &operands, prefix, class)?);
            start += rows;
        }
        Ok(y.expect("a projection has layers"))
    }

    fn adapter_product(
        &self,
        graph: &mut Graph,
        slots: &SlotTable,
        inputs: &Inputs,
        x: ValueId,
        y: ValueId,
        prefix: &str,
        lora: &Lora,
        cols: Option<Cols>,
        class: Class,
        training: bool,
    ) -> Result<ValueId, ModelError> {
        let a = self.weight(graph, slots, &format!("{prefix}.lora_A"));
        let b = self.weight(graph, slots, &format!("{prefix}.lora_B"));
        // The adapter's place among the parameters makes its mask different from every other's.
        let site = self.by_name[&format!("{prefix}.lora_A")] as u32;
        let dropout = (training && lora.dropout > 0.0).then_some(InnerDropout { p: lora.dropout, site });
        let mut operands = vec![x, a];
        if dropout.is_some() {
            operands.extend([graph.slot(slots, inputs.row_ids), graph.slot(slots, inputs.rng_key)]);
        }
        let op = Linear { dropout, ..Linear::forward() };
        let narrow = graph.apply(op, &operands, &format!("{prefix}.narrow"), Class("adapter"))?;
        let op = Linear { alpha: lora.scale(), dest: Dest::Accumulate, cols, ..Linear::forward() };
        Ok(graph.apply(op, &[narrow, b, y], prefix, class)?)
    }

    fn head(&self, graph: &mut Graph, slots: &SlotTable) -> ValueId {
        self.weight(graph, slots, if self.config.tied { "embed" } else { "head" })
    }

    /// Forward pass and loss. The gradient is not here yet.
    pub(crate) fn loss(
        &self,
        slots: &SlotTable,
        inputs: &Inputs,
        loss_chunks: usize,
        training: bool,
    ) -> Result<Graph, ModelError> {
        let mut graph = Graph::new();
        let hidden = self.hidden(&mut graph, slots, inputs, training)?;
        let [scale, loss] = [inputs.loss_scale, inputs.loss].map(|s| graph.slot(slots, s));
        match inputs.pair_stats {
            None => {
                let head = self.head(&mut graph, slots);
                let targets = graph.slot(slots, inputs.targets);
                let op = VocabLoss { softcap: None, chunks: loss_chunks, grad: None };
                graph.apply(op, &[hidden, head, targets, scale, loss], "loss", Class::NONE)?;
            }
            Some(stats) => {
                let score = self.weight(&mut graph, slots, "score");
                let [boundaries, stats] = [inputs.boundaries, stats].map(|s| graph.slot(slots, s));
                let operands = [hidden, score, boundaries, scale, loss, stats];
                let names = [("loss", Class::NONE), ("pair_stats", Class::NONE)];
                graph.apply_all(PairLoss { grad: None }, &operands, &names)?;
            }
        }
        Ok(graph)
    }

    /// Forward pass to the logits of each sequence's last token, which the host reads.
    /// A score head has none.
    pub(crate) fn sample(&self, slots: &SlotTable, inputs: &Inputs) -> Result<Graph, ModelError> {
        let mut graph = Graph::new();
        if self.recipe.head == Head::Score {
            return Ok(graph);
        }
        let hidden = self.hidden(&mut graph, slots, inputs, false)?;
        let head = self.head(&mut graph, slots);
        let boundaries = graph.slot(slots, inputs.boundaries);
        let logits = graph.apply(
            LastLogits { softcap: None, sequences: self.batch.sequences.min(SAMPLE_SEQUENCES) },
            &[hidden, head, boundaries],
            "logits",
            Class::NONE,
        )?;
        graph.results.push(logits);
        Ok(graph)
    }
}
