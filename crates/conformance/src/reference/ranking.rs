use plimsoll_graph::ops::{ListLoss, Ranking};

use super::Array;
use super::array::{add_scaled, dot};

pub fn list_loss(op: &ListLoss, inputs: &[&Array]) -> Vec<Array> {
    let (hidden, weight, marks, cu_seqlens, scale) = (inputs[0], inputs[1], inputs[2], inputs[3], inputs[4].data[0]);
    let (mut loss, mut stats) = (inputs[5].clone(), inputs[6].clone());
    let mut d_hidden = Array::zeros_like(hidden);
    let mut d_weight = inputs.get(7).map_or_else(|| Array::zeros_like(weight), |d| (*d).clone());
    for ends in cu_seqlens.data.windows(2) {
        let candidates: Vec<usize> =
            (ends[0] as usize..ends[1] as usize).filter(|&token| marks.data[token] >= 0.0).collect();
        if candidates.len() < 2 {
            continue;
        }
        let scores: Vec<f64> = candidates.iter().map(|&token| dot(hidden.row(token), weight.row(0))).collect();
        let relevances: Vec<f64> = candidates.iter().map(|&token| marks.data[token]).collect();
        let (of_list, slopes) = loss_of(op.ranking, &scores, &relevances);
        loss.data[0] += scale * of_list;
        let [ndcg, reciprocal, first] = measures(&scores, &relevances, op.top.map_or(usize::MAX, |top| top as usize));
        let counted = [1.0, ndcg, reciprocal, first, of_list];
        stats.data.iter_mut().zip(counted).for_each(|(stat, more)| *stat += more);
        for (&token, slope) in candidates.iter().zip(slopes) {
            add_scaled(d_hidden.row_mut(token), scale * slope, weight.row(0));
            add_scaled(d_weight.row_mut(0), scale * slope, hidden.row(token));
        }
    }
    let mut outputs = vec![loss, stats];
    if let Some(grad) = op.grad {
        outputs.push(d_hidden);
        outputs.extend(grad.weight.then_some(d_weight));
    }
    outputs
}

/// Indices, the highest value first, equal ones in their order.
fn order(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&i, &j| values[j].total_cmp(&values[i]));
    order
}

fn log_sum_exp(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = values.clone().fold(f64::NEG_INFINITY, f64::max);
    largest + values.map(|x| (x - largest).exp()).sum::<f64>().ln()
}

fn loss_of(ranking: Ranking, scores: &[f64], relevances: &[f64]) -> (f64, Vec<f64>) {
    let mut slopes = vec![0.0; scores.len()];
    let mut loss = 0.0;
    match ranking {
        Ranking::ListMle => {
            let order = order(relevances);
            for place in 0..order.len() {
                let rest = log_sum_exp(order[place..].iter().map(|&i| scores[i]));
                loss += rest - scores[order[place]];
                order[place..].iter().for_each(|&i| slopes[i] += (scores[i] - rest).exp());
                slopes[order[place]] -= 1.0;
            }
        }
        Ranking::ListNet => {
            let (ours, theirs) = (log_sum_exp(scores.iter().copied()), log_sum_exp(relevances.iter().copied()));
            for i in 0..scores.len() {
                let share = (relevances[i] - theirs).exp();
                loss -= share * (scores[i] - ours);
                slopes[i] = (scores[i] - ours).exp() - share;
            }
        }
        Ranking::Pairwise => {
            let all = || (0..scores.len()).flat_map(|i| (0..scores.len()).map(move |j| (i, j)));
            let pairs: Vec<(usize, usize)> = all().filter(|&(i, j)| relevances[i] > relevances[j]).collect();
            for &(i, j) in &pairs {
                let d = scores[i] - scores[j];
                let count = pairs.len() as f64;
                loss += if d > 0.0 { (-d).exp().ln_1p() } else { d.exp().ln_1p() - d } / count;
                slopes[i] -= 1.0 / (1.0 + d.exp()) / count;
                slopes[j] += 1.0 / (1.0 + d.exp()) / count;
            }
        }
    }
    (loss, slopes)
}

/// NDCG, reciprocal rank of the first relevant candidate, and whether the first candidate is relevant.
fn measures(scores: &[f64], relevances: &[f64], top: usize) -> [f64; 3] {
    let gain = |order: &[usize]| -> f64 {
        order.iter().take(top).enumerate().map(|(rank, &i)| relevances[i] / (rank as f64 + 2.0).log2()).sum()
    };
    let (ours, best) = (order(scores), gain(&order(relevances)));
    let first = ours.iter().position(|&i| relevances[i] > 0.0);
    let ndcg = if best > 0.0 { gain(&ours) / best } else { 0.0 };
    [ndcg, first.map_or(0.0, |rank| 1.0 / (rank as f64 + 1.0)), f64::from(u8::from(first == Some(0)))]
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;
    use plimsoll_graph::ops::{LIST_STATS, LossGrad};

    use super::super::finite_difference::testing::{array, check_gradient};
    use super::*;
    use crate::Random;

    #[test]
    fn gradients_are_the_slopes() {
        let random = &mut Random::new(13);
        for ranking in [Ranking::ListMle, Ranking::ListNet, Ranking::Pairwise] {
            let op = ListLoss { ranking, top: None, grad: None };
            let marks = Array::new(&[9], vec![1.0, -1.0, 0.0, 3.0, -1.0, 2.0, 2.0, 0.5, 1.0]);
            let ends = Array::new(&[5], vec![0.0, 4.0, 4.0, 8.0, 9.0]);
            let (hidden, weight) = (array(random, &[9, 3]), array(random, &[1, 3]));
            let (scale, loss) = (Array::filled(&[1], 0.25), Array::filled(&[1], 7.0));
            let inputs = [hidden, weight, marks, ends, scale, loss, Array::filled(&[LIST_STATS], 1.0)];
            let zero = Array::zeros_like(&inputs[1]);
            let all: Vec<&Array> = inputs.iter().chain([&zero]).collect();
            let gradients = list_loss(&ListLoss { grad: Some(LossGrad { weight: true }), ..op.clone() }, &all);
            assert_eq!(gradients[1].data[0], 3.0, "two lists, and one counted before");
            let upstream = [Array::filled(&[1], 1.0), Array::filled(&[LIST_STATS], 0.0)];
            check_gradient(&Op::from(op.clone()), &inputs, 0, &upstream, &gradients[2]);
            check_gradient(&Op::from(op), &inputs, 1, &upstream, &gradients[3]);
        }
    }

    /// Figures of scikit-learn's `ndcg_score`, and by hand.
    #[test]
    fn measures_are_those_of_the_field() {
        let close = |found: [f64; 3], expected: [f64; 3]| {
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{found:?}, expected {expected:?}");
        };
        let (relevances, scores) = ([10.0, 0.0, 0.0, 1.0, 5.0], [0.1, 0.2, 0.3, 4.0, 70.0]);
        close(measures(&scores, &relevances, usize::MAX), [0.695_694_044_4, 1.0, 1.0]);
        close(measures(&scores, &relevances, 4), [0.412_381_881_8, 1.0, 1.0]);
        close(measures(&[3.0, 2.0, 1.0], &[0.0, 0.0, 1.0], usize::MAX), [0.5, 1.0 / 3.0, 0.0]);
        close(measures(&[3.0, 2.0], &[0.0, 0.0], usize::MAX), [0.0; 3]);
    }
}
