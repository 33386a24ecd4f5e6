//! Causal attention over flat sequences, forward and backward.

use plimsoll_conformance::{F32_SUMS, Random, Suite, Tensor, saved};
use plimsoll_graph::ops::{Attention, AttentionGrad, Heads, QUERY_TILE};
use plimsoll_runtime::Active;

const fn heads(query: usize, kv: usize, head_dim: usize) -> Heads {
    Heads { query, kv, head_dim }
}

/// Sequences in flat rows with `spare` slots behind them, for tokens and for sequences.
struct Case<'a> {
    heads: Heads,
    lengths: &'a [usize],
    window: Option<usize>,
    spare: usize,
}

/// Checks the forward pass and, on what it saves, the backward pass.
fn check(suite: &mut Suite, random: &mut Random, case: &Case, size: f64) {
    let Case { heads, lengths, window, spare } = *case;
    let tokens: usize = lengths.iter().sum();
    let rows = tokens + spare;
    let active = Active { tokens, sequences: lengths.len() };
    let max_length = lengths.iter().copied().max().unwrap_or(1);
    let op = Attention { heads, scale: (heads.head_dim as f32).powf(-0.5), window, max_length };
    let qkv = Tensor::tokens(rows, heads.fused_cols(), random.floats(rows * heads.fused_cols(), size));
    let boundaries = Tensor::boundaries(lengths, lengths.len() + spare);
    let name = format!("{heads:?}, lengths {lengths:?}, window {window:?}");
    let inputs = [qkv, boundaries];
    suite.check(&name, op.clone(), &inputs, active, F32_SUMS);

    let [out, lse] = saved(op.clone(), &inputs, active).try_into().expect("two outputs");
    let [qkv, boundaries] = inputs;
    let d_out = random.tokens(rows, heads.query_cols());
    let inputs = [qkv, out, lse, d_out, boundaries];
    suite.check(&name, AttentionGrad(op), &inputs, active, F32_SUMS);
}

#[test]
fn grouped_heads_of_every_size() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(40));
    for heads in [
        heads(1, 1, 8),
        heads(2, 2, 12),
        heads(4, 1, 16),
        heads(6, 2, 32),
        heads(9, 3, 24),
        heads(4, 2, 64),
        heads(2, 1, 80),
        heads(3, 3, 96),
        heads(2, 1, 128),
    ] {
        check(suite, random, &Case { heads, lengths: &[11, 1, 23], window: None, spare: 4 }, 1.0);
    }
}

#[test]
fn sequences_of_all_lengths() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(41));
    let tile = QUERY_TILE;
    let all: [&[usize]; 8] = [
        &[1],
        &[1, 1, 1],
        &[2, 1, 63],
        &[tile],
        &[tile - 1, tile + 1],
        &[2 * tile, 5],
        &[3, 2 * tile + 17, 1, 40],
        &[3 * tile + 7],
    ];
    for lengths in all {
        for spare in [0, 9] {
            check(suite, random, &Case { heads: heads(4, 2, 16), lengths, window: None, spare }, 1.0);
        }
    }
}

#[test]
fn windows() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(42));
    for window in [1, 2, 7, QUERY_TILE - 1, QUERY_TILE, QUERY_TILE + 1, 150, 1000] {
        let lengths = [5, 2 * QUERY_TILE + 22, 1, 30];
        check(suite, random, &Case { heads: heads(2, 1, 16), lengths: &lengths, window: Some(window), spare: 3 }, 1.0);
    }
}

/// Scores of some hundreds: the exponentials must be taken relative to the largest.
#[test]
fn large_scores() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(43));
    let case = Case { heads: heads(2, 1, 16), lengths: &[90, 4], window: None, spare: 0 };
    check(suite, random, &case, 12.0);
}
