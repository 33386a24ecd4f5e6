//! The losses over pairs of sequences and over their classes: values, statistics and gradients.

use plimsoll_conformance::{Data, F32_SUMS, Random, Rounding, Suite, Tensor, sums_of};
use plimsoll_graph::Extent;
use plimsoll_graph::ops::{ClassLoss, LossGrad, PAIR_STATS, PairLoss};
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
        f64s(vec![3.0, 2.0, -0.75, 1.5, 2.25]),
    ];
    assert_eq!(inputs[5].len(), PAIR_STATS);
    if grad.is_some_and(|g| g.weight) {
        inputs.push(random.fixed(&[1, cols]));
    }
    inputs
}

fn plain(grad: Option<LossGrad>) -> PairLoss {
    PairLoss { centring: 0.0, margins: false, grad }
}

fn check(suite: &mut Suite, name: &str, lengths: &[usize], inputs: &[Tensor], grad: Option<LossGrad>) {
    let active = Active::one(lengths.iter().sum(), lengths.len());
    suite.check(name, plain(grad), inputs, active, F32_SUMS);
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
    suite.check("empty", plain(grad), &inputs, Active::one(0, 0), 0.0);
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
                suite.check_sixteen(&name, plain(grad), &inputs, &[0, 1], active, rounding);
                if grad.is_some_and(|grad| grad.weight) {
                    suite.check_sixteen(&name, plain(grad), &inputs, &[0, 1, 6], active, rounding);
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
    suite.check_sixteen("large", plain(GRADS[2]), &inputs, &[0, 1], active, Rounding::once(F32_SUMS));
}

/// Margins that a pair is asked for, and scores held around zero.
#[test]
fn margins_and_centring() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(87));
    let lengths = [4, 3, 5, 0, 2, 9, 1, 1];
    for (grad, (centring, margins)) in
        GRADS.into_iter().flat_map(|g| [(0.25, false), (0.0, true), (0.5, true)].map(|c| (g, c)))
    {
        let mut inputs = inputs(random, &lengths, 20, 2, grad);
        if margins {
            let asked = random.floats(10, 1.0).into_iter().map(f32::abs).collect();
            inputs.insert(6, Tensor::new(&[10], Extent::SEQUENCES, Data::F32(asked)));
        }
        let (op, active) = (PairLoss { centring, margins, grad }, Active::one(25, 8));
        suite.check(&format!("{centring} {margins}"), op.clone(), &inputs, active, F32_SUMS);
        suite.check_sixteen("sixteen", op, &inputs, &[0, 1], active, Rounding::once(sums_of(20)));
    }
}

/// Sequences planned for and in use, features, classes.
#[derive(Debug, Clone, Copy)]
struct Classes {
    planned: usize,
    sequences: usize,
    cols: usize,
    classes: usize,
}

impl Classes {
    fn inputs(&self, random: &mut Random, labels: Vec<i32>, grad: Option<LossGrad>) -> Vec<Tensor> {
        let Self { planned, cols, classes, .. } = *self;
        let mut inputs = vec![
            hidden(planned, cols, random.floats(planned * cols, 1.0)),
            random.fixed(&[classes, cols]),
            Tensor::new(&[planned], Extent::SEQUENCES, Data::I32(labels)),
            Tensor::fixed(&[1], vec![0.125]),
            f64s(vec![1.25]),
            f64s(vec![3.0, 2.0]),
        ];
        inputs.extend(grad.is_some_and(|g| g.weight).then(|| random.fixed(&[classes, cols])));
        inputs
    }

    /// Any class, or none for about one in four.
    fn labels(&self, random: &mut Random) -> Vec<i32> {
        let label = |random: &mut Random| if random.below(4) == 0 { -1 } else { random.below(self.classes) as i32 };
        (0..self.planned).map(|_| label(random)).collect()
    }

    fn active(&self) -> Active {
        Active::one(3 * self.sequences, self.sequences)
    }
}

/// Odd sizes, and classes and sequences on both sides of what a warp and a block of a card take at a time.
const CLASSES: [Classes; 8] = [
    Classes { planned: 1, sequences: 1, cols: 1, classes: 1 },
    Classes { planned: 1, sequences: 1, cols: 7, classes: 2 },
    Classes { planned: 5, sequences: 3, cols: 16, classes: 3 },
    Classes { planned: 8, sequences: 8, cols: 131, classes: 77 },
    Classes { planned: 33, sequences: 33, cols: 64, classes: 32 },
    Classes { planned: 70, sequences: 65, cols: 40, classes: 33 },
    Classes { planned: 40, sequences: 32, cols: 530, classes: 2 },
    Classes { planned: 3, sequences: 2, cols: 1100, classes: 300 },
];

#[test]
fn classes() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(180));
    for case in CLASSES {
        for grad in GRADS {
            let labels = case.labels(random);
            let inputs = case.inputs(random, labels, grad);
            suite.check(&format!("{case:?}"), ClassLoss { grad }, &inputs, case.active(), sums_of(case.cols));
        }
    }
}

#[test]
fn sequences_without_a_label_do_not_count() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(181));
    let case = Classes { planned: 7, sequences: 6, cols: 20, classes: 3 };
    let all: [(&str, Vec<i32>); 3] =
        [("none", vec![-1; 7]), ("one", vec![-1, -100, 2, -1, -1, -1, -1]), ("every", vec![0, 1, 2, 2, 1, 0, 0])];
    for (name, labels) in all {
        for grad in GRADS {
            let inputs = case.inputs(random, labels.clone(), grad);
            suite.check(name, ClassLoss { grad }, &inputs, case.active(), F32_SUMS);
        }
    }
    let inputs = case.inputs(random, vec![0; 7], GRADS[2]);
    suite.check("empty", ClassLoss { grad: GRADS[2] }, &inputs, Active::one(0, 0), 0.0);
}

/// Logits of some hundreds: exponentials are relative to the largest, and what is left beside a share of nearly one
/// has kept its digits.
#[test]
fn confident_classes() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(182));
    let case = Classes { planned: 20, sequences: 20, cols: 16, classes: 5 };
    for (size, grad) in [4.0, 300.0].into_iter().flat_map(|size| GRADS.map(|grad| (size, grad))) {
        let labels = case.labels(random);
        let mut inputs = case.inputs(random, labels, grad);
        inputs[0] = hidden(20, 16, random.floats(320, size));
        suite.check(&format!("size {size}"), ClassLoss { grad }, &inputs, case.active(), F32_SUMS);
    }
    // Every sequence is right by twelve: all gradients are small, and none is lost beside one.
    let case = Classes { planned: 4, sequences: 4, cols: 2, classes: 2 };
    let mut inputs = case.inputs(random, vec![0, 0, 1, 1], GRADS[2]);
    inputs[0] = hidden(4, 2, vec![6.0, -6.0, 6.5, -6.0, -6.0, 6.0, -6.0, 6.25]);
    inputs[1] = Tensor::fixed(&[2, 2], vec![1.0, 0.0, 0.0, 1.0]);
    inputs[6] = Tensor::fixed(&[2, 2], vec![0.0; 4]);
    suite.check("right by twelve", ClassLoss { grad: GRADS[2] }, &inputs, case.active(), F32_SUMS);
}

/// Of equal logits the first one is what the model says.
#[test]
fn equal_logits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(183));
    let case = Classes { planned: 40, sequences: 40, cols: 5, classes: 40 };
    for grad in GRADS {
        let mut inputs = case.inputs(random, (0..40).collect(), grad);
        inputs[1] = Tensor::fixed(&[40, 5], vec![0.0; 200]);
        suite.check("no weights", ClassLoss { grad }, &inputs, case.active(), F32_SUMS);
        // The highest logit is that of classes 7, 33 and 39.
        let row = |class: usize| if [7, 33, 39].contains(&class) { [1.0; 5] } else { [0.5; 5] };
        inputs[0] = hidden(40, 5, vec![0.25; 200]);
        inputs[1] = Tensor::fixed(&[40, 5], (0..40).flat_map(row).collect());
        suite.check("three highest", ClassLoss { grad }, &inputs, case.active(), F32_SUMS);
    }
}

#[test]
fn classes_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(184));
    for case in CLASSES {
        for grad in GRADS {
            let labels = case.labels(random);
            let inputs = case.inputs(random, labels, grad);
            let (name, rounding) = (format!("{case:?}"), Rounding::once(sums_of(case.cols)));
            suite.check_sixteen(&name, ClassLoss { grad }, &inputs, &[0, 1], case.active(), rounding);
            if grad.is_some_and(|grad| grad.weight) {
                suite.check_sixteen(&name, ClassLoss { grad }, &inputs, &[0, 1, 6], case.active(), rounding);
            }
        }
    }
}
