use plimsoll_graph::ops::{LOG_PROB_MAX, Preference, PreferenceLoss, SequenceLogProb, SequenceLogProbGrad};

use super::Array;

/// For each sequence its tokens that have a target.
fn learnt(targets: &Array, cu_seqlens: &Array) -> Vec<Vec<usize>> {
    let tokens = |ends: &[f64]| (ends[0] as usize..ends[1] as usize).filter(|&t| targets.data[t] >= 0.0).collect();
    cu_seqlens.data.windows(2).map(tokens).collect()
}

pub fn sequence_log_prob(op: &SequenceLogProb, inputs: &[&Array]) -> Array {
    let of = |tokens: Vec<usize>| {
        let sum: f64 = tokens.iter().map(|&token| -inputs[0].data[token]).sum();
        if op.mean { sum / tokens.len().max(1) as f64 } else { sum }
    };
    let sums: Vec<f64> = learnt(inputs[1], inputs[2]).into_iter().map(of).collect();
    Array::new(&[sums.len()], sums)
}

pub fn sequence_log_prob_grad(op: &SequenceLogProbGrad, inputs: &[&Array]) -> Array {
    let mut d_nll = Array::zeros_like(inputs[1]);
    for (sequence, tokens) in learnt(inputs[1], inputs[2]).into_iter().enumerate() {
        let divisor = if op.mean { tokens.len() as f64 } else { 1.0 };
        tokens.iter().for_each(|&token| d_nll.data[token] = -inputs[0].data[sequence] / divisor);
    }
    d_nll
}

/// `−log σ(x)`.
fn logistic_loss(x: f64) -> f64 {
    if x > 0.0 { (-x).exp().ln_1p() } else { x.exp().ln_1p() - x }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub fn preference_loss(op: &PreferenceLoss, inputs: &[&Array]) -> Vec<Array> {
    let (log_probs, cu_seqlens, scale) = (inputs[0], inputs[1], inputs[2].data[0]);
    let (mut loss, mut stats) = (inputs[3].clone(), inputs[4].clone());
    let mut d_log_probs = Array::zeros_like(log_probs);
    for (chosen, ends) in cu_seqlens.data.windows(3).enumerate().step_by(2) {
        if ends[0] == ends[1] || ends[1] == ends[2] {
            continue;
        }
        let pair = [log_probs.data[chosen], log_probs.data[chosen + 1]];
        let (of_pair, slopes, rewards) = match op.preference {
            Preference::Dpo { beta, label_smoothing } => {
                let (beta, wrong) = (f64::from(beta), f64::from(label_smoothing));
                let reward = |side: usize| beta * (pair[side] - inputs[5].data[chosen + side]);
                let d = reward(0) - reward(1);
                let slope = beta * (wrong * sigmoid(d) - (1.0 - wrong) * sigmoid(-d));
                let of_pair = (1.0 - wrong) * logistic_loss(d) + wrong * logistic_loss(-d);
                (of_pair, [slope, -slope], [reward(0), reward(1)])
            }
            Preference::Orpo { lambda } => {
                let lambda = f64::from(lambda);
                let log_odds = |x: f64| x.min(LOG_PROB_MAX) - (-x.min(LOG_PROB_MAX).exp_m1()).ln();
                let x = log_odds(pair[0]) - log_odds(pair[1]);
                let steep = |x: f64| -1.0 / x.min(LOG_PROB_MAX).exp_m1();
                let pull = lambda * sigmoid(-x);
                let slopes = [-1.0 - pull * steep(pair[0]), pull * steep(pair[1])];
                (lambda * logistic_loss(x) - pair[0], slopes, pair.map(|x| lambda * x))
            }
        };
        loss.data[0] += scale * of_pair;
        let right = f64::from(u8::from(rewards[0] > rewards[1]));
        let counted = [1.0, right, rewards[0] - rewards[1], rewards[0], rewards[1]];
        stats.data.iter_mut().zip(counted).for_each(|(stat, more)| *stat += more);
        d_log_probs.data[chosen] = scale * slopes[0];
        d_log_probs.data[chosen + 1] = scale * slopes[1];
    }
    let mut outputs = vec![loss, stats];
    outputs.extend(op.grad.then_some(d_log_probs));
    outputs
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;
    use plimsoll_graph::ops::PAIR_STATS;

    use super::super::finite_difference::testing::{array, check_gradient};
    use super::*;
    use crate::Random;

    #[test]
    fn gradients_are_the_slopes() {
        let random = &mut Random::new(11);
        for preference in [
            Preference::Dpo { beta: 0.3, label_smoothing: 0.0 },
            Preference::Dpo { beta: 0.5, label_smoothing: 0.2 },
            Preference::Orpo { lambda: 0.4 },
        ] {
            let op = PreferenceLoss { preference, grad: false };
            let ends = Array::new(&[7], vec![0.0, 2.0, 3.0, 6.0, 8.0, 9.0, 9.0]);
            let log_probs = Array::new(&[6], vec![-0.4, -1.5, -2.0, -0.7, -0.1, -3.0]);
            let mut inputs = vec![log_probs, ends, Array::filled(&[1], 0.25), Array::filled(&[1], 7.0)];
            inputs.push(Array::filled(&[PAIR_STATS], 1.0));
            inputs.extend(preference.has_reference().then(|| array(random, &[6])));
            let all: Vec<&Array> = inputs.iter().collect();
            let gradients = preference_loss(&PreferenceLoss { grad: true, ..op.clone() }, &all);
            let upstream = [Array::filled(&[1], 1.0), Array::filled(&[PAIR_STATS], 0.0)];
            check_gradient(&Op::from(op), &inputs, 0, &upstream, &gradients[2]);
        }
    }

    #[test]
    fn gradients_of_sequences_are_the_slopes() {
        let random = &mut Random::new(12);
        for mean in [false, true] {
            let targets = Array::new(&[6], vec![3.0, -1.0, 0.0, 2.0, -1.0, 1.0]);
            let ends = Array::new(&[4], vec![0.0, 3.0, 3.0, 6.0]);
            let (nll, dy) = (array(random, &[6]), array(random, &[3]));
            let gradient = sequence_log_prob_grad(&SequenceLogProbGrad { mean }, &[&dy, &targets, &ends]);
            check_gradient(&Op::from(SequenceLogProb { mean }), &[nll, targets, ends], 0, &[dy], &gradient);
        }
    }
}
