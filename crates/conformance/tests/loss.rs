//! The vocabulary loss with its gradients, in any number of chunks, and the last tokens' logits.

use plimsoll_conformance::{Data, F32_SUMS, Random, Rounding, Suite, Tensor, sums_of};
use plimsoll_graph::Extent;
use plimsoll_graph::ops::{LastLogits, LossGrad, VocabLoss};
use plimsoll_runtime::Active;

const GRADS: [Option<LossGrad>; 3] = [None, Some(LossGrad { weight: false }), Some(LossGrad { weight: true })];

/// The sum so far is large beside what one micro-batch adds, as late in an update.
const LOSS_SO_FAR: f64 = 1.25;

fn inputs(
    random: &mut Random,
    [rows, cols, words]: [usize; 3],
    targets: Vec<i32>,
    grad: Option<LossGrad>,
) -> Vec<Tensor> {
    let mut inputs = vec![
        random.tokens(rows, cols),
        random.fixed(&[words, cols]),
        Tensor::token_ints(targets),
        Tensor::fixed(&[1], vec![0.125]),
        Tensor::new(&[1], Extent::Fixed, Data::F64(vec![LOSS_SO_FAR])),
    ];
    if grad.is_some_and(|g| g.weight) {
        inputs.push(random.fixed(&[words, cols]));
    }
    inputs
}

/// Random words, about one in four of them ignored.
fn targets(random: &mut Random, rows: usize, words: usize) -> Vec<i32> {
    (0..rows).map(|_| if random.below(4) == 0 { -100 } else { random.below(words) as i32 }).collect()
}

/// A share close to one less one: what is left has lost digits whoever computes it in float32.
const CANCELLING: f64 = 1e-5;

#[test]
fn every_flag_and_chunking() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(70));
    // Token slots, tokens in use, features, words.
    for (rows, tokens, cols, words) in [
        (1, 1, 1, 2),
        (1, 1, 9, 33),
        (7, 5, 16, 10),
        (32, 32, 24, 100),
        (45, 29, 17, 131),
        (130, 130, 40, 257),
        (24, 20, 30, 700),
    ] {
        for chunks in [1, 2, 3, 8, rows, rows + 5] {
            for softcap in [None, Some(2.5)] {
                for grad in GRADS {
                    let targets = targets(random, rows, words);
                    let inputs = inputs(random, [rows, cols, words], targets, grad);
                    let active = Active::one(tokens, 1);
                    let name = format!("{rows} x {cols}, {words} words");
                    suite.check(
                        &name,
                        VocabLoss { grad, ..VocabLoss::new(softcap, chunks) },
                        &inputs,
                        active,
                        CANCELLING,
                    );
                }
            }
        }
    }
}

/// Prompts are long runs without a target, between answers of any length.
#[test]
fn long_runs_of_ignored_targets() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(75));
    let (rows, cols, words) = (700, 8, 12);
    let answers: [&[std::ops::Range<usize>]; 4] =
        [&[0..1, 699..700], &[40..41, 100..350], &[31..33, 64..65, 200..600], &[5..6, 650..700]];
    for answers in answers {
        let targets: Vec<i32> = (0..rows)
            .map(|row| if answers.iter().any(|a| a.contains(&row)) { (row % words) as i32 } else { -100 })
            .collect();
        for chunks in [1, 5] {
            for grad in GRADS {
                let inputs = inputs(random, [rows, cols, words], targets.clone(), grad);
                let op = VocabLoss { grad, ..VocabLoss::new(None, chunks) };
                suite.check(&format!("{answers:?}"), op, &inputs, Active::one(690, 4), F32_SUMS);
            }
        }
    }
}

#[test]
fn ignored_targets() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(71));
    let (rows, cols, words) = (12, 8, 20);
    let some = |i: usize| if i == 7 { 19 } else { -1 };
    let cases: [(&str, Vec<i32>); 4] = [
        ("none", (0..rows as i32).collect()),
        ("all", vec![-100; rows]),
        ("all but one", (0..rows).map(some).collect()),
        ("one whole chunk", (0..rows).map(|i| if i < 4 { -100 } else { 0 }).collect()),
    ];
    for (name, targets) in cases {
        for grad in GRADS {
            let inputs = inputs(random, [rows, cols, words], targets.clone(), grad);
            let op = VocabLoss { grad, ..VocabLoss::new(None, 3) };
            suite.check(name, op, &inputs, Active::one(rows, 2), F32_SUMS);
        }
    }
}

/// Logits of some hundreds: the exponentials must be taken relative to the largest.
#[test]
fn large_logits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(72));
    let grad = Some(LossGrad { weight: true });
    let targets = targets(random, 10, 40);
    let mut inputs = inputs(random, [10, 16, 40], targets, grad);
    inputs[0] = Tensor::tokens(10, 16, random.floats(160, 60.0));
    for softcap in [None, Some(30.0)] {
        suite.check("large", VocabLoss { grad, ..VocabLoss::new(softcap, 2) }, &inputs, Active::one(10, 1), F32_SUMS);
    }
}

#[test]
fn an_empty_micro_batch_adds_nothing() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(73));
    let grad = Some(LossGrad { weight: true });
    let inputs = inputs(random, [6, 8, 10], vec![1; 6], grad);
    suite.check("empty", VocabLoss { grad, ..VocabLoss::new(None, 2) }, &inputs, Active::one(0, 0), 0.0);
}

#[test]
fn last_logits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(74));
    let all: [&[usize]; 4] = [&[1], &[5, 1, 9], &[33], &[2; 20]];
    for lengths in all {
        for spare in [0, 3] {
            for softcap in [None, Some(2.0)] {
                let tokens: usize = lengths.iter().sum();
                let (cols, words) = (19, 45);
                let boundaries = Tensor::boundaries(lengths, lengths.len() + spare);
                let inputs = [random.tokens(tokens + spare, cols), random.fixed(&[words, cols]), boundaries];
                let active = Active::one(tokens, lengths.len());
                let op = LastLogits { softcap, sequences: lengths.len() + spare };
                suite.check(&format!("{lengths:?}"), op, &inputs, active, F32_SUMS);
            }
        }
    }
}

/// In sixteen bits the logits' gradient is rounded before it meets weights and tokens; the loss never is.
fn check_sixteen(suite: &mut Suite, name: &str, op: &VocabLoss, inputs: &[Tensor], active: Active) {
    let rounding = Rounding::once(CANCELLING).within(2.0).apart(&[0]);
    suite.check_sixteen(name, op.clone(), inputs, &[0, 1], active, rounding);
    if op.grad.is_some_and(|grad| grad.weight) {
        // A gradient that is kept in sixteen bits is rounded with every chunk, and never much beside what it was.
        let chunks = op.chunks.min(inputs[0].shape.rows()) as f64;
        let rounding = rounding.within(1.0 + chunks);
        suite.check_sixteen(name, op.clone(), inputs, &[0, 1, 5], active, rounding);
    }
}

#[test]
fn every_flag_and_chunking_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(76));
    for (rows, tokens, cols, words) in
        [(1, 1, 8, 33), (7, 5, 16, 10), (32, 32, 24, 100), (45, 29, 17, 131), (130, 130, 40, 257), (24, 20, 72, 700)]
    {
        for chunks in [1, 3] {
            for softcap in [None, Some(2.5)] {
                for grad in GRADS {
                    let targets = targets(random, rows, words);
                    let inputs = inputs(random, [rows, cols, words], targets, grad);
                    let name = format!("{rows} x {cols}, {words} words");
                    let op = VocabLoss { grad, ..VocabLoss::new(softcap, chunks) };
                    check_sixteen(suite, &name, &op, &inputs, Active::one(tokens, 1));
                }
            }
        }
    }
}

#[test]
fn ignored_targets_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(77));
    let (rows, cols, words) = (12, 8, 20);
    let some = (0..rows).map(|i| if i == 7 { 19 } else { -1 }).collect();
    for (name, targets) in [("all", vec![-100; rows]), ("all but one", some)] {
        for grad in GRADS {
            let inputs = inputs(random, [rows, cols, words], targets.clone(), grad);
            let op = VocabLoss { grad, ..VocabLoss::new(None, 3) };
            check_sixteen(suite, name, &op, &inputs, Active::one(rows, 2));
        }
    }
}

#[test]
fn large_logits_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(78));
    let grad = Some(LossGrad { weight: true });
    let targets = targets(random, 10, 40);
    let mut inputs = inputs(random, [10, 16, 40], targets, grad);
    inputs[0] = Tensor::tokens(10, 16, random.floats(160, 60.0));
    for softcap in [None, Some(30.0)] {
        let op = VocabLoss { grad, ..VocabLoss::new(softcap, 2) };
        check_sixteen(suite, "large", &op, &inputs, Active::one(10, 1));
    }
}

#[test]
fn last_logits_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(79));
    let all: [&[usize]; 4] = [&[1], &[5, 1, 9], &[33], &[2; 20]];
    for (lengths, (cols, words)) in all.into_iter().zip([(19, 45), (24, 45), (72, 100), (264, 33)]) {
        for softcap in [None, Some(2.0)] {
            let tokens: usize = lengths.iter().sum();
            let boundaries = Tensor::boundaries(lengths, lengths.len() + 3);
            let inputs = [random.tokens(tokens + 3, cols), random.fixed(&[words, cols]), boundaries];
            let active = Active::one(tokens, lengths.len());
            let op = LastLogits { softcap, sequences: lengths.len() + 3 };
            // Logits are float32.
            let rounding = Rounding::none(sums_of(cols));
            suite.check_sixteen(&format!("{lengths:?}"), op, &inputs, &[0, 1], active, rounding);
        }
    }
}
