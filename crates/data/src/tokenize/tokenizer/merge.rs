//! Byte pairs joined by rank: the lowest first, from left to right among equals.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ahash::AHashMap;

/// Words up to this many bytes are joined by looking for the lowest pair again and again; longer ones by a heap.
const SHORT: usize = 48;
const NONE: u32 = u32::MAX;

pub(super) struct Merges {
    /// Two tokens next to each other: the rank of joining them, and what they become.
    pairs: AHashMap<(u32, u32), (u32, u32)>,
    /// The token of each byte.
    bytes: [u32; 256],
}

impl Merges {
    pub(super) fn new(pairs: AHashMap<(u32, u32), (u32, u32)>, bytes: [u32; 256]) -> Self {
        Self { pairs, bytes }
    }

    fn rank(&self, left: u32, right: u32) -> u32 {
        self.pairs.get(&(left, right)).map_or(NONE, |(rank, _)| *rank)
    }

    /// Appends the tokens of `word` to `out`.
    pub(super) fn join(&self, word: &[u8], out: &mut Vec<u32>) {
        if word.len() > SHORT {
            return self.join_long(word, out);
        }
        let (mut tokens, mut ranks) = ([0u32; SHORT], [NONE; SHORT]);
        let mut count = word.len();
        for (token, byte) in tokens.iter_mut().zip(word) {
            *token = self.bytes[usize::from(*byte)];
        }
        for i in 1..count {
            ranks[i - 1] = self.rank(tokens[i - 1], tokens[i]);
        }
        loop {
            let mut lowest = (NONE, 0);
            for (i, &rank) in ranks[..count.saturating_sub(1)].iter().enumerate() {
                if rank < lowest.0 {
                    lowest = (rank, i);
                }
            }
            let (rank, i) = lowest;
            if rank == NONE {
                break;
            }
            tokens[i] = self.pairs[&(tokens[i], tokens[i + 1])].1;
            tokens.copy_within(i + 2..count, i + 1);
            ranks.copy_within(i + 1..count, i);
            count -= 1;
            ranks[count - 1] = NONE;
            if i > 0 {
                ranks[i - 1] = self.rank(tokens[i - 1], tokens[i]);
            }
            if i + 1 < count {
                ranks[i] = self.rank(tokens[i], tokens[i + 1]);
            }
        }
        out.extend_from_slice(&tokens[..count]);
    }

    /// The same over a linked list, so that a megabyte without a space takes no hours.
    fn join_long(&self, word: &[u8], out: &mut Vec<u32>) {
        let count = word.len();
        let mut tokens: Vec<u32> = word.iter().map(|byte| self.bytes[usize::from(*byte)]).collect();
        let mut before: Vec<usize> = (0..count).map(|i| i.wrapping_sub(1)).collect();
        let mut behind: Vec<usize> = (1..=count).collect();
        let mut heap = BinaryHeap::new();
        let offer = |heap: &mut BinaryHeap<_>, tokens: &[u32], left: usize, right: usize| {
            let pair = (tokens[left], tokens[right]);
            if let Some((rank, _)) = self.pairs.get(&pair) {
                heap.push(Reverse((*rank, left, right, pair)));
            }
        };
        for i in 1..count {
            offer(&mut heap, &tokens, i - 1, i);
        }
        while let Some(Reverse((_, left, right, pair))) = heap.pop() {
            // Joined with something else since it was offered.
            if behind[left] != right || (tokens[left], tokens[right]) != pair {
                continue;
            }
            tokens[left] = self.pairs[&pair].1;
            tokens[right] = NONE;
            let next = behind[right];
            behind[left] = next;
            behind[right] = NONE as usize;
            if next < count {
                before[next] = left;
                offer(&mut heap, &tokens, left, next);
            }
            if before[left] < count {
                offer(&mut heap, &tokens, before[left], left);
            }
        }
        out.extend(tokens.into_iter().filter(|token| *token != NONE));
    }
}
