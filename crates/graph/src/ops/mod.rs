//! One file per operator family; the same names recur in every backend and in the conformance suite.

mod activation;
mod adapter;
mod attention;
mod cached;
mod elementwise;
mod embedding;
mod kept;
mod layer_norm;
mod linear;
mod loss;
mod norm;
mod optimizer;
mod position_bias;
mod preference;
mod ranking;
mod rope;
mod rows;
mod score;

pub use activation::{Activation, AdapterShare, Gated, GatedGrad, Pointwise, PointwiseGrad};
pub use adapter::{AdapterUp, AdapterUpGrad, Adapters, Columns, added_inside};
pub use attention::{Attention, AttentionGrad, DISTANCE_TILE, Heads, KEY_TILE, Mask, QUERY_TILE, QkvLayout};
pub use cached::{CacheWrite, CachedAttention};
pub use elementwise::{Add, Dropout, Scale, Zeros};
pub use embedding::{Embed, EmbedGrad};
pub use kept::{RoundRows, WidenRows};
pub use layer_norm::{LayerNorm, LayerNormGrad};
pub use linear::{
    BiasGrad, Cols, DECODED_ELEMENTS_MAX, DECODED_WIDTH, DROPOUT_ROWS, DecodedScratch, Dest, FP8_ROWS, InnerDropout,
    Linear, LinearKind, decoded_parts, decoded_width,
};
pub use loss::{LastLogits, LossGrad, VocabLoss, logits_stride};
pub use norm::{HeadNorm, HeadNormGrad, RmsNorm, RmsNormGrad, weight_addend};
pub use optimizer::{
    ADAFACTOR_PARTS, Adafactor, AdafactorOptimizer, AdafactorSettings, AdamW, AdamWOptimizer, CODED_UPDATE, GlobalNorm,
    HYPER_LEN, Lion, LionOptimizer, MUON_EPS, MatrixRows, MomentumRamp, Muon, MuonOptimizer, MuonScale, MuonSettings,
    NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS, Sgd, SgdOptimizer, SquareSum, TotalNorm,
};
pub use position_bias::{PositionBias, PositionBiasGrad};
pub use preference::{LOG_PROB_MAX, Preference, PreferenceLoss, SequenceLogProb, SequenceLogProbGrad};
pub use ranking::{LIST_STATS, ListLoss, Ranking};
pub use rope::Rope;
pub use rows::{JoinRows, LastRows, LastRowsGrad, SplitRows};
pub use score::{CLASS_STATS, ClassLoss, PAIR_STATS, PairLoss};
