//! Adapters of small rank: the wide matrix is written or read once for all of them.

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
    let writing = Writing::new(call, y.rows, blocks_of(&spans), room_for(rank, &ROOMS));
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
    let both = Both::new(adapters, shared_bytes_max(call.compute_capability()), rank);
    let Some(run_rows) = both.rows_at_once(call, dy.rows, b.rows) else {
        let bytes = call.workspace().1;
        return Some(Err(call.error(format!("{bytes} bytes of workspace hold no sums"))));
    };
    let runs = (0..dy.rows).step_by(run_rows.max(1));
    Some(runs.into_iter().try_for_each(|start| both.launch(adapters, call, start, run_rows.min(dy.rows - start))))
}

/// One reading of a wide gradient, as in `kernels/low_rank_both.cuh`.
struct Both {
    room: usize,
    warps: u32,
    shared_bytes: u32,
    spans: Vec<Span>,
}

impl Both {
    const STAGES: usize = 4;
    const STEP_ROWS: usize = 16;

    fn new(adapters: &Adapters, shared_bytes_max: u32, rank: usize) -> Self {
        let room = room_for(rank, &ROOMS);
        let warp_cols = 2048 / room;
        let bytes = |warps: usize| {
            let stage = warps * 32 * warp_cols + 16 * 16 * ((room / 8) | 1);
            (Self::STAGES * stage + 2 * warps * 16 * room * 4) as u32
        };
        let warps = if bytes(8) <= shared_bytes_max { 8 } else { 4 };
        let spans = spans(adapters, rank, warps * warp_cols, false);
        Self { room, warps: warps as u32, shared_bytes: bytes(warps), spans }
    }

    /// Bytes of sums for so many rows of the wide matrix.
    fn low_rank_bytes(&self, rows: usize) -> usize {
        blocks_of(&self.spans) * rows * self.room * 4
    }

    /// Shares of the rows that blocks take: one for each multiprocessor, if the columns leave some over.
    fn splits(&self, call: &Call, rows: usize) -> usize {
        let wanted = call.sm_count() as usize / blocks_of(&self.spans);
        wanted.min(rows.div_ceil(4 * Self::STEP_ROWS)).max(1)
    }

    /// Rows whose sums the workspace holds; `None` if not even a few.
    fn rows_at_once(&self, call: &Call, rows: usize, weight_rows: usize) -> Option<usize> {
        let weight_bytes = |rows| self.splits(call, rows) * weight_rows * self.room * 4;
        let mut at_once = rows;
        while self.low_rank_bytes(at_once) + weight_bytes(at_once) > call.workspace().1 {
            if at_once <= Self::STEP_ROWS {
                return None;
            }
            at_once = at_once.div_ceil(2).next_multiple_of(Self::STEP_ROWS).min(at_once - 1);
        }
        Some(at_once)
    }

    fn launch(&self, adapters: &Adapters, call: &Call, first: usize, rows: usize) -> Result<(), RuntimeError> {
        let (dy, h, b) = (call.input(0), call.input(1), call.input(2));
        let (dh, db) = (call.output(0), call.output(1));
        let (rank, suffix) = (b.cols, format!("{}_{}", dy.dtype.name(), self.room));
        let splits = self.splits(call, rows);
        let block_rows = rows.div_ceil(splits).next_multiple_of(Self::STEP_ROWS);
        let splits = rows.div_ceil(block_rows);
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
            .u32(block_rows as u32);
        let grid = (blocks_of(&self.spans) as u32, splits as u32, 1);
        call.launch(MODULE, &format!("both_{suffix}"), grid, self.warps * WARP, self.shared_bytes, args)?;

        let args = Args::with_table(&self.spans, SPANS_MAX)
            .ptr(low_rank_sums)
            .ptr(weight_sums)
            .ptr(dh.at(first, 0))
            .u32(dh.cols as u32)
            .ptr(db.ptr)
            .u32(u32::from(db.dtype == DType::F32))
            .u32(rows as u32)
            .u32(b.rows as u32)
            .u32(splits as u32)
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

    #[test]
    fn blocks_fit_every_card() {
        for capability in [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)] {
            for rank in [4, 16, 24, 32, 64] {
                let limit = shared_bytes_max(capability);
                let both = Both::new(&three(), limit, rank);
                assert!(both.shared_bytes <= limit, "{capability:?} rank {rank}: {}", both.shared_bytes);
            }
        }
        assert_eq!(Both::new(&three(), shared_bytes_max((9, 0)), 16).warps, 8);
    }
}
