//! The vocabulary loss with its gradients, in any number of chunks, with weights and likelihoods of tokens, and the last
//! tokens' logits.

use plimsoll_conformance::{Data, F32_SUMS, Placement, Random, Rounding, Suite, Tensor, sums_of};
use plimsoll_graph::ops::{LastLogits, LossGrad, VocabLoss};
use plimsoll_graph::{Extent, Op};
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

/// Puts tokens' weights where the operator takes them: of either sign, and one in four zero.
fn with_weights(random: &mut Random, mut inputs: Vec<Tensor>) -> Vec<Tensor> {
    let rows = inputs[0].shape.rows();
    let weights = random.floats(rows, 2.0).into_iter().map(|weight| if random.below(4) == 0 { 0.0 } else { weight });
    inputs.insert(5, Tensor::new(&[rows], Extent::TOKENS, Data::F32(weights.collect())));
    inputs
}

/// Which of weights and likelihoods there are, at least one of them.
const PER_TOKEN: [(bool, bool); 3] = [(true, false), (false, true), (true, true)];

#[test]
fn weights_and_likelihoods() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(170));
    for (rows, tokens, cols, words) in [(1, 1, 9, 33), (7, 5, 16, 10), (45, 29, 17, 131), (130, 130, 40, 256)] {
        for chunks in [1, 3, rows] {
            for softcap in [None, Some(2.5)] {
                for (grad, (weights, nll)) in GRADS.into_iter().flat_map(|grad| PER_TOKEN.map(|both| (grad, both))) {
                    let targets = targets(random, rows, words);
                    let mut inputs = inputs(random, [rows, cols, words], targets, grad);
                    if weights {
                        inputs = with_weights(random, inputs);
                    }
                    let op = VocabLoss { weights, nll, grad, ..VocabLoss::new(softcap, chunks) };
                    let name = format!("{rows} x {cols}, {words} words");
                    suite.check(&name, op, &inputs, Active::one(tokens, 1), CANCELLING);
                }
            }
        }
    }
}

/// Rows that no product ever sees have a likelihood of zero all the same.
#[test]
fn likelihoods_between_long_runs_of_ignored_targets() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(171));
    let (rows, cols, words) = (700, 8, 12);
    let answers = [40..41, 100..350, 600..603];
    let bears = |row: usize| answers.iter().any(|answer| answer.contains(&row));
    let some: Vec<i32> = (0..rows).map(|row| if bears(row) { (row % words) as i32 } else { -1 }).collect();
    for (name, targets) in [("some", some), ("none", vec![-100; rows])] {
        for (chunks, grad) in [1, 5].into_iter().flat_map(|chunks| GRADS.map(|grad| (chunks, grad))) {
            let op = VocabLoss { weights: true, nll: true, grad, ..VocabLoss::new(None, chunks) };
            let inputs = inputs(random, [rows, cols, words], targets.clone(), grad);
            let inputs = with_weights(random, inputs);
            suite.check(name, op, &inputs, Active::one(690, 4), F32_SUMS);
        }
    }
}

/// Without a total there is neither scale nor loss: likelihoods alone, and gradients from weights alone.
#[test]
fn without_a_total() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(175));
    for ([rows, cols, words], tokens) in [([7, 16, 10], 5), ([45, 17, 131], 29), ([130, 40, 256], 130)] {
        for (chunks, softcap) in [(1, None), (3, None), (3, Some(2.5))] {
            for grad in GRADS {
                let targets = targets(random, rows, words);
                let inputs = inputs(random, [rows, cols, words], targets, grad);
                let weighted = grad.is_some();
                let mut inputs = if weighted { with_weights(random, inputs) } else { inputs };
                inputs.drain(3..5);
                let op =
                    VocabLoss { weights: weighted, nll: !weighted, grad, ..VocabLoss::likelihoods(softcap, chunks) };
                let (name, active) = (format!("{rows} x {cols}, {words} words"), Active::one(tokens, 1));
                suite.check(&name, op.clone(), &inputs, active, CANCELLING);
                check_sixteen(suite, &name, &op, &inputs, active);
            }
        }
    }
}

/// Weights of one are the same as none, bit for bit, and the likelihoods cost nothing in the other results.
#[test]
fn weights_of_one_change_nothing() {
    let random = &mut Random::new(172);
    let (rows, cols, words) = (45, 24, 131);
    for softcap in [None, Some(2.5)] {
        let grad = Some(LossGrad { weight: true });
        let plain = VocabLoss { grad, ..VocabLoss::new(softcap, 3) };
        let targets = targets(random, rows, words);
        let inputs = inputs(random, [rows, cols, words], targets, grad);
        let mut weighted = inputs.clone();
        weighted.insert(5, Tensor::new(&[rows], Extent::TOKENS, Data::F32(vec![1.0; rows])));
        let both = Op::from(VocabLoss { weights: true, nll: true, ..plain.clone() });
        let active = Active::one(29, 1);
        for harness in Suite::new().harnesses() {
            let expected = harness.run(&plain.clone().into(), &inputs, active, &Placement::default());
            let mut got = harness.run(&both, &weighted, active, &Placement::default());
            got.remove(1);
            // Rows that are not in use hold no numbers, which are equal to nothing.
            let bits = |all: &[Tensor]| all.iter().map(|t| t.poisoned_bytes(active)).collect::<Vec<_>>();
            assert_eq!(bits(&got), bits(&expected), "softcap {softcap:?} on {}", harness.name());
        }
    }
}

/// Tokens that weigh nothing add nothing, and have no gradient.
#[test]
fn weights_of_zero() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(173));
    let (rows, cols, words) = (12, 8, 20);
    for grad in GRADS {
        let mut inputs = inputs(random, [rows, cols, words], (0..rows as i32).collect(), grad);
        inputs.insert(5, Tensor::new(&[rows], Extent::TOKENS, Data::F32(vec![0.0; rows])));
        let op = VocabLoss { weights: true, nll: true, grad, ..VocabLoss::new(None, 2) };
        suite.check("nothing weighs", op, &inputs, Active::one(rows, 1), F32_SUMS);
    }
    let mut inputs = inputs(random, [6, 8, 10], vec![1; 6], GRADS[2]);
    inputs.insert(5, Tensor::new(&[6], Extent::TOKENS, Data::F32(vec![1.0; 6])));
    let op = VocabLoss { weights: true, nll: true, grad: GRADS[2], ..VocabLoss::new(None, 2) };
    suite.check("empty", op, &inputs, Active::one(0, 0), 0.0);
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

/// In sixteen bits the logits' gradient is rounded before it meets weights and tokens; loss and likelihoods never are.
fn check_sixteen(suite: &mut Suite, name: &str, op: &VocabLoss, inputs: &[Tensor], active: Active) {
    const BOTH: &[usize] = &[0, 1];
    let exact = &BOTH[..usize::from(op.total) + usize::from(op.nll)];
    let rounding = Rounding::once(CANCELLING).within(2.0).apart(exact);
    suite.check_sixteen(name, op.clone(), inputs, &[0, 1], active, rounding);
    if let Some(weight_grad) = op.weight_grad_input() {
        // A gradient that is kept in sixteen bits is rounded with every chunk, and never much beside what it was.
        let chunks = op.chunks.min(inputs[0].shape.rows()) as f64;
        let rounding = rounding.within(1.0 + chunks);
        suite.check_sixteen(name, op.clone(), inputs, &[0, 1, weight_grad], active, rounding);
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
fn weights_and_likelihoods_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(174));
    for (rows, tokens, cols, words) in [(7, 5, 16, 10), (45, 29, 17, 131), (130, 130, 40, 256)] {
        for (chunks, softcap) in [(1, None), (3, None), (3, Some(2.5))] {
            for (grad, (weights, nll)) in GRADS.into_iter().flat_map(|grad| PER_TOKEN.map(|both| (grad, both))) {
                let targets = targets(random, rows, words);
                let mut inputs = inputs(random, [rows, cols, words], targets, grad);
                if weights {
                    inputs = with_weights(random, inputs);
                }
                let op = VocabLoss { weights, nll, grad, ..VocabLoss::new(softcap, chunks) };
                let name = format!("{rows} x {cols}, {words} words");
                check_sixteen(suite, &name, &op, &inputs, Active::one(tokens, 1));
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
