//! Rows that are kept rounded to e4m3, and what becomes of them again.

use plimsoll_conformance::{F32_ELEMENTWISE, Placement, Random, Rounding, SIXTEEN, Suite, Tensor};
use plimsoll_graph::ops::{RoundRows, WidenRows};
use plimsoll_graph::{BlockFormat, Code, DType, Op, Scales, Storage};
use plimsoll_runtime::Active;

/// Rows there is a place for, rows in use, and columns: one and few, odd ones, those of whole packs, and more than a block
/// of threads holds at a time; more rows than there are blocks.
const SIZES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (3, 3, 5),
    (5, 2, 8),
    (4, 4, 16),
    (7, 6, 131),
    (40, 33, 64),
    (9, 0, 24),
    (300, 215, 96),
    (3, 2, 4096),
    (2, 2, 33_000),
    (300, 290, 16_400),
    (140, 139, 33_000),
];

fn rounded(element: DType, cols: usize) -> Storage {
    Storage { element, blocks: Some(BlockFormat { elements: cols, code: Code::E4m3, scales: Scales::F32 }) }
}

/// Rows of very different sizes, with numbers of all magnitudes and zeros in them; one row in five is nothing but zeros.
fn rows(random: &mut Random, rows: usize, cols: usize) -> Tensor {
    let mut data = random.floats(rows * cols, 1.0);
    for (index, x) in data.iter_mut().enumerate() {
        let (row, col) = (index / cols, index % cols);
        let size = [1.0, 0.0, 2e-3, 700.0, 1e-22][(row + 4) % 5] as f32;
        *x *= if col % 7 == 3 { 0.0 } else { size * 0.25f32.powi((col % 11) as i32) };
    }
    Tensor::tokens(rows, cols, data)
}

#[test]
fn rows_become_codes() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(410));
    for (all, used, cols) in SIZES {
        let (name, active) = (format!("{used} of {all} by {cols}"), Active::one(used, 1));
        let x = [rows(random, all, cols)];
        suite.check(&name, RoundRows, &x, active, F32_ELEMENTWISE);
        suite.check_sixteen(&name, RoundRows, &x, &[0], active, Rounding::once(F32_ELEMENTWISE));
    }
}

#[test]
fn codes_become_rows() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(411));
    for (all, used, cols) in SIZES {
        let (name, active) = (format!("{used} of {all} by {cols}"), Active::one(used, 1));
        let x = rows(random, all, cols);
        for element in [DType::F32, SIXTEEN[0], SIXTEEN[1]] {
            let codes = [x.stored_as(rounded(element, cols))];
            suite.check_stored(&name, WidenRows, &codes, active, Rounding::once(F32_ELEMENTWISE));
        }
    }
}

/// The way there and back on one backend.
fn kept(suite: &mut Suite, x: &Tensor, active: Active) -> Vec<Vec<f64>> {
    let placement = Placement::default();
    let able = suite.all_harnesses().filter(|harness| x.dtype() == DType::F32 || harness.stores_sixteen());
    able.map(|harness| {
        let codes = harness.run(&Op::from(RoundRows), std::slice::from_ref(x), active, &placement);
        harness.run(&Op::from(WidenRows), &codes, active, &placement)[0].array(active).data
    })
    .collect()
}

/// What the documentation promises: a sixteenth of the number, or a part of the row's largest.
#[test]
fn numbers_are_off_by_no_more_than_is_said() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(412));
    let (all, cols) = (64, 512);
    let (x, active) = (rows(random, all, cols), Active::one(all, 1));
    for results in kept(suite, &x, active) {
        let mut worst = 0f64;
        for (from, to) in x.array(active).data.chunks(cols).zip(results.chunks(cols)) {
            let largest = from.iter().fold(0f64, |most, x| most.max(x.abs()));
            for (from, to) in from.iter().zip(to) {
                let allowed = (from.abs() / 16.0).max(largest / 458_752.0);
                assert!((to - from).abs() <= allowed * (1.0 + 1e-5), "{from} became {to} beside {largest}");
                worst = worst.max((to - from).abs() / from.abs().max(largest / 28_672.0));
            }
        }
        assert!((0.05..0.0626).contains(&worst), "{worst}");
    }
}

/// What went wrong in the forward pass is not hidden: not where it is one number, and not where it is all of a row.
#[test]
fn what_is_no_number_stays_none() {
    let suite = &mut Suite::new();
    for cols in [16, 21] {
        for element in [DType::F32, SIXTEEN[0], SIXTEEN[1]] {
            let mut data = vec![0.5f32; 4 * cols];
            data[cols + 2] = f32::NAN;
            data[2 * cols..3 * cols].fill(f32::NAN);
            data[3 * cols..].fill(0.0);
            let x = Tensor::tokens(4, cols, data.clone()).stored(element);
            for results in kept(suite, &x, Active::one(4, 1)) {
                for (index, (from, to)) in data.iter().zip(results).enumerate() {
                    assert_eq!(from.is_nan(), to.is_nan(), "{index} of rows of {cols} in {}", element.name());
                    assert!(from.is_nan() || to == f64::from(*from), "{index}: {from} became {to}");
                }
            }
        }
    }
}
