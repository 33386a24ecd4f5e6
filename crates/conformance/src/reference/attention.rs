use plimsoll_graph::ops::{Attention, AttentionGrad, Heads};

use super::Array;
use super::array::dot;

/// One query's probabilities over the keys it sees.
struct Seen {
    keys: std::ops::Range<usize>,
    probabilities: Vec<f64>,
    /// Log-sum-exp of the scaled scores.
    lse: f64,
}

fn columns(heads: Heads, head: usize) -> std::ops::Range<usize> {
    head * heads.head_dim..(head + 1) * heads.head_dim
}

/// Columns of the key head and of the value head that a query head reads.
fn kv_columns(heads: Heads, query_head: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let kv_head = query_head / (heads.query / heads.kv);
    (columns(heads, heads.query + kv_head), columns(heads, heads.query + heads.kv + kv_head))
}

fn seen(op: &Attention, qkv: &Array, sequence_start: usize, query: usize, head: usize) -> Seen {
    let (key_columns, _) = kv_columns(op.heads, head);
    let first = op.window().map_or(0, |w| (query + 1).saturating_sub(w)).max(sequence_start);
    let q = &qkv.row(query)[columns(op.heads, head)];
    let score = |key: usize| f64::from(op.scale) * dot(q, &qkv.row(key)[key_columns.clone()]);
    let scores: Vec<f64> = (first..=query).map(score).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
    let lse = largest + sum.ln();
    Seen { keys: first..query + 1, probabilities: scores.iter().map(|s| (s - lse).exp()).collect(), lse }
}

/// Each token with the start of its sequence.
fn tokens(cu_seqlens: &Array) -> impl Iterator<Item = (usize, usize)> {
    let sequences = cu_seqlens.data.windows(2).map(|w| (w[0] as usize, w[1] as usize));
    sequences.flat_map(|(start, end)| (start..end).map(move |token| (token, start)))
}

pub fn attention(op: &Attention, inputs: &[&Array]) -> Vec<Array> {
    let (qkv, cu_seqlens) = (inputs[0], inputs[1]);
    let mut out = Array::filled(&[qkv.rows(), op.heads.query_cols()], 0.0);
    let mut lse = Array::filled(&[qkv.rows(), op.heads.query], 0.0);
    for (token, start) in tokens(cu_seqlens) {
        for head in 0..op.heads.query {
            let (_, value_columns) = kv_columns(op.heads, head);
            let seen = seen(op, qkv, start, token, head);
            lse.row_mut(token)[head] = seen.lse;
            for (key, p) in seen.keys.zip(seen.probabilities) {
                let value = &qkv.row(key)[value_columns.clone()];
                let out = &mut out.row_mut(token)[columns(op.heads, head)];
                out.iter_mut().zip(value).for_each(|(o, v)| *o += p * v);
            }
        }
    }
    vec![out, lse]
}

/// From the definition alone: what the forward pass saved is not looked at.
pub fn attention_grad(op: &AttentionGrad, inputs: &[&Array]) -> Array {
    let (op, qkv, d_out, cu_seqlens) = (&op.0, inputs[0], inputs[3], inputs[4]);
    let mut d_qkv = Array::zeros_like(qkv);
    for (token, start) in tokens(cu_seqlens) {
        for head in 0..op.heads.query {
            let query_columns = columns(op.heads, head);
            let (key_columns, value_columns) = kv_columns(op.heads, head);
            let Seen { keys, probabilities, .. } = seen(op, qkv, start, token, head);
            let d_out = &d_out.row(token)[query_columns.clone()];
            let d_p: Vec<f64> = keys.clone().map(|key| dot(d_out, &qkv.row(key)[value_columns.clone()])).collect();
            let mean = dot(&d_p, &probabilities);
            for (i, key) in keys.enumerate() {
                let d_score = f64::from(op.scale) * probabilities[i] * (d_p[i] - mean);
                for c in 0..op.heads.head_dim {
                    let (q, k, v) = (query_columns.start + c, key_columns.start + c, value_columns.start + c);
                    d_qkv.row_mut(token)[q] += d_score * qkv.row(key)[k];
                    d_qkv.row_mut(key)[k] += d_score * qkv.row(token)[q];
                    d_qkv.row_mut(key)[v] += probabilities[i] * d_out[c];
                }
            }
        }
    }
    d_qkv
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;

    use super::super::finite_difference::testing::{array, check_gradient, upstream};
    use super::*;
    use crate::Random;

    #[test]
    fn gradient_is_the_slope() {
        let random = &mut Random::new(5);
        for window in [None, Some(1), Some(3)] {
            let heads = Heads { query: 4, kv: 2, head_dim: 3 };
            let op = Attention::causal(heads, 0.9, window, 5);
            let inputs = [array(random, &[8, heads.fused_cols()]), Array::new(&[4], vec![0.0, 5.0, 6.0, 8.0])];
            let forward = Op::from(op.clone());
            let mut d_out = upstream(random, &forward, &inputs);
            d_out[1].data.fill(0.0);
            let saved = attention(&op, &[&inputs[0], &inputs[1]]);
            let grad_inputs = [&inputs[0], &saved[0], &saved[1], &d_out[0], &inputs[1]];
            check_gradient(&forward, &inputs, 0, &d_out, &attention_grad(&AttentionGrad(op), &grad_inputs));
        }
    }
}
