//! Attention over flat sequences, forward and backward: causal over fused rows, and every other kind.

use plimsoll_conformance::{F32_SUMS, Random, Rounding, SIXTEEN, Suite, Tensor, saved, sums_of};
use plimsoll_graph::ops::{Attention, AttentionGrad, Heads, Mask, QUERY_TILE, QkvLayout};
use plimsoll_graph::{DType, Extent, StreamId, Streams};
use plimsoll_runtime::{Active, ActiveStream};

const fn heads(query: usize, kv: usize, head_dim: usize) -> Heads {
    Heads { query, kv, head_dim }
}

/// Sequences in flat rows with `spare` slots behind them, for tokens and for sequences.
#[derive(Clone, Copy)]
struct Case<'a> {
    heads: Heads,
    lengths: &'a [usize],
    window: Option<usize>,
    spare: usize,
}

/// What a case may have beyond causal attention over fused rows.
#[derive(Debug, Clone, Copy)]
struct Kind<'a> {
    layout: QkvLayout,
    /// Instead of the case's window.
    full: bool,
    softcap: Option<f32>,
    bias: bool,
    /// Lengths of the keys' sequences, in a stream of their own with two slots to spare.
    keys: Option<&'a [usize]>,
    /// Tokens behind the last sequence that belong to none, though they are in use.
    outside: usize,
}

const PLAIN: Kind = Kind { layout: QkvLayout::Fused, full: false, softcap: None, bias: false, keys: None, outside: 0 };

/// Checks the forward pass and, on what it saves, the backward pass.
fn check(suite: &mut Suite, random: &mut Random, case: &Case, size: f64) {
    check_in(DType::F32, suite, random, case, size);
}

fn check_in(dtype: DType, suite: &mut Suite, random: &mut Random, case: &Case, size: f64) {
    check_kind(dtype, suite, random, case, &PLAIN, size);
}

/// A number of tokens in one stream and how they are divided.
struct Stream<'a> {
    id: StreamId,
    lengths: &'a [usize],
    /// In use.
    tokens: usize,
    spare: usize,
}

impl Stream<'_> {
    fn active(&self) -> ActiveStream {
        ActiveStream { tokens: self.tokens, sequences: self.lengths.len() }
    }

    fn rows(&self, random: &mut Random, cols: usize, size: f64) -> Tensor {
        let rows = self.tokens + self.spare;
        let tensor = Tensor::tokens(rows, cols, random.floats(rows * cols, size));
        Tensor { extent: Extent::Tokens(self.id), ..tensor }
    }

    fn boundaries(&self) -> Tensor {
        let tensor = Tensor::boundaries(self.lengths, self.lengths.len() + self.spare);
        Tensor { extent: Extent::Boundaries(self.id), ..tensor }
    }

    fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0).max(1)
    }
}

/// The same in a storage type. In sixteen bits, chances are rounded before they meet the values: averaged, that leaves a
/// third of a rounding. In the gradients so are the chances, the scores' gradients, and the `out` that these are made
/// with, which leaves up to one. Where one chance is close to all, gradients are differences of nearly equal numbers, and
/// four to five are left. The allowances are about twice what exact arithmetic with those roundings gives.
fn check_kind(dtype: DType, suite: &mut Suite, random: &mut Random, case: &Case, kind: &Kind, size: f64) {
    let Case { heads, lengths, window, spare } = *case;
    let Kind { layout, softcap, bias, outside, .. } = *kind;
    let tokens = |lengths: &[usize]| lengths.iter().sum::<usize>() + outside;
    let queries = Stream { id: StreamId::MAIN, lengths, tokens: tokens(lengths), spare };
    let own = kind.keys.map(|lengths| Stream { id: StreamId::SOURCE, lengths, tokens: tokens(lengths), spare: 2 });
    let keys = own.as_ref().unwrap_or(&queries);
    let active = match &own {
        Some(keys) => Active { streams: Streams::new(&[queries.active(), keys.active()]) },
        None => Active { streams: Streams::one(queries.active()) },
    };
    let mask = if kind.full { Mask::Full } else { Mask::Causal { window } };
    let scale = (heads.head_dim as f32).powf(-0.5);
    let (max_length, max_keys) = (queries.longest(), keys.longest());
    let op = Attention { heads, layout, mask, scale, softcap, bias, max_length, max_keys };
    let (q_cols, kv_cols) = (heads.query_cols(), heads.kv_cols());
    let operands: Vec<Tensor> = match layout {
        QkvLayout::Fused => vec![queries.rows(random, q_cols + 2 * kv_cols, size)],
        QkvLayout::FusedKeyValue => vec![queries.rows(random, q_cols, size), keys.rows(random, 2 * kv_cols, size)],
        QkvLayout::Separate => {
            let q = queries.rows(random, q_cols, size);
            vec![q, keys.rows(random, kv_cols, size), keys.rows(random, kv_cols, size)]
        }
    };
    let operands: Vec<Tensor> = operands.iter().map(|operand| operand.stored(dtype)).collect();
    let mut rest = [queries.boundaries(), keys.boundaries()][..op.boundaries()].to_vec();
    if bias {
        rest.push(random.fixed(&[heads.query, op.distances()]));
    }
    let name = format!("{heads:?}, lengths {lengths:?}, window {window:?}, {kind:?}");
    let inputs = [operands.clone(), rest.clone()].concat();
    let sums = if dtype == DType::F32 { F32_SUMS } else { sums_of(max_length.max(max_keys).max(heads.head_dim)) };
    suite.check_stored(&name, op.clone(), &inputs, active, Rounding::once(sums).within(0.5).apart(&[1]));

    let mut middle = saved(op.clone(), &inputs, active);
    middle.push(queries.rows(random, q_cols, 1.0).stored(dtype));
    let inputs = [operands, middle, rest].concat();
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

/// Every kind of scores in every layout, for these lengths of queries and keys.
fn check_kinds(dtypes: &[DType], seed: u64, heads: Heads, (lengths, keys): (&[usize], &[usize]), windows: &[usize]) {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(seed));
    let masks = windows.iter().map(|&window| (Some(window), false)).chain([(None, false), (None, true)]);
    for (window, full) in masks {
        for (softcap, bias) in [(None, false), (Some(0.6), false), (None, true), (Some(0.6), true)] {
            for (layout, own) in [
                (QkvLayout::Fused, None),
                (QkvLayout::FusedKeyValue, Some(keys)),
                (QkvLayout::Separate, None),
                (QkvLayout::Separate, Some(keys)),
            ] {
                let kind = Kind { layout, full, softcap, bias, keys: own, outside: 0 };
                let case = Case { heads, lengths, window, spare: 3 };
                dtypes.iter().for_each(|&dtype| check_kind(dtype, suite, random, &case, &kind, 1.0));
            }
        }
    }
}

/// Lengths about the tiles, empty sequences on either side, and windows that leave queries without a key.
const QUERIES: [usize; 7] = [5, 0, 70, 1, 131, 3, 40];
const KEYS: [usize; 7] = [9, 4, 20, 0, 129, 66, 40];

#[test]
fn every_kind() {
    check_kinds(&[DType::F32], 48, heads(4, 2, 16), (&QUERIES, &KEYS), &[1, 6, 65]);
}

#[test]
fn every_kind_in_sixteen_bits() {
    check_kinds(&SIXTEEN, 49, heads(4, 2, 64), (&QUERIES, &KEYS), &[30]);
}

/// A bias for a long table with few keys and the other way round, over several tiles of both.
#[test]
fn far_more_queries_than_keys_and_the_other_way_round() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(50));
    let (long, short): (&[usize], &[usize]) = (&[2, 5 * QUERY_TILE + 3, 64], &[7, 1, 128]);
    for (lengths, keys) in [(long, short), (short, long)] {
        for full in [false, true] {
            for softcap in [None, Some(2.0)] {
                let layout = QkvLayout::FusedKeyValue;
                let kind = Kind { layout, full, softcap, bias: true, keys: Some(keys), outside: 0 };
                for head_dim in [20, 64] {
                    let case = Case { heads: heads(3, 1, head_dim), lengths, window: None, spare: 1 };
                    for dtype in [DType::F32, DType::BF16, DType::F16] {
                        check_kind(dtype, suite, random, &case, &kind, 1.0);
                    }
                }
            }
        }
    }
}

#[test]
fn every_kind_with_heads_of_every_size() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(51));
    let sizes =
        [(1, 1, 1), (2, 1, 5), (6, 2, 33), (4, 4, 64), (3, 1, 80), (2, 1, 96), (4, 2, 128), (2, 2, 160), (2, 1, 256)];
    for (query, kv, head_dim) in sizes {
        let case = Case { heads: heads(query, kv, head_dim), lengths: &[20, 35], window: None, spare: 2 };
        let biased = Kind { full: true, softcap: Some(1.0), bias: true, ..PLAIN };
        let keys = Some(&[33, 50][..]);
        let crossed = Kind { layout: QkvLayout::Separate, full: true, keys, ..PLAIN };
        let both = Kind { layout: QkvLayout::FusedKeyValue, keys, ..biased };
        for kind in [biased, crossed, both, Kind { softcap: Some(1.5), ..PLAIN }] {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                check_kind(dtype, suite, random, &case, &kind, 1.0);
            }
        }
    }
}

const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Nothing on one side or on both, and tokens that belong to no sequence: all zeros, the bias' gradient too.
#[test]
fn nothing_to_see() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(52));
    let all: [(&[usize], &[usize]); 5] =
        [(&[], &[]), (&[0, 0], &[3, 70]), (&[66, 2], &[0, 0]), (&[0], &[0]), (&[4, 70], &[80, 1])];
    for (lengths, keys) in all {
        for outside in [0, 5] {
            for full in [false, true] {
                let kind = Kind { full, outside, bias: true, softcap: Some(2.0), keys: Some(keys), ..PLAIN };
                for (head_dim, dtype) in [24, 64].iter().flat_map(|&dim| TYPES.map(|dtype| (dim, dtype))) {
                    let case = Case { heads: heads(2, 1, head_dim), lengths, window: None, spare: 2 };
                    for layout in [QkvLayout::FusedKeyValue, QkvLayout::Separate] {
                        check_kind(dtype, suite, random, &case, &Kind { layout, ..kind }, 1.0);
                    }
                    check_kind(dtype, suite, random, &case, &Kind { keys: None, ..kind }, 1.0);
                    check_kind(dtype, suite, random, &case, &Kind { outside, ..PLAIN }, 1.0);
                }
            }
        }
    }
}

/// Scores far beyond the cap: their gradients vanish, and nothing overflows.
#[test]
fn capped_large_scores() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(53));
    for (softcap, bias) in [(Some(5.0), false), (Some(50.0), false), (Some(50.0), true), (None, true)] {
        let case = Case { heads: heads(2, 1, 16), lengths: &[90, 4], window: None, spare: 0 };
        for full in [false, true] {
            let kind = Kind { full, softcap, bias, ..PLAIN };
            check_kind(DType::F32, suite, random, &case, &kind, 8.0);
            SIXTEEN.iter().for_each(|&dtype| check_kind(dtype, suite, random, &case, &kind, 6.0));
        }
    }
}
