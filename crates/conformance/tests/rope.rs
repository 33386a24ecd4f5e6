//! Rotary positions, there and back.

use plimsoll_conformance::{F32_ELEMENTWISE, Placement, Random, Rounding, Suite, Tensor, compare};
use plimsoll_graph::ops::{Heads, Rope};
use plimsoll_runtime::Active;

/// Cosines, then sines, of the usual angles.
fn table(positions: usize, head_dim: usize) -> Tensor {
    let half = head_dim / 2;
    let angle = |position: usize, i: usize| position as f64 / 10_000f64.powf(i as f64 / half as f64);
    let row = |position: usize| {
        let cosines = (0..half).map(move |i| angle(position, i).cos() as f32);
        cosines.chain((0..half).map(move |i| angle(position, i).sin() as f32))
    };
    Tensor::fixed(&[positions, head_dim], (0..positions).flat_map(row).collect())
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

#[test]
fn turns_queries_and_keys_only() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(30));
    for (heads, rows, tokens) in CASES {
        for inverse in [false, true] {
            let inputs =
                [random.tokens(rows, heads.fused_cols()), table(50, heads.head_dim), random.token_ints(rows, 50)];
            let active = Active::one(tokens, 1);
            suite.check(&format!("{heads:?}"), Rope { heads, inverse }, &inputs, active, F32_ELEMENTWISE);
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
        let forward = Rope { heads, inverse: false }.into();
        let inputs = [qkv.clone(), table.clone(), positions.clone()];
        let turned = harness.run(&forward, &inputs, active, &Placement::default()).remove(0);
        assert!(compare(&turned.array(active), &qkv.array(active), 0.1).is_err(), "nothing turned");
        let inverse = Rope { heads, inverse: true }.into();
        let back = harness.run(&inverse, &[turned, table, positions], active, &Placement::default()).remove(0);
        compare(&back.array(active), &qkv.array(active), F32_ELEMENTWISE).expect("the same rows");
    }
}

/// The table of angles stays in float32.
#[test]
fn turns_sixteen_bit_rows() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(32));
    for (heads, rows, tokens) in CASES {
        for inverse in [false, true] {
            let inputs =
                [random.tokens(rows, heads.fused_cols()), table(50, heads.head_dim), random.token_ints(rows, 50)];
            let (active, rounding) = (Active::one(tokens, 1), Rounding::once(F32_ELEMENTWISE));
            suite.check_sixteen(&format!("{heads:?}"), Rope { heads, inverse }, &inputs, &[0], active, rounding);
        }
    }
}
