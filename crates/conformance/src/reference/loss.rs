use plimsoll_graph::ops::{LastLogits, VocabLoss};

use super::Array;
use super::array::{add_scaled, dot};

/// A token's logits after the soft cap, and the cap's slope at each.
fn logits(hidden: &[f64], weight: &Array, softcap: Option<f32>) -> Vec<(f64, f64)> {
    let capped = |z: f64| match softcap.map(f64::from) {
        Some(cap) => (cap * (z / cap).tanh(), 1.0 - (z / cap).tanh().powi(2)),
        None => (z, 1.0),
    };
    (0..weight.rows()).map(|word| capped(dot(hidden, weight.row(word)))).collect()
}

pub fn vocab_loss(op: &VocabLoss, inputs: &[&Array]) -> Vec<Array> {
    let (hidden, weight, targets, scale) = (inputs[0], inputs[1], inputs[2], inputs[3].data[0]);
    let mut loss = inputs[4].clone();
    let mut d_hidden = Array::zeros_like(hidden);
    let mut d_weight = inputs.get(5).map_or_else(|| Array::zeros_like(weight), |d| (*d).clone());
    for token in 0..hidden.rows() {
        if targets.data[token] < 0.0 {
            continue;
        }
        let target = targets.index(token);
        let logits = logits(hidden.row(token), weight, op.softcap);
        let largest = logits.iter().map(|l| l.0).fold(f64::NEG_INFINITY, f64::max);
        let lse = largest + logits.iter().map(|l| (l.0 - largest).exp()).sum::<f64>().ln();
        loss.data[0] += scale * (lse - logits[target].0);
        for (word, (logit, slope)) in logits.into_iter().enumerate() {
            let d_logit = scale * ((logit - lse).exp() - f64::from(u8::from(word == target))) * slope;
            add_scaled(d_hidden.row_mut(token), d_logit, weight.row(word));
            add_scaled(d_weight.row_mut(word), d_logit, hidden.row(token));
        }
    }
    let mut outputs = vec![loss];
    if let Some(grad) = op.grad {
        outputs.push(d_hidden);
        outputs.extend(grad.weight.then_some(d_weight));
    }
    outputs
}

pub fn last_logits(op: &LastLogits, inputs: &[&Array]) -> Array {
    let (hidden, weight, cu_seqlens) = (inputs[0], inputs[1], inputs[2]);
    let ends = &cu_seqlens.data[1..];
    let rows = ends.iter().flat_map(|&end| logits(hidden.row(end as usize - 1), weight, op.softcap));
    Array::new(&[ends.len(), weight.rows()], rows.map(|(logit, _)| logit).collect())
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;
    use plimsoll_graph::ops::LossGrad;

    use super::super::finite_difference::testing::{array, check_gradient};
    use super::*;
    use crate::Random;

    #[test]
    fn gradients_are_the_slopes() {
        let random = &mut Random::new(8);
        for softcap in [None, Some(0.8)] {
            let op = VocabLoss::new(softcap, 1);
            let targets = Array::new(&[4], vec![5.0, -100.0, 0.0, 3.0]);
            let (hidden, weight) = (array(random, &[4, 3]), array(random, &[6, 3]));
            let inputs = [hidden, weight, targets, Array::filled(&[1], 0.25), Array::filled(&[1], 7.0)];
            let zero = Array::zeros_like(&inputs[1]);
            let grad_inputs: Vec<&Array> = inputs.iter().chain([&zero]).collect();
            let grad = VocabLoss { grad: Some(LossGrad { weight: true }), ..op.clone() };
            let gradients = vocab_loss(&grad, &grad_inputs);
            let one = [Array::filled(&[1], 1.0)];
            check_gradient(&Op::from(op.clone()), &inputs, 0, &one, &gradients[1]);
            check_gradient(&Op::from(op), &inputs, 1, &one, &gradients[2]);
        }
    }
}
