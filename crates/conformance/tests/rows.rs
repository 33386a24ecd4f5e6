//! The rows of sequences' last tokens, and the way back. Copies have no rounding.

use plimsoll_conformance::{Data, Random, Rounding, Suite, Tensor};
use plimsoll_graph::Extent;
use plimsoll_graph::ops::{LastRows, LastRowsGrad};
use plimsoll_runtime::Active;

/// Sequences of one token, empty ones at every place, and none but empty ones.
const LENGTHS: [&[usize]; 9] = [
    &[1],
    &[5],
    &[3, 1, 1, 4, 9, 9],
    &[40, 33, 1, 64],
    &[1; 40],
    &[0, 6],
    &[4, 0, 0, 3, 0],
    &[0, 0, 0],
    &[300, 0, 215, 2],
];

/// Columns, and slots for tokens and sequences that are not in use.
const SIZES: [(usize, usize); 7] = [(1, 0), (3, 2), (7, 1), (8, 3), (64, 0), (131, 5), (1100, 2)];

fn active(lengths: &[usize]) -> Active {
    Active::one(lengths.iter().sum(), lengths.len())
}

fn boundaries(lengths: &[usize], spare: usize) -> Tensor {
    Tensor::boundaries(lengths, lengths.len() + spare)
}

fn sequence_rows(random: &mut Random, rows: usize, cols: usize) -> Tensor {
    Tensor::new(&[rows, cols], Extent::SEQUENCES, Data::F32(random.floats(rows * cols, 1.0)))
}

#[test]
fn rows_of_last_tokens() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(90));
    for lengths in LENGTHS {
        let (name, active) = (format!("{lengths:?}"), active(lengths));
        for (cols, spare) in SIZES {
            let inputs = [random.tokens(active.streams.main().tokens + spare, cols), boundaries(lengths, spare)];
            suite.check(&name, LastRows, &inputs, active, 0.0);
            suite.check_sixteen(&name, LastRows, &inputs, &[0], active, Rounding::none(0.0));
        }
    }
}

/// Ids come along as they are, all of their bits.
#[test]
fn ids_of_last_tokens() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(91));
    for lengths in LENGTHS {
        let (name, active) = (format!("{lengths:?}"), active(lengths));
        for spare in [0, 3] {
            let ids = random.row_ids(active.streams.main().tokens + spare);
            suite.check(&name, LastRows, &[ids, boundaries(lengths, spare)], active, 0.0);
            let ids = random.token_ints(active.streams.main().tokens + spare, 1 << 30);
            suite.check(&name, LastRows, &[ids, boundaries(lengths, spare)], active, 0.0);
        }
    }
}

#[test]
fn gradient_is_zero_at_all_other_tokens() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(92));
    for lengths in LENGTHS {
        let (name, active) = (format!("{lengths:?}"), active(lengths));
        for (cols, spare) in SIZES {
            let inputs = [sequence_rows(random, lengths.len() + spare, cols), boundaries(lengths, spare)];
            let op = LastRowsGrad { tokens: active.streams.main().tokens + spare };
            suite.check(&name, op.clone(), &inputs, active, 0.0);
            suite.check_sixteen(&name, op, &inputs, &[0], active, Rounding::none(0.0));
        }
    }
}

#[test]
fn an_empty_micro_batch_has_no_rows() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(93));
    let active = Active::one(0, 0);
    suite.check("empty", LastRows, &[random.tokens(6, 8), boundaries(&[3, 3], 0)], active, 0.0);
    let inputs = [sequence_rows(random, 2, 8), boundaries(&[3, 3], 0)];
    suite.check("empty", LastRowsGrad { tokens: 6 }, &inputs, active, 0.0);
}
