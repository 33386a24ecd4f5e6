use plimsoll_graph::ops::{HeadNorm, HeadNormGrad, Heads, RmsNorm, RmsNormGrad};

use super::Array;
use super::array::dot;

/// What each feature is multiplied by: `offset + w`, or one where there is no weight.
struct Factors<'a> {
    weight: Option<&'a [f64]>,
    offset: f32,
}

impl Factors<'_> {
    fn of(&self, feature: usize) -> f64 {
        self.weight.map_or(1.0, |w| f64::from(self.offset) + w[feature])
    }
}

/// `x / sqrt(mean(x²) + eps)`, times the factors.
fn normalise(x: &[f64], factors: &Factors, eps: f32) -> (Vec<f64>, f64) {
    let rstd = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt();
    let normed = x.iter().enumerate().map(|(i, x)| x * rstd * factors.of(i)).collect();
    (normed, rstd)
}

/// Gradients in `x` and in the weight.
fn normalise_grad(x: &[f64], rstd: f64, dy: &[f64], factors: &Factors) -> (Vec<f64>, Vec<f64>) {
    let unit: Vec<f64> = x.iter().map(|x| x * rstd).collect();
    let d_unit: Vec<f64> = dy.iter().enumerate().map(|(i, d)| d * factors.of(i)).collect();
    let along = dot(&d_unit, &unit) / x.len() as f64;
    let dx = d_unit.iter().zip(&unit).map(|(d, u)| rstd * (d - u * along)).collect();
    let dw = dy.iter().zip(&unit).map(|(d, u)| d * u).collect();
    (dx, dw)
}

pub fn rms_norm(op: &RmsNorm, inputs: &[&Array]) -> Vec<Array> {
    let x = if op.residual { inputs[0].plus(inputs[1]) } else { inputs[0].clone() };
    let weight = op.weight.then(|| &inputs[1 + usize::from(op.residual)].data[..]);
    let factors = Factors { weight, offset: op.offset };
    let mut normed = Array::zeros_like(&x);
    let mut rstd = Array::filled(&[x.rows()], 0.0);
    for token in 0..x.rows() {
        let (row, scale) = normalise(x.row(token), &factors, op.eps);
        normed.row_mut(token).copy_from_slice(&row);
        rstd.data[token] = scale;
    }
    if op.residual { vec![x, normed, rstd] } else { vec![normed, rstd] }
}

pub fn rms_norm_grad(op: &RmsNormGrad, inputs: &[&Array]) -> Vec<Array> {
    let (x, rstd, dy) = (inputs[0], inputs[1], inputs[2]);
    let mut rest = inputs[3..].iter();
    let factors = Factors { weight: op.weight.then(|| &rest.next().expect("w").data[..]), offset: op.offset };
    let mut dx = if op.accumulate { (*rest.next().expect("dx so far")).clone() } else { Array::zeros_like(x) };
    let mut dw = op.weight_grad.then(|| (*rest.next().expect("dw")).clone());
    for token in 0..x.rows() {
        let (row, weight_row) = normalise_grad(x.row(token), rstd.data[token], dy.row(token), &factors);
        dx.row_mut(token).iter_mut().zip(row).for_each(|(sum, d)| *sum += d);
        if let Some(dw) = &mut dw {
            dw.data.iter_mut().zip(weight_row).for_each(|(sum, d)| *sum += d);
        }
    }
    [dx].into_iter().chain(dw).collect()
}

/// The columns of each head that is normalised, with its weight among `[wq, wk]`.
fn normed_heads(heads: Heads) -> impl Iterator<Item = (std::ops::Range<usize>, usize)> {
    let columns = move |head: usize| head * heads.head_dim..(head + 1) * heads.head_dim;
    (0..heads.query + heads.kv).map(move |head| (columns(head), usize::from(head >= heads.query)))
}

pub fn head_norm(op: &HeadNorm, inputs: &[&Array]) -> Vec<Array> {
    let mut normed = inputs[0].clone();
    let mut rstd = Array::filled(&[normed.rows(), op.heads.query + op.heads.kv], 0.0);
    for token in 0..normed.rows() {
        for (head, (columns, which)) in normed_heads(op.heads).enumerate() {
            let factors = Factors { weight: op.weight.then(|| &inputs[1 + which].data[..]), offset: op.offset };
            let (row, scale) = normalise(&inputs[0].row(token)[columns.clone()], &factors, op.eps);
            normed.row_mut(token)[columns].copy_from_slice(&row);
            rstd.row_mut(token)[head] = scale;
        }
    }
    vec![normed, rstd]
}

pub fn head_norm_grad(op: &HeadNormGrad, inputs: &[&Array]) -> Vec<Array> {
    let (x, rstd, dy) = (inputs[0], inputs[1], inputs[2]);
    let mut dx = dy.clone();
    let mut dw: Vec<Array> = if op.weight_grad { vec![inputs[5].clone(), inputs[6].clone()] } else { Vec::new() };
    for token in 0..x.rows() {
        for (head, (columns, which)) in normed_heads(op.heads).enumerate() {
            let factors = Factors { weight: op.weight.then(|| &inputs[3 + which].data[..]), offset: op.offset };
            let (x, dy) = (&x.row(token)[columns.clone()], &dy.row(token)[columns.clone()]);
            let (row, weight_row) = normalise_grad(x, rstd.row(token)[head], dy, &factors);
            dx.row_mut(token)[columns].copy_from_slice(&row);
            if op.weight_grad {
                dw[which].data.iter_mut().zip(weight_row).for_each(|(sum, d)| *sum += d);
            }
        }
    }
    [dx].into_iter().chain(dw).collect()
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;

    use super::super::finite_difference::testing::{array, check_gradient, upstream};
    use super::*;
    use crate::Random;

    #[test]
    fn rms_norm_gradients_are_the_slopes() {
        let random = &mut Random::new(2);
        for (residual, offset) in [(false, 0.0), (true, 0.0), (false, 1.0), (true, 1.0)] {
            let op = RmsNorm { offset, residual, ..RmsNorm::new(1e-2) };
            let mut inputs = vec![array(random, &[3, 5]); 1 + usize::from(residual)];
            inputs.push(array(random, &[5]));
            let forward = Op::from(op.clone());
            let mut d_out = upstream(random, &forward, &inputs);
            // The saved scale is no way out for a gradient.
            d_out.last_mut().expect("rstd").data.fill(0.0);

            let outputs = rms_norm(&op, &inputs.iter().collect::<Vec<_>>());
            let summed = if residual { &outputs[0] } else { &inputs[0] };
            let (d_sum, d_normed) = (residual.then(|| &d_out[0]), &d_out[usize::from(residual)]);
            let w = &inputs[1 + usize::from(residual)];
            let zero = Array::zeros_like(w);
            let rstd = &outputs[1 + usize::from(residual)];
            let grad_inputs = [summed, rstd, d_normed, w].into_iter().chain(d_sum).chain([&zero]);
            let grad = RmsNormGrad { weight: true, offset, weight_grad: true, accumulate: residual };
            let gradients = rms_norm_grad(&grad, &grad_inputs.collect::<Vec<_>>());
            for wrt in 0..=usize::from(residual) {
                check_gradient(&forward, &inputs, wrt, &d_out, &gradients[0]);
            }
            check_gradient(&forward, &inputs, 1 + usize::from(residual), &d_out, &gradients[1]);
        }
    }

    #[test]
    fn head_norm_gradients_are_the_slopes() {
        let random = &mut Random::new(3);
        let heads = Heads { query: 2, kv: 1, head_dim: 4 };
        for offset in [0.0, 1.0] {
            let op = HeadNorm { offset, ..HeadNorm::new(heads, 1e-2) };
            let inputs = [array(random, &[3, heads.fused_cols()]), array(random, &[4]), array(random, &[4])];
            let forward = Op::from(op.clone());
            let mut d_out = upstream(random, &forward, &inputs);
            d_out[1].data.fill(0.0);
            let outputs = head_norm(&op, &inputs.iter().collect::<Vec<_>>());
            let zero = Array::filled(&[4], 0.0);
            let grad = HeadNormGrad { heads, weight: true, offset, weight_grad: true };
            let grad_inputs = [&inputs[0], &outputs[1], &d_out[0], &inputs[1], &inputs[2], &zero, &zero];
            let gradients = head_norm_grad(&grad, &grad_inputs);
            for wrt in 0..3 {
                check_gradient(&forward, &inputs, wrt, &d_out, &gradients[wrt]);
            }
        }
    }
}
