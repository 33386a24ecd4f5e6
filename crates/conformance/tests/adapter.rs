//! Adapters' narrow rows spread over their layers' columns, and gathered from them.

use plimsoll_conformance::{F32_SUMS, Random, Suite};
use plimsoll_graph::ops::{AdapterUp, AdapterUpGrad, Adapters, Block};
use plimsoll_runtime::Active;

/// Blocks as (columns left out before it, columns), and columns left out behind the last.
fn adapters(alpha: f32, blocks: &[(usize, usize)], behind: usize) -> Adapters {
    let mut end = 0;
    let place = |&(before, len): &(usize, usize)| {
        let block = Block { start: end + before, len };
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
            let active = Active { tokens, sequences: 1 };
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
            let active = Active { tokens, sequences: 1 };
            suite.check(&format!("{adapters:?} rank {rank}"), AdapterUpGrad(adapters), &inputs, active, F32_SUMS);
        }
    }
}

#[test]
fn an_empty_micro_batch_adds_nothing() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(42));
    let adapters = adapters(1.0, &[(0, 8), (0, 8)], 0);
    let inputs = [random.tokens(6, 16), random.tokens(6, 8), random.fixed(&[16, 4]), random.fixed(&[16, 4])];
    suite.check("empty", AdapterUpGrad(adapters), &inputs, Active { tokens: 0, sequences: 0 }, 0.0);
}
