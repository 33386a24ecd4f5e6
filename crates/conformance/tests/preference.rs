//! Log-probabilities of sequences and the losses that compare them: values, statistics and gradients.

use plimsoll_conformance::{Data, F32_SUMS, Random, Suite, Tensor};
use plimsoll_graph::Extent;
use plimsoll_graph::ops::{PAIR_STATS, Preference, PreferenceLoss, SequenceLogProb, SequenceLogProbGrad};
use plimsoll_runtime::Active;

const LENGTHS: [&[usize]; 5] = [&[1, 1], &[5, 2, 0, 0], &[3, 1, 1, 4, 9, 9], &[300, 33, 1, 600], &[2; 40]];

const PREFERENCES: [Preference; 4] = [
    Preference::Dpo { beta: 0.1, label_smoothing: 0.0 },
    Preference::Dpo { beta: 2.0, label_smoothing: 0.25 },
    Preference::Orpo { lambda: 0.1 },
    Preference::Orpo { lambda: 1.5 },
];

fn per_sequence(data: Vec<f32>) -> Tensor {
    Tensor::new(&[data.len()], Extent::SEQUENCES, Data::F32(data))
}

/// About every third token has no target; `spare` tokens and sequences are planned for and not in use.
#[test]
fn sequences() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(190));
    for (lengths, mean) in LENGTHS.into_iter().flat_map(|lengths| [(lengths, false), (lengths, true)]) {
        let (used, spare) = (lengths.iter().sum::<usize>(), 3);
        let (tokens, sequences) = (used + spare, lengths.len() + spare);
        let targets = (0..tokens).map(|_| if random.below(3) == 0 { -100 } else { 7 }).collect();
        let targets = Tensor::new(&[tokens], Extent::TOKENS, Data::I32(targets));
        let boundaries = Tensor::boundaries(lengths, sequences);
        let active = Active::one(used, lengths.len());
        let nll = random.floats(tokens, 5.0).into_iter().map(f32::abs).collect();
        let nll = Tensor::new(&[tokens], Extent::TOKENS, Data::F32(nll));
        let name = format!("{lengths:?} mean {mean}");
        let inputs = [nll, targets.clone(), boundaries.clone()];
        suite.check(&name, SequenceLogProb { mean }, &inputs, active, F32_SUMS);
        let inputs = [per_sequence(random.floats(sequences, 1.0)), targets, boundaries];
        suite.check(&name, SequenceLogProbGrad { mean }, &inputs, active, F32_SUMS);
    }
}

fn inputs(random: &mut Random, lengths: &[usize], preference: Preference, size: f64) -> Vec<Tensor> {
    let sequences = lengths.len() + 2;
    let mut log_probs = || per_sequence(random.floats(sequences, size).into_iter().map(|x| -x.abs()).collect());
    let (ours, theirs) = (log_probs(), log_probs());
    let f64s = |data: Vec<f64>| Tensor::new(&[data.len()], Extent::Fixed, Data::F64(data));
    let boundaries = Tensor::boundaries(lengths, sequences);
    let mut inputs = vec![ours, boundaries, Tensor::fixed(&[1], vec![0.125]), f64s(vec![1.25])];
    inputs.push(f64s(vec![3.0, 2.0, -0.75, 1.5, 2.25]));
    assert_eq!(inputs[4].len(), PAIR_STATS);
    inputs.extend(preference.has_reference().then_some(theirs));
    inputs
}

#[test]
fn preferences() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(191));
    for (lengths, preference) in LENGTHS.into_iter().flat_map(|l| PREFERENCES.map(|p| (l, p))) {
        // Of many pairs some differ by hundreds either way: neither exponential may overflow.
        let large = if lengths.len() == 40 { 900.0 } else { 20.0 };
        for (size, grad) in [(2.0, false), (2.0, true), (large, true)] {
            let inputs = inputs(random, lengths, preference, size);
            let active = Active::one(lengths.iter().sum(), lengths.len());
            let name = format!("{lengths:?} {preference:?}");
            suite.check(&name, PreferenceLoss { preference, grad }, &inputs, active, F32_SUMS);
        }
    }
}

/// What is certain has odds without end; the loss stays a number.
#[test]
fn certain_sequences() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(192));
    let preference = Preference::Orpo { lambda: 0.5 };
    let mut inputs = inputs(random, &[2, 2, 2, 2], preference, 1.0);
    inputs[0] = per_sequence(vec![0.0, -1.0, -2.0, 0.0, -0.5, -0.5]);
    suite.check("certain", PreferenceLoss { preference, grad: true }, &inputs, Active::one(8, 4), F32_SUMS);
}
