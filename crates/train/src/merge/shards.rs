//! Which tensors go into which file.

use std::ops::Range;

/// Tensors of one file.
pub(super) type Shard = Range<usize>;

/// Where Hugging Face begins another file.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// Tensors in order, as many to a file as it takes, and at least one.
pub(super) fn shards(sizes: &[u64], limit_bytes: u64) -> Vec<Shard> {
    let mut shards = Vec::new();
    let (mut start, mut held) = (0, 0);
    for (index, &size) in sizes.iter().enumerate() {
        if index > start && held + size > limit_bytes {
            shards.push(start..index);
            (start, held) = (index, 0);
        }
        held += size;
    }
    shards.push(start..sizes.len());
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_filled_in_order() {
        let check = |sizes: &[u64], expected: &[Shard]| assert_eq!(shards(sizes, 10), expected);
        let all: Shard = 0..3;
        check(&[3, 3, 4], &[all]);
        check(&[3, 3, 5], &[0..2, 2..3]);
        check(&[30, 1, 9, 1], &[0..1, 1..3, 3..4]);
        let none: Shard = 0..0;
        check(&[], &[none]);
    }
}
