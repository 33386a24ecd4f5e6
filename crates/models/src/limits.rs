//! How large the figures of a model may be, whether a run file or a `config.json` gives them. With these limits no size
//! computed from several of them overflows before it is checked.

pub const HIDDEN_SIZE_MAX: u64 = 1 << 20;
pub const LAYERS_MAX: u64 = 1 << 12;
pub const HEADS_MAX: u64 = 1 << 12;
pub const HEAD_DIM_MAX: u64 = 1 << 12;
pub const INTERMEDIATE_SIZE_MAX: u64 = 1 << 22;
pub const VOCAB_SIZE_MAX: u64 = 1 << 24;
/// Of everything else that counts something: positions, windows.
pub const COUNT_MAX: u64 = 1 << 40;

/// The limit of a key of `config.json`.
pub(crate) fn of_key(key: &str) -> u64 {
    match key {
        "hidden_size" | "d_model" => HIDDEN_SIZE_MAX,
        "num_hidden_layers" | "num_layers" | "num_decoder_layers" => LAYERS_MAX,
        "num_attention_heads" | "num_key_value_heads" | "num_heads" => HEADS_MAX,
        "head_dim" | "d_kv" => HEAD_DIM_MAX,
        "intermediate_size" | "d_ff" => INTERMEDIATE_SIZE_MAX,
        "vocab_size" => VOCAB_SIZE_MAX,
        _ => COUNT_MAX,
    }
}
