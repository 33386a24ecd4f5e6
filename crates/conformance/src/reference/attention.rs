use std::ops::Range;

use plimsoll_graph::ops::{Attention, AttentionGrad, Mask, QkvLayout};

use super::Array;
use super::array::dot;

/// An operand and the first of the columns that belong to one head.
#[derive(Clone, Copy)]
struct Columns {
    operand: usize,
    first: usize,
    len: usize,
}

impl Columns {
    fn of<'a>(&self, operands: &[&'a Array], row: usize) -> &'a [f64] {
        &operands[self.operand].row(row)[self.first..self.first + self.len]
    }

    fn add(&self, gradients: &mut [Array], row: usize, factor: f64, to_add: &[f64]) {
        let entries = &mut gradients[self.operand].row_mut(row)[self.first..self.first + self.len];
        entries.iter_mut().zip(to_add).for_each(|(entry, x)| *entry += factor * x);
    }
}

/// Where a query head finds its queries, its keys and its values.
fn columns(op: &Attention, head: usize) -> [Columns; 3] {
    let (q, kv, len) = (op.heads.query_cols(), op.heads.kv_cols(), op.heads.head_dim);
    let kv_head = head / (op.heads.query / op.heads.kv);
    let places = match op.layout {
        QkvLayout::Fused => [(0, 0), (0, q), (0, q + kv)],
        QkvLayout::FusedKeyValue => [(0, 0), (1, 0), (1, kv)],
        QkvLayout::Separate => [(0, 0), (1, 0), (2, 0)],
    };
    let heads = [head, kv_head, kv_head];
    [0, 1, 2].map(|i| Columns { operand: places[i].0, first: places[i].1 + heads[i] * len, len })
}

/// One query with the tokens of its sequence and of the keys' sequence.
struct Query {
    row: usize,
    position: usize,
    keys: Range<usize>,
}

/// Every query of every sequence.
fn queries(op: &Attention, boundaries: &[&Array]) -> Vec<Query> {
    let sequences = |bounds: &Array| -> Vec<Range<usize>> {
        bounds.data.windows(2).map(|w| w[0] as usize..w[1] as usize).collect()
    };
    let of_queries = sequences(boundaries[0]);
    let of_keys = sequences(boundaries[op.boundaries() - 1]);
    assert_eq!(of_queries.len(), of_keys.len(), "each sequence of queries has one of keys");
    let pairs = of_queries.into_iter().zip(of_keys);
    let all = pairs.flat_map(|(queries, keys)| {
        queries.clone().map(move |row| Query { row, position: row - queries.start, keys: keys.clone() })
    });
    all.collect()
}

/// A key that a query sees.
struct Seen {
    row: usize,
    /// Its entry in the bias.
    distance: usize,
    probability: f64,
    /// How much the score grows with `scale·q·k`.
    slope: f64,
}

/// The keys that a query sees, and the log-sum-exp of their scores.
fn seen(op: &Attention, operands: &[&Array], bias: Option<&Array>, query: &Query, head: usize) -> (Vec<Seen>, f64) {
    let [q, k, _] = columns(op, head);
    let visible = |key: &usize| match op.mask {
        Mask::Full => true,
        Mask::Causal { window } => *key <= query.position && window.is_none_or(|window| query.position - key < window),
    };
    let mut seen = Vec::new();
    let mut scores = Vec::new();
    for key in (0..query.keys.len()).filter(visible) {
        let row = query.keys.start + key;
        let product = f64::from(op.scale) * dot(q.of(operands, query.row), k.of(operands, row));
        let (capped, slope) = match op.softcap.map(f64::from) {
            Some(cap) => (cap * (product / cap).tanh(), 1.0 - (product / cap).tanh().powi(2)),
            None => (product, 1.0),
        };
        let distance = key + op.max_length - 1 - query.position;
        scores.push(capped + bias.map_or(0.0, |table| table.row(head)[distance]));
        seen.push(Seen { row, distance, probability: 0.0, slope });
    }
    if seen.is_empty() {
        return (seen, 0.0);
    }
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lse = largest + scores.iter().map(|score| (score - largest).exp()).sum::<f64>().ln();
    seen.iter_mut().zip(scores).for_each(|(key, score)| key.probability = (score - lse).exp());
    (seen, lse)
}

pub fn attention(op: &Attention, inputs: &[&Array]) -> Vec<Array> {
    let (operands, rest) = inputs.split_at(op.operands());
    let (boundaries, bias) = rest.split_at(op.boundaries());
    let rows = operands[0].rows();
    let mut out = Array::filled(&[rows, op.heads.query_cols()], 0.0);
    let mut lse = Array::filled(&[rows, op.heads.query], 0.0);
    for query in queries(op, boundaries) {
        for head in 0..op.heads.query {
            let [_, _, v] = columns(op, head);
            let (keys, of_all) = seen(op, operands, bias.first().copied(), &query, head);
            lse.row_mut(query.row)[head] = of_all;
            let head_dim = op.heads.head_dim;
            let to = &mut out.row_mut(query.row)[head * head_dim..(head + 1) * head_dim];
            for key in keys {
                let value = v.of(operands, key.row);
                to.iter_mut().zip(value).for_each(|(to, v)| *to += key.probability * v);
            }
        }
    }
    vec![out, lse]
}

/// From the definition alone: what the forward pass saved is not looked at.
pub fn attention_grad(op: &AttentionGrad, inputs: &[&Array]) -> Vec<Array> {
    let (operands, d_out) = (&inputs[..op.out_at()], inputs[op.out_at() + 2]);
    let (boundaries, bias) = inputs[op.boundaries_at()..].split_at(op.0.boundaries());
    let op = &op.0;
    let mut gradients: Vec<Array> = operands.iter().chain(bias).map(|input| Array::zeros_like(input)).collect();
    for query in queries(op, boundaries) {
        for head in 0..op.heads.query {
            let [q, k, v] = columns(op, head);
            let (keys, _) = seen(op, operands, bias.first().copied(), &query, head);
            let d_out = &d_out.row(query.row)[head * op.heads.head_dim..(head + 1) * op.heads.head_dim];
            let d_p: Vec<f64> = keys.iter().map(|key| dot(d_out, v.of(operands, key.row))).collect();
            let mean: f64 = keys.iter().zip(&d_p).map(|(key, d_p)| key.probability * d_p).sum();
            for (key, d_p) in keys.iter().zip(d_p) {
                let d_score = key.probability * (d_p - mean);
                let d_product = f64::from(op.scale) * key.slope * d_score;
                q.add(&mut gradients, query.row, d_product, k.of(operands, key.row));
                k.add(&mut gradients, key.row, d_product, q.of(operands, query.row));
                v.add(&mut gradients, key.row, key.probability, d_out);
                if op.bias {
                    gradients[op.operands()].row_mut(head)[key.distance] += d_score;
                }
            }
        }
    }
    gradients
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;
    use plimsoll_graph::ops::Heads;

    use super::super::finite_difference::testing::{array, check_gradient, upstream};
    use super::*;
    use crate::Random;

    const HEADS: Heads = Heads { query: 4, kv: 2, head_dim: 3 };

    /// Ends of sequences with these lengths, after so many rows that belong to none.
    fn boundaries(outside: usize, lengths: &[usize]) -> Array {
        let mut ends = vec![outside as f64];
        lengths.iter().for_each(|&length| ends.push(ends[ends.len() - 1] + length as f64));
        Array::new(&[ends.len()], ends)
    }

    fn assert_close(got: &Array, want: &[f64]) {
        let close = got.data.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-12);
        assert!(close && got.data.len() == want.len(), "{:?} is not {want:?}", got.data);
    }

    /// Compares every gradient with slopes: of each operand, and of the bias.
    fn check(op: &Attention, random: &mut Random, lengths: &[usize], key_lengths: &[usize]) {
        let (queries, keys) = (lengths.iter().sum::<usize>() + 1, key_lengths.iter().sum::<usize>() + 1);
        let (q, kv) = (op.heads.query_cols(), op.heads.kv_cols());
        let shapes = match op.layout {
            QkvLayout::Fused => vec![[queries, q + 2 * kv]],
            QkvLayout::FusedKeyValue => vec![[queries, q], [keys, 2 * kv]],
            QkvLayout::Separate => vec![[queries, q], [keys, kv], [keys, kv]],
        };
        let operands: Vec<Array> = shapes.iter().map(|shape| array(random, shape)).collect();
        let mut rest = vec![boundaries(1, lengths)];
        if op.boundaries() == 2 {
            rest.push(boundaries(0, key_lengths));
        }
        if op.bias {
            rest.push(array(random, &[op.heads.query, op.distances()]));
        }
        let inputs = [operands.clone(), rest.clone()].concat();
        let forward = Op::from(op.clone());
        let mut d_out = upstream(random, &forward, &inputs);
        d_out[1].data.fill(0.0);
        let saved = attention(op, &inputs.iter().collect::<Vec<_>>());
        let middle = [saved[0].clone(), saved[1].clone(), d_out[0].clone()];
        let grad_inputs = [operands, middle.to_vec(), rest].concat();
        let gradients = attention_grad(&AttentionGrad(op.clone()), &grad_inputs.iter().collect::<Vec<_>>());
        assert_eq!(gradients.len(), op.operands() + usize::from(op.bias));
        for (index, gradient) in gradients.iter().enumerate() {
            let wrt = if index < op.operands() { index } else { inputs.len() - 1 };
            check_gradient(&forward, &inputs, wrt, &d_out, gradient);
        }
    }

    #[test]
    fn gradients_are_the_slopes() {
        let random = &mut Random::new(5);
        let causal = |window| Mask::Causal { window };
        for mask in [causal(None), causal(Some(1)), causal(Some(3)), Mask::Full] {
            for (softcap, bias) in [(None, false), (Some(0.8), false), (None, true), (Some(0.8), true)] {
                let op = Attention { mask, softcap, bias, ..Attention::causal(HEADS, 0.9, None, 5) };
                check(&op, random, &[5, 0, 1, 2], &[5, 0, 1, 2]);
                for layout in [QkvLayout::FusedKeyValue, QkvLayout::Separate] {
                    let op = Attention { layout, max_keys: 4, ..op.clone() };
                    check(&op, random, &[5, 0, 1, 2], &[3, 2, 0, 4]);
                }
            }
        }
    }

    #[test]
    fn a_query_without_keys_has_zeros() {
        let heads = Heads { query: 1, kv: 1, head_dim: 1 };
        // The last query has left both keys behind.
        let op = Attention { layout: QkvLayout::Separate, ..Attention::causal(heads, 1.0, Some(2), 4) };
        let inputs = [
            Array::filled(&[5, 1], 1.0),
            Array::filled(&[2, 1], 1.0),
            Array::new(&[2, 1], vec![2.0, 4.0]),
            boundaries(0, &[4, 1]),
            boundaries(0, &[2, 0]),
        ];
        let [out, lse] = attention(&op, &inputs.iter().collect::<Vec<_>>()).try_into().expect("two outputs");
        assert_close(&out, &[2.0, 3.0, 4.0, 0.0, 0.0]);
        assert_close(&lse, &[1.0, 1.0 + 2.0f64.ln(), 1.0, 0.0, 0.0]);
    }

    #[test]
    fn the_bias_is_found_by_distance() {
        let heads = Heads { query: 2, kv: 1, head_dim: 1 };
        let (mask, layout) = (Mask::Full, QkvLayout::Separate);
        let op = Attention { mask, layout, bias: true, max_keys: 4, ..Attention::causal(heads, 1.0, None, 3) };
        // The first head looks one key ahead, the second two back.
        let mut table = Array::filled(&[2, 6], 0.0);
        table.row_mut(0)[3] = 100.0;
        table.row_mut(1)[0] = 100.0;
        let inputs = [
            Array::filled(&[3, 2], 0.0),
            Array::filled(&[4, 1], 0.0),
            Array::new(&[4, 1], vec![1.0, 2.0, 3.0, 6.0]),
            boundaries(0, &[3]),
            boundaries(0, &[4]),
            table,
        ];
        let out = &attention(&op, &inputs.iter().collect::<Vec<_>>())[0];
        assert_close(out, &[2.0, 3.0, 3.0, 3.0, 6.0, 1.0]);
    }
}
