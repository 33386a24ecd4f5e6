use std::f64::consts::{FRAC_1_SQRT_2, PI};

use plimsoll_graph::ops::{
    Activation, AdapterShare, AdapterUp, Adapters, Dest, Gated, GatedGrad, Linear, LinearKind, Pointwise, PointwiseGrad,
};

use super::adapter::adapter_up;
use super::linear::linear;
use super::{Array, MaskSource};

/// The error function by its series of positive terms, which has nothing to cancel.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-18 * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The argument of the tanh in GELU's approximation, and its slope.
fn gelu_inner(x: f64) -> (f64, f64) {
    let scale = (2.0 / PI).sqrt();
    (scale * (x + 0.044715 * x.powi(3)), scale * (1.0 + 3.0 * 0.044715 * x * x))
}

fn act(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
        Activation::GeluTanh => 0.5 * x * (1.0 + gelu_inner(x).0.tanh()),
        Activation::Relu => x.max(0.0),
        Activation::Relu2 => x.max(0.0).powi(2),
    }
}

fn slope(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => sigmoid(x) + x * sigmoid(x) * (1.0 - sigmoid(x)),
        Activation::Gelu => 0.5 * (1.0 + erf(x * FRAC_1_SQRT_2)) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt(),
        Activation::GeluTanh => {
            let (inner, d_inner) = gelu_inner(x);
            0.5 * (1.0 + inner.tanh()) + 0.5 * x * (1.0 - inner.tanh().powi(2)) * d_inner
        }
        Activation::Relu => f64::from(u8::from(x > 0.0)),
        Activation::Relu2 => 2.0 * x.max(0.0),
    }
}

/// Both halves with what the adapters add, if there are any; `rest` are their low-rank rows and second matrices.
fn adapted(gate_up: &Array, adapters: Option<&Adapters>, rest: &[&Array]) -> Array {
    match adapters {
        Some(adapters) => gate_up.zip(&adapter_up(&AdapterUp(adapters.clone()), rest), |x, added| x + added),
        None => gate_up.clone(),
    }
}

/// The gradient that comes in, with the last share of it.
fn shared(op: &GatedGrad, inputs: &[&Array], masks: &mut dyn MaskSource) -> Array {
    let (Some(AdapterShare { alpha, dropout }), Some(at)) = (op.last_share, op.share_inputs()) else {
        return inputs[1].clone();
    };
    let kind = LinearKind::InputGrad;
    let op = Linear { kind, alpha, bias: false, dest: Dest::Accumulate, cols: None, dropout, fp8: false };
    linear(&op, &[&[inputs[at], inputs[at + 1], inputs[1]], &inputs[at + 2..]].concat(), masks)
}

pub fn gated(op: &Gated, inputs: &[&Array]) -> Array {
    let gate_up = adapted(inputs[0], op.adapters.as_ref(), &inputs[1..]);
    let half = gate_up.cols() / 2;
    let mut y = Array::filled(&[gate_up.rows(), half], 0.0);
    for token in 0..y.rows() {
        let (gate, up) = gate_up.row(token).split_at(half);
        for i in 0..half {
            y.row_mut(token)[i] = act(op.activation, gate[i]) * up[i];
        }
    }
    y
}

/// The gradient, and the value if it is asked for.
pub fn gated_grad(op: &GatedGrad, inputs: &[&Array], masks: &mut dyn MaskSource) -> Vec<Array> {
    let gate_up = adapted(inputs[0], op.adapters.as_ref(), &inputs[2..]);
    let dy = shared(op, inputs, masks);
    let half = gate_up.cols() / 2;
    let mut dx = Array::zeros_like(&gate_up);
    for token in 0..dx.rows() {
        let (gate, up) = gate_up.row(token).split_at(half);
        let dy = dy.row(token);
        for i in 0..half {
            dx.row_mut(token)[i] = slope(op.activation, gate[i]) * up[i] * dy[i];
            dx.row_mut(token)[half + i] = act(op.activation, gate[i]) * dy[i];
        }
    }
    let value = op.with_value.then(|| gated(&Gated::new(op.activation), &[&gate_up]));
    [dx].into_iter().chain(value).collect()
}

pub fn pointwise(op: &Pointwise, inputs: &[&Array]) -> Array {
    inputs[0].map(|x| act(op.0, x))
}

pub fn pointwise_grad(op: &PointwiseGrad, inputs: &[&Array]) -> Array {
    inputs[0].zip(inputs[1], |x, dy| slope(op.0, x) * dy)
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;
    use plimsoll_graph::ops::{AdapterUpGrad, Columns};

    use super::super::NoDropout;
    use super::super::adapter::adapter_up_grad;
    use super::super::finite_difference::testing::{array, check_gradient, upstream};
    use super::*;
    use crate::Random;

    #[test]
    fn error_function_has_its_known_values() {
        for (x, known) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (-1.0, -0.842_700_792_949_714_9),
            (3.0, 0.999_977_909_503_001_4),
        ] {
            assert!((erf(x) - known).abs() < 1e-15, "erf({x})");
        }
    }

    #[test]
    fn gradients_are_the_slopes() {
        let random = &mut Random::new(6);
        for activation in
            [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Relu2]
        {
            let x = array(random, &[3, 8]).map(|x| 3.0 * x);
            let forward = Op::from(Gated::new(activation));
            let dy = upstream(random, &forward, std::slice::from_ref(&x));
            let dx = gated_grad(&GatedGrad::new(activation), &[&x, &dy[0]], &mut NoDropout).remove(0);
            check_gradient(&forward, std::slice::from_ref(&x), 0, &dy, &dx);

            let forward = Op::from(Pointwise(activation));
            let dy = upstream(random, &forward, std::slice::from_ref(&x));
            let dx = pointwise_grad(&PointwiseGrad(activation), &[&x, &dy[0]]);
            check_gradient(&forward, std::slice::from_ref(&x), 0, &dy, &dx);
        }
    }
    /// Through both halves to the product, the low-rank rows and the second matrices.
    #[test]
    fn gradients_of_adapters_are_the_slopes() {
        let random = &mut Random::new(7);
        for blocks in [&[(0, 4), (4, 4)][..], &[(0, 4)], &[(4, 4)], &[(1, 2), (3, 4)]] {
            let blocks: Vec<Columns> = blocks.iter().map(|&(start, len)| Columns { start, len }).collect();
            let adapters = Adapters { alpha: 0.7, blocks, total: 8 };
            let rank = 3;
            let inputs = [
                array(random, &[4, 8]).map(|x| 3.0 * x),
                array(random, &[4, adapters.blocks.len() * rank]),
                array(random, &[adapters.rows(), rank]),
            ];
            let activation = Activation::Silu;
            let forward = Op::from(Gated { activation, adapters: Some(adapters.clone()) });
            let dy = upstream(random, &forward, &inputs);
            let op = GatedGrad { adapters: Some(adapters.clone()), ..GatedGrad::new(activation) };
            let dx = gated_grad(&op, &[&inputs[0], &dy[0], &inputs[1], &inputs[2]], &mut NoDropout).remove(0);
            check_gradient(&forward, &inputs, 0, &dy, &dx);
            let zero = Array::zeros_like(&inputs[2]);
            let grads = adapter_up_grad(&AdapterUpGrad(adapters), &[&dx, &inputs[1], &inputs[2], &zero]);
            for (index, grad) in grads.iter().enumerate() {
                check_gradient(&forward, &inputs, 1 + index, &dy, grad);
            }
        }
    }
}
