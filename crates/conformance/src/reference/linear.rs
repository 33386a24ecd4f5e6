use plimsoll_graph::ops::{BiasGrad, Dest, Linear, LinearKind};

use super::array::{add_scaled, dot};
use super::fp8::linear_fp8;
use super::{Array, MaskSource, dropout_factors};

pub fn linear(op: &Linear, inputs: &[&Array], masks: &mut dyn MaskSource) -> Array {
    if op.fp8 && op.kind != LinearKind::WeightGrad {
        return linear_fp8(op, inputs);
    }
    let features = match op.kind {
        LinearKind::Forward => inputs[0].cols(),
        LinearKind::InputGrad | LinearKind::WeightGrad => inputs[1].cols(),
    };
    let factors = match (op.dropout, op.dropout_inputs()) {
        (Some(dropout), Some(at)) => dropout_factors(dropout, inputs[at], inputs[at + 1], features, masks),
        _ => Array::filled(&[inputs[0].rows(), features], 1.0),
    };
    let dest = op.dest_input().map(|at| inputs[at]);
    match op.kind {
        LinearKind::Forward => forward(op, inputs, &factors, dest),
        LinearKind::InputGrad => input_grad(op, inputs, &factors, dest),
        LinearKind::WeightGrad => weight_grad(op, inputs, &factors, dest.expect("a gradient to add to")),
    }
}

/// `α·drop(x)·Wᵀ + b` into its columns. Columns of a new value that nobody writes are NaN.
fn forward(op: &Linear, inputs: &[&Array], factors: &Array, dest: Option<&Array>) -> Array {
    let (x, w) = (inputs[0].zip(factors, |x, f| x * f), inputs[1]);
    let (start, total) = op.cols.map_or((0, w.rows()), |c| (c.start, c.total));
    let mut y = dest.cloned().unwrap_or_else(|| Array::filled(&[x.rows(), total], f64::NAN));
    for token in 0..x.rows() {
        for out in 0..w.rows() {
            let bias = if op.bias { inputs[2].data[out] } else { 0.0 };
            let product = f64::from(op.alpha) * dot(x.row(token), w.row(out)) + bias;
            let entry = &mut y.row_mut(token)[start + out];
            *entry = if op.dest == Dest::Accumulate { *entry + product } else { product };
        }
    }
    y
}

/// `drop(α·dy·W)`, added to the destination if there is one.
fn input_grad(op: &Linear, inputs: &[&Array], factors: &Array, dest: Option<&Array>) -> Array {
    assert!(op.dest != Dest::Overwrite, "an input gradient has no columns to keep");
    let (dy, w) = (inputs[0], inputs[1]);
    let start = op.cols.map_or(0, |c| c.start);
    let mut dx = Array::filled(&[dy.rows(), w.cols()], 0.0);
    for token in 0..dy.rows() {
        for out in 0..w.rows() {
            add_scaled(dx.row_mut(token), f64::from(op.alpha) * dy.row(token)[start + out], w.row(out));
        }
    }
    let dx = dx.zip(factors, |d, f| d * f);
    dest.map_or_else(|| dx.clone(), |dest| dest.plus(&dx))
}

/// `dW + α·dyᵀ·drop(x)`.
fn weight_grad(op: &Linear, inputs: &[&Array], factors: &Array, dest: &Array) -> Array {
    let (dy, x) = (inputs[0], inputs[1].zip(factors, |x, f| x * f));
    let start = op.cols.map_or(0, |c| c.start);
    let mut dw = dest.clone();
    for token in 0..dy.rows() {
        for out in 0..dw.rows() {
            add_scaled(dw.row_mut(out), f64::from(op.alpha) * dy.row(token)[start + out], x.row(token));
        }
    }
    dw
}

/// `db + Σ_rows dy`.
pub fn bias_grad(op: &BiasGrad, inputs: &[&Array]) -> Array {
    let (dy, mut db) = (inputs[0], inputs[1].clone());
    let start = op.cols.map_or(0, |c| c.start);
    for token in 0..dy.rows() {
        for out in 0..db.data.len() {
            db.data[out] += dy.row(token)[start + out];
        }
    }
    db
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;
    use plimsoll_graph::ops::{Cols, InnerDropout};

    use super::super::finite_difference::testing::{AnyMask, array, check_gradient, upstream};
    use super::*;
    use crate::Random;

    #[test]
    fn gradients_are_the_slopes() {
        let random = &mut Random::new(1);
        let (tokens, features, out) = (4, 5, 3);
        for cols in [None, Some(Cols { start: 2, len: out, total: 7 })] {
            for dropout in [None, Some(InnerDropout { p: 0.4, site: 3 })] {
                let op = Linear { alpha: 0.7, bias: true, cols, dropout, ..Linear::forward() };
                let (x, w, b) =
                    (array(random, &[tokens, features]), array(random, &[out, features]), array(random, &[out]));
                let mask_inputs = [Array::new(&[tokens], vec![5.0, 9.0, 1.0, 30.0]), Array::filled(&[4], 11.0)];
                let mask_inputs = if dropout.is_some() { &mask_inputs[..] } else { &[] };
                let inputs = [&[x.clone(), w.clone(), b.clone()], mask_inputs].concat();
                let forward = Op::from(op.clone());
                let dy = upstream(random, &forward, &inputs);

                let grad = |kind, extra: &[&Array]| {
                    let op = Linear { kind, bias: false, dest: Dest::Fresh, ..op.clone() };
                    let inputs: Vec<&Array> = extra.iter().copied().chain(mask_inputs).collect();
                    linear(&op, &inputs, &mut AnyMask)
                };
                check_gradient(&forward, &inputs, 0, &dy, &grad(LinearKind::InputGrad, &[&dy[0], &w]));
                let zero = Array::zeros_like(&w);
                check_gradient(&forward, &inputs, 1, &dy, &grad(LinearKind::WeightGrad, &[&dy[0], &x, &zero]));
                let db = bias_grad(&BiasGrad { cols }, &[&dy[0], &Array::zeros_like(&b)]);
                check_gradient(&forward, &inputs, 2, &dy, &db);
            }
        }
    }
}
