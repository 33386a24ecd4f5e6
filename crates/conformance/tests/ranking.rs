//! The losses over lists of candidates: values, statistics and gradients.

use plimsoll_conformance::{Data, F32_SUMS, Random, Rounding, Suite, Tensor, sums_of};
use plimsoll_graph::Extent;
use plimsoll_graph::ops::{LIST_STATS, ListLoss, LossGrad, Ranking};
use plimsoll_runtime::Active;

const GRADS: [Option<LossGrad>; 3] = [None, Some(LossGrad { weight: false }), Some(LossGrad { weight: true })];
const RANKINGS: [Ranking; 3] = [Ranking::ListMle, Ranking::ListNet, Ranking::Pairwise];

/// One token in `every` is a candidate, with one of a few relevances. `spare` tokens and sequences are planned for only.
fn inputs(random: &mut Random, lengths: &[usize], cols: usize, every: usize, grad: Option<LossGrad>) -> Vec<Tensor> {
    let (tokens, sequences) = (lengths.iter().sum::<usize>() + 3, lengths.len() + 3);
    let mark = |random: &mut Random| if random.below(every) == 0 { random.below(4) as f32 * 0.75 } else { -1.0 };
    let marks = (0..tokens).map(|_| mark(random)).collect();
    let f64s = |data: Vec<f64>| Tensor::new(&[data.len()], Extent::Fixed, Data::F64(data));
    let mut inputs = vec![
        random.tokens(tokens, cols),
        random.fixed(&[1, cols]),
        Tensor::new(&[tokens], Extent::TOKENS, Data::F32(marks)),
        Tensor::boundaries(lengths, sequences),
        Tensor::fixed(&[1], vec![0.125]),
        f64s(vec![1.25]),
        f64s(vec![3.0, 2.0, 0.75, 1.5, 2.25]),
    ];
    assert_eq!(inputs[6].len(), LIST_STATS);
    inputs.extend(grad.is_some_and(|g| g.weight).then(|| random.fixed(&[1, cols])));
    inputs
}

fn active(lengths: &[usize]) -> Active {
    Active::one(lengths.iter().sum(), lengths.len())
}

#[test]
fn every_loss_and_size() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(200));
    let all: [(&[usize], usize); 5] =
        [(&[4], 1), (&[1, 5, 0, 2, 9], 1), (&[40, 3, 70], 5), (&[300, 33, 600], 3), (&[5; 20], 2)];
    for ((lengths, every), ranking) in all.into_iter().flat_map(|sizes| RANKINGS.map(|ranking| (sizes, ranking))) {
        for (cols, top, grad) in [(7, None, GRADS[0]), (64, Some(1), GRADS[1]), (131, Some(3), GRADS[2])] {
            let inputs = inputs(random, lengths, cols, every, grad);
            let op = ListLoss { ranking, top, grad };
            suite.check(&format!("{lengths:?} x {cols}, {op:?}"), op, &inputs, active(lengths), sums_of(cols));
        }
    }
}

/// Differences of some hundreds: exponentials are relative to the largest.
#[test]
fn large_scores() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(201));
    let lengths = [30, 20];
    for ranking in RANKINGS {
        let mut inputs = inputs(random, &lengths, 16, 2, GRADS[2]);
        inputs[0] = Tensor::tokens(53, 16, random.floats(53 * 16, 100.0));
        let op = ListLoss { ranking, top: None, grad: GRADS[2] };
        suite.check(&format!("{ranking:?}"), op, &inputs, active(&lengths), F32_SUMS);
    }
}

/// Equal scores stand in the order of the text, and equal relevances are no pair.
#[test]
fn equal_candidates() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(202));
    let lengths = [6, 6];
    for (ranking, relevances) in
        RANKINGS.into_iter().flat_map(|r| [[0.0; 6], [1.0; 6], [0.0, 1.0, 1.0, 0.0, 2.0, 2.0]].map(|m| (r, m)))
    {
        let mut inputs = inputs(random, &lengths, 5, 1, GRADS[2]);
        inputs[0] = Tensor::tokens(15, 5, vec![0.5; 75]);
        let marks = [relevances, relevances].concat().into_iter().chain([-1.0; 3]).collect();
        inputs[2] = Tensor::new(&[15], Extent::TOKENS, Data::F32(marks));
        let op = ListLoss { ranking, top: Some(2), grad: GRADS[2] };
        suite.check(&format!("{ranking:?} {relevances:?}"), op, &inputs, active(&lengths), F32_SUMS);
    }
}

#[test]
fn micro_batches_without_candidates_add_nothing() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(203));
    for ranking in RANKINGS {
        let op = ListLoss { ranking, top: None, grad: GRADS[2] };
        let mut inputs = inputs(random, &[3, 4], 8, 1, GRADS[2]);
        suite.check("empty", op.clone(), &inputs, Active::one(0, 0), 0.0);
        inputs[2] = Tensor::new(&[10], Extent::TOKENS, Data::F32(vec![-1.0; 10]));
        suite.check("none", op.clone(), &inputs, active(&[3, 4]), 0.0);
    }
}

/// Loss and statistics are not rounded to anything.
#[test]
fn in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(204));
    for (ranking, grad) in RANKINGS.into_iter().flat_map(|ranking| GRADS.map(|grad| (ranking, grad))) {
        for (lengths, cols) in [(&[9, 5][..], 24), (&[70, 3, 40], 131)] {
            let inputs = inputs(random, lengths, cols, 2, grad);
            let op = ListLoss { ranking, top: Some(5), grad };
            let (name, rounding) = (format!("{op:?}"), Rounding::once(sums_of(cols)));
            suite.check_sixteen(&name, op.clone(), &inputs, &[0, 1], active(lengths), rounding);
            if grad.is_some_and(|grad| grad.weight) {
                suite.check_sixteen(&name, op, &inputs, &[0, 1, 7], active(lengths), rounding);
            }
        }
    }
}
