//! First fit, longest first: groups into micro-batches with little waste.
//!
//! The first bin with room is found through a tree of the largest room in each range of bins, so a window of groups costs
//! n log n, and the memory is used again for the next one.

use super::pack::Capacity;

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
    room: Tree,
}

/// What binning `groups` groups holds.
pub(crate) fn bins_bytes(groups: u64) -> u64 {
    // Six lists of one number per group or bin, and a tree of up to four times as many.
    groups * (6 + 4) * size_of::<u32>() as u64
}

impl Bins {
    /// Depends on nothing but lengths and capacity. Bins are ordered by their first group.
    pub(crate) fn fill(&mut self, lengths: &[u32], capacity: Capacity) {
        let tokens = u32::try_from(capacity.tokens).unwrap_or(u32::MAX);
        self.longest_first.clear();
        self.longest_first.extend(0..lengths.len() as u32);
        self.longest_first.sort_by_key(|&index| std::cmp::Reverse(lengths[index as usize]));
        self.room.reset(lengths.len(), tokens);
        self.counts.clear();
        self.bin_of.clear();
        self.bin_of.resize(lengths.len(), 0);
        for &index in &self.longest_first {
            let length = lengths[index as usize];
            let bin = self.room.first_with(length);
            if bin == self.counts.len() {
                self.counts.push(0);
            }
            self.counts[bin] += 1;
            let full = self.counts[bin] as usize >= capacity.sequences;
            let left = if full { 0 } else { self.room.of(bin) - length };
            self.room.set(bin, left);
            self.bin_of[index as usize] = bin as u32;
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

    /// The same, as the definition has it.
    fn plainly(lengths: &[u32], capacity: Capacity) -> Vec<Vec<u32>> {
        let mut longest_first: Vec<u32> = (0..lengths.len() as u32).collect();
        longest_first.sort_by_key(|&index| std::cmp::Reverse(lengths[index as usize]));
        let mut bins: Vec<(usize, Vec<u32>)> = Vec::new();
        for index in longest_first {
            let length = lengths[index as usize] as usize;
            let fits = |(used, members): &&mut (usize, Vec<u32>)| {
                *used + length <= capacity.tokens && members.len() < capacity.sequences
            };
            match bins.iter_mut().find(fits) {
                Some((used, members)) => {
                    *used += length;
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

    proptest! {
        #[test]
        fn the_tree_finds_what_a_search_would(
            lengths in prop::collection::vec(1u32..40, 0..200), tokens in 40usize..200, sequences in 1usize..9,
        ) {
            let capacity = Capacity { tokens, sequences };
            let mut bins = Bins::default();
            // Used before, for something else.
            bins.fill(&[3, 1, 4, 1, 5], capacity);
            bins.fill(&lengths, capacity);
            let found: Vec<Vec<u32>> = (0..bins.len()).map(|bin| bins.members(bin).to_vec()).collect();
            prop_assert_eq!(found, plainly(&lengths, capacity));
        }
    }
}
