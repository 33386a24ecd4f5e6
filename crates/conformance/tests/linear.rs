//! Products with every combination of destination, columns, bias, dropout and scale.

use plimsoll_conformance::{F32_SUMS, Random, Suite, Tensor};
use plimsoll_graph::ops::{BiasGrad, Cols, DROPOUT_ROWS, Dest, InnerDropout, Linear, LinearKind};
use plimsoll_runtime::Active;

/// Token slots, tokens in use, input features, output features.
#[derive(Debug, Clone, Copy)]
struct Size {
    rows: usize,
    tokens: usize,
    features: usize,
    out: usize,
}

const fn size(rows: usize, tokens: usize, features: usize, out: usize) -> Size {
    Size { rows, tokens, features, out }
}

/// One of everything, odd sizes, whole tiles, and some that are cut into blocks by rows or by columns.
const SIZES: [Size; 10] = [
    size(1, 1, 1, 1),
    size(1, 1, 17, 5),
    size(5, 5, 1, 9),
    size(7, 4, 19, 1),
    size(32, 32, 64, 48),
    size(33, 21, 65, 31),
    size(130, 127, 70, 150),
    size(70, 66, 40, 400),
    size(1100, 1090, 24, 30),
    size(3, 3, 2, 6200),
];

/// The operator's inputs in its order, all random.
fn inputs(random: &mut Random, op: &Linear, size: Size) -> Vec<Tensor> {
    let wide = op.cols.map_or(size.out, |c| c.total);
    let mut inputs = match op.kind {
        LinearKind::Forward => vec![random.tokens(size.rows, size.features), random.fixed(&[size.out, size.features])],
        LinearKind::InputGrad => vec![random.tokens(size.rows, wide), random.fixed(&[size.out, size.features])],
        LinearKind::WeightGrad => vec![random.tokens(size.rows, wide), random.tokens(size.rows, size.features)],
    };
    if op.bias {
        inputs.push(random.fixed(&[size.out]));
    }
    if op.dest_input().is_some() {
        inputs.push(match op.kind {
            LinearKind::Forward => random.tokens(size.rows, wide),
            LinearKind::InputGrad => random.tokens(size.rows, size.features),
            LinearKind::WeightGrad => random.fixed(&[size.out, size.features]),
        });
    }
    if op.dropout.is_some() {
        inputs.extend([random.row_ids(size.rows), random.rng_key()]);
    }
    inputs
}

fn check(suite: &mut Suite, random: &mut Random, op: Linear, size: Size) {
    let inputs = inputs(random, &op, size);
    let active = Active { tokens: size.tokens, sequences: 1 };
    suite.check(&format!("{size:?}"), op, &inputs, active, F32_SUMS);
}

/// All of `y`, a run in the middle of it, and a run that ends it.
fn columns(out: usize) -> [Option<Cols>; 3] {
    [None, Some(Cols { start: 3, len: out, total: out + 8 }), Some(Cols { start: 16, len: out, total: out + 16 })]
}

const DROPOUTS: [Option<InnerDropout>; 2] = [None, Some(InnerDropout { p: 0.25, site: 5 })];

/// Everything but the kind and what only the forward product has.
fn variants(kind: LinearKind, dest: Dest, bias: bool, out: usize) -> Vec<Linear> {
    let mut all = Vec::new();
    for cols in columns(out) {
        for dropout in DROPOUTS {
            for alpha in [1.0, -0.375] {
                all.push(Linear { kind, alpha, bias, dest, cols, dropout });
            }
        }
    }
    all
}

#[test]
fn forward() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(10));
    for size in SIZES {
        for dest in [Dest::Fresh, Dest::Accumulate, Dest::Overwrite] {
            for bias in [false, true] {
                for op in variants(LinearKind::Forward, dest, bias, size.out) {
                    check(suite, random, op, size);
                }
            }
        }
    }
}

#[test]
fn input_gradient() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(11));
    for size in SIZES {
        for dest in [Dest::Fresh, Dest::Accumulate] {
            for op in variants(LinearKind::InputGrad, dest, false, size.out) {
                check(suite, random, op, size);
            }
        }
    }
}

#[test]
fn weight_gradient() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(12));
    for size in SIZES {
        for op in variants(LinearKind::WeightGrad, Dest::Accumulate, false, size.out) {
            check(suite, random, op, size);
        }
    }
}

/// Masks are made some rows at a time; the seams must not show.
#[test]
fn dropout_over_more_rows_than_are_masked_at_once() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(13));
    for rows in [DROPOUT_ROWS, DROPOUT_ROWS + 1, 2 * DROPOUT_ROWS + 37] {
        let size = size(rows + 3, rows, 20, 9);
        for (kind, dest) in [
            (LinearKind::Forward, Dest::Fresh),
            (LinearKind::Forward, Dest::Accumulate),
            (LinearKind::InputGrad, Dest::Fresh),
            (LinearKind::InputGrad, Dest::Accumulate),
            (LinearKind::WeightGrad, Dest::Accumulate),
        ] {
            let op = Linear { kind, dest, alpha: 2.0, dropout: DROPOUTS[1], ..Linear::forward() };
            check(suite, random, op, size);
        }
    }
}

#[test]
fn an_empty_micro_batch_adds_nothing() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(14));
    let size = size(6, 0, 5, 4);
    check(suite, random, Linear { kind: LinearKind::WeightGrad, dest: Dest::Accumulate, ..Linear::forward() }, size);
    let inputs = [random.tokens(6, 4), random.fixed(&[4])];
    suite.check("empty", BiasGrad { cols: None }, &inputs, Active { tokens: 0, sequences: 0 }, 0.0);
}

#[test]
fn bias_gradient() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(15));
    for size in SIZES {
        for cols in columns(size.out) {
            let wide = cols.map_or(size.out, |c| c.total);
            let inputs = [random.tokens(size.rows, wide), random.fixed(&[size.out])];
            let active = Active { tokens: size.tokens, sequences: 1 };
            suite.check(&format!("{size:?}"), BiasGrad { cols }, &inputs, active, F32_SUMS);
        }
    }
}
