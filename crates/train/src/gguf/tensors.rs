//! Which tensors llama.cpp expects, from which of ours, and what is done to them on the way.

use plimsoll_graph::Shape;
use plimsoll_models::{Architecture, AttentionModule, Module, Norm, Projection};

/// A tensor of the model, as the file is going to have it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tensor {
    /// Hugging Face's name, under which it is read.
    pub source: String,
    pub name: String,
    pub shape: Shape,
    pub change: Change,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    None,
    /// Heads of so many rows are rotated in neighbouring pairs there, and here in halves.
    PairRows(usize),
    /// Factors of norms are whole numbers there, where ours are a distance from this.
    Add(f32),
}

/// All tensors in the order of the layers. `pairs`: whether the format rotates neighbouring columns of heads.
pub(super) fn tensors(model: &Architecture, pairs: bool) -> Vec<Tensor> {
    let d = model.hidden_size;
    let table = Shape::new(&[model.vocab_size, d]);
    let matrix = |source: &str, name: &str| Tensor {
        source: source.to_owned(),
        name: name.to_owned(),
        shape: table,
        change: Change::None,
    };
    let mut all = vec![matrix(model.embedding.name, "token_embd.weight")];
    for (stack, index, _, block) in model.blocks() {
        let names = Names { from: format!("{}.{index}", stack.module), to: format!("blk.{index}"), pairs };
        for branch in &block.branches {
            let (before, behind) = match &branch.module {
                Module::Attention(_) => ("attn_norm", "post_attention_norm"),
                Module::Mlp(_) => ("ffn_norm", "post_ffw_norm"),
            };
            all.push(names.norm(&branch.norm, before, d));
            names.module(&branch.module, &mut all);
            all.extend(branch.out_norm.as_ref().map(|norm| names.norm(norm, behind, d)));
        }
    }
    for stack in &model.stacks {
        let norm = &stack.final_norm;
        all.push(norm_tensor(format!("{}.weight", norm.name), "output_norm.weight".to_owned(), norm.offset, d));
    }
    if !model.head.tied {
        all.push(matrix(model.head.name, "output.weight"));
    }
    all
}

/// What the parameters of a block are called in both places.
struct Names {
    from: String,
    to: String,
    pairs: bool,
}

impl Names {
    fn norm(&self, norm: &Norm, name: &str, len: usize) -> Tensor {
        let (source, name) = (format!("{}.{}.weight", self.from, norm.name), format!("{}.{name}.weight", self.to));
        norm_tensor(source, name, norm.offset, len)
    }

    fn module(&self, module: &Module, all: &mut Vec<Tensor>) {
        for projection in module.projections() {
            for &(layer, rows) in &projection.layers {
                let change = self.change(module, layer);
                all.extend(self.linear(projection, layer, rows, change));
            }
        }
        if let Module::Attention(attention) = module {
            self.head_norms(attention, all);
        }
    }

    fn change(&self, module: &Module, layer: &str) -> Change {
        match module {
            Module::Attention(attention) if self.pairs && matches!(layer, "q_proj" | "k_proj") => {
                Change::PairRows(attention.heads.head_dim)
            }
            _ => Change::None,
        }
    }

    fn linear(&self, projection: &Projection, layer: &str, rows: usize, change: Change) -> Vec<Tensor> {
        let to = match layer {
            "q_proj" => "attn_q",
            "k_proj" => "attn_k",
            "v_proj" => "attn_v",
            "o_proj" => "attn_output",
            "gate_proj" => "ffn_gate",
            "up_proj" => "ffn_up",
            _ => "ffn_down",
        };
        let tensor = |kind: &str, shape: Shape| Tensor {
            source: format!("{}.{}.{layer}.{kind}", self.from, projection.module),
            name: format!("{}.{to}.{kind}", self.to),
            shape,
            change,
        };
        let mut made = vec![tensor("weight", Shape::new(&[rows, projection.in_features]))];
        if projection.bias {
            made.push(tensor("bias", Shape::new(&[rows])));
        }
        made
    }

    fn head_norms(&self, attention: &AttentionModule, all: &mut Vec<Tensor>) {
        let Some(norm) = attention.qk_norm.filter(|norm| norm.weight) else { return };
        for (from, to) in [("q_norm", "attn_q_norm"), ("k_norm", "attn_k_norm")] {
            let source = format!("{}.{}.{from}.weight", self.from, attention.input.module);
            all.push(norm_tensor(source, format!("{}.{to}.weight", self.to), norm.offset, attention.heads.head_dim));
        }
    }
}

fn norm_tensor(source: String, name: String, offset: f32, len: usize) -> Tensor {
    let change = if offset == 0.0 { Change::None } else { Change::Add(offset) };
    Tensor { source, name, shape: Shape::new(&[len]), change }
}
