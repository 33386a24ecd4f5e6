//! A learned bias by distance, spread out over distances and gathered into buckets.

use plimsoll_conformance::{Data, F32_SUMS, Random, Rounding, SIXTEEN, Suite, Tensor, sums_of};
use plimsoll_graph::Extent;
use plimsoll_graph::ops::{PositionBias, PositionBiasGrad};
use plimsoll_runtime::Active;

/// Buckets, heads, distances.
const SIZES: [(usize, usize, usize); 5] = [(1, 1, 1), (2, 3, 5), (32, 12, 511), (7, 5, 300), (32, 1, 64)];

fn bucket_of(random: &mut Random, buckets: usize, distances: usize) -> Tensor {
    let ints = random.token_ints(distances, buckets);
    let Data::I32(numbers) = ints.data else { panic!("whole numbers") };
    Tensor::new(&[distances], Extent::Fixed, Data::I32(numbers))
}

#[test]
fn each_distance_has_its_bucket() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(70));
    for (buckets, heads, distances) in SIZES {
        let name = format!("{buckets} buckets, {heads} heads, {distances} distances");
        let inputs = [random.fixed(&[buckets, heads]), bucket_of(random, buckets, distances)];
        suite.check(&name, PositionBias, &inputs, Active::one(3, 1), 0.0);
        for dtype in SIXTEEN {
            let stored = [inputs[0].stored(dtype), inputs[1].clone()];
            suite.check_stored(&name, PositionBias, &stored, Active::one(3, 1), Rounding::none(0.0));
        }
    }
}

#[test]
fn gradient_adds_to_what_is_there() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(71));
    for (buckets, heads, distances) in SIZES {
        let name = format!("{buckets} buckets, {heads} heads, {distances} distances");
        let table = random.fixed(&[buckets, heads]);
        let inputs = [random.fixed(&[heads, distances]), bucket_of(random, buckets, distances), table];
        suite.check(&name, PositionBiasGrad, &inputs, Active::one(3, 1), F32_SUMS);
        let rounding = Rounding::once(sums_of(distances));
        suite.check_sixteen(&name, PositionBiasGrad, &inputs, &[2], Active::one(3, 1), rounding);
    }
}
