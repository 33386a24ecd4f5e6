//! The decoder family (Llama, Mistral, Qwen2, Qwen3): its parameters under their Hugging Face names.

use std::collections::HashMap;

use plimsoll_graph::ops::Block;
use plimsoll_graph::{BatchShape, DType, Extent, Role, Shape, Slot, SlotId, SlotTable};

use crate::adapter::LINEAR_LAYERS;
use crate::parameters::matches;
use crate::{DecoderConfig, Head, Init, Lora, ModelError, Parameter, ParameterKind, Part, Recipe};

/// Hugging Face's name of the score head's weight.
pub const SCORE_WEIGHT: &str = "score.weight";

/// One of the four places in a block where tokens meet weights; several Hugging Face layers may share it.
pub(crate) struct Projection {
    /// Last part of the slot's name.
    pub(crate) name: &'static str,
    /// Module the Hugging Face layers belong to.
    module: &'static str,
    pub(crate) layers: Vec<(&'static str, usize)>,
    in_features: usize,
    pub(crate) bias: bool,
}

impl Projection {
    pub(crate) fn out_features(&self) -> usize {
        self.layers.iter().map(|(_, rows)| rows).sum()
    }

    /// The layers that have an adapter, each with its output columns.
    pub(crate) fn adapted(&self, lora: &Lora) -> impl Iterator<Item = (&'static str, Block)> {
        let layers = self.layers.iter().scan(0, |end, &(name, len)| {
            let start = *end;
            *end += len;
            Some((name, Block { start, len }))
        });
        layers.filter(|(name, _)| lora.adapts(name))
    }
}

/// Every parameter, registered; `Forward` wires them.
pub(crate) struct Decoder<'a> {
    pub(crate) config: &'a DecoderConfig,
    pub(crate) recipe: &'a Recipe,
    pub(crate) batch: BatchShape,
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

    pub(crate) fn projections(&self) -> [Projection; 4] {
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
        self.register_adapters(slots, layer, projection);
    }

    /// The adapters of a projection's layers lie together: their first matrices one below the other, which makes one
    /// product of all that read the input, and so do their second ones.
    fn register_adapters(&mut self, slots: &mut SlotTable, layer: usize, projection: &Projection) {
        let Some(lora) = &self.recipe.lora else { return };
        let adapted: Vec<_> = projection.adapted(lora).collect();
        if adapted.is_empty() {
            return;
        }
        // Kaiming uniform with a = √5, as PEFT draws A; B starts at zero so that training starts from the base.
        let bound = 1.0 / (projection.in_features as f32).sqrt();
        let (r, dtype) = (lora.r, self.recipe.compute);
        for (side, init) in [("lora_A", Init::Uniform { bound }), ("lora_B", Init::Zeros)] {
            let mut first_row = 0;
            let mut parts = Vec::new();
            for (l, block) in &adapted {
                let shape = if side == "lora_A" { [r, projection.in_features] } else { [block.len, r] };
                let name = format!("base_model.model.model.layers.{layer}.{}.{l}.{side}.weight", projection.module);
                parts.push(Part { name, first_row, shape: Shape::new(&shape) });
                first_row += shape[0];
            }
            let name = format!("layers.{layer}.{}.{side}", projection.name);
            self.add(slots, name, Some(layer as u32), dtype, parts, init, ParameterKind::Adapter, true);
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

    pub(crate) fn slot(&self, name: &str) -> Option<SlotId> {
        self.by_name.get(name).map(|&i| self.parameters[i].slot)
    }

    /// A parameter's place among all; makes the dropout of one projection's adapters different from every other's.
    pub(crate) fn position(&self, name: &str) -> usize {
        self.by_name[name]
    }
}
