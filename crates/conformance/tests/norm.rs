//! RMS norm of tokens and of heads, with and without weight, offset, residual sum and accumulation.

use plimsoll_conformance::{F32_SUMS, Placement, Random, Rounding, SIXTEEN, Suite, Tensor, saved};
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

/// Whether there is a weight, and what is added to it.
const FACTORS: [(bool, f32); 3] = [(false, 0.0), (true, 0.0), (true, 1.0)];

/// No weight, a weight, and a weight with a gradient, with what is added to each.
const TRAINED_FACTORS: [(bool, f32, bool); 5] =
    [(false, 0.0, false), (true, 0.0, false), (true, 0.0, true), (true, 1.0, false), (true, 1.0, true)];

/// As above, with the weight's gradient in float32 and in what else is sixteen bits long.
fn stored_factors(dtype: DType) -> impl Iterator<Item = (bool, f32, Option<DType>)> {
    let weighted = [0.0, 1.0]
        .into_iter()
        .flat_map(move |offset| [None, Some(DType::F32), Some(dtype)].map(|gradient| (true, offset, gradient)));
    std::iter::once((false, 0.0, None)).chain(weighted)
}

/// A norm whose statistics do not depend on weights.
fn unweighted(eps: f32) -> RmsNorm {
    RmsNorm { weight: false, ..RmsNorm::new(eps) }
}

#[test]
fn rms_norm() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(20));
    for (rows, tokens, cols) in SIZES {
        for ((weight, offset), residual) in FACTORS.into_iter().flat_map(|f| [(f, false), (f, true)]) {
            let mut inputs = vec![random.tokens(rows, cols)];
            inputs.extend(residual.then(|| random.tokens(rows, cols)));
            inputs.extend(weight.then(|| random.fixed(&[cols])));
            let active = Active::one(tokens, 1);
            suite.check("rows", RmsNorm { eps: EPS, weight, offset, residual }, &inputs, active, F32_SUMS);
        }
    }
}

/// Where the features are tiny, eps decides; where they are large, squares must not overflow into the result.
#[test]
fn rms_norm_of_small_and_large_rows() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(21));
    for size in [0.0, 1e-6, 1e-3, 1e4] {
        let x = Tensor::tokens(4, 24, random.floats(96, size));
        let op = unweighted(EPS);
        suite.check(&format!("features of {size}"), op, &[x], Active::one(4, 1), F32_SUMS);
    }
}

#[test]
fn rms_norm_gradient() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(22));
    for (rows, tokens, cols) in SIZES {
        let active = Active::one(tokens, 1);
        for (weight, offset, weight_grad) in TRAINED_FACTORS {
            for accumulate in [false, true] {
                let x = random.tokens(rows, cols);
                // One feature alone is ±1 once normalised, so only a large eps leaves it a gradient.
                let eps = if cols == 1 { 0.5 } else { EPS };
                let rstd = saved(unweighted(eps), std::slice::from_ref(&x), active).remove(1);
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
                let op = RmsNormGrad { weight, offset, weight_grad, accumulate };
                suite.check("rows", op, &inputs, active, F32_SUMS);
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
        for (weight, offset) in FACTORS {
            let mut inputs = vec![random.tokens(rows, heads.fused_cols())];
            if weight {
                inputs.extend([random.fixed(&[heads.head_dim]), random.fixed(&[heads.head_dim])]);
            }
            let active = Active::one(tokens, 1);
            let op = HeadNorm { heads, eps: EPS, weight, offset };
            suite.check(&format!("{heads:?}"), op, &inputs, active, F32_SUMS);
        }
    }
}

#[test]
fn head_norm_gradient() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(24));
    for (heads, rows, tokens) in head_cases() {
        let active = Active::one(tokens, 1);
        for (weight, offset, weight_grad) in TRAINED_FACTORS {
            let qkv = random.tokens(rows, heads.fused_cols());
            let forward = HeadNorm { weight: false, ..HeadNorm::new(heads, EPS) };
            let rstd = saved(forward, std::slice::from_ref(&qkv), active).remove(1);
            let mut inputs = vec![qkv, rstd, random.tokens(rows, heads.fused_cols())];
            for _ in 0..2 * (usize::from(weight) + usize::from(weight_grad)) {
                inputs.push(random.fixed(&[heads.head_dim]));
            }
            let op = HeadNormGrad { heads, weight, offset, weight_grad };
            suite.check(&format!("{heads:?}"), op, &inputs, active, F32_SUMS);
        }
    }
}

/// Weights of zero above one are weights of one, to the bit. Without an offset, weights of minus zero keep their sign.
#[test]
fn offsets_are_exact() {
    let random = &mut Random::new(29);
    let active = Active::one(5, 1);
    let constant = |value: f32| Tensor::fixed(&[24], vec![value; 24]);
    let [x, dy, so_far] = [(); 3].map(|()| random.tokens(5, 24));
    let rstd = saved(unweighted(EPS), std::slice::from_ref(&x), active).remove(1);
    for harness in Suite::new().all_harnesses() {
        let mut normed = |offset, weight| {
            let op = RmsNorm { offset, ..RmsNorm::new(EPS) }.into();
            harness.run(&op, &[x.clone(), constant(weight)], active, &Placement::default()).remove(0)
        };
        assert_eq!(normed(1.0, 0.0).f32s(), normed(0.0, 1.0).f32s(), "a weight of one");
        let signs = |tensor: &Tensor| tensor.f32s().iter().map(|x| x.is_sign_negative()).collect::<Vec<_>>();
        let opposite: Vec<bool> = signs(&x).iter().map(|negative| !negative).collect();
        assert_eq!(signs(&normed(0.0, -0.0)), opposite, "a weight of minus zero");

        let mut gradient = |offset, weight| {
            let op = RmsNormGrad { weight: true, offset, weight_grad: false, accumulate: true }.into();
            let inputs = [x.clone(), rstd.clone(), dy.clone(), constant(weight), so_far.clone()];
            harness.run(&op, &inputs, active, &Placement::default()).remove(0)
        };
        assert_eq!(gradient(1.0, 0.0).f32s(), gradient(0.0, 1.0).f32s(), "the gradient with a weight of one");
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
        for ((weight, offset), residual) in FACTORS.into_iter().flat_map(|f| [(f, false), (f, true)]) {
            let mut inputs = vec![random.tokens(rows, cols)];
            inputs.extend(residual.then(|| random.tokens(rows, cols)));
            inputs.extend(weight.then(|| random.fixed(&[cols])));
            let rounding = if residual { of_sum } else { Rounding::once(F32_SUMS) };
            let op = RmsNorm { eps: EPS, weight, offset, residual };
            suite.check_sixteen(&format!("{rows} x {cols}"), op, &inputs, &[0, 1, 2], active, rounding);
        }
    }
}

#[test]
fn rms_norm_of_small_and_large_rows_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(26));
    for size in [0.0, 1e-6, 1e-3, 1e4] {
        let inputs = [Tensor::tokens(4, 24, random.floats(96, size))];
        let op = unweighted(EPS);
        let active = Active::one(4, 1);
        suite.check_sixteen(&format!("features of {size}"), op, &inputs, &[0], active, Rounding::once(F32_SUMS));
    }
}

#[test]
fn rms_norm_gradient_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(27));
    for (dtype, (rows, tokens, cols)) in SIXTEEN.into_iter().flat_map(|d| sixteen_sizes().map(move |size| (d, size))) {
        let active = Active::one(tokens, 1);
        for (weight, offset, gradient) in stored_factors(dtype) {
            for accumulate in [false, true] {
                let x = random.tokens(rows, cols).stored(dtype);
                let eps = if cols == 1 { 0.5 } else { EPS };
                let rstd = saved(unweighted(eps), std::slice::from_ref(&x), active).remove(1);
                let mut inputs = vec![x, rstd, random.tokens(rows, cols).stored(dtype)];
                inputs.extend(weight.then(|| random.fixed(&[cols]).stored(dtype)));
                inputs.extend(accumulate.then(|| random.tokens(rows, cols).stored(dtype)));
                inputs.extend(gradient.map(|dtype| random.fixed(&[cols]).stored(dtype)));
                let op = RmsNormGrad { weight, offset, weight_grad: gradient.is_some(), accumulate };
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
        for (weight, offset, gradient) in stored_factors(dtype) {
            let weights = || if weight { 2 } else { 0 };
            let mut inputs = vec![random.tokens(rows, heads.fused_cols()).stored(dtype)];
            let forward = HeadNorm { heads, eps: EPS, weight, offset };
            let rstd = saved(HeadNorm { weight: false, ..forward.clone() }, &inputs, active).remove(1);
            inputs.extend((0..weights()).map(|_| random.fixed(&[heads.head_dim]).stored(dtype)));
            suite.check_stored(&name, forward, &inputs, active, Rounding::once(F32_SUMS));

            let dy = random.tokens(rows, heads.fused_cols()).stored(dtype);
            inputs.splice(1..1, [rstd, dy]);
            inputs.extend(
                gradient.iter().flat_map(|&dtype| [dtype; 2]).map(|d| random.fixed(&[heads.head_dim]).stored(d)),
            );
            let op = HeadNormGrad { heads, weight, offset, weight_grad: gradient.is_some() };
            suite.check_stored(&name, op, &inputs, active, Rounding::once(F32_SUMS));
        }
    }
}
