//! The rows of sequences' last tokens, and the way back; runs of rows, and the whole. Copies have no rounding.

use plimsoll_conformance::{Data, Random, Rounding, Suite, Tensor};
use plimsoll_graph::ops::{JoinRows, LastRows, LastRowsGrad, SplitRows};
use plimsoll_graph::{Extent, StreamId};
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

/// All rows there is a place for, rows of a run, and rows in use: runs that are full, cut off, and empty.
const RUNS: [(usize, usize, usize); 8] =
    [(1, 1, 1), (8, 8, 8), (8, 3, 8), (9, 3, 5), (300, 128, 300), (300, 128, 128), (300, 128, 40), (70, 7, 0)];

#[test]
fn runs_of_rows() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(94));
    for (all, rows, tokens) in RUNS {
        let (name, active) = (format!("{tokens} of {all} by {rows}"), Active::one(tokens, 1));
        for (cols, _) in SIZES {
            let (op, x) = (SplitRows::new(all, rows), [random.tokens(all, cols)]);
            suite.check(&name, op.clone(), &x, active, 0.0);
            suite.check_sixteen(&name, op, &x, &[0], active, Rounding::none(0.0));
        }
        suite.check(&name, SplitRows::new(all, rows), &[random.row_ids(all)], active, 0.0);
        suite.check(&name, SplitRows::new(all, rows), &[random.token_ints(all, 1 << 30)], active, 0.0);
    }
}

#[test]
fn runs_make_the_whole() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(95));
    for (all, rows, tokens) in RUNS {
        let (name, active) = (format!("{tokens} of {all} by {rows}"), Active::one(tokens, 1));
        for (cols, _) in SIZES {
            let run = |start: usize| {
                let (rows, extent) = (rows.min(all - start), Extent::Run { stream: StreamId::MAIN, start });
                Tensor::new(&[rows, cols], extent, Data::F32(random.floats(rows * cols, 1.0)))
            };
            let runs: Vec<Tensor> = (0..all).step_by(rows).map(run).collect();
            let floats: Vec<usize> = (0..runs.len()).collect();
            suite.check(&name, JoinRows, &runs, active, 0.0);
            suite.check_sixteen(&name, JoinRows, &runs, &floats, active, Rounding::none(0.0));
        }
    }
}
