//! What every operator means, in f64 and without a trick: loops over the definition. Micro-batches
//! are cut to the rows in use before they come here, so nothing below knows of padding.
//! Each family's gradients are checked against central differences of its forward definition.

mod activation;
mod adapter;
mod array;
mod attention;
mod cached;
mod elementwise;
mod embedding;
mod finite_difference;
mod fp8;
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

use plimsoll_graph::Op;
use plimsoll_graph::ops::InnerDropout;

pub use array::{Array, Coded};
pub use finite_difference::finite_difference;

/// Where dropout masks come from.
pub trait MaskSource {
    /// For each row id and column whether the element is kept.
    fn keep(&mut self, dropout: InnerDropout, row_ids: &Array, key: &Array, cols: usize) -> Vec<bool>;
}

/// For operators that drop nothing.
pub struct NoDropout;

impl MaskSource for NoDropout {
    fn keep(&mut self, _: InnerDropout, _: &Array, _: &Array, _: usize) -> Vec<bool> {
        panic!("this operator was said to drop nothing")
    }
}

/// The factors an element is multiplied by: zero, or `1 / (1 - p)`.
fn dropout_factors(
    dropout: InnerDropout,
    row_ids: &Array,
    key: &Array,
    cols: usize,
    masks: &mut dyn MaskSource,
) -> Array {
    // p is taken as the nearest 65536th part.
    let p = (f64::from(dropout.p) * 65536.0).round() / 65536.0;
    let kept = 1.0 / (1.0 - p);
    let keep = masks.keep(dropout, row_ids, key, cols);
    Array::new(&[row_ids.rows(), cols], keep.into_iter().map(|k| if k { kept } else { 0.0 }).collect())
}

/// The outputs of an operator, in its order.
pub fn evaluate(op: &Op, inputs: &[&Array], masks: &mut dyn MaskSource) -> Vec<Array> {
    match op {
        Op::Linear(op) => vec![linear::linear(op, inputs, masks)],
        Op::BiasGrad(op) => vec![linear::bias_grad(op, inputs)],
        Op::AdapterUp(op) => vec![adapter::adapter_up(op, inputs)],
        Op::AdapterUpGrad(op) => adapter::adapter_up_grad(op, inputs),
        Op::RmsNorm(op) => norm::rms_norm(op, inputs),
        Op::RmsNormGrad(op) => norm::rms_norm_grad(op, inputs),
        Op::HeadNorm(op) => norm::head_norm(op, inputs),
        Op::HeadNormGrad(op) => norm::head_norm_grad(op, inputs),
        Op::LayerNorm(op) => layer_norm::layer_norm(op, inputs),
        Op::LayerNormGrad(op) => layer_norm::layer_norm_grad(op, inputs),
        Op::Rope(op) => vec![rope::rope(op, inputs)],
        Op::Attention(op) => attention::attention(op, inputs),
        Op::AttentionGrad(op) => attention::attention_grad(op, inputs),
        Op::CacheWrite(op) => vec![cached::cache_write(op, inputs)],
        Op::CachedAttention(op) => vec![cached::cached_attention(op, inputs)],
        Op::PositionBias(_) => vec![position_bias::position_bias(inputs)],
        Op::PositionBiasGrad(_) => vec![position_bias::position_bias_grad(inputs)],
        Op::Gated(op) => vec![activation::gated(op, inputs)],
        Op::GatedGrad(op) => activation::gated_grad(op, inputs, masks),
        Op::Pointwise(op) => vec![activation::pointwise(op, inputs)],
        Op::PointwiseGrad(op) => vec![activation::pointwise_grad(op, inputs)],
        Op::Embed(op) => vec![embedding::embed(op, inputs)],
        Op::EmbedGrad(op) => vec![embedding::embed_grad(op, inputs)],
        Op::VocabLoss(op) => loss::vocab_loss(op, inputs),
        Op::LastLogits(op) => vec![loss::last_logits(op, inputs)],
        Op::LastRows(_) => vec![rows::last_rows(inputs)],
        Op::LastRowsGrad(_) => vec![rows::last_rows_grad(inputs)],
        Op::SplitRows(op) => rows::split_rows(op, inputs),
        Op::JoinRows(_) => vec![rows::join_rows(inputs)],
        Op::RoundRows(_) => vec![kept::round_rows(inputs)],
        Op::WidenRows(_) => vec![kept::widen_rows(inputs)],
        Op::PairLoss(op) => score::pair_loss(op, inputs),
        Op::ClassLoss(op) => score::class_loss(op, inputs),
        Op::ListLoss(op) => ranking::list_loss(op, inputs),
        Op::SequenceLogProb(op) => vec![preference::sequence_log_prob(op, inputs)],
        Op::SequenceLogProbGrad(op) => vec![preference::sequence_log_prob_grad(op, inputs)],
        Op::PreferenceLoss(op) => preference::preference_loss(op, inputs),
        Op::Add(_) => vec![elementwise::add(inputs)],
        Op::Scale(op) => vec![elementwise::scale(op, inputs)],
        Op::Dropout(op) => vec![elementwise::dropout(op, inputs, masks)],
        Op::Zeros(op) => vec![elementwise::zeros(op)],
        Op::GlobalNorm(op) => vec![optimizer::global_norm(op, inputs)],
        Op::SquareSum(op) => optimizer::square_sum(op, inputs),
        Op::TotalNorm(_) => vec![optimizer::total_norm(inputs)],
        Op::AdamW(op) => optimizer::adamw(op, inputs),
        Op::Sgd(op) => optimizer::sgd(op, inputs),
        Op::Lion(op) => optimizer::lion(op, inputs),
        Op::Muon(op) => optimizer::muon(op, inputs),
        Op::Adafactor(op) => optimizer::adafactor(op, inputs),
    }
}
