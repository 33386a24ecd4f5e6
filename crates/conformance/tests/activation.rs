//! Nonlinearities, gated and plain.

use plimsoll_conformance::{F32_ELEMENTWISE, F32_SUMS, Random, Rounding, Suite, Tensor, sums_of};
use plimsoll_graph::ops::{
    Activation, AdapterShare, Adapters, Columns, Gated, GatedGrad, InnerDropout, Pointwise, PointwiseGrad,
};
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
            let active = Active::one(tokens, 1);
            let gate_up = bent(random, rows, 2 * cols);
            let dy = random.tokens(rows, cols);
            let name = format!("{activation:?} {rows} x {cols}");
            suite.check(&name, Gated::new(activation), std::slice::from_ref(&gate_up), active, F32_ELEMENTWISE);
            for with_value in [false, true] {
                let op = GatedGrad { with_value, ..GatedGrad::new(activation) };
                suite.check(&name, op, &[gate_up.clone(), dy.clone()], active, F32_ELEMENTWISE);
            }
        }
    }
}

#[test]
fn pointwise() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(51));
    for activation in ALL {
        for (rows, tokens, cols) in SIZES {
            let active = Active::one(tokens, 1);
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
        let active = Active::one(40, 1);
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
            let active = Active::one(tokens, 1);
            let name = format!("{activation:?} {rows} x {cols}");
            let inputs = [bent(random, rows, 2 * cols), random.tokens(rows, cols)];
            suite.check_sixteen(&name, Gated::new(activation), &inputs[..1], &[0], active, once);
            for with_value in [false, true] {
                let op = GatedGrad { with_value, ..GatedGrad::new(activation) };
                suite.check_sixteen(&name, op, &inputs, &[0, 1], active, once);
            }
            let inputs = [bent(random, rows, cols), random.tokens(rows, cols)];
            suite.check_sixteen(&name, Pointwise(activation), &inputs[..1], &[0], active, once);
            suite.check_sixteen(&name, PointwiseGrad(activation), &inputs, &[0, 1], active, once);
        }
        let inputs = [Tensor::tokens(40, 25, random.floats(1000, 1.5)), random.tokens(40, 25)];
        let active = Active::one(40, 1);
        suite.check_sixteen("near zero", Pointwise(activation), &inputs[..1], &[0], active, once);
        suite.check_sixteen("near zero", PointwiseGrad(activation), &inputs, &[0, 1], active, once);
    }
}

/// Token slots, tokens in use, features of the result, rank, and the columns of each adapter.
type Adapted = (usize, usize, usize, usize, &'static [(usize, usize)]);

/// Both halves, one of them, and columns that are no halves; small and odd sizes, and those that kernels like.
const ADAPTED: [Adapted; 20] = [
    (1, 1, 1, 1, &[(0, 1), (1, 1)]),
    (5, 3, 7, 3, &[(0, 7), (7, 7)]),
    (5, 5, 8, 1, &[(0, 8)]),
    (17, 16, 40, 8, &[(0, 40), (40, 40)]),
    (40, 33, 64, 16, &[(0, 64), (64, 64)]),
    (40, 40, 64, 16, &[(0, 64)]),
    (40, 39, 64, 16, &[(64, 64)]),
    (33, 33, 136, 4, &[(0, 136), (136, 136)]),
    (130, 129, 264, 16, &[(0, 264), (264, 264)]),
    (300, 300, 72, 8, &[(0, 72), (72, 72)]),
    (150, 149, 200, 24, &[(0, 200), (200, 200)]),
    (70, 65, 96, 32, &[(0, 96), (96, 96)]),
    (70, 70, 96, 32, &[(96, 96)]),
    (50, 50, 96, 40, &[(0, 96), (96, 96)]),
    (35, 33, 104, 64, &[(0, 104), (104, 104)]),
    (35, 35, 104, 64, &[(0, 104)]),
    (20, 20, 40, 80, &[(0, 40), (40, 40)]),
    (33, 30, 65, 16, &[(0, 65), (65, 65)]),
    (33, 33, 64, 16, &[(3, 17), (50, 30), (100, 9)]),
    (600, 590, 40, 16, &[(0, 40), (40, 40)]),
];

fn adapted_inputs(random: &mut Random, case: Adapted) -> (Adapters, [Tensor; 4]) {
    let (rows, _, cols, rank, blocks) = case;
    let blocks = blocks.iter().map(|&(start, len)| Columns { start, len }).collect();
    let adapters = Adapters { alpha: -0.375, blocks, total: 2 * cols };
    let low_rank = random.tokens(rows, adapters.blocks.len() * rank);
    let b = random.fixed(&[adapters.rows(), rank]);
    let inputs = [bent(random, rows, 2 * cols), random.tokens(rows, cols), low_rank, b];
    (adapters, inputs)
}

#[test]
fn gated_with_adapters() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(54));
    for (index, case) in ADAPTED.into_iter().enumerate() {
        for activation in [ALL[index % 5], ALL[(index + 1) % 5]] {
            let (adapters, [gate_up, dy, low_rank, b]) = adapted_inputs(random, case);
            let active = Active::one(case.1, 1);
            let name = format!("{activation:?} {adapters:?} rank {}", case.3);
            let op = Gated { activation, adapters: Some(adapters.clone()) };
            suite.check(&name, op, &[gate_up.clone(), low_rank.clone(), b.clone()], active, F32_SUMS);
            let with_value = index % 2 == 0;
            let op = GatedGrad { adapters: Some(adapters), with_value, ..GatedGrad::new(activation) };
            suite.check(&name, op, &[gate_up, dy, low_rank, b], active, F32_SUMS);
        }
    }
}

#[test]
fn gated_with_adapters_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(55));
    for (index, case) in ADAPTED.into_iter().enumerate() {
        for activation in [ALL[index % 5], ALL[(index + 1) % 5]] {
            let (adapters, [gate_up, dy, low_rank, b]) = adapted_inputs(random, case);
            let active = Active::one(case.1, 1);
            let name = format!("{activation:?} {adapters:?} rank {}", case.3);
            let once = Rounding::once(sums_of(case.3));
            let op = Gated { activation, adapters: Some(adapters.clone()) };
            let inputs = [gate_up.clone(), low_rank.clone(), b.clone()];
            suite.check_sixteen(&name, op, &inputs, &[0, 1, 2], active, once);
            let with_value = index % 2 == 0;
            let op = GatedGrad { adapters: Some(adapters), with_value, ..GatedGrad::new(activation) };
            suite.check_sixteen(&name, op, &[gate_up, dy, low_rank, b], &[0, 1, 2, 3], active, once);
        }
    }
}

/// Token slots, tokens in use, features, the adapters' rank (none of either half if zero), and the last share's.
const SHARED: [(usize, usize, usize, usize, usize); 12] = [
    (1, 1, 1, 0, 1),
    (5, 3, 7, 3, 3),
    (17, 16, 40, 8, 8),
    (40, 33, 64, 0, 16),
    (40, 40, 64, 16, 16),
    (300, 299, 136, 16, 16),
    (129, 129, 264, 4, 4),
    (70, 65, 96, 32, 32),
    (70, 70, 200, 0, 24),
    (35, 33, 104, 64, 64),
    (33, 33, 64, 16, 8),
    (33, 30, 65, 16, 16),
];

/// What `down`'s adapter gives to the gradient, added on the way, with dropout and without.
#[test]
fn gated_gradient_with_a_last_share() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(57));
    for (index, (rows, tokens, cols, rank, share_rank)) in SHARED.into_iter().enumerate() {
        let halves: &[(usize, usize)] = if rank == 0 { &[] } else { &[(0, cols), (cols, cols)] };
        let blocks: Vec<Columns> = halves.iter().map(|&(start, len)| Columns { start, len }).collect();
        let adapters = (rank > 0).then(|| Adapters { alpha: 0.75, blocks, total: 2 * cols });
        for dropout in [None, Some(InnerDropout { p: 0.3, site: 5 })] {
            let last_share = Some(AdapterShare { alpha: -1.5, dropout });
            let with_value = index % 3 != 0;
            let op = GatedGrad { activation: ALL[index % 5], adapters: adapters.clone(), last_share, with_value };
            let mut inputs = vec![bent(random, rows, 2 * cols), random.tokens(rows, cols)];
            if rank > 0 {
                inputs.extend([random.tokens(rows, 2 * rank), random.fixed(&[2 * cols, rank])]);
            }
            inputs.extend([random.tokens(rows, share_rank), random.fixed(&[share_rank, cols])]);
            let stored: Vec<usize> = (0..inputs.len()).collect();
            if dropout.is_some() {
                let ids = (0..rows as u32).map(|row| 7 * row + 3).collect();
                inputs.extend([Tensor::row_ids(ids), Tensor::rng_key([3, 1, 4, 1])]);
            }
            let active = Active::one(tokens, 1);
            let name = format!("{rows} x {cols} rank {rank} share of rank {share_rank} {dropout:?}");
            suite.check(&name, op.clone(), &inputs, active, F32_SUMS);
            let once = Rounding::once(sums_of(rank + share_rank));
            suite.check_sixteen(&name, op, &inputs, &stored, active, once);
        }
    }
}

#[test]
fn no_tokens_with_adapters() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(56));
    let (adapters, [gate_up, _, low_rank, b]) = adapted_inputs(random, ADAPTED[4]);
    let op = Gated { activation: Activation::Silu, adapters: Some(adapters) };
    suite.check("empty", op, &[gate_up, low_rank, b], Active::one(0, 0), 0.0);
}
