//! A model as data: what its blocks are made of, in the order in which tokens go through them. Families differ in what
//! they write here; nothing behind it asks for a family's name.

use plimsoll_graph::StreamId;
use plimsoll_graph::ops::{Activation, Heads, Mask};
use serde_json::Value as Json;

use crate::family::Family;
use crate::rotary::Rotary;

/// RMS normalisation over a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Its module within the block, as Hugging Face names it.
    pub name: &'static str,
    pub eps: f32,
    /// Whether it has a learned factor.
    pub weight: bool,
    /// Added to the learned factor: 1 where files store its distance from one.
    pub offset: f32,
}

/// A place where rows meet weights; several linear layers that read the same rows share it.
#[derive(Debug, Clone, PartialEq)]
pub struct Projection {
    /// Last part of the parameter's name.
    pub name: &'static str,
    /// The module that the linear layers belong to.
    pub module: &'static str,
    /// Hugging Face's name and the output features of each, in the order in which their columns lie.
    pub layers: Vec<(&'static str, usize)>,
    pub in_features: usize,
    pub bias: bool,
    /// Standard deviation of each layer's random weights, where it is not the model's.
    pub stds: Vec<f32>,
}

impl Projection {
    /// Without biases.
    pub fn new(name: &'static str, module: &'static str, layers: &[(&'static str, usize)], in_features: usize) -> Self {
        Self { name, module, layers: layers.to_vec(), in_features, bias: false, stds: Vec::new() }
    }

    pub fn out_features(&self) -> usize {
        self.layers.iter().map(|(_, rows)| rows).sum()
    }
}

/// Normalisation of each query and key head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNorm {
    pub eps: f32,
    pub weight: bool,
    pub offset: f32,
    /// Whether heads are rotated before they are normalised, not after.
    pub after_rotary: bool,
}

/// Where keys and values come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Keys {
    /// From the rows that the queries come from: one projection makes all three.
    Own,
    /// From another stack's output.
    Stream { stream: StreamId, projection: Projection },
}

#[derive(Debug, Clone, PartialEq)]
pub struct AttentionModule {
    pub heads: Heads,
    /// To queries, keys and values, or to queries alone.
    pub input: Projection,
    pub output: Projection,
    pub keys: Keys,
    pub qk_norm: Option<QkNorm>,
    pub rotary: bool,
    pub mask: Mask,
    pub scale: f32,
    pub softcap: Option<f32>,
    /// Whether scores have the stack's bias added.
    pub position_bias: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MlpModule {
    /// To gate and up, or to up alone.
    pub input: Projection,
    pub output: Projection,
    pub activation: Activation,
    pub gated: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Module {
    Attention(AttentionModule),
    Mlp(MlpModule),
}

/// One residual branch: a norm, a module, and what is added to the residual stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    pub norm: Norm,
    pub module: Module,
    /// Of the module's output, before it is added.
    pub out_norm: Option<Norm>,
    /// Classes of the normed rows, of the sum they are made from, and of the normed output, for recompute.
    pub classes: BranchClasses,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BranchClasses {
    pub normed: &'static str,
    pub summed: &'static str,
    pub out: &'static str,
}

impl BranchClasses {
    pub const ATTENTION: Self = Self { normed: "attn_norm", summed: "residual_attn", out: "attn_post" };
    pub const CROSS: Self = Self { normed: "cross_norm", summed: "residual_cross", out: "cross_post" };
    pub const MLP: Self = Self { normed: "mlp_norm", summed: "residual_mid", out: "mlp_post" };
}

/// How branches join the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residual {
    /// Each reads the sum that the one before it went into.
    Sequential,
    /// All read the first one's norm, and all outputs are added at once.
    Parallel,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    pub branches: Vec<Branch>,
    pub residual: Residual,
}

/// A learned bias of scores by the distance between key and query, which all blocks of a stack share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PositionBias {
    /// Hugging Face's name of the table `[buckets, heads]`.
    pub name: &'static str,
    pub heads: usize,
    pub buckets: usize,
    /// From here on all distances have one bucket.
    pub max_distance: usize,
    /// Whether keys behind the query have buckets of their own.
    pub both_ways: bool,
    /// Standard deviation of random entries.
    pub std: f32,
}

/// Blocks one behind another over one stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    pub stream: StreamId,
    /// Hugging Face's name of the list of blocks.
    pub module: &'static str,
    /// Stands before the names of its parameters.
    pub prefix: &'static str,
    pub blocks: Vec<Block>,
    /// Of the embedded tokens.
    pub input_norm: Option<Norm>,
    /// Of the last block's output; its name is a whole Hugging Face name.
    pub final_norm: Norm,
    pub position_bias: Option<PositionBias>,
}

/// From tokens to rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Embedding {
    /// Hugging Face's name of the table.
    pub name: &'static str,
    pub scale: f32,
    /// A token whose row looking it up never trains.
    pub padding: Option<u32>,
}

/// From rows to a distribution over the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VocabularyHead {
    /// Hugging Face's name of the matrix.
    pub name: &'static str,
    /// Whether it is the embedding's table.
    pub tied: bool,
    pub softcap: Option<f32>,
    /// What the rows are multiplied with first.
    pub scale: f32,
}

/// A model's architecture: read from Hugging Face's `config.json` by its family.
#[derive(Debug, Clone)]
pub struct Architecture {
    pub family: &'static Family,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub embedding: Embedding,
    /// In the order in which they run; the last one works on the main stream and bears the head.
    pub stacks: Vec<Stack>,
    pub head: VocabularyHead,
    pub rotary: Option<Rotary>,
    pub max_position: usize,
    /// Of embedded tokens, of what is inside MLPs, of what branches add, and of the last rows. Training alone drops.
    pub dropout: f32,
    /// The token that a target begins with, in models that have a source.
    pub decoder_start: Option<u32>,
    pub initializer_range: f32,
    /// What was read, to be written back beside the trained weights.
    pub source: Json,
}

impl Architecture {
    /// Streams that a micro-batch has.
    pub fn streams(&self) -> usize {
        self.stacks.iter().map(|stack| stack.stream.0 as usize + 1).max().unwrap_or(1)
    }

    /// Ties embedding and head as their files have them. As in transformers, a head that is stored beside a different
    /// embedding is its own whatever the configuration says, and T5's is tied unless it is: its configuration says only
    /// whether outputs are scaled.
    pub fn tie_as_stored(&mut self, stored_apart: bool) {
        if self.streams() > 1 {
            self.head.tied = !stored_apart;
        } else if self.head.tied && stored_apart {
            self.head.tied = false;
            self.source["tie_word_embeddings"] = Json::Bool(false);
        }
    }

    /// All blocks, with their stack and the layer number that is unique among all stacks.
    pub fn blocks(&self) -> impl Iterator<Item = (&Stack, usize, u32, &Block)> {
        let in_stacks = self.stacks.iter().flat_map(|stack| stack.blocks.iter().enumerate().map(move |b| (stack, b)));
        in_stacks.enumerate().map(|(layer, (stack, (index, block)))| (stack, index, layer as u32, block))
    }

    /// The linear layers that adapters can stand beside, each once, by the last part of their Hugging Face name.
    pub fn linear_layers(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        let branches = self.blocks().flat_map(|(_, _, _, block)| &block.branches);
        for projection in branches.flat_map(|branch| branch.module.projections()) {
            for (name, _) in &projection.layers {
                if !names.contains(name) {
                    names.push(*name);
                }
            }
        }
        names
    }

    /// Parameters of the whole model, tied weights counted once.
    pub fn parameter_count(&self) -> usize {
        let norm = |norm: &Norm, len: usize| if norm.weight { len } else { 0 };
        let d = self.hidden_size;
        let block = |block: &Block| -> usize {
            let branch = |branch: &Branch| {
                let projections = branch.module.projections();
                let weights = projections.iter().map(|p| p.out_features() * (p.in_features + usize::from(p.bias)));
                let norms = norm(&branch.norm, d) + branch.out_norm.map_or(0, |out| norm(&out, d));
                weights.sum::<usize>() + norms + branch.module.qk_norm_len()
            };
            block.branches.iter().map(branch).sum()
        };
        let stack = |stack: &Stack| -> usize {
            let norms = norm(&stack.final_norm, d) + stack.input_norm.map_or(0, |input| norm(&input, d));
            let bias = stack.position_bias.map_or(0, |bias| bias.buckets * bias.heads);
            stack.blocks.iter().map(block).sum::<usize>() + norms + bias
        };
        let tables = if self.head.tied { 1 } else { 2 };
        self.stacks.iter().map(stack).sum::<usize>() + tables * self.vocab_size * d
    }
}

impl Module {
    pub fn projections(&self) -> Vec<&Projection> {
        match self {
            Module::Attention(attention) => match &attention.keys {
                Keys::Own => vec![&attention.input, &attention.output],
                Keys::Stream { projection, .. } => vec![&attention.input, projection, &attention.output],
            },
            Module::Mlp(mlp) => vec![&mlp.input, &mlp.output],
        }
    }

    /// Heads whose queries and keys are normalised with a learned factor.
    pub(crate) fn learned_qk_norm(&self) -> Option<&AttentionModule> {
        match self {
            Module::Attention(module) if module.qk_norm.is_some_and(|norm| norm.weight) => Some(module),
            _ => None,
        }
    }

    fn qk_norm_len(&self) -> usize {
        self.learned_qk_norm().map_or(0, |module| 2 * module.heads.head_dim)
    }
}
