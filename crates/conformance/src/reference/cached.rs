use plimsoll_graph::ops::{CacheWrite, CachedAttention};

use super::Array;
use super::array::{add_scaled, dot};

/// Place and position of a row, if it belongs to a sequence.
fn place(inputs: &[&Array], row: usize) -> Option<(usize, usize)> {
    (inputs[2].data[row] >= 0.0).then(|| (inputs[2].index(row), inputs[3].index(row)))
}

pub fn cache_write(op: &CacheWrite, inputs: &[&Array]) -> Array {
    let (rows, mut cache) = (inputs[0], inputs[1].clone());
    for row in 0..rows.rows() {
        if let Some((place, position)) = place(inputs, row) {
            let keys_and_values = &rows.row(row)[op.row_cols() - 2 * op.heads.kv_cols()..];
            cache.row_mut(place * op.capacity + position % op.capacity).copy_from_slice(keys_and_values);
        }
    }
    cache
}

pub fn cached_attention(op: &CachedAttention, inputs: &[&Array]) -> Array {
    let (qkv, cache) = (inputs[0], inputs[1]);
    let head_dim = op.heads.head_dim;
    let mut out = Array::filled(&[qkv.rows(), op.heads.query_cols()], 0.0);
    for row in 0..qkv.rows() {
        let Some((place, position)) = place(inputs, row) else { continue };
        let visible = |earlier: &usize| op.window.is_none_or(|window| position - earlier < window);
        let seen: Vec<(usize, &[f64])> = (0..=position)
            .filter(visible)
            .map(|earlier| (earlier, cache.row(place * op.capacity + earlier % op.capacity)))
            .collect();
        for head in 0..op.heads.query {
            let kv_head = head / (op.heads.query / op.heads.kv);
            let (keys, values) = (kv_head * head_dim, op.heads.kv_cols() + kv_head * head_dim);
            let q = &qkv.row(row)[head * head_dim..][..head_dim];
            let score = |(at, cached): &(usize, &[f64])| {
                let product = f64::from(op.scale) * dot(q, &cached[keys..][..head_dim]);
                let capped = op.softcap.map(f64::from).map_or(product, |cap| cap * (product / cap).tanh());
                capped + op.bias.map_or(0.0, |zero| inputs[4].row(head)[zero + at - position])
            };
            let scores: Vec<f64> = seen.iter().map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
            for ((_, cached), score) in seen.iter().zip(scores) {
                let to = &mut out.row_mut(row)[head * head_dim..][..head_dim];
                add_scaled(to, (score - largest).exp() / total, &cached[values..][..head_dim]);
            }
        }
    }
    out
}
