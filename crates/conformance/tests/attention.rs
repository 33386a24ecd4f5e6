//! Causal attention over flat sequences, forward and backward.

use plimsoll_conformance::{F32_SUMS, Random, Rounding, SIXTEEN, Suite, Tensor, saved, sums_of};
use plimsoll_graph::DType;
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
    check_in(DType::F32, suite, random, case, size);
}

/// The same in a storage type. In sixteen bits, chances are rounded before they meet the values: averaged, that leaves a
/// third of a rounding. In the gradients so are the chances, the scores' gradients, and the `out` that these are made
/// with, which leaves up to one. Where one chance is close to all, gradients are differences of nearly equal numbers, and
/// four to five are left. The allowances are about twice what exact arithmetic with those roundings gives.
fn check_in(dtype: DType, suite: &mut Suite, random: &mut Random, case: &Case, size: f64) {
    let Case { heads, lengths, window, spare } = *case;
    let tokens: usize = lengths.iter().sum();
    let rows = tokens + spare;
    let active = Active::one(tokens, lengths.len());
    let max_length = lengths.iter().copied().max().unwrap_or(1);
    let op = Attention::causal(heads, (heads.head_dim as f32).powf(-0.5), window, max_length);
    let qkv = Tensor::tokens(rows, heads.fused_cols(), random.floats(rows * heads.fused_cols(), size)).stored(dtype);
    let boundaries = Tensor::boundaries(lengths, lengths.len() + spare);
    let name = format!("{heads:?}, lengths {lengths:?}, window {window:?}");
    let inputs = [qkv, boundaries];
    let sums = if dtype == DType::F32 { F32_SUMS } else { sums_of(max_length.max(heads.head_dim)) };
    suite.check_stored(&name, op.clone(), &inputs, active, Rounding::once(sums).within(0.5).apart(&[1]));

    let [out, lse] = saved(op.clone(), &inputs, active).try_into().expect("two outputs");
    let [qkv, boundaries] = inputs;
    let d_out = random.tokens(rows, heads.query_cols()).stored(dtype);
    let inputs = [qkv, out, lse, d_out, boundaries];
    let within = if size > 1.0 { 8.0 } else { 2.0 };
    suite.check_stored(&name, AttentionGrad(op), &inputs, active, Rounding::once(sums).within(within));
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

/// Head dims with kernels of their own, and others.
#[test]
fn sixteen_bit_heads_of_every_size() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(44));
    for heads in [
        heads(1, 1, 8),
        heads(6, 2, 40),
        heads(4, 4, 64),
        heads(8, 2, 64),
        heads(4, 2, 80),
        heads(3, 3, 96),
        heads(6, 1, 96),
        heads(4, 1, 128),
        heads(2, 1, 160),
    ] {
        for dtype in SIXTEEN {
            for (lengths, spare) in [(&[11, 1, 23][..], 4), (&[65, 130, 2], 0), (&[1, 200], 9)] {
                check_in(dtype, suite, random, &Case { heads, lengths, window: None, spare }, 1.0);
            }
        }
    }
}

/// Lengths about the tiles of 64 and 128 rows.
#[test]
fn sixteen_bit_sequences_of_all_lengths() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(45));
    let all: [&[usize]; 7] = [&[1], &[1, 1, 1], &[63, 64], &[127, 1, 129], &[128], &[257, 31], &[3, 385, 1]];
    for dtype in SIXTEEN {
        for head_dim in [64, 80, 96, 128] {
            for lengths in all {
                check_in(
                    dtype,
                    suite,
                    random,
                    &Case { heads: heads(2, 1, head_dim), lengths, window: None, spare: 5 },
                    1.0,
                );
            }
        }
    }
}

#[test]
fn sixteen_bit_windows() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(46));
    for dtype in SIXTEEN {
        for head_dim in [64, 80, 96, 128] {
            for window in [1, 7, 64, 65, 150] {
                let case =
                    Case { heads: heads(2, 1, head_dim), lengths: &[5, 200, 1, 30], window: Some(window), spare: 3 };
                check_in(dtype, suite, random, &case, 1.0);
            }
        }
    }
}

#[test]
fn sixteen_bit_large_scores() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(47));
    for dtype in SIXTEEN {
        for head_dim in [16, 64, 128] {
            let case = Case { heads: heads(2, 1, head_dim), lengths: &[90, 4], window: None, spare: 0 };
            check_in(dtype, suite, random, &case, 6.0);
        }
    }
}
