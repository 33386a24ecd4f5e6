//! First fit, longest first: groups into micro-batches with little waste.
//!
//! The first bin with enough space is found through a tree of the largest space in each range of bins, so a window of
//! groups costs n log n, and the memory is used again for the next one. With several streams a group fits a bin if every
//! stream of it does: the trees of all streams are searched together.

use super::capacity::{Capacity, STREAMS_MAX};

#[derive(Debug, Default)]
pub(crate) struct Bins {
    /// Groups of each bin, one bin behind another, ascending in each.
    members: Vec<u32>,
    /// Where each bin ends in `members`.
    ends: Vec<u32>,
    longest_first: Vec<u32>,
    bin_of: Vec<u32>,
    /// Of each bin: how many groups it has, then where its next one goes.
    counts: Vec<u32>,
    /// A bin's place when bins are sorted by their first group.
    place: Vec<u32>,
    /// Tokens left in each bin, one tree per stream.
    space: [Tree; STREAMS_MAX],
}

/// What binning `groups` groups of `streams` streams holds.
pub(crate) fn bins_bytes(groups: u64, streams: usize) -> u64 {
    // Six lists of one number per group or bin, and a tree of up to four times as many for each stream.
    groups * (6 + 4 * streams as u64) * size_of::<u32>() as u64
}

impl Bins {
    /// Depends on nothing but lengths and capacity: `lengths` has each group's tokens in each stream, `groups_max` is how
    /// many groups a bin can have. Bins are ordered by their first group.
    pub(crate) fn fill(&mut self, lengths: &[Vec<u32>], capacity: &Capacity, groups_max: usize) {
        let lengths = &lengths[..capacity.len()];
        let count = lengths[0].len();
        self.longest_first.clear();
        self.longest_first.extend(0..count as u32);
        self.longest_first.sort_by_key(|&index| std::cmp::Reverse(share(lengths, capacity, index as usize)));
        for (space, stream) in self.space.iter_mut().zip(capacity.iter()) {
            space.reset(count, u32::try_from(stream.tokens).unwrap_or(u32::MAX));
        }
        self.counts.clear();
        self.bin_of.clear();
        self.bin_of.resize(count, 0);
        for &index in &self.longest_first {
            let index = index as usize;
            let bin = match lengths {
                [only] => self.space[0].first_with(only[index]),
                _ => first_with_all(&self.space, lengths, index, 1).unwrap_or(self.counts.len()),
            };
            if bin == self.counts.len() {
                self.counts.push(0);
            }
            self.counts[bin] += 1;
            let full = self.counts[bin] as usize >= groups_max;
            for (space, lengths) in self.space.iter_mut().zip(lengths) {
                let left = if full { 0 } else { space.of(bin) - lengths[index] };
                space.set(bin, left);
            }
            self.bin_of[index] = bin as u32;
        }
        self.arrange();
    }

    /// From each group's bin to each bin's groups. Groups are visited in order, so bins are met by their first group.
    fn arrange(&mut self) {
        const UNPLACED: u32 = u32::MAX;
        self.place.clear();
        self.place.resize(self.counts.len(), UNPLACED);
        self.ends.clear();
        let mut total = 0;
        for &bin in &self.bin_of {
            if self.place[bin as usize] == UNPLACED {
                self.place[bin as usize] = self.ends.len() as u32;
                let count = self.counts[bin as usize];
                // From here on the count is where the bin's next group goes.
                self.counts[bin as usize] = total;
                total += count;
                self.ends.push(total);
            }
        }
        self.members.clear();
        self.members.resize(self.bin_of.len(), 0);
        for (index, &bin) in self.bin_of.iter().enumerate() {
            let next = &mut self.counts[bin as usize];
            self.members[*next as usize] = index as u32;
            *next += 1;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn members(&self, bin: usize) -> &[u32] {
        let start = if bin == 0 { 0 } else { self.ends[bin - 1] };
        &self.members[start as usize..self.ends[bin] as usize]
    }
}

/// How much of a bin a group takes, in the stream where it takes most. For one stream that is its length.
fn share(lengths: &[Vec<u32>], capacity: &Capacity, index: usize) -> u64 {
    let of = |stream: usize| u64::from(lengths[stream][index]);
    match lengths {
        [_] => of(0),
        // Brought to one denominator.
        _ => (of(0) * capacity[1].tokens as u64).max(of(1) * capacity[0].tokens as u64),
    }
}

/// The first bin below `node` with enough space in every stream.
fn first_with_all(space: &[Tree], lengths: &[Vec<u32>], index: usize, node: usize) -> Option<usize> {
    if space.iter().zip(lengths).any(|(space, lengths)| space.largest[node] < lengths[index]) {
        return None;
    }
    if node >= space[0].leaves {
        return Some(node - space[0].leaves);
    }
    first_with_all(space, lengths, index, 2 * node).or_else(|| first_with_all(space, lengths, index, 2 * node + 1))
}

/// The largest value in each range of a list, the list itself in the lower half.
#[derive(Debug, Default)]
struct Tree {
    leaves: usize,
    largest: Vec<u32>,
}

impl Tree {
    fn reset(&mut self, count: usize, value: u32) {
        self.leaves = count.next_power_of_two();
        self.largest.clear();
        self.largest.resize(2 * self.leaves, value);
    }

    fn of(&self, index: usize) -> u32 {
        self.largest[self.leaves + index]
    }

    fn set(&mut self, index: usize, value: u32) {
        let mut node = self.leaves + index;
        self.largest[node] = value;
        while node > 1 {
            node /= 2;
            self.largest[node] = self.largest[2 * node].max(self.largest[2 * node + 1]);
        }
    }

    /// The first index whose value is at least `wanted`. There always is one: as many bins as groups, each large enough.
    fn first_with(&self, wanted: u32) -> usize {
        let mut node = 1;
        while node < self.leaves {
            node *= 2;
            if self.largest[node] < wanted {
                node += 1;
            }
        }
        node - self.leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::batch::{PerStream, StreamCapacity};

    /// The same, as the definition has it.
    fn plainly(lengths: &[Vec<u32>], capacity: &Capacity, groups_max: usize) -> Vec<Vec<u32>> {
        let mut longest_first: Vec<u32> = (0..lengths[0].len() as u32).collect();
        longest_first.sort_by_key(|&index| std::cmp::Reverse(share(lengths, capacity, index as usize)));
        let mut bins: Vec<(Vec<usize>, Vec<u32>)> = Vec::new();
        for index in longest_first {
            let length: Vec<usize> = lengths.iter().map(|stream| stream[index as usize] as usize).collect();
            let fits = |(used, members): &&mut (Vec<usize>, Vec<u32>)| {
                let all = used.iter().zip(&length).zip(capacity.iter()).all(|((a, b), stream)| a + b <= stream.tokens);
                all && members.len() < groups_max
            };
            match bins.iter_mut().find(fits) {
                Some((used, members)) => {
                    used.iter_mut().zip(&length).for_each(|(used, length)| *used += length);
                    members.push(index);
                }
                None => bins.push((length, vec![index])),
            }
        }
        let mut bins: Vec<Vec<u32>> = bins.into_iter().map(|(_, members)| members).collect();
        bins.iter_mut().for_each(|members| members.sort_unstable());
        bins.sort_by_key(|members| members[0]);
        bins
    }

    fn binned(bins: &Bins) -> Vec<Vec<u32>> {
        (0..bins.len()).map(|bin| bins.members(bin).to_vec()).collect()
    }

    proptest! {
        #[test]
        fn the_tree_finds_what_a_search_would(
            lengths in prop::collection::vec(1u32..40, 0..200), tokens in 40usize..200, sequences in 1usize..9,
        ) {
            let capacity = Capacity::one(tokens, sequences);
            let mut bins = Bins::default();
            // Used before, for something else.
            bins.fill(&[vec![3, 1, 4, 1, 5]], &capacity, sequences);
            let lengths = [lengths];
            bins.fill(&lengths, &capacity, sequences);
            prop_assert_eq!(binned(&bins), plainly(&lengths, &capacity, sequences));
        }

        /// Sources may be empty.
        #[test]
        fn the_trees_of_two_streams_find_what_a_search_would(
            lengths in prop::collection::vec((1u32..40, 0u32..90), 0..200), tokens in 40usize..200, source in 90usize..300,
            sequences in 1usize..9,
        ) {
            let stream = |tokens| StreamCapacity { tokens, sequences };
            let capacity = PerStream::with_source(stream(tokens), stream(source));
            let lengths: [Vec<u32>; 2] = lengths.into_iter().unzip::<u32, u32, Vec<u32>, Vec<u32>>().into();
            let mut bins = Bins::default();
            bins.fill(&[vec![3, 1, 4, 1, 5]], &Capacity::one(tokens, sequences), sequences);
            bins.fill(&lengths, &capacity, sequences);
            prop_assert_eq!(binned(&bins), plainly(&lengths, &capacity, sequences));
        }
    }
}
