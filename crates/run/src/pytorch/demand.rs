//! What one training process of PyTorch's eager mode takes for an update: bytes by what they hold, and the work of it.
//!
//! Activations are counted operator by operator, as autograd keeps them: of a norm the input in float32, of a linear layer
//! that is trained its input, of an adapter its input in float32 (PEFT keeps adapters so) and a mask of its dropout, and so
//! on. Everything is for one token and in bytes unless its name says otherwise.

use plimsoll_models::{Architecture, AttentionModule, Block, Keys, Lora, MlpModule, Module, Norm, Projection, Stack};

/// A run as transformers and PEFT would do it: weights in a sixteen-bit type, full-length sequences.
#[derive(Debug, Clone)]
pub struct Workload<'a> {
    pub model: &'a Architecture,
    /// Whether the loss is over the vocabulary; else a head of a few scores.
    pub vocabulary: bool,
    /// Of one pass; several passes make an update.
    pub sequences: usize,
    pub passes: usize,
    pub length: usize,
    /// Adapters; without them everything is trained.
    pub lora: Option<Lora>,
    /// Of the optimizer, for each trained parameter.
    pub state_bytes: f64,
    pub liger: bool,
    /// Whether each block's input alone is kept, and the block run again in the backward pass.
    pub checkpointing: bool,
}

/// Bytes at the fullest moment by what they hold, and what decides the time of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    pub weights: f64,
    pub adapters: f64,
    pub gradients: f64,
    pub optimizer: f64,
    pub activations: f64,
    /// Logits, their float32 copies and gradients.
    pub logits: f64,
    /// Logits at their fullest, whether or not that is the fullest moment of all.
    pub logits_max: f64,
    /// What is freed while gradients come: the allocator rarely finds places for these in it.
    pub exchanged: f64,
    /// Of products and attention, in an update.
    pub flops: f64,
    /// Activations that an update makes, and again where blocks are run again.
    pub made: f64,
    /// Logits of all passes, with copies and gradients.
    pub logits_made: f64,
    /// Bytes that the optimizer's step reads and writes.
    pub stepped: f64,
    /// Blocks whose kernels the host launches, forward and backward; run again, they are a third more work.
    pub launched: f64,
}

/// Of weights, of gradients of what is trained, and of what adapters are kept in.
const SIXTEEN: f64 = 2.0;
const FLOAT32: f64 = 4.0;
/// The logits, their copy in float32, its logarithms and two gradients: what is there at once, in bytes of a logit.
const LOGITS: f64 = 12.0;
/// T5's loss works on sixteen-bit logits.
const LOGITS_SIXTEEN: f64 = 8.0;
/// Two tensors in float32 and one in sixteen bits, as wide as the widest layer, in the backward pass of an adapter;
const PASSING_LORA: f64 = 10.0;
/// two in sixteen bits where there is none.
const PASSING_FULL: f64 = 4.0;
/// Attention reaches half of the rate of products.
const ATTENTION_SLOWER: f64 = 2.0;

impl Workload<'_> {
    pub fn demand(&self) -> Demand {
        let tokens = (self.sequences * self.length) as f64;
        let hidden = self.model.hidden_size as f64;
        let parameters = self.parameters();
        let adapters = self.adapter_parameters();
        let trained = if self.lora.is_some() { adapters } else { parameters };
        let trained_bytes = if self.lora.is_some() { FLOAT32 } else { SIXTEEN };
        let blocks: Vec<f64> = self.model.blocks().map(|(stack, _, _, block)| self.block(stack, block)).collect();
        let all: f64 = tokens * (blocks.iter().sum::<f64>() + self.outside());
        let largest = tokens * blocks.iter().copied().fold(0.0, f64::max);
        let kept = if self.checkpointing { tokens * SIXTEEN * hidden * blocks.len() as f64 } else { all };
        let rebuilt = if self.checkpointing { largest } else { 0.0 };
        let passing = if self.lora.is_some() { PASSING_LORA } else { PASSING_FULL } * self.widest() * tokens;
        let logits = self.logits() * tokens;
        let gradients = trained_bytes * trained;
        // Those of earlier passes are there from the beginning.
        let early = if self.passes > 1 { gradients } else { 0.0 };
        let moments =
            [(early, kept, logits), (early, kept + rebuilt + passing, 0.0), (gradients, largest + passing, 0.0)];
        let of = |moment: &(f64, f64, f64)| moment.0 + moment.1 + moment.2;
        let fullest = moments.iter().copied().max_by(|a, b| of(a).total_cmp(&of(b))).expect("three moments");
        let passes = self.passes as f64;
        let again = if self.checkpointing { 1.5 } else { 1.0 };
        let touched = 2.0 * trained_bytes + trained_bytes + 2.0 * self.state_bytes;
        Demand {
            weights: SIXTEEN * parameters,
            adapters: FLOAT32 * adapters,
            gradients: fullest.0,
            optimizer: self.state_bytes * trained,
            activations: fullest.1,
            logits: fullest.2,
            logits_max: logits,
            exchanged: gradients.min(kept),
            flops: passes * tokens * self.flops(),
            made: passes * all * again,
            logits_made: passes * logits,
            stepped: touched * trained,
            launched: passes * blocks.len() as f64 * if self.checkpointing { 4.0 / 3.0 } else { 1.0 },
        }
    }

    /// Of the base model; a head of scores has no matrix of the vocabulary.
    fn parameters(&self) -> f64 {
        let head =
            if self.vocabulary || self.model.head.tied { 0 } else { self.model.vocab_size * self.model.hidden_size };
        (self.model.parameter_count() - head) as f64
    }

    fn adapter_parameters(&self) -> f64 {
        let Some(lora) = &self.lora else { return 0.0 };
        let sides = |p: &Projection| -> usize {
            let adapted = p.layers.iter().filter(|(name, _)| lora.adapts(name));
            adapted.map(|(_, out)| lora.r * (p.in_features + out)).sum()
        };
        self.projections().map(sides).sum::<usize>() as f64
    }

    fn projections(&self) -> impl Iterator<Item = &Projection> {
        let branches = self.model.blocks().flat_map(|(_, _, _, block)| &block.branches);
        branches.flat_map(|branch| branch.module.projections())
    }

    fn widest(&self) -> f64 {
        let widths = self.projections().flat_map(|p| p.layers.iter().map(|(_, out)| *out).chain([p.in_features]));
        widths.max().unwrap_or(0) as f64
    }

    fn is_full(&self) -> bool {
        self.lora.is_none()
    }

    /// Outside of blocks: the norms at both ends, and the head's input.
    fn outside(&self) -> f64 {
        let hidden = self.model.hidden_size as f64;
        let norms = |stack: &Stack| {
            let norms = stack.input_norm.iter().chain([&stack.final_norm]);
            norms.map(|norm| self.norm(stack, norm, hidden)).sum::<f64>()
        };
        let head = if self.is_full() && self.vocabulary { SIXTEEN * hidden } else { 0.0 };
        self.model.stacks.iter().map(norms).sum::<f64>() + head
    }

    fn logits(&self) -> f64 {
        // Liger's loss makes them in pieces.
        if !self.vocabulary || self.liger {
            return 0.0;
        }
        let capped = if self.model.head.softcap.is_some() { SIXTEEN } else { 0.0 };
        let each = if self.model.streams() > 1 { LOGITS_SIXTEEN } else { LOGITS };
        (each + capped) * self.model.vocab_size as f64
    }

    fn block(&self, stack: &Stack, block: &Block) -> f64 {
        let hidden = self.model.hidden_size as f64;
        let branch = |branch: &plimsoll_models::Branch| {
            let norms = self.norm(stack, &branch.norm, hidden)
                + branch.out_norm.as_ref().map_or(0.0, |norm| self.norm(stack, norm, hidden));
            // Its output, where a trained layer reads it.
            let normed = if self.is_full() { SIXTEEN * hidden } else { 0.0 };
            let adapters: f64 = branch.module.projections().into_iter().map(|p| self.adapter(p)).sum();
            let dropped = if self.model.dropout > 0.0 { hidden } else { 0.0 };
            let module = match &branch.module {
                Module::Attention(attention) => self.attention(stack, attention),
                Module::Mlp(mlp) => self.mlp(mlp),
            };
            norms + normed + adapters + dropped + module
        };
        block.branches.iter().map(branch).sum()
    }

    /// The input in float32; the normed rows where a factor is learnt. T5 keeps its sixteen-bit input, too. Liger keeps the
    /// input alone.
    fn norm(&self, stack: &Stack, norm: &Norm, width: f64) -> f64 {
        if self.liger {
            return SIXTEEN * width;
        }
        let factor = if norm.weight && self.is_full() { SIXTEEN } else { 0.0 };
        let input = if stack.position_bias.is_some() { SIXTEEN } else { 0.0 };
        (FLOAT32 + factor + input) * width
    }

    /// The input in float32 for each layer, the mask of its dropout, and the inner side.
    fn adapter(&self, projection: &Projection) -> f64 {
        let Some(lora) = &self.lora else { return 0.0 };
        let adapted = projection.layers.iter().filter(|(name, _)| lora.adapts(name)).count();
        let mask = if lora.dropout > 0.0 { 1.0 } else { 0.0 };
        adapted as f64 * ((FLOAT32 + mask) * projection.in_features as f64 + FLOAT32 * lora.r as f64)
    }

    fn attention(&self, stack: &Stack, attention: &AttentionModule) -> f64 {
        let (queries, keys) = (attention.heads.query_cols() as f64, attention.heads.kv_cols() as f64);
        let heads = attention.heads.query as f64;
        let own = SIXTEEN * (2.0 * queries + 2.0 * keys);
        let normed = attention.qk_norm.map_or(0.0, |norm| {
            let factor = if norm.weight && self.is_full() { SIXTEEN } else { 0.0 };
            (FLOAT32 + factor) * (queries + keys)
        });
        // Neither biases of scores nor caps on them leave a kernel that keeps no scores.
        let scores = if attention.softcap.is_some() {
            2.0 * SIXTEEN + FLOAT32
        } else if stack.position_bias.is_some() {
            // Attention to another stream, which has no bias of its own, is given zeros.
            SIXTEEN
        } else {
            0.0
        };
        own + normed + FLOAT32 * heads + scores * heads * self.length as f64
    }

    fn mlp(&self, mlp: &MlpModule) -> f64 {
        let inner = mlp.output.in_features as f64;
        let product = if self.is_full() { SIXTEEN } else { 0.0 };
        let dropped = if self.model.dropout > 0.0 { 1.0 } else { 0.0 };
        let kept = match (mlp.gated, self.liger) {
            (true, true) => 2.0 * SIXTEEN,
            (true, false) => 3.0 * SIXTEEN,
            (false, _) => SIXTEEN,
        };
        (kept + product + dropped) * inner
    }

    /// For a token: forward, backward through rows, and through weights where these are trained.
    fn flops(&self) -> f64 {
        let weights: usize = self.projections().map(|p| p.in_features * p.out_features()).sum();
        let head = if self.vocabulary { self.model.vocab_size * self.model.hidden_size } else { 0 };
        let backward = if self.is_full() { 2.0 } else { 1.0 };
        let again = if self.checkpointing { 1.0 } else { 0.0 };
        let linear = 2.0 * weights as f64 * (1.0 + backward + again) + 2.0 * head as f64 * (1.0 + backward);
        let attention: f64 =
            self.model.blocks().flat_map(|(_, _, _, block)| &block.branches).map(|b| self.scores(&b.module)).sum();
        linear + ATTENTION_SLOWER * attention * (1.0 + 2.5 + again)
    }

    /// Forward, of queries with keys and of what comes of it with values.
    fn scores(&self, module: &Module) -> f64 {
        let Module::Attention(attention) = module else { return 0.0 };
        // Half of the keys lie behind a query, which does not see them, unless they are another stream's or both ways are
        // open.
        let seen = if attention.keys == Keys::Own && !attention.position_bias { 0.5 } else { 1.0 };
        4.0 * attention.heads.query_cols() as f64 * self.length as f64 * seen
    }
}

impl Demand {
    /// What PyTorch's allocator hands out at the fullest moment.
    pub fn allocated(&self) -> f64 {
        self.weights + self.adapters + self.gradients + self.optimizer + self.activations + self.logits
    }
}
