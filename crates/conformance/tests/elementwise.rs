//! Sums, multiples, and what dropout promises about its mask.

use plimsoll_conformance::{F32_ELEMENTWISE, Harness, Placement, Random, Rounding, Suite, Tensor};
use plimsoll_graph::ops::{Add, Dest, Dropout, InnerDropout, Linear, LinearKind, Scale, Zeros};
use plimsoll_graph::{DType, Role, Shape};
use plimsoll_runtime::Active;

/// Token slots, tokens in use, features.
const SIZES: [(usize, usize, usize); 7] =
    [(1, 1, 1), (1, 1, 50), (6, 2, 3), (16, 16, 64), (33, 20, 65), (300, 299, 40), (20, 19, 700)];

const KEY: [u32; 4] = [1, 2, 3, 4];

#[test]
fn add() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(80));
    for (rows, tokens, cols) in SIZES {
        let inputs = [random.tokens(rows, cols), random.tokens(rows, cols)];
        suite.check("sum", Add, &inputs, Active::one(tokens, 1), F32_ELEMENTWISE);
    }
}

#[test]
fn scale() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(84));
    for (rows, tokens, cols) in SIZES {
        let (op, active) = (Scale { factor: 0.37 }, Active::one(tokens, 1));
        let inputs = [random.tokens(rows, cols)];
        suite.check("multiple", op.clone(), &inputs, active, F32_ELEMENTWISE);
        suite.check_sixteen("multiple", op, &inputs, &[0], active, Rounding::once(F32_ELEMENTWISE));
    }
}

#[test]
fn zeros() {
    let suite = &mut Suite::new();
    for (shape, dtype) in
        [(&[1][..], DType::F32), (&[33, 65], DType::F32), (&[1000, 70], DType::F32), (&[9], DType::F64)]
    {
        let op = Zeros { shape: Shape::new(shape), dtype, role: Role::Gradient };
        suite.check("zeros", op, &[], Active::one(1, 1), F32_ELEMENTWISE);
    }
}

#[test]
fn dropout_zeroes_or_scales() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(81));
    for (rows, tokens, cols) in SIZES {
        for p in [0.0, 0.1, 0.5, 0.9] {
            let inputs = [random.tokens(rows, cols), random.row_ids(rows), random.rng_key()];
            let active = Active::one(tokens, 1);
            suite.check(&format!("p = {p}"), Dropout { p, site: 7 }, &inputs, active, F32_ELEMENTWISE);
        }
    }
}

#[test]
fn in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(82));
    let once = Rounding::once(F32_ELEMENTWISE);
    for (rows, tokens, cols) in SIZES {
        let active = Active::one(tokens, 1);
        let inputs = [random.tokens(rows, cols), random.tokens(rows, cols)];
        suite.check_sixteen("sum", Add, &inputs, &[0, 1], active, once);
        for p in [0.0, 0.1, 0.5, 0.9] {
            let inputs = [random.tokens(rows, cols), random.row_ids(rows), random.rng_key()];
            suite.check_sixteen(&format!("p = {p}"), Dropout { p, site: 7 }, &inputs, &[0], active, once);
        }
    }
}

fn mask(harness: &mut Harness, p: f32, site: u32, ids: &[u32], key: [u32; 4], cols: usize) -> Vec<bool> {
    harness.keep(InnerDropout { p, site }, ids, key, cols)
}

/// Draws of a fair mask stray from their mean by more than five standard deviations once in
/// 1.7 million; the masks are always the same ones, so this passes always or never.
fn assert_rate(name: &str, kept: usize, of: usize, rate: f64) {
    let (mean, deviation) = (of as f64 * rate, (of as f64 * rate * (1.0 - rate)).sqrt());
    let stray = (kept as f64 - mean).abs();
    assert!(stray <= 5.0 * deviation, "{name}: {kept} of {of} kept, expected {mean:.0} ± {deviation:.0}");
}

#[test]
fn keeps_as_many_as_it_says() {
    for harness in Suite::new().harnesses() {
        let ids: Vec<u32> = (0..400).collect();
        for p in [0.05, 0.1, 0.5, 0.8] {
            let keep = mask(harness, p, 3, &ids, KEY, 250);
            let rate = 1.0 - f64::from(p);
            assert_rate("all", keep.iter().filter(|&&k| k).count(), keep.len(), rate);
            for first in 0..4 {
                let column: Vec<&bool> = keep.iter().skip(first).step_by(250).collect();
                assert_rate("a column", column.iter().filter(|&&&k| k).count(), column.len(), rate);
                let row = &keep[first * 250..(first + 1) * 250];
                assert_rate("a row", row.iter().filter(|&&k| k).count(), row.len(), rate);
            }
        }
    }
}

/// Masks that should have nothing to do with each other agree in half of their entries at p = 0.5.
#[test]
fn sites_keys_rows_and_columns_are_independent() {
    for harness in Suite::new().harnesses() {
        let ids: Vec<u32> = (0..100).collect();
        let base = mask(harness, 0.5, 3, &ids, KEY, 100);
        let mut others = vec![("site", mask(harness, 0.5, 4, &ids, KEY, 100))];
        for word in 0..4 {
            let mut key = KEY;
            key[word] ^= 1;
            others.push(("key", mask(harness, 0.5, 3, &ids, key, 100)));
        }
        let next: Vec<u32> = (1..101).collect();
        others.push(("next row", mask(harness, 0.5, 3, &next, KEY, 100)));
        let far: Vec<u32> = (0..100).map(|i| i + (1 << 31)).collect();
        others.push(("far row", mask(harness, 0.5, 3, &far, KEY, 100)));
        let mut turned = base.clone();
        turned.rotate_left(1);
        others.push(("next column", turned));
        for (name, other) in others {
            let agree = base.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert_rate(name, agree, base.len(), 0.5);
        }
    }
}

/// The mask belongs to the row's id, wherever in whichever micro-batch the row lies.
#[test]
fn follows_the_row_id_and_not_the_slot() {
    for harness in Suite::new().harnesses() {
        let cols = 45;
        let ids: Vec<u32> = (1000..1060).collect();
        let all = mask(harness, 0.3, 9, &ids, KEY, cols);
        let picked = [1059u32, 1003, 1003, 1030, 1000];
        let some = mask(harness, 0.3, 9, &picked, KEY, cols);
        for (slot, id) in picked.iter().enumerate() {
            let row = (id - 1000) as usize;
            assert_eq!(
                some[slot * cols..(slot + 1) * cols],
                all[row * cols..(row + 1) * cols],
                "row {id} in slot {slot}"
            );
        }
        // A wider matrix begins with the same columns.
        let wide = mask(harness, 0.3, 9, &ids[..1], KEY, cols + 19);
        assert_eq!(wide[..cols], all[..cols]);
    }
}

/// Which elements of `x` a product reads, in each of its three forms: identity matrices show them.
#[test]
fn products_use_the_same_mask() {
    for harness in Suite::new().harnesses() {
        let (rows, cols) = (6, 11);
        let ids = [4u32, 90, 2, 77, 3_000_000_000, 5];
        let dropout = InnerDropout { p: 0.4, site: 21 };
        let expected = harness.keep(dropout, &ids, KEY, cols);
        let identity = |n: usize| (0..n * n).map(|i| if i % n == i / n { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
        let ones = || Tensor::tokens(rows, cols, vec![1.0; rows * cols]);
        let mask_inputs = [Tensor::row_ids(ids.to_vec()), Tensor::rng_key(KEY)];
        let op = |kind, dest| Linear { kind, dest, dropout: Some(dropout), ..Linear::forward() };
        let cases = [
            (op(LinearKind::Forward, Dest::Fresh), vec![ones(), Tensor::fixed(&[cols, cols], identity(cols))]),
            (op(LinearKind::InputGrad, Dest::Fresh), vec![ones(), Tensor::fixed(&[cols, cols], identity(cols))]),
            (
                op(LinearKind::WeightGrad, Dest::Accumulate),
                vec![
                    Tensor::tokens(rows, rows, identity(rows)),
                    ones(),
                    Tensor::fixed(&[rows, cols], vec![0.0; rows * cols]),
                ],
            ),
        ];
        for (op, mut inputs) in cases {
            inputs.extend(mask_inputs.clone());
            let kind = op.kind;
            let active = Active::one(rows, 1);
            let outputs = harness.run(&op.into(), &inputs, active, &Placement::default());
            let kept: Vec<bool> = outputs[0].f32s().iter().map(|&x| x != 0.0).collect();
            assert_eq!(kept, expected, "{kind:?}");
        }
    }
}
