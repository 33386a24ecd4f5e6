//! Looking up rows, and summing gradients back into them.

use plimsoll_conformance::{F32_SUMS, Random, Suite, Tensor};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{Embed, EmbedGrad};
use plimsoll_runtime::Active;

/// Words, token slots, tokens in use, features.
const SIZES: [(usize, usize, usize, usize); 7] = [
    (1, 1, 1, 1),
    (3, 5, 5, 7),
    (50, 9, 4, 16),
    (7, 64, 64, 33),
    (200, 100, 77, 65),
    (5, 400, 399, 12),
    (40, 100, 98, 300),
];

#[test]
fn lookup() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(60));
    for (words, rows, tokens, cols) in SIZES {
        let inputs = [random.fixed(&[words, cols]), random.token_ints(rows, words)];
        let active = Active { tokens, sequences: 1 };
        // A copy has no rounding.
        suite.check(&format!("{words} words"), Embed { dtype: DType::F32 }, &inputs, active, 0.0);
    }
}

#[test]
fn gradient_adds_to_what_is_there() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(61));
    for (words, rows, tokens, cols) in SIZES {
        let inputs = [random.tokens(rows, cols), random.token_ints(rows, words), random.fixed(&[words, cols])];
        let active = Active { tokens, sequences: 1 };
        suite.check(&format!("{words} words"), EmbedGrad, &inputs, active, F32_SUMS);
    }
}

#[test]
fn one_word_gets_every_row_and_the_others_none() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(62));
    let inputs = [random.tokens(90, 20), Tensor::token_ints(vec![3; 90]), random.fixed(&[6, 20])];
    suite.check("one word", EmbedGrad, &inputs, Active { tokens: 90, sequences: 1 }, F32_SUMS);
    suite.check("no word", EmbedGrad, &inputs, Active { tokens: 0, sequences: 0 }, 0.0);
}
