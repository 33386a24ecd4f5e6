//! Addresses for buffers whose lifetimes are known.
//!
//! Buffers are placed one after another into the best gap that their already placed contemporaries
//! leave. The order decides how well that goes, so several are tried: longest life first (what the
//! forward pass keeps dies in reverse order, and lies down like a stack), largest first, most
//! byte-steps first. As long as the result is above the lower bound, the buffer that sticks out
//! furthest is then moved to the front of the order and the placement repeated.

use crate::lifetimes::Lifetime;

/// Addresses, in the order of the buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub offsets: Vec<usize>,
    pub bytes: usize,
}

/// Repetitions after which a layout is good enough.
const IMPROVEMENTS_MAX: usize = 48;

pub fn layout(buffers: &[Lifetime], lower_bound: usize) -> Layout {
    let mut best: Option<(Layout, Vec<usize>)> = None;
    for order in orders(buffers) {
        let below = best.as_ref().map_or(usize::MAX, |(best, _)| best.bytes);
        if let Some(better) = place(buffers, &order, below) {
            best = Some((better, order));
        }
        if best.as_ref().is_some_and(|(b, _)| b.bytes == lower_bound) {
            break;
        }
    }
    let Some((mut best, mut order)) = best else { return Layout { offsets: Vec::new(), bytes: 0 } };
    for _ in 0..improvements(buffers.len()) {
        if best.bytes <= lower_bound {
            break;
        }
        let Some(highest) = highest(buffers, &best) else { break };
        let at = order.iter().position(|&b| b == highest).unwrap_or(0);
        if at == 0 {
            break;
        }
        // Half-way to the front: near enough to matter, without undoing what lies well.
        let buffer = order.remove(at);
        order.insert(at / 2, buffer);
        if let Some(better) = place(buffers, &order, best.bytes) {
            best = better;
        }
    }
    best
}

/// Large graphs get fewer repetitions, so that planning stays interactive.
fn improvements(buffers: usize) -> usize {
    (200_000 / buffers.max(1)).min(IMPROVEMENTS_MAX)
}

fn orders(buffers: &[Lifetime]) -> [Vec<usize>; 3] {
    let by = |key: &dyn Fn(&Lifetime) -> (usize, usize)| {
        let mut order: Vec<usize> = (0..buffers.len()).collect();
        order.sort_by_key(|&b| (std::cmp::Reverse(key(&buffers[b])), b));
        order
    };
    let life = |b: &Lifetime| b.last - b.first + 1;
    [by(&|b| (life(b), b.bytes)), by(&|b| (b.bytes, life(b))), by(&|b| (b.bytes.saturating_mul(life(b)), b.bytes))]
}

/// The buffer that ends at the top.
fn highest(buffers: &[Lifetime], layout: &Layout) -> Option<usize> {
    (0..buffers.len()).find(|&b| layout.offsets[b] + buffers[b].bytes == layout.bytes)
}

#[derive(Clone, Copy)]
struct Placed {
    offset: usize,
    end: usize,
    first: usize,
    last: usize,
}

/// Buffers that live no longer than so many nodes are placed with a look at those alone that live near them.
const NEAR: usize = 64;

/// Puts each buffer into the smallest gap among its contemporaries that holds it, else on top of them. `None` as soon as
/// the result is seen not to be smaller than `below`.
fn place(buffers: &[Lifetime], order: &[usize], below: usize) -> Option<Layout> {
    let nodes = buffers.iter().map(|buffer| buffer.last + 1).max().unwrap_or(0);
    // By offset: all of them, and those that live during the nodes `NEAR * index..NEAR * (index + 2)`.
    let mut placed: Vec<Placed> = Vec::with_capacity(buffers.len());
    let mut near: Vec<Vec<Placed>> = vec![Vec::new(); nodes.div_ceil(NEAR)];
    let mut offsets = vec![0; buffers.len()];
    let mut top = 0;
    for &index in order {
        let buffer = &buffers[index];
        let is_short = buffer.last - buffer.first < NEAR;
        let mut gap_start = 0;
        let mut best: Option<(usize, usize)> = None;
        for p in if is_short { &near[buffer.first / NEAR] } else { &placed } {
            if p.first > buffer.last || p.last < buffer.first {
                continue;
            }
            if p.offset > gap_start {
                let gap = p.offset - gap_start;
                if gap >= buffer.bytes && best.is_none_or(|(size, _)| gap < size) {
                    best = Some((gap, gap_start));
                }
            }
            gap_start = gap_start.max(p.end);
        }
        let offset = best.map_or(gap_start, |(_, start)| start);
        let end = offset + buffer.bytes;
        top = top.max(end);
        if top >= below {
            return None;
        }
        let at_offset = Placed { offset, end, first: buffer.first, last: buffer.last };
        let insert = |placed: &mut Vec<Placed>| {
            placed.insert(placed.partition_point(|p| p.offset < offset), at_offset);
        };
        insert(&mut placed);
        near[(buffer.first / NEAR).saturating_sub(1)..=buffer.last / NEAR].iter_mut().for_each(insert);
        offsets[index] = offset;
    }
    Some(Layout { offsets, bytes: top })
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Role;

    use super::*;
    use crate::lifetimes::Content;

    /// Lays out buffers of so many bytes that live from one node to another; what that takes.
    #[track_caller]
    fn laid_out(buffers: &[(usize, usize, usize)]) -> usize {
        let buffers: Vec<Lifetime> = buffers
            .iter()
            .map(|&(bytes, first, last)| Lifetime {
                bytes,
                first,
                last,
                role: Role::Activation,
                content: Content::Values,
            })
            .collect();
        let layout = layout(&buffers, 0);
        for (i, a) in buffers.iter().enumerate() {
            assert!(layout.offsets[i] + a.bytes <= layout.bytes, "{i} sticks out");
            for (j, b) in buffers.iter().enumerate().skip(i + 1) {
                let apart = layout.offsets[i] + a.bytes <= layout.offsets[j]
                    || layout.offsets[j] + b.bytes <= layout.offsets[i];
                assert!(!a.overlaps(b) || apart, "{i} and {j} share bytes");
            }
        }
        layout.bytes
    }

    #[track_caller]
    fn check(buffers: &[(usize, usize, usize)], expected_bytes: usize) {
        assert_eq!(laid_out(buffers), expected_bytes);
    }

    /// Lives around as many nodes as decide with whom a buffer is compared.
    #[test]
    fn long_and_short_lives_lie_apart() {
        let lengths = [0, 1, NEAR - 1, NEAR, NEAR + 1, 2 * NEAR, 5 * NEAR];
        let buffer = |i: usize| (256 * (1 + i % 5), i * 7 % 400, i * 7 % 400 + lengths[i * 3 % lengths.len()]);
        laid_out(&(0..500).map(buffer).collect::<Vec<_>>());
    }

    #[test]
    fn disjoint_lives_share_memory() {
        check(&[(256, 0, 1), (256, 2, 3), (256, 4, 5)], 256);
    }

    #[test]
    fn kept_values_stack_up() {
        // Forward keeps three values; backward frees them in reverse while short ones come and go.
        check(&[(512, 0, 9), (512, 1, 8), (512, 2, 7), (256, 3, 4), (256, 5, 5), (256, 8, 9)], 1792);
    }

    #[test]
    fn nothing_needs_nothing() {
        check(&[], 0);
    }
}
