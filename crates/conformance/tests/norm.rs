//! RMS norm of tokens and of heads, with and without weight, residual sum and accumulation.

use plimsoll_conformance::{F32_SUMS, Random, Rounding, SIXTEEN, Suite, Tensor, saved};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{HeadNorm, HeadNormGrad, Heads, RmsNorm, RmsNormGrad};
use plimsoll_runtime::Active;

/// Token slots, tokens in use, features.
const SIZES: [(usize, usize, usize); 9] = [
    (1, 1, 1),
    (1, 1, 8),
    (3, 3, 17),
    (9, 4, 33),
    (16, 16, 64),
    (70, 67, 100),
    (300, 299, 48),
    (3, 3, 257),
    (20, 19, 700),
];

const EPS: f32 = 1e-5;

#[test]
fn rms_norm() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(20));
    for (rows, tokens, cols) in SIZES {
        for (weight, residual) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut inputs = vec![random.tokens(rows, cols)];
            if residual {
                inputs.push(random.tokens(rows, cols));
            }
            if weight {
                inputs.push(random.fixed(&[cols]));
            }
            let active = Active::one(tokens, 1);
            suite.check("rows", RmsNorm { eps: EPS, weight, residual }, &inputs, active, F32_SUMS);
        }
    }
}

/// Where the features are tiny, eps decides; where they are large, squares must not overflow into the result.
#[test]
fn rms_norm_of_small_and_large_rows() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(21));
    for size in [0.0, 1e-6, 1e-3, 1e4] {
        let x = Tensor::tokens(4, 24, random.floats(96, size));
        let op = RmsNorm { eps: EPS, weight: false, residual: false };
        suite.check(&format!("features of {size}"), op, &[x], Active::one(4, 1), F32_SUMS);
    }
}

#[test]
fn rms_norm_gradient() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(22));
    for (rows, tokens, cols) in SIZES {
        let active = Active::one(tokens, 1);
        for (weight, weight_grad) in [(false, false), (true, false), (true, true)] {
            for accumulate in [false, true] {
                let x = random.tokens(rows, cols);
                // One feature alone is ±1 once normalised, so only a large eps leaves it a gradient.
                let eps = if cols == 1 { 0.5 } else { EPS };
                let forward = RmsNorm { eps, weight: false, residual: false };
                let rstd = saved(forward, std::slice::from_ref(&x), active).remove(1);
                let mut inputs = vec![x, rstd, random.tokens(rows, cols)];
                if weight {
                    inputs.push(random.fixed(&[cols]));
                }
                if accumulate {
                    inputs.push(random.tokens(rows, cols));
                }
                if weight_grad {
                    inputs.push(random.fixed(&[cols]));
                }
                suite.check("rows", RmsNormGrad { weight, weight_grad, accumulate }, &inputs, active, F32_SUMS);
            }
        }
    }
}

/// Heads with their token slots and tokens in use.
fn head_cases() -> Vec<(Heads, usize, usize)> {
    let heads = |query, kv, head_dim| Heads { query, kv, head_dim };
    vec![
        (heads(1, 1, 2), 1, 1),
        (heads(2, 1, 8), 5, 3),
        (heads(4, 4, 24), 17, 17),
        (heads(6, 2, 64), 33, 20),
        (heads(3, 1, 128), 130, 129),
    ]
}

#[test]
fn head_norm() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(23));
    for (heads, rows, tokens) in head_cases() {
        for weight in [false, true] {
            let mut inputs = vec![random.tokens(rows, heads.fused_cols())];
            if weight {
                inputs.extend([random.fixed(&[heads.head_dim]), random.fixed(&[heads.head_dim])]);
            }
            let active = Active::one(tokens, 1);
            suite.check(&format!("{heads:?}"), HeadNorm { heads, eps: EPS, weight }, &inputs, active, F32_SUMS);
        }
    }
}

#[test]
fn head_norm_gradient() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(24));
    for (heads, rows, tokens) in head_cases() {
        let active = Active::one(tokens, 1);
        for (weight, weight_grad) in [(false, false), (true, false), (true, true)] {
            let qkv = random.tokens(rows, heads.fused_cols());
            let rstd = saved(HeadNorm { heads, eps: EPS, weight: false }, std::slice::from_ref(&qkv), active).remove(1);
            let mut inputs = vec![qkv, rstd, random.tokens(rows, heads.fused_cols())];
            for _ in 0..2 * (usize::from(weight) + usize::from(weight_grad)) {
                inputs.push(random.fixed(&[heads.head_dim]));
            }
            suite.check(&format!("{heads:?}"), HeadNormGrad { heads, weight, weight_grad }, &inputs, active, F32_SUMS);
        }
    }
}

/// Rows that are held in one pack for each thread, in several, and not at all.
const LONG: [(usize, usize, usize); 5] = [(9, 7, 264), (3, 2, 2056), (3, 3, 5000), (2, 2, 9001), (2, 1, 16_400)];

fn sixteen_sizes() -> impl Iterator<Item = (usize, usize, usize)> {
    SIZES.into_iter().chain(LONG)
}

#[test]
fn rms_norm_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(25));
    // The norm is that of the residual sum as it is stored, so the sum's rounding is in it too.
    let of_sum = Rounding::once(F32_SUMS).stores(2.0).within(1.0).apart(&[0]);
    for (rows, tokens, cols) in sixteen_sizes() {
        let active = Active::one(tokens, 1);
        for (weight, residual) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut inputs = vec![random.tokens(rows, cols)];
            inputs.extend(residual.then(|| random.tokens(rows, cols)));
            inputs.extend(weight.then(|| random.fixed(&[cols])));
            let rounding = if residual { of_sum } else { Rounding::once(F32_SUMS) };
            let name = format!("{rows} x {cols}");
            suite.check_sixteen(&name, RmsNorm { eps: EPS, weight, residual }, &inputs, &[0, 1, 2], active, rounding);
        }
    }
}

#[test]
fn rms_norm_of_small_and_large_rows_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(26));
    for size in [0.0, 1e-6, 1e-3, 1e4] {
        let inputs = [Tensor::tokens(4, 24, random.floats(96, size))];
        let op = RmsNorm { eps: EPS, weight: false, residual: false };
        let active = Active::one(4, 1);
        suite.check_sixteen(&format!("features of {size}"), op, &inputs, &[0], active, Rounding::once(F32_SUMS));
    }
}

#[test]
fn rms_norm_gradient_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(27));
    for (dtype, (rows, tokens, cols)) in SIXTEEN.into_iter().flat_map(|d| sixteen_sizes().map(move |size| (d, size))) {
        let active = Active::one(tokens, 1);
        // Without a gradient of the weight, with one in float32, and with one in sixteen bits.
        for (weight, gradient) in [(false, None), (true, None), (true, Some(DType::F32)), (true, Some(dtype))] {
            for accumulate in [false, true] {
                let x = random.tokens(rows, cols).stored(dtype);
                let eps = if cols == 1 { 0.5 } else { EPS };
                let forward = RmsNorm { eps, weight: false, residual: false };
                let rstd = saved(forward, std::slice::from_ref(&x), active).remove(1);
                let mut inputs = vec![x, rstd, random.tokens(rows, cols).stored(dtype)];
                inputs.extend(weight.then(|| random.fixed(&[cols]).stored(dtype)));
                inputs.extend(accumulate.then(|| random.tokens(rows, cols).stored(dtype)));
                inputs.extend(gradient.map(|dtype| random.fixed(&[cols]).stored(dtype)));
                let op = RmsNormGrad { weight, weight_grad: gradient.is_some(), accumulate };
                let name = format!("{rows} x {cols}");
                suite.check_stored(&name, op, &inputs, active, Rounding::once(F32_SUMS));
            }
        }
    }
}

#[test]
fn head_norms_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(28));
    for (dtype, (heads, rows, tokens)) in
        SIXTEEN.into_iter().flat_map(|d| head_cases().into_iter().map(move |c| (d, c)))
    {
        let (name, active) = (format!("{heads:?}"), Active::one(tokens, 1));
        for (weight, gradient) in [(false, None), (true, None), (true, Some(DType::F32)), (true, Some(dtype))] {
            let weights = || if weight { 2 } else { 0 };
            let mut inputs = vec![random.tokens(rows, heads.fused_cols()).stored(dtype)];
            let rstd = saved(HeadNorm { heads, eps: EPS, weight: false }, &inputs, active).remove(1);
            inputs.extend((0..weights()).map(|_| random.fixed(&[heads.head_dim]).stored(dtype)));
            suite.check_stored(&name, HeadNorm { heads, eps: EPS, weight }, &inputs, active, Rounding::once(F32_SUMS));

            let dy = random.tokens(rows, heads.fused_cols()).stored(dtype);
            inputs.splice(1..1, [rstd, dy]);
            inputs.extend(
                gradient.iter().flat_map(|&dtype| [dtype; 2]).map(|d| random.fixed(&[heads.head_dim]).stored(d)),
            );
            let op = HeadNormGrad { heads, weight, weight_grad: gradient.is_some() };
            suite.check_stored(&name, op, &inputs, active, Rounding::once(F32_SUMS));
        }
    }
}
