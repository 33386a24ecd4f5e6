//! Adapters of small rank: the wide matrix is written or read once for all of them.

use std::iter;

use plimsoll_graph::DType;
use plimsoll_graph::ops::Adapters;
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand};
use crate::low_rank::{MODULE, SUM_NUMBERS, SUM_THREADS, WARP, Writing, fits, room_for, shared_bytes_max};

/// `SPANS_MAX` in `kernels/low_rank_spans.cuh`.
const SPANS_MAX: usize = 8;
/// `NO_ADAPTER` there.
const NO_ADAPTER: u64 = 0xffff_ffff;
/// Low-rank columns that kernels have room for.
const ROOMS: [usize; 3] = [16, 32, 64];

/// Whether the kernels can do this: small ranks, sixteen bits, and columns that can be read in packs.
fn suits(adapters: &Adapters, operands: &[Operand], rank: usize) -> bool {
    let dtype = operands[0].dtype;
    let packs = |n: usize| n.is_multiple_of(8);
    matches!(dtype, DType::BF16 | DType::F16)
        && operands.iter().all(|operand| operand.dtype == dtype)
        && fits(rank, adapters.total)
        && adapters.blocks.iter().all(|block| packs(block.start) && packs(block.len))
        && 2 * adapters.blocks.len() < SPANS_MAX
}

/// Columns of one adapter, or of none, as the kernels take them: start, length, first row of its matrix, first of its
/// low-rank columns, and the blocks up to its end.
type Span = [u64; 5];

/// The adapters' spans, and with `gaps` those between them, for blocks of so many columns.
fn spans(adapters: &Adapters, rank: usize, block_cols: usize, gaps: bool) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let (mut end, mut blocks) = (0, 0);
    let mut push = |start: usize, len: usize, row: usize, low_rank: u64| {
        blocks += len.div_ceil(block_cols);
        spans.push([start, len, row, 0, blocks].map(|n| n as u64));
        spans.last_mut().expect("just pushed")[3] = low_rank;
    };
    for (block, row, low_rank) in adapters.places(rank) {
        if gaps && block.start > end {
            push(end, block.start - end, 0, NO_ADAPTER);
        }
        push(block.start, block.len, row, low_rank as u64);
        end = block.start + block.len;
    }
    if gaps && adapters.total > end {
        push(end, adapters.total - end, 0, NO_ADAPTER);
    }
    spans
}

fn blocks_of(spans: &[Span]) -> usize {
    spans.last().map_or(0, |span| span[4] as usize)
}

/// `y = α·h_j·b_jᵀ` in the columns of each block, zero elsewhere; `None` if another way must be taken.
pub(crate) fn spread(adapters: &Adapters, call: &Call) -> Option<Result<(), RuntimeError>> {
    let (h, b, y) = (call.input(0), call.input(1), call.output(0));
    let rank = b.cols;
    if !suits(adapters, &[h, b, y], rank) {
        return None;
    }
    let spans = spans(adapters, rank, Writing::BLOCK_COLS, true);
    let writing = Writing::new(call, y.rows, blocks_of(&spans), room_for(rank, &ROOMS), false);
    let args = Args::with_table(&spans, SPANS_MAX)
        .ptr(h.ptr)
        .u32(h.cols as u32)
        .ptr(b.ptr)
        .ptr(y.ptr)
        .u64(y.cols as u64)
        .u32(y.rows as u32)
        .u32(rank as u32)
        .u32(writing.block_rows as u32)
        .f32(adapters.alpha);
    Some(writing.launch(call, "spread", &y, args))
}

/// `dh_j = α·dy_j·b_j` and `db_j += α·dy_jᵀ·h_j`, where the output already holds the old `db`; `None` if another way must
/// be taken.
pub(crate) fn gather(adapters: &Adapters, call: &Call) -> Option<Result<(), RuntimeError>> {
    let (dy, h, b) = (call.input(0), call.input(1), call.input(2));
    let (dh, db) = (call.output(0), call.output(1));
    let rank = b.cols;
    if !suits(adapters, &[dy, h, b, dh], rank) || (db.dtype != DType::F32 && db.dtype != dy.dtype) {
        return None;
    }
    if dy.rows == 0 {
        return Some(Ok(()));
    }
    let card = Card { shared_bytes: shared_bytes_max(call.compute_capability()), sm_count: call.sm_count() as usize };
    let bytes = call.workspace().1;
    let both = Both::new(adapters, &card, rank, dy.rows, bytes);
    let Some(run) = both.run(&card, dy.rows, bytes) else {
        return Some(Err(call.error(format!("{bytes} bytes of workspace hold no sums"))));
    };
    Some((0..dy.rows).step_by(run.rows).try_for_each(|start| {
        let rows = run.rows.min(dy.rows - start);
        both.launch(adapters, call, start, rows, &both.shares(&card, rows, bytes).expect("fewer rows fit as well"))
    }))
}

/// What the cut of the work depends on beside shapes.
struct Card {
    shared_bytes: u32,
    sm_count: usize,
}

/// One reading of a wide gradient, as in `kernels/low_rank_both.cuh`.
struct Both {
    room: usize,
    warps: usize,
    /// Warps that have their columns side by side; the groups take the rows in turn.
    group_warps: usize,
    shared_bytes: u32,
    spans: Vec<Span>,
    /// Rows of the second matrices.
    weight_rows: usize,
}

/// Shares of the rows, each with so many but the last, and what that is worth: bytes that could have been moved in the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Shares {
    cost: usize,
    splits: usize,
    block_rows: usize,
}

/// Rows of the wide matrix that are taken at a time, and what all such runs cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    cost: usize,
    rows: usize,
}

impl Both {
    const STEP_ROWS: usize = 16;
    const GROUP_WARPS_MIN: usize = 4;
    /// What starting another round of blocks costs, and what another run over the columns costs beside its blocks.
    const ROUND_BYTES: usize = 8 << 20;
    const RUN_ROWS_MIN: usize = 1024;

    /// As many warps as fit, in the groups that cost least: blocks of many columns leave more sums of `db`, those of
    /// few more of `dh`.
    fn new(adapters: &Adapters, card: &Card, rank: usize, rows: usize, workspace_bytes: usize) -> Self {
        let most = if room_for(rank, &ROOMS) == 16 { 16 } else { 8 };
        let fits = |&warps: &usize| {
            Self::with_groups(adapters, rank, warps, Self::GROUP_WARPS_MIN).shared_bytes <= card.shared_bytes
        };
        let warps = [most, most / 2].into_iter().find(fits).unwrap_or(Self::GROUP_WARPS_MIN);
        let groups = (0..).map(|halvings| warps >> halvings).take_while(|&warps| warps >= Self::GROUP_WARPS_MIN);
        let cuts = groups.map(|group_warps| Self::with_groups(adapters, rank, warps, group_warps));
        // None that would have to take few rows at a time, if another need not.
        let cost = |both: &Self| match both.run(card, rows, workspace_bytes) {
            Some(run) => (run.rows < rows.min(Self::RUN_ROWS_MIN), run.cost),
            None => (true, usize::MAX),
        };
        cuts.min_by_key(cost).expect("one group of all warps")
    }

    fn with_groups(adapters: &Adapters, rank: usize, warps: usize, group_warps: usize) -> Self {
        let room = room_for(rank, &ROOMS);
        let (stages, warp_cols) = (if room == 16 { 4 } else { 6 }, if room == 64 { 32 } else { 64 });
        let stage_bytes = warps * 32 * warp_cols + warps / group_warps * 16 * 16 * ((room / 8) | 1);
        let shared_bytes = (stages * stage_bytes + 2 * warps * 16 * (room + 8) * 4) as u32;
        let spans = spans(adapters, rank, group_warps * warp_cols, false);
        Self { room, warps, group_warps, shared_bytes, spans, weight_rows: adapters.rows() }
    }

    /// Bytes of sums for so many rows of the wide matrix.
    fn low_rank_bytes(&self, rows: usize) -> usize {
        blocks_of(&self.spans) * rows * self.room * 4
    }

    /// How blocks share the rows at least cost: all multiprocessors have something to do, and what blocks leave is little
    /// and fits into the workspace. `None` if nothing fits. Depends on shapes and the card alone.
    fn shares(&self, card: &Card, rows: usize, workspace_bytes: usize) -> Option<Shares> {
        let blocks = blocks_of(&self.spans);
        let wide_bytes = rows * self.weight_rows * 2;
        let shares = |splits: usize| {
            let block_rows = rows.div_ceil(splits).next_multiple_of(Self::STEP_ROWS);
            let splits = rows.div_ceil(block_rows);
            let sums_bytes = self.low_rank_bytes(rows) + splits * self.weight_rows * self.room * 4;
            let rounds = (blocks * splits).div_ceil(card.sm_count);
            // As if multiprocessors with nothing to do read like the others; the memory is busy without some of them.
            let read = wide_bytes / (blocks * rows) * (rounds * card.sm_count * block_rows);
            let cost = read.max(wide_bytes / 19 * 20) + 2 * sums_bytes + rounds * Self::ROUND_BYTES;
            (sums_bytes <= workspace_bytes).then_some(Shares { cost, splits, block_rows })
        };
        (1..=rows.div_ceil(4 * Self::STEP_ROWS)).filter_map(shares).min()
    }

    /// How many rows of the wide matrix to take at a time: all, unless the workspace holds their sums only where few blocks
    /// share them. `None` if it holds not even those of a few.
    fn run(&self, card: &Card, rows: usize, workspace_bytes: usize) -> Option<Run> {
        let halves = iter::successors(Some(rows), |&rows| {
            (rows > Self::STEP_ROWS).then(|| rows.div_ceil(2).next_multiple_of(Self::STEP_ROWS).min(rows - 1))
        });
        let mut fitting = halves.filter_map(|at_once| {
            let shares = self.shares(card, at_once, workspace_bytes)?;
            Some(Run { cost: rows.div_ceil(at_once) * (shares.cost + Self::ROUND_BYTES), rows: at_once })
        });
        // Each run rounds a gradient in sixteen bits: those that need not be are long.
        let most = fitting.next()?;
        let fewer = fitting.take_while(|run| run.rows >= Self::RUN_ROWS_MIN);
        iter::once(most).chain(fewer).min_by_key(|run| run.cost)
    }

    fn launch(
        &self,
        adapters: &Adapters,
        call: &Call,
        first: usize,
        rows: usize,
        shares: &Shares,
    ) -> Result<(), RuntimeError> {
        let (dy, h, b) = (call.input(0), call.input(1), call.input(2));
        let (dh, db) = (call.output(0), call.output(1));
        let (rank, suffix) = (b.cols, format!("{}_{}", dy.dtype.name(), self.room));
        let low_rank_sums = call.workspace().0;
        let weight_sums = low_rank_sums + self.low_rank_bytes(rows) as u64;
        let args = Args::with_table(&self.spans, SPANS_MAX)
            .ptr(dy.at(first, 0))
            .u64(dy.cols as u64)
            .ptr(h.at(first, 0))
            .u32(h.cols as u32)
            .ptr(b.ptr)
            .ptr(low_rank_sums)
            .ptr(weight_sums)
            .u32(rows as u32)
            .u32(b.rows as u32)
            .u32(rank as u32)
            .u32(shares.block_rows as u32)
            .u32(self.group_warps as u32);
        let grid = (blocks_of(&self.spans) as u32, shares.splits as u32, 1);
        let threads = self.warps as u32 * WARP;
        call.launch(MODULE, &format!("both_{suffix}"), grid, threads, self.shared_bytes, args)?;

        let args = Args::with_table(&self.spans, SPANS_MAX)
            .ptr(low_rank_sums)
            .ptr(weight_sums)
            .ptr(dh.at(first, 0))
            .u32(dh.cols as u32)
            .ptr(db.ptr)
            .u32(u32::from(db.dtype == DType::F32))
            .u32(rows as u32)
            .u32(b.rows as u32)
            .u32(shares.splits as u32)
            .u32(rank as u32)
            .f32(adapters.alpha);
        let blocks = (rows * dh.cols).div_ceil(SUM_NUMBERS) + (b.rows * rank).div_ceil(SUM_NUMBERS);
        call.launch(MODULE, &format!("both_sums_{suffix}"), (blocks as u32, 1, 1), SUM_THREADS, 0, args)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::ops::Columns;

    use super::*;

    fn three() -> Adapters {
        let blocks = [(0, 4096), (4096, 1024), (6144, 512)];
        Adapters { alpha: 1.0, blocks: blocks.map(|(start, len)| Columns { start, len }).to_vec(), total: 8192 }
    }

    #[test]
    fn spans_cover_every_column() {
        let all = spans(&three(), 16, 256, true);
        let covered: Vec<_> = all.iter().map(|span| (span[0], span[0] + span[1])).collect();
        assert_eq!(covered, [(0, 4096), (4096, 5120), (5120, 6144), (6144, 6656), (6656, 8192)]);
        assert_eq!(all.iter().map(|span| span[4]).collect::<Vec<_>>(), [16, 20, 24, 26, 32]);
        assert_eq!(all.iter().map(|span| span[3]).collect::<Vec<_>>(), [0, 16, NO_ADAPTER, 32, NO_ADAPTER]);
        assert_eq!(spans(&three(), 16, 1024, false).iter().map(|span| span[4]).collect::<Vec<_>>(), [4, 5, 6]);
    }

    const WORKSPACE: usize = 32 << 20;
    const HOPPER: Card = Card { shared_bytes: 227 << 10, sm_count: 132 };

    #[test]
    fn blocks_fit_every_card() {
        for (capability, sm_count) in [((8, 0), 108), ((8, 6), 84), ((8, 9), 128), ((9, 0), 132), ((12, 0), 170)] {
            let card = Card { shared_bytes: shared_bytes_max(capability), sm_count };
            for rank in [4, 16, 24, 32, 64] {
                for rows in [1, 100, 4096] {
                    let both = Both::new(&three(), &card, rank, rows, WORKSPACE);
                    assert!(
                        both.shared_bytes <= card.shared_bytes,
                        "{capability:?} rank {rank}: {}",
                        both.shared_bytes
                    );
                    assert!(both.group_warps >= 4 && both.warps.is_multiple_of(both.group_warps));
                }
            }
        }
    }

    fn layers(lens: &[usize]) -> Adapters {
        let starts = lens.iter().scan(0, |end, &len| {
            *end += len;
            Some(*end - len)
        });
        let blocks = starts.zip(lens).map(|(start, &len)| Columns { start, len }).collect();
        Adapters { alpha: 1.0, blocks, total: lens.iter().sum() }
    }

    #[test]
    fn real_layers_keep_a_card_busy() {
        for (lens, group_warps, splits) in
            [(&[4096, 1024, 1024][..], 8, 11), (&[4096], 8, 16), (&[14336, 14336], 16, 4), (&[1024], 4, 32)]
        {
            let both = Both::new(&layers(lens), &HOPPER, 16, 4096, WORKSPACE);
            let shares = both.shares(&HOPPER, 4096, WORKSPACE).expect("it fits");
            assert_eq!((both.warps, both.group_warps, shares.splits), (16, group_warps, splits), "{lens:?}");
            assert_eq!(both.run(&HOPPER, 4096, WORKSPACE).map(|run| run.rows), Some(4096));
        }
    }

    /// All rows at once would fit, but only where half of the card has nothing to do.
    #[test]
    fn a_busy_card_counts_more_than_one_run() {
        for (rank, rows, at_once) in [(16, 16384, 8192), (32, 4096, 2048)] {
            let both = Both::new(&layers(&[14336, 14336]), &HOPPER, rank, rows, WORKSPACE);
            assert_eq!(both.run(&HOPPER, rows, WORKSPACE).map(|run| run.rows), Some(at_once));
            let shares = both.shares(&HOPPER, at_once, WORKSPACE).expect("it fits");
            assert!(blocks_of(&both.spans) * shares.splits >= 112, "{shares:?}");
        }
    }

    /// What the kernel makes of a cut: each row of each column once.
    #[test]
    fn blocks_groups_and_steps_cover_everything_once() {
        for (rank, rows) in [(16, 1), (16, 4096), (12, 1499), (32, 1000), (64, 77)] {
            for workspace_bytes in [1 << 20, WORKSPACE] {
                let adapters = layers(&[1000, 264, 8]);
                let both = Both::new(&adapters, &HOPPER, rank, rows, workspace_bytes);
                let at_once = both.run(&HOPPER, rows, workspace_bytes).expect("a few rows fit").rows;
                let shares = both.shares(&HOPPER, at_once, workspace_bytes).expect("these do");
                let (groups, mut seen) = (both.warps / both.group_warps, vec![0; at_once]);
                for (split, group) in (0..shares.splits).flat_map(|split| (0..groups).map(move |group| (split, group)))
                {
                    let end = ((split + 1) * shares.block_rows).min(at_once);
                    for row0 in (split * shares.block_rows + 16 * group..end).step_by(16 * groups) {
                        seen[row0..(row0 + 16).min(end)].iter_mut().for_each(|times| *times += 1);
                    }
                }
                assert!(seen.iter().all(|&times| times == 1), "rank {rank}, {rows} rows");
                let block_cols = both.group_warps * if both.room == 64 { 32 } else { 64 };
                let blocks = adapters.blocks.iter().map(|block| block.len.div_ceil(block_cols));
                assert_eq!(blocks.sum::<usize>(), blocks_of(&both.spans));
            }
        }
    }

    /// A gradient in sixteen bits is rounded once where all rows can be taken at once.
    #[test]
    fn few_rows_are_one_run() {
        for (rank, lens, rows) in [(16, &[2056, 1032][..], 999), (16, &[2048, 512, 512], 1500), (28, &[520], 1499)] {
            let both = Both::new(&layers(lens), &HOPPER, rank, rows, 1 << 20);
            assert_eq!(both.run(&HOPPER, rows, 1 << 20).map(|run| run.rows), Some(rows), "{lens:?}");
        }
        let both = Both::new(&layers(&[1024, 256, 256]), &HOPPER, 16, 5000, 1 << 20);
        assert!(both.run(&HOPPER, 5000, 1 << 20).is_some_and(|run| run.rows < 5000));
    }

    /// No rows fit where not even the sums of the second matrices do.
    #[test]
    fn little_workspace_takes_some_rows_at_a_time() {
        let rows = |bytes| {
            let both = Both::new(&layers(&[2048]), &HOPPER, 64, 1000, bytes);
            both.run(&HOPPER, 1000, bytes).map(|run| run.rows)
        };
        assert_eq!(rows(1 << 19), None);
        assert!(rows(1 << 20).is_some_and(|rows| (64..1000).contains(&rows)), "{:?}", rows(1 << 20));
        assert_eq!(rows(WORKSPACE), Some(1000));
    }
}
