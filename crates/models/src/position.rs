//! Which bucket each distance between a key and a query belongs to, computed once on the host.

use crate::PositionBias;

/// The bucket of each distance from a query to a key, from `1 - queries` to `keys - 1`.
pub fn position_buckets(bias: &PositionBias, queries: usize, keys: usize) -> Vec<i32> {
    let distances = 1 - queries as i64..keys as i64;
    distances.map(|distance| bucket(bias, distance) as i32).collect()
}

/// Half of the buckets hold one distance each, the others ever more of them up to the greatest distance that is told
/// from those beyond. Where keys behind the query count too, theirs are a second half of all buckets.
fn bucket(bias: &PositionBias, distance: i64) -> usize {
    let (buckets, first, distance) = match bias.both_ways {
        true => (bias.buckets / 2, if distance > 0 { bias.buckets / 2 } else { 0 }, distance.unsigned_abs()),
        false => (bias.buckets, 0, (-distance).max(0).unsigned_abs()),
    };
    let single = buckets / 2;
    if distance < single as u64 {
        return first + distance as usize;
    }
    // In single precision, as the reference implementation has it.
    let share = (distance as f32 / single as f32).ln() / (bias.max_distance as f64 / single as f64).ln() as f32;
    first + (single + (share * (buckets - single) as f32) as usize).min(buckets - 1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value as Json;

    use super::*;

    /// Every distance beside what transformers' T5 makes of it.
    #[test]
    fn buckets_are_those_of_the_reference() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/position_buckets.json");
        let cases: Json = serde_json::from_str(&std::fs::read_to_string(path).expect("readable")).expect("JSON");
        let cases = cases.as_array().expect("cases");
        assert!(cases.len() >= 8);
        for case in cases {
            let count = |key: &str| case[key].as_u64().expect(key) as usize;
            let both_ways = case["bidirectional"].as_bool().expect("a flag");
            let (buckets, max_distance) = (count("buckets"), count("max_distance"));
            let bias = PositionBias { name: "", heads: 1, buckets, max_distance, both_ways, std: 1.0 };
            let wanted: Vec<i32> = serde_json::from_value(case["bucket_of"].clone()).expect("buckets");
            let reach = count("reach");
            let found = position_buckets(&bias, reach + 1, reach + 1);
            assert_eq!(found, wanted, "{buckets} buckets to {max_distance}, both ways: {both_ways}");
        }
    }
}
