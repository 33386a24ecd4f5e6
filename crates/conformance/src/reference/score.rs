use plimsoll_graph::ops::{ClassLoss, PairLoss};

use super::Array;
use super::array::{add_scaled, dot};

pub fn pair_loss(op: &PairLoss, inputs: &[&Array]) -> Vec<Array> {
    let (hidden, weight, cu_seqlens, scale) = (inputs[0], inputs[1], inputs[2], inputs[3].data[0]);
    let (mut loss, mut stats) = (inputs[4].clone(), inputs[5].clone());
    let mut d_hidden = Array::zeros_like(hidden);
    let mut d_weight = op.weight_grad_input().map_or_else(|| Array::zeros_like(weight), |at| inputs[at].clone());
    let centring = f64::from(op.centring);
    for (chosen, pair) in cu_seqlens.data.windows(3).enumerate().step_by(2) {
        let rejected = chosen + 1;
        if pair[0] == pair[1] || pair[1] == pair[2] {
            continue;
        }
        let score = |sequence: usize| dot(hidden.row(sequence), weight.row(0));
        let (ours, theirs) = (score(chosen), score(rejected));
        let total = ours + theirs;
        let margin = ours - theirs - op.margins_input().map_or(0.0, |at| inputs[at].data[chosen]);
        let logistic = if margin > 0.0 { (-margin).exp().ln_1p() } else { margin.exp().ln_1p() - margin };
        loss.data[0] += scale * (logistic + centring * total * total);
        let right = f64::from(u8::from(ours > theirs));
        let counted = [1.0, right, ours - theirs, ours, theirs];
        stats.data.iter_mut().zip(counted).for_each(|(stat, more)| *stat += more);
        let (slope, pull) = (-scale / (1.0 + margin.exp()), 2.0 * scale * centring * total);
        for (sequence, d_score) in [(chosen, pull + slope), (rejected, pull - slope)] {
            for i in 0..hidden.cols() {
                d_hidden.row_mut(sequence)[i] += d_score * weight.data[i];
                d_weight.data[i] += d_score * hidden.row(sequence)[i];
            }
        }
    }
    let mut outputs = vec![loss, stats];
    if let Some(grad) = op.grad {
        outputs.push(d_hidden);
        outputs.extend(grad.weight.then_some(d_weight));
    }
    outputs
}

pub fn class_loss(op: &ClassLoss, inputs: &[&Array]) -> Vec<Array> {
    let (hidden, weight, labels, scale) = (inputs[0], inputs[1], inputs[2], inputs[3].data[0]);
    let (mut loss, mut stats) = (inputs[4].clone(), inputs[5].clone());
    let mut d_hidden = Array::zeros_like(hidden);
    let mut d_weight = inputs.get(6).map_or_else(|| Array::zeros_like(weight), |d| (*d).clone());
    for sequence in (0..hidden.rows()).filter(|&sequence| labels.data[sequence] >= 0.0) {
        let label = labels.index(sequence);
        let logits: Vec<f64> = (0..weight.rows()).map(|class| dot(hidden.row(sequence), weight.row(class))).collect();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = largest + logits.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
        loss.data[0] += scale * (lse - logits[label]);
        stats.data[0] += 1.0;
        let first = logits.iter().position(|&logit| logit == largest);
        stats.data[1] += f64::from(u8::from(first == Some(label)));
        for (class, logit) in logits.into_iter().enumerate() {
            let d_logit = scale * ((logit - lse).exp() - f64::from(u8::from(class == label)));
            add_scaled(d_hidden.row_mut(sequence), d_logit, weight.row(class));
            add_scaled(d_weight.row_mut(class), d_logit, hidden.row(sequence));
        }
    }
    let mut outputs = vec![loss, stats];
    if let Some(grad) = op.grad {
        outputs.push(d_hidden);
        outputs.extend(grad.weight.then_some(d_weight));
    }
    outputs
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;
    use plimsoll_graph::ops::{CLASS_STATS, LossGrad, PAIR_STATS};

    use super::super::finite_difference::testing::{array, check_gradient};
    use super::*;
    use crate::Random;

    #[test]
    fn gradients_are_the_slopes() {
        let random = &mut Random::new(9);
        for (centring, margins) in [(0.0, false), (0.25, false), (0.5, true)] {
            let op = PairLoss { centring, margins, grad: None };
            let ends = Array::new(&[7], vec![0.0, 2.0, 3.0, 6.0, 8.0, 9.0, 9.0]);
            let (hidden, weight) = (array(random, &[6, 3]), array(random, &[1, 3]));
            let (scale, loss) = (Array::filled(&[1], 0.25), Array::filled(&[1], 7.0));
            let mut inputs = vec![hidden, weight, ends, scale, loss, Array::filled(&[PAIR_STATS], 1.0)];
            inputs.extend(margins.then(|| Array::new(&[6], vec![0.5, 9.0, 2.0, 9.0, 9.0, 9.0])));
            let zero = Array::zeros_like(&inputs[1]);
            let grad_inputs: Vec<&Array> = inputs.iter().chain([&zero]).collect();
            let grad = PairLoss { grad: Some(LossGrad { weight: true }), ..op.clone() };
            let gradients = pair_loss(&grad, &grad_inputs);
            // The loss is what is differentiated; the statistics weigh nothing.
            let upstream = [Array::filled(&[1], 1.0), Array::filled(&[PAIR_STATS], 0.0)];
            check_gradient(&Op::from(op.clone()), &inputs, 0, &upstream, &gradients[2]);
            check_gradient(&Op::from(op), &inputs, 1, &upstream, &gradients[3]);
        }
    }

    #[test]
    fn gradients_over_classes_are_the_slopes() {
        let random = &mut Random::new(10);
        for classes in [1, 2, 5] {
            let op = ClassLoss { grad: None };
            let labels = Array::new(&[5], (0..5).map(|i| if i == 2 { -1.0 } else { f64::from(i % classes) }).collect());
            let (hidden, weight) = (array(random, &[5, 3]), array(random, &[classes as usize, 3]));
            let (scale, loss) = (Array::filled(&[1], 0.25), Array::filled(&[1], 7.0));
            let inputs = [hidden, weight, labels, scale, loss, Array::filled(&[CLASS_STATS], 1.0)];
            let zero = Array::zeros_like(&inputs[1]);
            let grad_inputs: Vec<&Array> = inputs.iter().chain([&zero]).collect();
            let gradients = class_loss(&ClassLoss { grad: Some(LossGrad { weight: true }) }, &grad_inputs);
            assert_eq!(gradients[1].data[0], 5.0, "four of five are labelled, one was counted before");
            let upstream = [Array::filled(&[1], 1.0), Array::filled(&[CLASS_STATS], 0.0)];
            check_gradient(&Op::from(op.clone()), &inputs, 0, &upstream, &gradients[2]);
            check_gradient(&Op::from(op), &inputs, 1, &upstream, &gradients[3]);
        }
    }
}
