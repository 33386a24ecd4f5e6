//! Rotary positions, there and back, in whole heads and in parts of them.

use plimsoll_conformance::{F32_ELEMENTWISE, Placement, Random, Rounding, Suite, Tensor, compare};
use plimsoll_graph::ops::{Heads, Rope};
use plimsoll_runtime::Active;

/// Cosines, then sines, of the usual angles.
fn table(positions: usize, rotated: usize) -> Tensor {
    let half = rotated / 2;
    let angle = |position: usize, i: usize| position as f64 / 10_000f64.powf(i as f64 / half as f64);
    let row = |position: usize| {
        let cosines = (0..half).map(move |i| angle(position, i).cos() as f32);
        cosines.chain((0..half).map(move |i| angle(position, i).sin() as f32))
    };
    Tensor::fixed(&[positions, rotated], (0..positions).flat_map(row).collect())
}

/// Heads, token slots, tokens in use.
const CASES: [(Heads, usize, usize); 6] = [
    (Heads { query: 1, kv: 1, head_dim: 2 }, 1, 1),
    (Heads { query: 1, kv: 1, head_dim: 6 }, 3, 3),
    (Heads { query: 4, kv: 2, head_dim: 8 }, 9, 5),
    (Heads { query: 3, kv: 1, head_dim: 22 }, 16, 16),
    (Heads { query: 8, kv: 2, head_dim: 64 }, 65, 40),
    (Heads { query: 2, kv: 2, head_dim: 128 }, 260, 259),
];

/// Each of the cases with whole heads rotated, with half and a quarter of their columns, and with all but the last two:
/// with an even number of columns each time.
fn rotations() -> impl Iterator<Item = (Rope, usize, usize)> {
    CASES.into_iter().flat_map(|(heads, rows, tokens)| {
        let dim = heads.head_dim;
        let mut parts = vec![dim, dim / 2, dim / 4, dim - 2];
        parts.retain(|&rotated| rotated > 0 && rotated % 2 == 0);
        parts.dedup();
        let each = |rotated| [false, true].map(|inverse| (Rope { heads, rotated, inverse }, rows, tokens));
        parts.into_iter().flat_map(each).collect::<Vec<_>>()
    })
}

#[test]
fn turns_queries_and_keys_only() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(30));
    for (op, rows, tokens) in rotations() {
        let inputs = [random.tokens(rows, op.heads.fused_cols()), table(50, op.rotated), random.token_ints(rows, 50)];
        suite.check(&format!("{op:?}"), op, &inputs, Active::one(tokens, 1), F32_ELEMENTWISE);
    }
}

/// To the bit, and nothing else does.
#[test]
fn columns_that_are_not_rotated_stay() {
    let random = &mut Random::new(33);
    let (heads, active) = (Heads { query: 3, kv: 2, head_dim: 32 }, Active::one(7, 1));
    for harness in Suite::new().all_harnesses() {
        for rotated in [8, 12, 16, 32] {
            let qkv = random.tokens(7, heads.fused_cols());
            let inputs = [qkv.clone(), table(50, rotated), Tensor::token_ints((1..8).collect())];
            let op = Rope { rotated, ..Rope::new(heads) }.into();
            let turned = harness.run(&op, &inputs, active, &Placement::default()).remove(0);
            let pairs = turned.f32s().iter().zip(qkv.f32s()).enumerate();
            for (at, (after, before)) in pairs {
                let column = at % heads.fused_cols();
                let turns = column < 5 * heads.head_dim && column % heads.head_dim < rotated;
                assert_eq!(after == before, !turns, "column {column} with {rotated} rotated on {}", harness.name());
            }
        }
    }
}

#[test]
fn there_and_back_is_where_it_was() {
    let random = &mut Random::new(31);
    for harness in Suite::new().harnesses() {
        let heads = Heads { query: 4, kv: 2, head_dim: 16 };
        let active = Active::one(12, 1);
        let [qkv, table, positions] = [random.tokens(12, heads.fused_cols()), table(99, 16), random.token_ints(12, 99)];
        let forward = Rope::new(heads).into();
        let inputs = [qkv.clone(), table.clone(), positions.clone()];
        let turned = harness.run(&forward, &inputs, active, &Placement::default()).remove(0);
        assert!(compare(&turned.array(active), &qkv.array(active), 0.1).is_err(), "nothing turned");
        let inverse = Rope { inverse: true, ..Rope::new(heads) }.into();
        let back = harness.run(&inverse, &[turned, table, positions], active, &Placement::default()).remove(0);
        compare(&back.array(active), &qkv.array(active), F32_ELEMENTWISE).expect("the same rows");
    }
}

/// The table of angles stays in float32.
#[test]
fn turns_sixteen_bit_rows() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(32));
    for (op, rows, tokens) in rotations() {
        let inputs = [random.tokens(rows, op.heads.fused_cols()), table(50, op.rotated), random.token_ints(rows, 50)];
        let (active, rounding) = (Active::one(tokens, 1), Rounding::once(F32_ELEMENTWISE));
        suite.check_sixteen(&format!("{op:?}"), op, &inputs, &[0], active, rounding);
    }
}
