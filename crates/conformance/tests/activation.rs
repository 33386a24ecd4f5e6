//! Nonlinearities, gated and plain.

use plimsoll_conformance::{F32_ELEMENTWISE, Random, Rounding, Suite, Tensor};
use plimsoll_graph::ops::{Activation, Gated, GatedGrad, Pointwise, PointwiseGrad};
use plimsoll_runtime::Active;

const ALL: [Activation; 5] =
    [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Relu2];

/// Token slots, tokens in use, features of the result.
const SIZES: [(usize, usize, usize); 7] =
    [(1, 1, 1), (1, 1, 37), (5, 2, 3), (16, 16, 64), (33, 20, 65), (300, 299, 64), (20, 19, 700)];

/// Mostly where the curve bends, some far out where exponentials over- and underflow, and zero.
fn bent(random: &mut Random, rows: usize, cols: usize) -> Tensor {
    let mut data = random.floats(rows * cols, 4.0);
    for (index, far) in [(2, 100.0), (3, -100.0), (5, 0.0), (7, -12.0), (11, 9.0), (13, -0.0)] {
        if let Some(entry) = data.get_mut(index) {
            *entry = far;
        }
    }
    Tensor::tokens(rows, cols, data)
}

#[test]
fn gated() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(50));
    for activation in ALL {
        for (rows, tokens, cols) in SIZES {
            let active = Active { tokens, sequences: 1 };
            let gate_up = bent(random, rows, 2 * cols);
            let dy = random.tokens(rows, cols);
            let name = format!("{activation:?} {rows} x {cols}");
            suite.check(&name, Gated(activation), std::slice::from_ref(&gate_up), active, F32_ELEMENTWISE);
            suite.check(&name, GatedGrad(activation), &[gate_up, dy], active, F32_ELEMENTWISE);
        }
    }
}

#[test]
fn pointwise() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(51));
    for activation in ALL {
        for (rows, tokens, cols) in SIZES {
            let active = Active { tokens, sequences: 1 };
            let x = bent(random, rows, cols);
            let dy = random.tokens(rows, cols);
            let name = format!("{activation:?} {rows} x {cols}");
            suite.check(&name, Pointwise(activation), std::slice::from_ref(&x), active, F32_ELEMENTWISE);
            suite.check(&name, PointwiseGrad(activation), &[x, dy], active, F32_ELEMENTWISE);
        }
    }
}

/// Without the far points the scale is of order one, so the bend itself is held to the tolerance.
#[test]
fn near_zero() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(52));
    for activation in ALL {
        let x = Tensor::tokens(40, 25, random.floats(1000, 1.5));
        let dy = random.tokens(40, 25);
        let active = Active { tokens: 40, sequences: 1 };
        suite.check("near zero", Pointwise(activation), std::slice::from_ref(&x), active, F32_ELEMENTWISE);
        suite.check("near zero", PointwiseGrad(activation), &[x, dy], active, F32_ELEMENTWISE);
    }
}

#[test]
fn in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(53));
    let once = Rounding::once(F32_ELEMENTWISE);
    for activation in ALL {
        for (rows, tokens, cols) in SIZES {
            let active = Active { tokens, sequences: 1 };
            let name = format!("{activation:?} {rows} x {cols}");
            let inputs = [bent(random, rows, 2 * cols), random.tokens(rows, cols)];
            suite.check_sixteen(&name, Gated(activation), &inputs[..1], &[0], active, once);
            suite.check_sixteen(&name, GatedGrad(activation), &inputs, &[0, 1], active, once);
            let inputs = [bent(random, rows, cols), random.tokens(rows, cols)];
            suite.check_sixteen(&name, Pointwise(activation), &inputs[..1], &[0], active, once);
            suite.check_sixteen(&name, PointwiseGrad(activation), &inputs, &[0, 1], active, once);
        }
        let inputs = [Tensor::tokens(40, 25, random.floats(1000, 1.5)), random.tokens(40, 25)];
        let active = Active { tokens: 40, sequences: 1 };
        suite.check_sixteen("near zero", Pointwise(activation), &inputs[..1], &[0], active, once);
        suite.check_sixteen("near zero", PointwiseGrad(activation), &inputs, &[0, 1], active, once);
    }
}
