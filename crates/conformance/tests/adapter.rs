//! Adapters' low-rank rows spread over their layers' columns, and gathered from them.

use plimsoll_conformance::{F32_SUMS, Random, Rounding, Suite, sums_of};
use plimsoll_graph::ops::{AdapterUp, AdapterUpGrad, Adapters, Columns};
use plimsoll_runtime::Active;

/// Blocks as (columns left out before it, columns), and columns left out behind the last.
fn adapters(alpha: f32, blocks: &[(usize, usize)], behind: usize) -> Adapters {
    let mut end = 0;
    let place = |&(before, len): &(usize, usize)| {
        let block = Columns { start: end + before, len };
        end = block.start + len;
        block
    };
    let blocks = blocks.iter().map(place).collect();
    Adapters { alpha, blocks, total: end + behind }
}

/// Token slots, tokens in use, rank, blocks, columns behind them.
type Case = (usize, usize, usize, &'static [(usize, usize)], usize);

/// One layer and several, with and without columns of others, odd sizes and those that kernels like.
const CASES: [Case; 14] = [
    (1, 1, 1, &[(0, 1)], 0),
    (5, 4, 3, &[(0, 7)], 2),
    (7, 7, 2, &[(1, 5), (3, 2), (0, 9)], 1),
    (33, 30, 4, &[(0, 64), (0, 16)], 0),
    (40, 40, 8, &[(0, 128), (64, 64)], 8),
    (130, 129, 16, &[(0, 256), (0, 64), (0, 64)], 0),
    (70, 66, 16, &[(0, 1032)], 0),
    (257, 250, 12, &[(8, 72)], 16),
    (96, 96, 32, &[(0, 200), (0, 200)], 0),
    (64, 61, 24, &[(0, 136), (0, 40)], 0),
    (50, 50, 64, &[(0, 96)], 0),
    (50, 49, 40, &[(0, 96), (0, 96)], 0),
    (20, 20, 80, &[(0, 40)], 8),
    (1100, 1090, 8, &[(0, 24), (0, 8)], 0),
];

#[test]
fn up() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(40));
    for (rows, tokens, rank, blocks, behind) in CASES {
        for alpha in [1.0, -0.375] {
            let adapters = adapters(alpha, blocks, behind);
            let inputs = [random.tokens(rows, blocks.len() * rank), random.fixed(&[adapters.rows(), rank])];
            let active = Active::one(tokens, 1);
            suite.check(&format!("{adapters:?} rank {rank}"), AdapterUp(adapters), &inputs, active, F32_SUMS);
        }
    }
}

#[test]
fn gradient() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(41));
    for (rows, tokens, rank, blocks, behind) in CASES {
        for alpha in [1.0, -0.375] {
            let adapters = adapters(alpha, blocks, behind);
            let inputs = [
                random.tokens(rows, adapters.total),
                random.tokens(rows, blocks.len() * rank),
                random.fixed(&[adapters.rows(), rank]),
                random.fixed(&[adapters.rows(), rank]),
            ];
            let active = Active::one(tokens, 1);
            suite.check(&format!("{adapters:?} rank {rank}"), AdapterUpGrad(adapters), &inputs, active, F32_SUMS);
        }
    }
}

#[test]
fn an_empty_micro_batch_adds_nothing() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(42));
    let adapters = adapters(1.0, &[(0, 8), (0, 8)], 0);
    let inputs = [random.tokens(6, 16), random.tokens(6, 8), random.fixed(&[16, 4]), random.fixed(&[16, 4])];
    suite.check("empty", AdapterUpGrad(adapters), &inputs, Active::one(0, 0), 0.0);
}

/// In sixteen bits, beside the cases above: ranks with kernels of their own, with and without columns between, rows
/// that fill no tile; and ranks or columns that those kernels cannot take.
const SIXTEEN_CASES: [Case; 16] = [
    (1, 1, 4, &[(0, 8)], 0),
    (9, 7, 8, &[(0, 4096)], 0),
    (24, 8, 16, &[(0, 2048), (0, 2048)], 0),
    (16, 16, 64, &[(0, 1024)], 0),
    (513, 513, 4, &[(0, 1000)], 0),
    (1000, 1000, 12, &[(0, 264), (8, 72), (16, 8)], 8),
    (1500, 1499, 16, &[(0, 256), (0, 64), (0, 64)], 0),
    (132, 130, 24, &[(0, 1536), (0, 264)], 0),
    (33, 33, 32, &[(0, 2048), (0, 512), (0, 512)], 0),
    (1500, 1500, 32, &[(72, 72)], 0),
    (65, 64, 48, &[(0, 1000), (8, 264)], 8),
    (300, 300, 64, &[(8, 136), (0, 8)], 8),
    (1500, 1500, 64, &[(0, 72)], 0),
    (130, 130, 6, &[(0, 72), (0, 72)], 0),
    (33, 30, 72, &[(0, 264)], 0),
    (40, 40, 16, &[(4, 68), (0, 12)], 4),
];

#[test]
fn up_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(43));
    for (rows, tokens, rank, blocks, behind) in CASES.into_iter().chain(SIXTEEN_CASES) {
        let adapters = adapters(-0.375, blocks, behind);
        let inputs = [random.tokens(rows, blocks.len() * rank), random.fixed(&[adapters.rows(), rank])];
        let (name, active) = (format!("{adapters:?} rank {rank}"), Active::one(tokens, 1));
        suite.check_sixteen(&name, AdapterUp(adapters), &inputs, &[0, 1], active, Rounding::once(sums_of(rank)));
    }
}

fn check_gradient(suite: &mut Suite, random: &mut Random, case: Case, roundings: f64) {
    let (rows, tokens, rank, blocks, behind) = case;
    let adapters = adapters(1.5, blocks, behind);
    let inputs = [
        random.tokens(rows, adapters.total),
        random.tokens(rows, blocks.len() * rank),
        random.fixed(&[adapters.rows(), rank]),
        random.fixed(&[adapters.rows(), rank]),
    ];
    let (name, active) = (format!("{adapters:?} rank {rank}"), Active::one(tokens, 1));
    let once = Rounding::once(sums_of(tokens.max(adapters.total)));
    let op = AdapterUpGrad(adapters);
    // The gradient of the second matrix in float32, then in sixteen bits.
    suite.check_sixteen(&name, op.clone(), &inputs, &[0, 1, 2], active, once);
    suite.check_sixteen(&name, op, &inputs, &[0, 1, 2, 3], active, once.within(roundings).apart(&[0]));
}

/// Whether a card has kernels of its own for the case: small ranks, and columns in eights.
fn has_kernels(&(_, _, rank, blocks, behind): &Case) -> bool {
    let eights = blocks.iter().all(|(before, len)| before % 8 == 0 && len % 8 == 0) && behind % 8 == 0;
    eights && rank % 4 == 0 && rank <= 64
}

#[test]
fn gradient_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(44));
    for case in CASES.into_iter().chain(SIXTEEN_CASES) {
        // A library's product may be rounded before it is added to a gradient in sixteen bits.
        let roundings = if has_kernels(&case) { 0.0 } else { 1.0 };
        check_gradient(suite, random, case, roundings);
    }
}

/// More sums than the scratch holds are made some rows at a time, and a gradient in sixteen bits is rounded each time.
#[test]
fn gradient_of_more_rows_than_scratch_holds() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(45));
    check_gradient(suite, random, (1001, 1000, 64, &[(0, 2048)], 0), 4.0);
    check_gradient(suite, random, (1500, 1500, 16, &[(0, 2048), (8, 512), (0, 512)], 0), 4.0);
}
