//! Products with every combination of destination, columns, bias, dropout and scale.

use plimsoll_conformance::{F32_SUMS, Placement, Random, Rounding, Suite, Tensor, sums_of};
use plimsoll_graph::ops::{BiasGrad, Cols, DROPOUT_ROWS, Dest, InnerDropout, Linear, LinearKind};
use plimsoll_graph::{DType, Op};
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
    let active = Active::one(size.tokens, 1);
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
                all.push(Linear { kind, alpha, bias, dest, cols, dropout, fp8: false });
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
    suite.check("empty", BiasGrad { cols: None }, &inputs, Active::one(0, 0), 0.0);
}

#[test]
fn bias_gradient() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(15));
    for size in SIZES {
        for cols in columns(size.out) {
            let wide = cols.map_or(size.out, |c| c.total);
            let inputs = [random.tokens(size.rows, wide), random.fixed(&[size.out])];
            let active = Active::one(size.tokens, 1);
            suite.check(&format!("{size:?}"), BiasGrad { cols }, &inputs, active, F32_SUMS);
        }
    }
}

/// In sixteen bits. A weight's gradient is gathered in them or in float32, as the run has it.
fn check_sixteen(
    suite: &mut Suite,
    random: &mut Random,
    op: &Linear,
    size: Size,
    roundings: impl Fn(Rounding) -> Rounding,
) {
    let inputs = inputs(random, op, size);
    let active = Active::one(size.tokens, 1);
    let terms = match op.kind {
        LinearKind::Forward => size.features,
        LinearKind::InputGrad => size.out,
        LinearKind::WeightGrad => size.tokens,
    };
    let numbers: Vec<usize> = (0..op.dropout_inputs().unwrap_or(inputs.len())).collect();
    let rounding = roundings(Rounding::once(sums_of(terms)));
    suite.check_sixteen(&format!("{size:?}"), op.clone(), &inputs, &numbers, active, rounding);
    if op.kind == LinearKind::WeightGrad {
        suite.check_sixteen(
            &format!("{size:?}, gradient in f32"),
            op.clone(),
            &inputs,
            &numbers[..2],
            active,
            rounding,
        );
    }
}

/// A product that masks apart rounds the masked rows, or what it then masks; one that adds a bias apart rounds the sum.
fn apart(op: &Linear) -> impl Fn(Rounding) -> Rounding {
    let stores = if op.kind == LinearKind::InputGrad && op.dropout.is_some() { 2.0 } else { 1.0 };
    let within = if op.bias || op.dropout.is_some() { 1.0 } else { 0.0 };
    move |rounding| rounding.stores(stores).within(within)
}

#[test]
fn every_product_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(16));
    for size in SIZES {
        for (kind, dest, bias) in [
            (LinearKind::Forward, Dest::Fresh, false),
            (LinearKind::Forward, Dest::Fresh, true),
            (LinearKind::Forward, Dest::Accumulate, false),
            (LinearKind::Forward, Dest::Accumulate, true),
            (LinearKind::Forward, Dest::Overwrite, true),
            (LinearKind::InputGrad, Dest::Fresh, false),
            (LinearKind::InputGrad, Dest::Accumulate, false),
            (LinearKind::WeightGrad, Dest::Accumulate, false),
        ] {
            for op in variants(kind, dest, bias, size.out).into_iter().filter(|op| op.alpha != 1.0) {
                check_sixteen(suite, random, &op, size, apart(&op));
            }
        }
    }
}

/// Few rows of whole packs, as text is generated with: one, some of those there is a place for, none; sums that end in
/// the middle of what is read at a time.
#[test]
fn few_rows_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(21));
    for (rows, tokens, features, out) in [
        (1, 1, 8, 3),
        (1, 1, 264, 130),
        (1, 1, 2056, 33),
        (4, 1, 4096, 17),
        (3, 2, 72, 5),
        (8, 8, 1000, 77),
        (7, 0, 64, 64),
    ] {
        for (dest, bias) in
            [(Dest::Fresh, false), (Dest::Fresh, true), (Dest::Accumulate, true), (Dest::Overwrite, false)]
        {
            for op in variants(LinearKind::Forward, dest, bias, out).into_iter().filter(|op| op.dropout.is_none()) {
                let sums = |rounding: Rounding| rounding.within(if bias { 1.0 } else { 0.0 });
                check_sixteen(suite, random, &op, size(rows, tokens, features, out), sums);
            }
        }
    }
}

/// Whoever is beside a row shows in none of its bits.
#[test]
fn few_rows_do_not_know_each_other() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(22));
    let (features, out) = (2072, 41);
    let (x, weight) = (random.floats(3 * features, 1.0), random.fixed(&[out, features]).stored(DType::BF16));
    for harness in suite.all_harnesses().filter(|harness| harness.stores_sixteen()) {
        let mut run = |rows: &[f32], count: usize| {
            let mut rows = rows.to_vec();
            rows.resize(4 * features, 0.0);
            let inputs = [Tensor::tokens(4, features, rows).stored(DType::BF16), weight.clone()];
            let active = Active::one(count, 1);
            harness
                .run(&Linear::forward().into(), &inputs, active, &Placement::default())
                .swap_remove(0)
                .array(active)
                .data
        };
        let together = run(&x, 3);
        for row in 0..3 {
            assert_eq!(
                run(&x[row * features..(row + 1) * features], 1),
                together[row * out..(row + 1) * out],
                "row {row}"
            );
        }
    }
}

/// Of what is far smaller than the product that is added to it, all arrives: sums are rounded once. On average, for each of
/// them is less than half a step of its type.
#[test]
fn small_addends_arrive() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(19));
    let (rows, features) = (256, 256);
    let active = Active::one(rows, 1);
    for (format, size) in [(DType::BF16, 4e-3), (DType::F16, 5e-4)] {
        let [x, weight] =
            [random.tokens(rows, features), random.fixed(&[features, features])].map(|t| t.stored(format));
        let addend = Tensor::tokens(rows, features, random.floats(rows * features, size)).stored(format);
        for kind in [LinearKind::Forward, LinearKind::InputGrad] {
            let product = |dest| Op::from(Linear { kind, dest, ..Linear::forward() });
            for harness in suite.all_harnesses().filter(|harness| harness.stores_sixteen()) {
                let mut run = |dest, inputs: &[Tensor]| {
                    harness.run(&product(dest), inputs, active, &Placement::default()).swap_remove(0).array(active).data
                };
                let alone = run(Dest::Fresh, &[x.clone(), weight.clone()]);
                let sum = run(Dest::Accumulate, &[x.clone(), weight.clone(), addend.clone()]);
                let added = addend.array(active).data;
                let arrived: f64 = (0..added.len()).map(|i| (sum[i] - alone[i]) * added[i]).sum();
                let share = arrived / added.iter().map(|a| a * a).sum::<f64>();
                assert!((share - 1.0).abs() < 0.1, "{kind:?} in {}: {share:.3} arrives", format.name());
            }
        }
    }
}

/// A bias may be trained in float32 beside sixteen-bit tokens, and its gradient gathered there.
#[test]
fn biases_of_sixteen_bit_products() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(17));
    for size in SIZES {
        let op = Linear { bias: true, ..Linear::forward() };
        let (inputs, active) = (inputs(random, &op, size), Active::one(size.tokens, 1));
        let rounding = Rounding::once(sums_of(size.features)).within(1.0);
        suite.check_sixteen(&format!("{size:?}"), op, &inputs, &[0, 1], active, rounding);
        for cols in columns(size.out) {
            let wide = cols.map_or(size.out, |c| c.total);
            let inputs = [random.tokens(size.rows, wide), random.fixed(&[size.out])];
            for stored in [&[0][..], &[0, 1]] {
                let rounding = Rounding::once(sums_of(size.tokens));
                suite.check_sixteen(&format!("{size:?}"), BiasGrad { cols }, &inputs, stored, active, rounding);
            }
        }
    }
}

/// Wide rows are masked some at a time; a gradient in sixteen bits is rounded after each such run.
#[test]
fn dropout_in_runs_of_sixteen_bit_rows() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(18));
    let size = size(603, 600, 1001, 9);
    for (kind, dest) in [
        (LinearKind::Forward, Dest::Fresh),
        (LinearKind::InputGrad, Dest::Accumulate),
        (LinearKind::WeightGrad, Dest::Accumulate),
    ] {
        let op = Linear { kind, dest, alpha: 0.5, dropout: DROPOUTS[1], ..Linear::forward() };
        check_sixteen(suite, random, &op, size, |rounding| rounding.stores(1.0).within(3.0));
    }
}

const RANKS: [usize; 8] = [4, 8, 12, 16, 24, 32, 48, 64];
const WIDES: [usize; 6] = [8, 72, 264, 1000, 1536, 4096];
const LOW_RANK_ROWS: [usize; 7] = [1, 7, 33, 130, 513, 1000, 4095];
/// The reference multiplies one number at a time; larger cases are few and named.
const WIDE_ELEMENTS_MAX: usize = 300_000;

/// The products of an adapter's first matrix: few rows of weights. Masks cost no rounding there, for what is kept is
/// scaled with the result.
fn check_low_rank(
    suite: &mut Suite,
    random: &mut Random,
    rank: usize,
    wide: usize,
    rows: usize,
    dropout: Option<InnerDropout>,
) {
    let size = size(rows + rank % 3, rows, wide, rank);
    for (kind, dest) in [
        (LinearKind::Forward, Dest::Fresh),
        (LinearKind::InputGrad, Dest::Fresh),
        (LinearKind::InputGrad, Dest::Accumulate),
        (LinearKind::WeightGrad, Dest::Accumulate),
    ] {
        let op = Linear { kind, dest, alpha: 0.75, dropout, ..Linear::forward() };
        check_sixteen(suite, random, &op, size, |rounding| rounding);
    }
}

/// Every rank with every width, and rows in turn.
#[test]
fn small_ranks() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(19));
    for (i, rank) in RANKS.into_iter().enumerate() {
        for (j, wide) in WIDES.into_iter().enumerate() {
            let turn = (0..7).map(|k| LOW_RANK_ROWS[(i + 3 * j + 2 * k) % 7]);
            let rows = turn.into_iter().find(|rows| rows * wide <= WIDE_ELEMENTS_MAX).expect("one row fits");
            check_low_rank(suite, random, rank, wide, rows, DROPOUTS[(i + j) % 2]);
        }
    }
}

/// Every number of rows with dropout, tiles of all kinds begun and not filled.
#[test]
fn small_ranks_of_many_rows() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(20));
    for (rank, wide) in [(4, 72), (16, 72), (24, 8), (64, 72)] {
        for rows in LOW_RANK_ROWS {
            check_low_rank(suite, random, rank, wide, rows, DROPOUTS[1]);
        }
    }
}

/// As large as adapters of real models, so that blocks share rows and sums.
#[test]
fn small_ranks_of_real_layers() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(21));
    for (rank, wide, rows, dropout) in
        [(16, 4096, 513, DROPOUTS[1]), (64, 1536, 1000, DROPOUTS[0]), (8, 1000, 4095, DROPOUTS[1])]
    {
        check_low_rank(suite, random, rank, wide, rows, dropout);
    }
}

/// A row for each sequence instead of each token: few rows of wide layers.
#[test]
fn few_rows_of_wide_layers() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(22));
    for rows in [1, 2, 8, 16, 24] {
        check_low_rank(suite, random, 16, 4096, rows, DROPOUTS[1]);
        check_low_rank(suite, random, 32, 1536, rows, DROPOUTS[0]);
        for (kind, dest) in [
            (LinearKind::Forward, Dest::Fresh),
            (LinearKind::Forward, Dest::Accumulate),
            (LinearKind::InputGrad, Dest::Accumulate),
            (LinearKind::WeightGrad, Dest::Accumulate),
        ] {
            let op = Linear { kind, dest, ..Linear::forward() };
            check_sixteen(suite, random, &op, size(rows + 2, rows, 512, 384), apart(&op));
        }
    }
}
