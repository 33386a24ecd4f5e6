//! Keys and values of growing sequences: what is written where, and attention over it.

use plimsoll_conformance::{Data, F32_SUMS, Random, Rounding, Suite, Tensor, sums_of};
use plimsoll_graph::Extent;
use plimsoll_graph::ops::{CacheWrite, CachedAttention, Heads, QkvLayout};
use plimsoll_runtime::Active;

/// Rows of a micro-batch: the place of their sequence, the position of the first, and how many.
type Run = (i32, usize, usize);

#[derive(Debug, Clone, Copy)]
struct Case<'a> {
    heads: Heads,
    places: usize,
    capacity: usize,
    window: Option<usize>,
    softcap: Option<f32>,
    layout: QkvLayout,
    /// Whether scores have a bias by distance.
    biased: bool,
    runs: &'a [Run],
}

const fn heads(query: usize, kv: usize, head_dim: usize) -> Heads {
    Heads { query, kv, head_dim }
}

const PLAIN: Case = Case {
    heads: heads(4, 2, 8),
    places: 2,
    capacity: 40,
    window: None,
    softcap: None,
    layout: QkvLayout::Fused,
    biased: false,
    runs: &[],
};

/// Queries whose keys and values came apart from them, as of another stream.
const APART: Case = Case { layout: QkvLayout::FusedKeyValue, ..PLAIN };

/// One row alone, several sequences side by side with rows of none between them, rows behind a cached beginning, more than
/// a tile of keys, places that are written round and round, groups of every size and more heads than walk together;
/// with a bias by distance, with keys that come apart, and with both.
const CASES: [Case; 18] = [
    Case { runs: &[(0, 0, 1)], ..PLAIN },
    Case { runs: &[(1, 7, 1), (-1, 0, 2), (0, 39, 1)], ..PLAIN },
    Case { runs: &[(0, 0, 9), (1, 20, 5)], ..PLAIN },
    Case { heads: heads(3, 3, 64), places: 3, capacity: 130, runs: &[(2, 129, 1), (0, 64, 1), (1, 63, 1)], ..PLAIN },
    Case { heads: heads(8, 1, 22), capacity: 200, runs: &[(1, 150, 4)], ..PLAIN },
    Case { heads: heads(20, 2, 128), capacity: 70, runs: &[(0, 66, 3), (1, 0, 1)], ..PLAIN },
    Case { heads: heads(2, 1, 256), capacity: 70, runs: &[(1, 69, 1)], ..PLAIN },
    Case { capacity: 7, window: Some(7), runs: &[(0, 3, 1), (1, 100, 1)], ..PLAIN },
    Case { capacity: 12, window: Some(7), runs: &[(0, 30, 6), (1, 0, 6)], ..PLAIN },
    Case { capacity: 90, window: Some(80), runs: &[(1, 205, 10), (0, 78, 4)], ..PLAIN },
    Case { capacity: 40, window: Some(1), softcap: Some(2.0), runs: &[(0, 5, 3)], ..PLAIN },
    Case { heads: heads(4, 2, 80), softcap: Some(1.5), runs: &[(0, 20, 20)], ..PLAIN },
    Case { biased: true, runs: &[(0, 0, 9), (1, 20, 5), (-1, 0, 1)], ..PLAIN },
    Case { heads: heads(10, 1, 16), capacity: 130, biased: true, softcap: Some(2.0), runs: &[(1, 129, 1)], ..PLAIN },
    Case { capacity: 12, window: Some(7), biased: true, runs: &[(0, 30, 6)], ..PLAIN },
    Case { runs: &[(1, 7, 1), (-1, 0, 2), (0, 39, 1)], ..APART },
    Case { heads: heads(3, 3, 33), capacity: 130, runs: &[(1, 100, 3), (0, 0, 1)], ..APART },
    Case { heads: heads(3, 3, 64), capacity: 70, biased: true, runs: &[(0, 64, 1), (1, 3, 2)], ..APART },
];

impl Case<'_> {
    fn rows(&self) -> usize {
        self.runs.iter().map(|(_, _, count)| count).sum()
    }

    /// Rows of so many columns with `spare` slots behind them, a cache that is filled throughout, places and positions.
    fn inputs(&self, random: &mut Random, cols: usize, spare: usize) -> [Tensor; 4] {
        let each = |of: fn(&Run, usize) -> i32| {
            let rows = self.runs.iter().flat_map(|run| (0..run.2).map(|index| of(run, index)));
            Tensor::token_ints(rows.chain(std::iter::repeat_n(0, spare)).collect())
        };
        let rows = random.tokens(self.rows() + spare, cols);
        let cache = random.fixed(&[self.places * self.capacity, 2 * self.heads.kv_cols()]);
        [rows, cache, each(|run, _| run.0), each(|run, index| (run.1 + index) as i32)]
    }

    fn attention(&self) -> CachedAttention {
        let Self { heads, layout, window, softcap, capacity, biased, .. } = *self;
        let bias = biased.then_some(self.distances() - 4);
        CachedAttention { heads, layout, window, scale: 0.3, softcap, bias, capacity }
    }

    /// Three distances more than are needed lie on the far side of zero, and one before the oldest.
    fn distances(&self) -> usize {
        self.capacity + 4
    }

    /// As [`Case::inputs`], for its attention.
    fn attended(&self, random: &mut Random, spare: usize) -> Vec<Tensor> {
        let mut inputs = self.inputs(random, self.attention().row_cols(), spare).to_vec();
        if self.biased {
            inputs.push(random.fixed(&[self.heads.query, self.distances()]));
        }
        inputs
    }

    fn write(&self) -> CacheWrite {
        CacheWrite { heads: self.heads, layout: self.layout, capacity: self.capacity }
    }
}

#[test]
fn keys_and_values_go_where_their_positions_say() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(120));
    for case in CASES {
        let (name, active) = (format!("{case:?}"), Active::one(case.rows(), 1));
        let op = case.write();
        for spare in [0, 3] {
            let inputs = case.inputs(random, op.row_cols(), spare);
            suite.check(&name, op.clone(), &inputs, active, 0.0);
            suite.check_sixteen(&name, op.clone(), &inputs, &[0, 1], active, Rounding::none(0.0));
        }
    }
}

#[test]
fn rows_see_their_own_sequence_up_to_themselves() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(121));
    for case in CASES {
        let (name, active) = (format!("{case:?}"), Active::one(case.rows(), 1));
        for spare in [0, 3] {
            let inputs = case.attended(random, spare);
            suite.check(&name, case.attention(), &inputs, active, F32_SUMS);
            let sixteen = Rounding::once(sums_of(case.heads.head_dim + case.capacity));
            suite.check_sixteen(&name, case.attention(), &inputs, &[0, 1], active, sixteen);
        }
    }
}

/// Scores so far apart that all but one of the chances vanish, and so large that their exponentials would overflow.
#[test]
fn large_scores_do_not_overflow() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(122));
    let case = Case { capacity: 150, runs: &[(0, 149, 1), (1, 100, 1)], ..PLAIN };
    let mut inputs = case.attended(random, 0);
    for tensor in &mut inputs[..2] {
        let Data::F32(numbers) = &mut tensor.data else { panic!("floats") };
        numbers.iter_mut().for_each(|x| *x *= 30.0);
    }
    suite.check("large", case.attention(), &inputs, Active::one(2, 2), F32_SUMS);
}

#[test]
fn an_empty_micro_batch_leaves_the_cache_alone() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(123));
    let case = Case { runs: &[(0, 0, 2)], ..PLAIN };
    let inputs = case.attended(random, 0);
    assert_eq!(inputs[2].extent, Extent::TOKENS);
    suite.check("empty", case.write(), &inputs, Active::one(0, 0), 0.0);
    suite.check("empty", case.attention(), &inputs, Active::one(0, 0), F32_SUMS);
}
