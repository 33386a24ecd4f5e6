//! Products with weights stored in few bits, and with codes of e4m3: every format with every kind, destination, run of
//! columns, bias and scale.

use half::{bf16, f16};
use plimsoll_conformance::{
    F32_SUMS, Placement, Random, Rounding, SIXTEEN, Suite, Tensor, card_asked_for, fp8_sums_of, sums_of,
};
use plimsoll_graph::ops::{Cols, Dest, FP8_ROWS, Linear, LinearKind, decoded_parts};
use plimsoll_graph::{Code, DType, E4M3_MAX, Scales, Shape, Storage, WeightFormat};
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

/// Rows that are whole blocks, that end within one, that end within a byte, and blocks of many rows.
const FOUR_BITS: [Size; 9] = [
    size(1, 1, 64, 1),
    size(5, 5, 1, 64),
    size(7, 4, 65, 64),
    size(33, 21, 192, 31),
    size(40, 37, 48, 400),
    size(3, 3, 2, 3200),
    size(6, 5, 72, 64),
    size(12, 9, 96, 34),
    size(2, 1, 1184, 18),
];
/// As many elements as share nested scales, once and several times.
const NESTED: [Size; 4] = [size(9, 7, 128, 128), size(5, 5, 4096, 12), size(6, 3, 3, 16384), size(35, 33, 512, 96)];
/// Any rows have scales of their own.
const ROWS: [Size; 11] = [
    size(1, 1, 1, 1),
    size(1, 1, 17, 5),
    size(5, 5, 1, 9),
    size(7, 4, 19, 1),
    size(33, 21, 65, 31),
    size(130, 127, 70, 150),
    size(70, 66, 40, 400),
    size(12, 11, 72, 41),
    size(3, 2, 32, 5),
    size(8, 8, 1056, 19),
    size(16, 13, 224, 33),
];

/// All of `y`, a run in the middle of it, and a run that ends it.
fn columns(out: usize) -> [Option<Cols>; 3] {
    [None, Some(Cols { start: 3, len: out, total: out + 8 }), Some(Cols { start: 16, len: out, total: out + 16 })]
}

const KINDS: [(LinearKind, Dest, bool); 8] = [
    (LinearKind::Forward, Dest::Fresh, false),
    (LinearKind::Forward, Dest::Fresh, true),
    (LinearKind::Forward, Dest::Accumulate, false),
    (LinearKind::Forward, Dest::Accumulate, true),
    (LinearKind::Forward, Dest::Overwrite, false),
    (LinearKind::Forward, Dest::Overwrite, true),
    (LinearKind::InputGrad, Dest::Fresh, false),
    (LinearKind::InputGrad, Dest::Accumulate, false),
];

fn variants(out: usize, fp8: bool) -> Vec<Linear> {
    let mut all = Vec::new();
    for (kind, dest, bias) in KINDS {
        for cols in columns(out) {
            for alpha in [1.0, -0.375] {
                all.push(Linear { kind, alpha, bias, dest, cols, dropout: None, fp8 });
            }
        }
    }
    all
}

/// How a weight of this size is stored. Its scales differ much from block to block.
fn weight(random: &mut Random, size: Size, format: WeightFormat, element: DType) -> Tensor {
    let shape = Shape::new(&[size.out, size.features]);
    let storage = format.storage(element, &[shape]).expect("whole blocks");
    let block = storage.blocks.expect("blocks").elements;
    let mut numbers = random.floats(shape.elements(), 1.0);
    for (index, block) in numbers.chunks_mut(block).enumerate() {
        // One block of nothing.
        let factor = if index == 1 { 0.0 } else { 0.05 + 0.95 * random.unit().abs() as f32 };
        block.iter_mut().for_each(|x| *x *= factor);
    }
    Tensor::fixed(&[size.out, size.features], numbers).stored_as(storage)
}

/// The operator's inputs in its order, those that are not the weight as `element`.
fn inputs(random: &mut Random, op: &Linear, size: Size, format: WeightFormat, element: DType) -> Vec<Tensor> {
    let wide = op.cols.map_or(size.out, |c| c.total);
    let (from, to) = match op.kind {
        LinearKind::Forward => (size.features, wide),
        _ => (wide, size.features),
    };
    let weight = weight(random, size, format, element);
    let mut rows = random.tokens(size.rows, from);
    if op.fp8 {
        rows = apart_from_ties(random, op, size, &rows, &weight, element);
    }
    let mut inputs = vec![rows.stored(element), weight];
    if op.bias {
        inputs.push(random.fixed(&[size.out]).stored(element));
    }
    if op.dest_input().is_some() {
        inputs.push(random.tokens(size.rows, to).stored(element));
    }
    inputs
}

/// How near to the middle between two codes no element may be: what is divided by a scale may as well be multiplied by its
/// inverse, which is rounded once more.
const TIE: f64 = 1e-5;

/// The rows with other numbers where they would be rounded to one code by one arithmetic and to its neighbour by another.
fn apart_from_ties(
    random: &mut Random,
    op: &Linear,
    size: Size,
    rows: &Tensor,
    weight: &Tensor,
    element: DType,
) -> Tensor {
    let cols = rows.shape.cols();
    let first = if op.kind == LinearKind::InputGrad { op.cols.map_or(0, |c| c.start) } else { 0 };
    let scales = weight.array(Active::one(size.rows, 1)).coded.expect("codes").scales;
    let factor = |col: usize| match op.kind {
        LinearKind::Forward => 1.0,
        _ => scales[col] as f32,
    };
    let depth = if op.kind == LinearKind::Forward { size.features } else { size.out };
    let mut numbers = rows.f32s().to_vec();
    numbers.iter_mut().for_each(|x| *x = stored(*x, element));
    for row in numbers.chunks_mut(cols) {
        let row = &mut row[first..first + depth];
        loop {
            let factored: Vec<f32> = row.iter().enumerate().map(|(col, x)| x * factor(col)).collect();
            let largest = factored.iter().fold(0f32, |most, x| most.max(x.abs()));
            let near = |x: f32| largest > 0.0 && is_near_tie(f64::from(x) / f64::from(largest / E4M3_MAX));
            let Some(col) = factored.iter().position(|&x| near(x)) else { break };
            // Not above what is there, so that the largest stays.
            row[col] = stored(row[col] * (0.5 + 0.4 * random.unit() as f32), element);
        }
    }
    Tensor { data: plimsoll_conformance::Data::F32(numbers), ..rows.clone() }
}

fn stored(x: f32, element: DType) -> f32 {
    match element {
        DType::BF16 => bf16::from_f32(x).to_f32(),
        DType::F16 => f16::from_f32(x).to_f32(),
        _ => x,
    }
}

fn is_near_tie(share: f64) -> bool {
    let numbers = Code::E4m3.numbers();
    let code = usize::from(Code::E4m3.nearest(share.abs() as f32));
    let middle = |code: usize| 0.5 * (f64::from(numbers[code]) + f64::from(numbers[code + 1]));
    let near = |middle: f64| (share.abs() - middle).abs() < TIE * middle;
    (code < 126 && near(middle(code))) || (code > 0 && near(middle(code - 1)))
}

fn sizes(format: WeightFormat) -> Vec<Size> {
    match format {
        WeightFormat::Nf4 => [&FOUR_BITS[..], &NESTED].concat(),
        WeightFormat::Int8 | WeightFormat::E4m3 => ROWS.to_vec(),
    }
}

fn check_all(format: WeightFormat, seed: u64) {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(seed));
    for size in sizes(format) {
        for op in variants(size.out, false) {
            let (inputs, active) = (inputs(random, &op, size, format, DType::F32), Active::one(size.tokens, 1));
            suite.check(&format!("{format:?} {size:?}"), op, &inputs, active, F32_SUMS);
        }
    }
}

/// Terms of a sum.
fn depth(op: &Linear, size: Size) -> usize {
    if op.kind == LinearKind::Forward { size.features } else { size.out }
}

/// What is added apart is rounded apart.
fn added(op: &Linear) -> f64 {
    if op.bias || op.dest == Dest::Accumulate { 1.0 } else { 0.0 }
}

fn check_all_sixteen(format: WeightFormat, seed: u64) {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(seed));
    for size in sizes(format) {
        // Of a single sum, what is rounded apart may be many times the result.
        let single = size.tokens * size.out == 1;
        let tells = |op: &Linear| op.alpha != 1.0 && !(single && added(op) > 0.0);
        for op in variants(size.out, false).into_iter().filter(tells) {
            for element in SIXTEEN {
                let (inputs, active) = (inputs(random, &op, size, format, element), Active::one(size.tokens, 1));
                let rounding = Rounding::once(sums_of(depth(&op, size))).within(added(&op));
                suite.check_stored(&format!("{format:?} {size:?}"), op.clone(), &inputs, active, rounding);
            }
        }
    }
}

#[test]
fn four_bits() {
    check_all(WeightFormat::Nf4, 70);
}

#[test]
fn eight_bits() {
    check_all(WeightFormat::Int8, 71);
    check_all(WeightFormat::E4m3, 72);
}

#[test]
fn four_bits_beside_sixteen() {
    check_all_sixteen(WeightFormat::Nf4, 73);
}

#[test]
fn eight_bits_beside_sixteen() {
    check_all_sixteen(WeightFormat::Int8, 74);
    check_all_sixteen(WeightFormat::E4m3, 75);
}

/// Whoever is beside a row shows in none of its bits: up to what a card reads the weight once for. On a CPU, more rows are
/// divided otherwise.
#[test]
fn few_rows_do_not_know_each_other() {
    let (suite, random, planned) = (&mut Suite::new(), &mut Random::new(79), if card_asked_for() { 12 } else { 3 });
    for (format, features) in [WeightFormat::Nf4, WeightFormat::Int8, WeightFormat::E4m3]
        .into_iter()
        .flat_map(|format| [(format, 2144), (format, 200)])
    {
        let size = size(planned, planned, features, 64);
        let (x, weight) = (random.floats(planned * features, 1.0), weight(random, size, format, DType::BF16));
        for harness in suite.all_harnesses().filter(|harness| harness.stores_sixteen()) {
            let mut run = |rows: &[f32], count: usize| {
                let mut rows = rows.to_vec();
                rows.resize(planned * features, 0.0);
                let inputs = [Tensor::tokens(planned, features, rows).stored(DType::BF16), weight.clone()];
                let active = Active::one(count, 1);
                let outputs = harness.run(&Linear::forward().into(), &inputs, active, &Placement::default());
                outputs[0].array(active).data
            };
            let together = run(&x, planned);
            for (row, expected) in together.chunks(size.out).enumerate() {
                assert_eq!(run(&x[row * features..(row + 1) * features], 1), expected, "{format:?} row {row}");
            }
            for count in [2, 8, 9].into_iter().filter(|count| *count < planned) {
                assert_eq!(run(&x, count), together[..count * size.out], "{format:?} {count} rows");
            }
        }
    }
}

/// Sizes that a library of products takes, multiples of sixteen, beside those that it does not. More rows than are rounded
/// at a time come last, before them long ones.
const FP8_SIZES: [Size; 13] = [
    ROWS[0],
    ROWS[1],
    ROWS[2],
    ROWS[3],
    ROWS[4],
    ROWS[5],
    ROWS[6],
    ROWS[7],
    size(5, 3, 16, 32),
    size(35, 33, 304, 64),
    size(140, 137, 16, 8208),
    size(FP8_ROWS + 60, FP8_ROWS + 52, 24, 30),
    size(FP8_ROWS + 60, FP8_ROWS + 52, 32, 48),
];

#[test]
fn codes_by_codes() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(76));
    for size in FP8_SIZES {
        for op in variants(size.out, true) {
            let inputs = inputs(random, &op, size, WeightFormat::E4m3, DType::F32);
            let (active, sums) = (Active::one(size.tokens, 1), fp8_sums_of(depth(&op, size)));
            suite.check(&format!("{size:?}"), op, &inputs, active, sums);
        }
    }
}

#[test]
fn codes_by_codes_beside_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(77));
    for size in FP8_SIZES {
        for op in variants(size.out, true).into_iter().filter(|op| op.alpha != 1.0) {
            for element in SIXTEEN {
                let inputs = inputs(random, &op, size, WeightFormat::E4m3, element);
                let rounding = Rounding::once(fp8_sums_of(depth(&op, size))).within(added(&op));
                let active = Active::one(size.tokens, 1);
                suite.check_stored(&format!("{size:?}"), op.clone(), &inputs, active, rounding);
            }
        }
    }
}

/// So large a weight is decoded, or its codes transposed, in two parts: rows of whole blocks of scales and others, and sizes
/// a library takes.
#[test]
fn parts_of_a_weight() {
    let (suite, random, kind) = (&mut Suite::new(), &mut Random::new(78), LinearKind::InputGrad);
    for (format, features, fp8) in
        [(WeightFormat::Nf4, 4112, false), (WeightFormat::Nf4, 4160, false), (WeightFormat::E4m3, 4112, true)]
    {
        let (op, size) = (Linear { kind, fp8, ..Linear::forward() }, size(3, 3, features, 8208));
        assert_eq!(decoded_parts(kind, &Shape::new(&[size.out, size.features])).count(), 2);
        let inputs = inputs(random, &op, size, format, DType::BF16);
        let sums = if fp8 { fp8_sums_of(depth(&op, size)) } else { sums_of(depth(&op, size)) };
        suite.check_stored(&format!("{format:?} {size:?}"), op, &inputs, Active::one(3, 1), Rounding::once(sums));
    }
}

/// The cases above have both kinds of scales in four bits.
#[test]
fn scales_are_nested_where_the_sizes_say_so() {
    let scales = |size: &Size| {
        let shape = Shape::new(&[size.out, size.features]);
        let Storage { blocks, .. } = WeightFormat::Nf4.storage(DType::F32, &[shape]).expect("whole blocks");
        blocks.expect("blocks").scales
    };
    assert!(FOUR_BITS.iter().all(|size| scales(size) == Scales::F32));
    assert!(NESTED.iter().all(|size| scales(size) == Scales::Nested));
}
