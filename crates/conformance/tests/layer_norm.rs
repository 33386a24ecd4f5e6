//! Layer norm of tokens, with and without weight, bias and accumulation.

use plimsoll_conformance::{F32_SUMS, Random, Rounding, SIXTEEN, Suite, Tensor, saved};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{LayerNorm, LayerNormGrad};
use plimsoll_runtime::Active;

/// Token slots, tokens in use, features: whole packs and not, one for each thread and several.
const SIZES: [(usize, usize, usize); 10] = [
    (1, 1, 1),
    (1, 1, 8),
    (3, 3, 17),
    (9, 4, 33),
    (16, 16, 64),
    (70, 67, 100),
    (300, 299, 48),
    (20, 19, 700),
    (3, 2, 5000),
    (2, 2, 9001),
];

const EPS: f32 = 1e-5;

const PARAMETERS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

#[test]
fn layer_norm() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(120));
    for (rows, tokens, cols) in SIZES {
        for (weight, bias) in PARAMETERS {
            let mut inputs = vec![random.tokens(rows, cols)];
            inputs.extend(weight.then(|| random.fixed(&[cols])));
            inputs.extend(bias.then(|| random.fixed(&[cols])));
            let (name, active) = (format!("{rows} x {cols}"), Active::one(tokens, 1));
            let op = LayerNorm { eps: EPS, weight, bias };
            suite.check(&name, op.clone(), &inputs, active, F32_SUMS);
            suite.check_sixteen(&name, op, &inputs, &[0, 1, 2], active, Rounding::once(F32_SUMS));
        }
    }
}

/// The variance is that of what is left without the mean: squares of features far from zero would drown it.
#[test]
fn features_far_from_zero() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(121));
    // Sums of numbers this large are good to a few of their last places, which the division by the spread brings out.
    for (level, tolerance) in [(10.0, 1e-5), (1000.0, 5e-4)] {
        let features = random.floats(96, 1.0).into_iter().map(|x| level + x).collect();
        let op = LayerNorm { eps: EPS, weight: false, bias: false };
        let active = Active::one(4, 1);
        suite.check(&format!("around {level}"), op, &[Tensor::tokens(4, 24, features)], active, tolerance);
    }
}

/// Rows with their statistics and the gradient of their norm.
fn gradient_inputs(random: &mut Random, (rows, tokens, cols): (usize, usize, usize), dtype: DType) -> Vec<Tensor> {
    let x = random.tokens(rows, cols).stored(dtype);
    let op = LayerNorm { eps: EPS, weight: false, bias: false };
    let mut statistics = saved(op, std::slice::from_ref(&x), Active::one(tokens, 1));
    let rstd = statistics.remove(2);
    let mean = statistics.remove(1);
    vec![x, mean, rstd, random.tokens(rows, cols).stored(dtype)]
}

fn check_gradient(dtype: DType, parameters: DType, seed: u64) {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(seed));
    let rounding = if dtype == DType::F32 { Rounding::none(F32_SUMS) } else { Rounding::once(F32_SUMS) };
    for size in SIZES {
        let (rows, tokens, cols) = size;
        for ((weight_grad, bias_grad), weight) in
            PARAMETERS.into_iter().flat_map(|trained| [(trained, false), (trained, true)])
        {
            if weight_grad && !weight {
                continue;
            }
            for accumulate in [false, true] {
                let mut inputs = gradient_inputs(random, size, dtype);
                inputs.extend(weight.then(|| random.fixed(&[cols]).stored(dtype)));
                inputs.extend(accumulate.then(|| random.tokens(rows, cols).stored(dtype)));
                inputs.extend(weight_grad.then(|| random.fixed(&[cols]).stored(parameters)));
                inputs.extend(bias_grad.then(|| random.fixed(&[cols]).stored(parameters)));
                let op = LayerNormGrad { weight, accumulate, weight_grad, bias_grad };
                suite.check_stored(&format!("{rows} x {cols}"), op, &inputs, Active::one(tokens, 1), rounding);
            }
        }
    }
}

#[test]
fn layer_norm_gradient() {
    check_gradient(DType::F32, DType::F32, 122);
}

/// With the parameters' gradients in float32 and in sixteen bits.
#[test]
fn layer_norm_gradient_in_sixteen_bits() {
    for dtype in SIXTEEN {
        check_gradient(dtype, DType::F32, 123);
        check_gradient(dtype, dtype, 124);
    }
}
