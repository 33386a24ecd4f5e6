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
    let (hidden, weight, targets) = (inputs[0], inputs[1], inputs[2]);
    let scale = op.scale_input().map_or(1.0, |at| inputs[at].data[0]);
    let mut loss = op.scale_input().map_or_else(|| Array::filled(&[1], 0.0), |at| inputs[at + 1].clone());
    let mut d_hidden = Array::zeros_like(hidden);
    let mut d_weight = op.weight_grad_input().map_or_else(|| Array::zeros_like(weight), |at| inputs[at].clone());
    let mut nll = Array::filled(&[hidden.rows()], 0.0);
    for token in 0..hidden.rows() {
        if targets.data[token] < 0.0 {
            continue;
        }
        let target = targets.index(token);
        let logits = logits(hidden.row(token), weight, op.softcap);
        let largest = logits.iter().map(|l| l.0).fold(f64::NEG_INFINITY, f64::max);
        let lse = largest + logits.iter().map(|l| (l.0 - largest).exp()).sum::<f64>().ln();
        nll.data[token] = lse - logits[target].0;
        let scale = scale * op.weights_input().map_or(1.0, |at| inputs[at].data[token]);
        loss.data[0] += scale * nll.data[token];
        for (word, (logit, slope)) in logits.into_iter().enumerate() {
            let d_logit = scale * ((logit - lse).exp() - f64::from(u8::from(word == target))) * slope;
            add_scaled(d_hidden.row_mut(token), d_logit, weight.row(word));
            add_scaled(d_weight.row_mut(word), d_logit, hidden.row(token));
        }
    }
    let mut outputs = Vec::new();
    outputs.extend(op.total.then_some(loss));
    outputs.extend(op.nll.then_some(nll));
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
        for (softcap, weights, nll) in [(None, false, false), (Some(0.8), false, true), (Some(0.8), true, false)] {
            let op = VocabLoss { weights, nll, ..VocabLoss::new(softcap, 1) };
            let targets = Array::new(&[4], vec![5.0, -100.0, 0.0, 3.0]);
            let (hidden, weight) = (array(random, &[4, 3]), array(random, &[6, 3]));
            let mut inputs = vec![hidden, weight, targets, Array::filled(&[1], 0.25), Array::filled(&[1], 7.0)];
            inputs.extend(weights.then(|| Array::new(&[4], vec![1.5, 2.0, 0.0, -0.5])));
            let zero = Array::zeros_like(&inputs[1]);
            let grad_inputs: Vec<&Array> = inputs.iter().chain([&zero]).collect();
            let grad = VocabLoss { grad: Some(LossGrad { weight: true }), ..op.clone() };
            let gradients = vocab_loss(&grad, &grad_inputs);
            let first = grad.grad_output().expect("gradients");
            // The loss is what is differentiated; the likelihoods weigh nothing.
            let upstream = [Array::filled(&[1], 1.0), Array::filled(&[4], 0.0)];
            check_gradient(&Op::from(op.clone()), &inputs, 0, &upstream, &gradients[first]);
            check_gradient(&Op::from(op), &inputs, 1, &upstream, &gradients[first + 1]);
        }
    }

    /// What likelihoods alone are weighed by is the weights of the run that makes the gradients.
    #[test]
    fn gradients_of_likelihoods_are_the_slopes() {
        let random = &mut Random::new(89);
        let op = VocabLoss::likelihoods(Some(0.8), 1);
        let targets = Array::new(&[4], vec![5.0, -100.0, 0.0, 3.0]);
        let inputs = [array(random, &[4, 3]), array(random, &[6, 3]), targets];
        let upstream = array(random, &[4]);
        let zero = Array::zeros_like(&inputs[1]);
        let grad = VocabLoss { weights: true, nll: false, grad: Some(LossGrad { weight: true }), ..op.clone() };
        let gradients = vocab_loss(&grad, &[&inputs[0], &inputs[1], &inputs[2], &upstream, &zero]);
        check_gradient(&Op::from(op.clone()), &inputs, 0, std::slice::from_ref(&upstream), &gradients[0]);
        check_gradient(&Op::from(op), &inputs, 1, &[upstream], &gradients[1]);
    }

    /// The likelihoods weighed by hand are the loss.
    #[test]
    fn the_loss_is_the_weighted_sum_of_the_likelihoods() {
        let random = &mut Random::new(88);
        let op = VocabLoss { weights: true, nll: true, ..VocabLoss::new(Some(2.0), 1) };
        let weights = array(random, &[5]);
        let targets = Array::new(&[5], vec![5.0, 1.0, -1.0, 0.0, 2.0]);
        let (hidden, weight) = (array(random, &[5, 3]), array(random, &[6, 3]));
        let (scale, before) = (Array::filled(&[1], 0.25), Array::filled(&[1], 7.0));
        let outputs = vocab_loss(&op, &[&hidden, &weight, &targets, &scale, &before, &weights]);
        let sum: f64 = outputs[1].data.iter().zip(&weights.data).map(|(nll, weight)| nll * weight).sum();
        assert!((outputs[0].data[0] - 7.0 - 0.25 * sum).abs() < 1e-12);
        assert_eq!(outputs[1].data.iter().map(|&nll| nll > 0.0).collect::<Vec<_>>(), [true, true, false, true, true]);
    }
}
