//! The loss over pairs of sequences: values, statistics and gradients.

use plimsoll_conformance::{Data, F32_SUMS, Random, Rounding, Suite, Tensor, sums_of};
use plimsoll_graph::Extent;
use plimsoll_graph::ops::{LossGrad, PAIR_STATS, PairLoss};
use plimsoll_runtime::Active;

const GRADS: [Option<LossGrad>; 3] = [None, Some(LossGrad { weight: false }), Some(LossGrad { weight: true })];

fn f64s(data: Vec<f64>) -> Tensor {
    Tensor::new(&[data.len()], Extent::Fixed, Data::F64(data))
}

/// One row for each sequence.
fn hidden(sequences: usize, cols: usize, data: Vec<f32>) -> Tensor {
    Tensor::new(&[sequences, cols], Extent::SEQUENCES, Data::F32(data))
}

/// `spare` sequences are planned for and not in use.
fn inputs(random: &mut Random, lengths: &[usize], cols: usize, spare: usize, grad: Option<LossGrad>) -> Vec<Tensor> {
    let sequences = lengths.len() + spare;
    let mut inputs = vec![
        hidden(sequences, cols, random.floats(sequences * cols, 1.0)),
        random.fixed(&[1, cols]),
        Tensor::boundaries(lengths, sequences),
        Tensor::fixed(&[1], vec![0.125]),
        f64s(vec![1.25]),
        f64s(vec![3.0, 2.0, -0.75]),
    ];
    assert_eq!(inputs[5].len(), PAIR_STATS);
    if grad.is_some_and(|g| g.weight) {
        inputs.push(random.fixed(&[1, cols]));
    }
    inputs
}

fn check(suite: &mut Suite, name: &str, lengths: &[usize], inputs: &[Tensor], grad: Option<LossGrad>) {
    let active = Active::one(lengths.iter().sum(), lengths.len());
    suite.check(name, PairLoss { grad }, inputs, active, F32_SUMS);
}

#[test]
fn every_flag_and_size() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(80));
    let all: [&[usize]; 5] = [&[1, 1], &[5, 2], &[3, 1, 1, 4, 9, 9], &[40, 33, 1, 64], &[2; 40]];
    for lengths in all {
        for (cols, spare) in [(1, 0), (7, 3), (64, 0), (131, 5), (1100, 2)] {
            for grad in GRADS {
                let inputs = inputs(random, lengths, cols, spare, grad);
                check(suite, &format!("{lengths:?} x {cols}"), lengths, &inputs, grad);
            }
        }
    }
}

/// A device that always runs its planned shape fills up with sequences that must not count.
#[test]
fn pairs_with_an_empty_sequence_do_not_count() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(81));
    let all: [&[usize]; 5] = [&[4, 3, 0, 0], &[4, 3, 5, 0, 2, 0, 0, 0], &[0, 6], &[0, 0], &[0, 0, 2, 2]];
    for lengths in all {
        for grad in GRADS {
            let inputs = inputs(random, lengths, 20, 2, grad);
            check(suite, &format!("{lengths:?}"), lengths, &inputs, grad);
        }
    }
}

/// Differences of some hundreds, either way: neither exponential may overflow.
#[test]
fn large_differences() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(82));
    for grad in GRADS {
        let lengths = [2; 20];
        let mut inputs = inputs(random, &lengths, 16, 0, grad);
        inputs[0] = hidden(20, 16, random.floats(320, 300.0));
        check(suite, "large", &lengths, &inputs, grad);
    }
}

/// Equal scores are no success: the loss is log 2 and the pair is not right.
#[test]
fn equal_scores() {
    let suite = &mut Suite::new();
    let lengths = [1, 1];
    let grad = Some(LossGrad { weight: true });
    let mut inputs = inputs(&mut Random::new(83), &lengths, 5, 0, grad);
    inputs[0] = hidden(2, 5, vec![0.5; 10]);
    inputs[6] = Tensor::fixed(&[1, 5], vec![1.0; 5]);
    check(suite, "equal", &lengths, &inputs, grad);
}

#[test]
fn an_empty_micro_batch_adds_nothing() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(84));
    let grad = Some(LossGrad { weight: true });
    let inputs = inputs(random, &[3, 3], 8, 0, grad);
    suite.check("empty", PairLoss { grad }, &inputs, Active::one(0, 0), 0.0);
}

/// Loss and statistics are not rounded to anything.
#[test]
fn in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(85));
    let all: [&[usize]; 5] = [&[1, 1], &[3, 1, 1, 4, 9, 9], &[40, 33, 1, 64], &[4, 3, 5, 0, 2, 0, 0, 0], &[2; 40]];
    for lengths in all {
        for (cols, spare) in [(1, 0), (7, 3), (64, 0), (131, 5), (1100, 2)] {
            for grad in GRADS {
                let inputs = inputs(random, lengths, cols, spare, grad);
                let active = Active::one(lengths.iter().sum(), lengths.len());
                let (name, rounding) = (format!("{lengths:?} x {cols}"), Rounding::once(sums_of(cols)));
                suite.check_sixteen(&name, PairLoss { grad }, &inputs, &[0, 1], active, rounding);
                if grad.is_some_and(|grad| grad.weight) {
                    suite.check_sixteen(&name, PairLoss { grad }, &inputs, &[0, 1, 6], active, rounding);
                }
            }
        }
    }
}

#[test]
fn large_differences_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(86));
    let lengths = [2; 20];
    let mut inputs = inputs(random, &lengths, 16, 0, GRADS[2]);
    inputs[0] = hidden(20, 16, random.floats(320, 300.0));
    let active = Active::one(40, 20);
    suite.check_sixteen("large", PairLoss { grad: GRADS[2] }, &inputs, &[0, 1], active, Rounding::once(F32_SUMS));
}
