//! From an operator to its family.

use plimsoll_graph::Op;
use plimsoll_runtime::RuntimeError;

use crate::args::Call;
use crate::{
    activation, adapter, attention, cached, elementwise, embedding, kept, layer_norm, linear, loss, norm, optimizer,
    position_bias, preference, ranking, rope, rows, score,
};

pub(crate) fn run(call: &Call) -> Result<(), RuntimeError> {
    match &call.step.op {
        Op::Linear(op) => linear::linear(op, call),
        Op::BiasGrad(op) => linear::bias_grad(op, call),
        Op::AdapterUp(op) => adapter::adapter_up(op, call),
        Op::AdapterUpGrad(op) => adapter::adapter_up_grad(op, call),
        Op::RmsNorm(op) => norm::rms_norm(op, call),
        Op::RmsNormGrad(op) => norm::rms_norm_grad(op, call),
        Op::HeadNorm(op) => norm::head_norm(op, call),
        Op::HeadNormGrad(op) => norm::head_norm_grad(op, call),
        Op::LayerNorm(op) => layer_norm::layer_norm(op, call),
        Op::LayerNormGrad(op) => layer_norm::layer_norm_grad(op, call),
        Op::Rope(op) => rope::rope(op, call),
        Op::Attention(op) => attention::attention(op, call),
        Op::AttentionGrad(op) => attention::attention_grad(op, call),
        Op::CacheWrite(op) => cached::cache_write(op, call),
        Op::CachedAttention(op) => cached::cached_attention(op, call),
        Op::PositionBias(_) => position_bias::position_bias(call),
        Op::PositionBiasGrad(_) => position_bias::position_bias_grad(call),
        Op::Gated(op) => activation::gated(op, call),
        Op::GatedGrad(op) => activation::gated_grad(op, call),
        Op::Pointwise(op) => activation::pointwise(op, call),
        Op::PointwiseGrad(op) => activation::pointwise_grad(op, call),
        Op::Embed(op) => embedding::embed(op, call),
        Op::EmbedGrad(op) => embedding::embed_grad(op, call),
        Op::VocabLoss(op) => loss::vocab_loss(op, call),
        Op::LastLogits(op) => loss::last_logits(op, call),
        Op::LastRows(_) => rows::last_rows(call),
        Op::LastRowsGrad(_) => rows::last_rows_grad(call),
        Op::SplitRows(_) => rows::split_rows(call),
        Op::JoinRows(_) => rows::join_rows(call),
        Op::RoundRows(_) => kept::round_rows(call),
        Op::WidenRows(_) => kept::widen_rows(call),
        Op::PairLoss(op) => score::pair_loss(op, call),
        Op::ClassLoss(op) => score::class_loss(op, call),
        Op::ListLoss(op) => ranking::list_loss(op, call),
        Op::SequenceLogProb(op) => preference::sequence_log_prob(op, call),
        Op::SequenceLogProbGrad(op) => preference::sequence_log_prob_grad(op, call),
        Op::PreferenceLoss(op) => preference::preference_loss(op, call),
        Op::Add(_) => elementwise::add(call),
        Op::Scale(op) => elementwise::scale(op, call),
        Op::Dropout(op) => elementwise::dropout(op, call),
        Op::Zeros(op) => elementwise::zeros(op, call),
        Op::GlobalNorm(op) => optimizer::global_norm(op, call),
        Op::SquareSum(op) => optimizer::square_sum(op, call),
        Op::TotalNorm(_) => optimizer::total_norm(call),
        Op::AdamW(op) => optimizer::adamw(op, call),
        Op::Sgd(op) => optimizer::sgd(op, call),
        Op::Lion(op) => optimizer::lion(op, call),
        Op::Muon(op) => optimizer::muon(op, call),
        Op::Adafactor(op) => optimizer::adafactor(op, call),
    }
}
