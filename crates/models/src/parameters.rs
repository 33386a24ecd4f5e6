//! Parameters as they lie in memory, and the Hugging Face tensors they are made of.

use plimsoll_graph::{Shape, SlotId};

/// A Hugging Face tensor that fills some rows of a parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct HfTensor {
    /// Name in a checkpoint: `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    pub first_row: usize,
    pub shape: Shape,
    pub init: Init,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    Base,
    Adapter,
    /// Of the task's head: taken from the model's files if they have it, and saved with whatever is trained.
    Head,
}

/// How a tensor starts when no file provides it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    Zeros,
    Ones,
    Normal { std: f32 },
    Uniform { bound: f32 },
}

/// One contiguous weight. Projections that share an input lie together (q, k, v; gate, up), so that
/// one product serves them all.
#[derive(Debug, Clone)]
pub struct Parameter {
    pub name: String,
    pub slot: SlotId,
    pub shape: Shape,
    pub kind: ParameterKind,
    pub trainable: bool,
    /// The settings it is trained by, among the recipe's groups.
    pub group: usize,
    pub tensors: Vec<HfTensor>,
}

/// Does a pattern with `*` match a Hugging Face name, or a module that contains it?
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    glob(pattern.as_bytes(), name.as_bytes()) || glob(format!("{pattern}.*").as_bytes(), name.as_bytes())
}

fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| glob(rest, &text[skip..])),
        Some((first, rest)) => text.split_first().is_some_and(|(t, tail)| t == first && glob(rest, tail)),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        let name = "model.layers.3.mlp.up_proj.weight";
        for (pattern, expected) in [
            ("model.layers.3.mlp.up_proj.weight", true),
            ("model.layers.3", true),
            ("*.mlp.*", true),
            ("model.layers.*", true),
            ("model.layers.33", false),
            ("lm_head*", false),
            ("*", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern}");
        }
    }
}
