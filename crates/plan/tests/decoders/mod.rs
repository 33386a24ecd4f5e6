//! Small decoders with everything the large ones have.

use plimsoll_graph::{BatchShape, DType, Program};
use plimsoll_models::{DecoderConfig, Head, Lora, OptimizerKind, Recipe, Targets, build};

pub const LAYERS: usize = 4;

/// Four heads of the given size, and the rest to match.
pub fn config(model_type: &str, head_dim: usize) -> DecoderConfig {
    let text = format!(
        r#"{{"model_type": "{model_type}", "hidden_size": {}, "num_hidden_layers": {LAYERS},
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": {head_dim},
            "intermediate_size": {}, "vocab_size": {}, "tie_word_embeddings": false}}"#,
        4 * head_dim,
        10 * head_dim,
        24 * head_dim
    );
    DecoderConfig::from_json(&text).expect("a valid configuration")
}

pub fn full() -> Recipe {
    Recipe {
        head: Head::Vocabulary,
        lora: None,
        freeze: Vec::new(),
        optimizer: OptimizerKind::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
        clip: Some(1.0),
        compute: DType::F32,
        state: DType::F32,
        master: false,
    }
}

pub fn lora() -> Recipe {
    let lora = Lora { r: 4, alpha: 8.0, dropout: 0.1, targets: Targets::AllLinear, rslora: false };
    Recipe { lora: Some(lora), ..full() }
}

pub fn program(config: &DecoderConfig, recipe: &Recipe, batch: BatchShape, loss_chunks: usize) -> Program {
    build(config, recipe, batch, loss_chunks).expect("a valid program").program
}
