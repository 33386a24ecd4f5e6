use plimsoll_graph::ops::{LayerNorm, LayerNormGrad};

use super::Array;
use super::array::dot;

pub fn layer_norm(op: &LayerNorm, inputs: &[&Array]) -> Vec<Array> {
    let x = inputs[0];
    let weight = op.weight.then(|| inputs[1]);
    let bias = op.bias.then(|| inputs[1 + usize::from(op.weight)]);
    let mut normed = Array::zeros_like(x);
    let [mut means, mut rstd] = [(); 2].map(|()| Array::filled(&[x.rows()], 0.0));
    for token in 0..x.rows() {
        let row = x.row(token);
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        let apart: Vec<f64> = row.iter().map(|x| x - mean).collect();
        let scale = 1.0 / (dot(&apart, &apart) / row.len() as f64 + f64::from(op.eps)).sqrt();
        for (i, (out, apart)) in normed.row_mut(token).iter_mut().zip(apart).enumerate() {
            *out = apart * scale * weight.map_or(1.0, |w| w.data[i]) + bias.map_or(0.0, |b| b.data[i]);
        }
        (means.data[token], rstd.data[token]) = (mean, scale);
    }
    vec![normed, means, rstd]
}

pub fn layer_norm_grad(op: &LayerNormGrad, inputs: &[&Array]) -> Vec<Array> {
    let (x, means, rstd, dy) = (inputs[0], inputs[1], inputs[2], inputs[3]);
    let mut rest = inputs[4..].iter().map(|array| (*array).clone());
    let weight = op.weight.then(|| rest.next().expect("w"));
    let mut dx = if op.accumulate { rest.next().expect("dx so far") } else { Array::zeros_like(x) };
    let mut dw = op.weight_grad.then(|| rest.next().expect("dw"));
    let mut db = op.bias_grad.then(|| rest.next().expect("db"));
    for token in 0..x.rows() {
        let (mean, scale, dy) = (means.data[token], rstd.data[token], dy.row(token));
        let features = dy.len() as f64;
        let unit: Vec<f64> = x.row(token).iter().map(|x| (x - mean) * scale).collect();
        let d_unit: Vec<f64> =
            dy.iter().enumerate().map(|(i, d)| d * weight.as_ref().map_or(1.0, |w| w.data[i])).collect();
        let (level, along) = (d_unit.iter().sum::<f64>() / features, dot(&d_unit, &unit) / features);
        for (i, sum) in dx.row_mut(token).iter_mut().enumerate() {
            *sum += scale * (d_unit[i] - level - unit[i] * along);
        }
        if let Some(dw) = &mut dw {
            dw.data.iter_mut().zip(dy.iter().zip(&unit)).for_each(|(sum, (d, u))| *sum += d * u);
        }
        if let Some(db) = &mut db {
            db.data.iter_mut().zip(dy).for_each(|(sum, d)| *sum += d);
        }
    }
    [dx].into_iter().chain(dw).chain(db).collect()
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;

    use super::super::finite_difference::testing::{array, check_gradient, upstream};
    use super::*;
    use crate::Random;

    #[test]
    fn gradients_are_the_slopes() {
        let random = &mut Random::new(6);
        let op = LayerNorm { eps: 1e-2, weight: true, bias: true };
        let inputs = [array(random, &[3, 5]), array(random, &[5]), array(random, &[5])];
        let forward = Op::from(op.clone());
        let mut d_out = upstream(random, &forward, &inputs);
        // The saved statistics are no way out for a gradient.
        d_out[1..].iter_mut().for_each(|d| d.data.fill(0.0));
        let outputs = layer_norm(&op, &inputs.iter().collect::<Vec<_>>());
        let zero = Array::filled(&[5], 0.0);
        let grad = LayerNormGrad { weight: true, accumulate: false, weight_grad: true, bias_grad: true };
        let grad_inputs = [&inputs[0], &outputs[1], &outputs[2], &d_out[0], &inputs[1], &zero, &zero];
        let gradients = layer_norm_grad(&grad, &grad_inputs);
        for (wrt, gradient) in gradients.iter().enumerate() {
            check_gradient(&forward, &inputs, wrt, &d_out, gradient);
        }
    }
}
