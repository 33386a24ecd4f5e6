//! Looking up rows, and summing gradients back into them.

use plimsoll_conformance::{F32_SUMS, Random, Rounding, SIXTEEN, Suite, Tensor, sums_of};
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
        let active = Active::one(tokens, 1);
        // A copy has no rounding.
        suite.check(
            &format!("{words} words"),
            Embed { dtype: DType::F32, scale: 1.0, padding: None },
            &inputs,
            active,
            0.0,
        );
    }
}

#[test]
fn gradient_adds_to_what_is_there() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(61));
    for (words, rows, tokens, cols) in SIZES {
        let inputs = [random.tokens(rows, cols), random.token_ints(rows, words), random.fixed(&[words, cols])];
        let active = Active::one(tokens, 1);
        suite.check(&format!("{words} words"), EmbedGrad { scale: 1.0, padding: None }, &inputs, active, F32_SUMS);
    }
}

/// The row of padding keeps what it had.
#[test]
fn padding_gets_no_gradient() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(65));
    for (words, rows, tokens, cols) in SIZES {
        let inputs = [random.tokens(rows, cols), random.token_ints(rows, words), random.fixed(&[words, cols])];
        for padding in [0, words as u32 - 1] {
            let op = EmbedGrad { scale: 1.0, padding: Some(padding) };
            suite.check(&format!("{words} words"), op, &inputs, Active::one(tokens, 1), F32_SUMS);
        }
    }
}

#[test]
fn one_word_gets_every_row_and_the_others_none() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(62));
    let inputs = [random.tokens(90, 20), Tensor::token_ints(vec![3; 90]), random.fixed(&[6, 20])];
    suite.check("one word", EmbedGrad { scale: 1.0, padding: None }, &inputs, Active::one(90, 1), F32_SUMS);
    suite.check("no word", EmbedGrad { scale: 1.0, padding: None }, &inputs, Active::one(0, 0), 0.0);
}

/// A table in sixteen bits is copied; one in float32 is rounded on the way.
#[test]
fn lookup_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(63));
    for dtype in SIXTEEN {
        for (words, rows, tokens, cols) in SIZES {
            let (name, active) = (format!("{words} words"), Active::one(tokens, 1));
            let (table, tokens) = (random.fixed(&[words, cols]), random.token_ints(rows, words));
            let stored = [table.stored(dtype), tokens.clone()];
            suite.check_stored(&name, Embed { dtype, scale: 1.0, padding: None }, &stored, active, Rounding::none(0.0));
            suite.check_stored(
                &name,
                Embed { dtype, scale: 1.0, padding: None },
                &[table, tokens],
                active,
                Rounding::once(0.0),
            );
        }
    }
}

#[test]
fn gradient_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(64));
    for (words, rows, tokens, cols) in SIZES {
        let inputs = [random.tokens(rows, cols), random.token_ints(rows, words), random.fixed(&[words, cols])];
        let active = Active::one(tokens, 1);
        for stored in [&[0][..], &[0, 2]] {
            let rounding = Rounding::once(sums_of(tokens));
            suite.check_sixteen(
                &format!("{words} words"),
                EmbedGrad { scale: 1.0, padding: None },
                &inputs,
                stored,
                active,
                rounding,
            );
        }
    }
}
