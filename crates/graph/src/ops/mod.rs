//! One file per operator family; the same names recur in every backend and in the conformance suite.

mod activation;
mod adapter;
mod attention;
mod cached;
mod elementwise;
mod embedding;
mod layer_norm;
mod linear;
mod loss;
mod norm;
mod optimizer;
mod rope;
mod rows;
mod score;

pub use activation::{Activation, AdapterShare, Gated, GatedGrad, Pointwise, PointwiseGrad};
pub use adapter::{AdapterUp, AdapterUpGrad, Adapters, Columns, added_inside};
pub use attention::{Attention, AttentionGrad, Heads, KEY_TILE, Mask, QUERY_TILE, QkvLayout};
pub use cached::{CacheWrite, CachedAttention};
pub use elementwise::{Add, Dropout};
pub use embedding::{Embed, EmbedGrad};
pub use layer_norm::{LayerNorm, LayerNormGrad};
pub use linear::{BiasGrad, Cols, DROPOUT_ROWS, Dest, InnerDropout, Linear, LinearKind};
pub use loss::{LastLogits, LossGrad, VocabLoss};
pub use norm::{HeadNorm, HeadNormGrad, RmsNorm, RmsNormGrad, weight_addend};
pub use optimizer::{AdamW, AdamWOptimizer, GlobalNorm, HYPER_LEN, Sgd, SgdOptimizer};
pub use rope::Rope;
pub use rows::{LastRows, LastRowsGrad};
pub use score::{CLASS_STATS, ClassLoss, PAIR_STATS, PairLoss};
