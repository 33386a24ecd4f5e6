//! Products in which one side has few columns, as adapters have them: the token matrix on the other side
//! is read or written once, with dropout drawn on the way, and everything else is small.

use plimsoll_graph::DType;
use plimsoll_graph::ops::{Dest, Linear, LinearKind};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand};
use crate::low_rank_down::down;
use crate::mask::Keep;

pub(crate) const MODULE: &str = "low_rank";
/// Columns of the low-rank matrix at most.
const RANK_MAX: usize = 64;
/// `ARRIVALS_MAX` in the kernels: tiles whose sums blocks may share.
pub(crate) const SHARED_TILES_MAX: usize = 1024;
/// Rows of a tile in one step of the tensor cores.
const STEP_ROWS: usize = 16;
pub(crate) const WARP: u32 = 32;
/// Warps of a block that adds up what others left behind, four numbers for each lane: `SUM_WARPS` in the kernels.
const SUM_WARPS: u32 = 4;
pub(crate) const SUM_THREADS: u32 = SUM_WARPS * WARP;
pub(crate) const SUM_NUMBERS: usize = 4 * WARP as usize;
pub(crate) const KIB: u32 = 1 << 10;

/// Runs the product if it is one of these; `None` if it is not.
pub(crate) fn run(op: &Linear, call: &Call) -> Option<Result<(), RuntimeError>> {
    let (first, second, out) = (call.input(0), call.input(1), call.output(0));
    let known = matches!(first.dtype, DType::BF16 | DType::F16) && second.dtype == first.dtype && !op.bias;
    if !known {
        return None;
    }
    match op.kind {
        LinearKind::Forward => forward(op, call, &first, &second, &out),
        LinearKind::InputGrad => input_grad(op, call, &first, &second, &out),
        LinearKind::WeightGrad => weight_grad(op, call, &first, &second, &out),
    }
}

/// The kernels read the wide matrix in packs of eight and the low-rank one in fours.
pub(crate) fn fits(rank: usize, wide: usize) -> bool {
    rank <= RANK_MAX && rank.is_multiple_of(4) && wide.is_multiple_of(8)
}

/// The smallest of the low-rank widths kernels are made for that a rank fits in.
pub(crate) fn room_for(rank: usize, rooms: &[usize]) -> usize {
    rooms.iter().copied().find(|&room| rank <= room).unwrap_or(RANK_MAX)
}

/// `y = α·drop(x)·Wᵀ`, where the weight has few rows.
fn forward(op: &Linear, call: &Call, x: &Operand, weight: &Operand, y: &Operand) -> Option<Result<(), RuntimeError>> {
    let low_rank = fits(weight.rows, weight.cols) && op.dest == Dest::Fresh && op.cols.is_none();
    (low_rank && y.dtype == x.dtype).then(|| down(op, call, x, weight, y))
}

/// `dx = onto + drop(α·dy·W)`.
fn input_grad(
    op: &Linear,
    call: &Call,
    dy: &Operand,
    weight: &Operand,
    dx: &Operand,
) -> Option<Result<(), RuntimeError>> {
    let low_rank = fits(weight.rows, weight.cols) && op.cols.is_none();
    (low_rank && dx.dtype == dy.dtype).then(|| up(op, call, dy, weight, dx))
}

/// `dW += α·dyᵀ·drop(x)`.
fn weight_grad(op: &Linear, call: &Call, dy: &Operand, x: &Operand, dw: &Operand) -> Option<Result<(), RuntimeError>> {
    let low_rank = fits(dw.rows, dw.cols) && op.cols.is_none();
    (low_rank && (dw.dtype == DType::F32 || dw.dtype == x.dtype))
        .then(|| Gradient::new(dw.rows, shared_bytes_max(call.compute_capability())).run(op, call, dy, x, dw))
}

/// How a wide matrix is written: blocks of 4 warps with 64 columns each, as in `kernels/low_rank_up.cuh`.
pub(crate) struct Writing {
    room: usize,
    column_blocks: usize,
    shared_bytes: u32,
    pub(crate) block_rows: usize,
}

impl Writing {
    const WARPS: usize = 4;
    const STAGES: usize = 4;
    pub(crate) const BLOCK_COLS: usize = Self::WARPS * 64;
    /// Rows of a block: many, for each reads its share of the weight; fewer where blocks would be.
    const ROWS_MAX: usize = 128;
    const ROWS_MIN: usize = 32;
    const BLOCKS_PER_MULTIPROCESSOR: usize = 4;

    /// `onto`: whether the wide matrix is read as well.
    pub(crate) fn new(call: &Call, rows: usize, column_blocks: usize, room: usize, onto: bool) -> Self {
        let wanted = Self::BLOCKS_PER_MULTIPROCESSOR * call.sm_count() as usize;
        let block_rows = Self::block_rows(rows, column_blocks, wanted);
        Self { room, column_blocks, shared_bytes: Self::shared_bytes(room, onto), block_rows }
    }

    fn shared_bytes(room: usize, onto: bool) -> u32 {
        let stage_bytes = if onto { 2048 } else { 0 } + room / 16 * 512 + 64;
        (Self::WARPS * Self::STAGES * stage_bytes) as u32
    }

    fn block_rows(rows: usize, column_blocks: usize, wanted: usize) -> usize {
        let mut block_rows = Self::ROWS_MAX;
        while block_rows > Self::ROWS_MIN && column_blocks * rows.div_ceil(block_rows) < wanted {
            block_rows /= 2;
        }
        block_rows
    }

    pub(crate) fn launch(&self, call: &Call, name: &str, wide: &Operand, args: Args) -> Result<(), RuntimeError> {
        let kernel = format!("{name}_{}_{}", wide.dtype.name(), self.room);
        let grid = (self.column_blocks as u32, wide.rows.div_ceil(self.block_rows) as u32, 1);
        call.launch(MODULE, &kernel, grid, Self::WARPS as u32 * WARP, self.shared_bytes, args)
    }
}

/// `wide = onto + drop(α·low_rank·W)`, the weight `[rank, cols]`.
fn up(op: &Linear, call: &Call, low_rank: &Operand, weight: &Operand, wide: &Operand) -> Result<(), RuntimeError> {
    let rank = low_rank.cols;
    let from = match op.dest_input().map(|at| call.input(at)) {
        Some(dest) if op.dest == Dest::Accumulate => dest.ptr,
        _ => 0,
    };
    let column_blocks = wide.cols.div_ceil(Writing::BLOCK_COLS);
    let writing = Writing::new(call, wide.rows, column_blocks, room_for(rank, &[16, 32, 48, 64]), from != 0);
    let args = Args::new()
        .ptr(low_rank.ptr)
        .ptr(weight.ptr)
        .ptr(from)
        .ptr(wide.ptr)
        .u64(wide.cols as u64)
        .u32(wide.rows as u32)
        .u32(wide.cols as u32)
        .u32(rank as u32)
        .u32(writing.block_rows as u32);
    writing.launch(call, "up", wide, with_dropout(args, op, call))
}

/// `grad += α·low_rankᵀ·drop(wide)`, `[rank, cols]`, as in `kernels/low_rank_gradient.cuh`.
struct Gradient {
    room: usize,
    /// Groups of warps, which take the block's rows in turn.
    groups: usize,
    group_warps: usize,
    shared_bytes: u32,
}

impl Gradient {
    /// Columns of a block.
    const COLS: usize = 128;
    const WARPS_MAX: usize = 16;

    fn new(rank: usize, shared_bytes_max: u32) -> Self {
        let room = room_for(rank, &[16, 32, 48, 64]);
        let (stages, warp_cols) = if room <= 32 { (4, 64) } else { (6, 32) };
        let group_warps = Self::COLS / warp_cols;
        let stage_bytes = 32 * Self::COLS + 16 * 16 * ((room / 8) | 1) + 64 * group_warps;
        let bytes = |groups: usize| (groups * stages * stage_bytes) as u32;
        let groups_max = Self::WARPS_MAX / group_warps;
        let groups = if bytes(groups_max) + KIB <= shared_bytes_max { groups_max } else { groups_max / 2 };
        Self { room, groups, group_warps, shared_bytes: bytes(groups) }
    }

    /// Bytes of the sums that blocks leave to the last of those that share columns.
    fn partial_bytes(&self, column_blocks: usize, splits: usize) -> usize {
        if splits == 1 { 0 } else { column_blocks * splits * self.room * Self::COLS * 4 }
    }

    /// Shares of the rows, each of a step for every group at least, and whose sums the workspace holds.
    fn splits(&self, sm_count: usize, workspace_bytes: usize, column_blocks: usize, rows: usize) -> usize {
        if column_blocks > SHARED_TILES_MAX {
            return 1;
        }
        let fit = workspace_bytes / self.partial_bytes(column_blocks, 2).div_ceil(2).max(1);
        full_rounds(sm_count, column_blocks, rows.div_ceil(self.groups * STEP_ROWS).min(fit))
    }

    fn run(
        &self,
        op: &Linear,
        call: &Call,
        low_rank: &Operand,
        wide: &Operand,
        grad: &Operand,
    ) -> Result<(), RuntimeError> {
        call.carry_over(&call.input(2), grad)?;
        let (rows, rank, cols) = (low_rank.rows, low_rank.cols, wide.cols);
        if rows == 0 {
            return Ok(());
        }
        let column_blocks = cols.div_ceil(Self::COLS);
        let (partials, bytes) = call.workspace();
        let splits = self.splits(call.sm_count() as usize, bytes, column_blocks, rows);
        let block_rows = rows.div_ceil(splits).next_multiple_of(STEP_ROWS);
        let splits = rows.div_ceil(block_rows);
        let (alpha, mask) = dropout_of(op, call);
        let args = Args::new()
            .ptr(low_rank.ptr)
            .ptr(wide.ptr)
            .u64(cols as u64)
            .ptr(partials)
            .ptr(grad.ptr)
            .u32(u32::from(grad.dtype == DType::F32))
            .u32(rows as u32)
            .u32(cols as u32)
            .u32(rank as u32)
            .u32(block_rows as u32)
            .f32(alpha);
        let kernel = format!("gradient_{}_{}", low_rank.dtype.name(), self.room);
        let grid = (column_blocks as u32, splits as u32, 1);
        let threads = (self.groups * self.group_warps) as u32 * WARP;
        call.launch(MODULE, &kernel, grid, threads, self.shared_bytes, mask.push(args))
    }
}

/// How many shares to cut the work of `blocks` into, at most `most`, so that a card that runs `at_once` blocks is busy in
/// every round: the first that leaves less than a fifth of the rounds idle, or else that which leaves the least. Depends
/// on shapes and the card alone, for sums are made in the order of the shares.
pub(crate) fn full_rounds(at_once: usize, blocks: usize, most: usize) -> usize {
    let busy = |&shares: &usize| {
        let all = blocks * shares;
        all as f64 / all.next_multiple_of(at_once) as f64
    };
    let shares = 1..=most.max(1);
    let enough = shares.clone().find(|shares| busy(shares) >= 0.8);
    enough.or_else(|| shares.max_by(|a, b| busy(a).total_cmp(&busy(b)))).unwrap_or(1)
}

/// What kernels take to draw a mask; nothing is dropped if it is empty.
#[derive(Clone, Copy, Default)]
struct MaskArgs {
    row_ids: u64,
    key: u64,
    site: u32,
    threshold: u32,
}

impl MaskArgs {
    fn push(&self, args: Args) -> Args {
        args.ptr(self.row_ids).ptr(self.key).u32(self.site).u32(self.threshold)
    }
}

/// Alpha, with the scale of what dropout keeps in it, and the mask.
fn dropout_of(op: &Linear, call: &Call) -> (f32, MaskArgs) {
    let (Some(dropout), Some(at)) = (op.dropout, op.dropout_inputs()) else {
        return (op.alpha, MaskArgs::default());
    };
    let keep = Keep::new(dropout.p);
    let (row_ids, key) = (call.input(at).ptr, call.input(at + 1).ptr);
    (op.alpha * keep.scale, MaskArgs { row_ids, key, site: dropout.site, threshold: keep.threshold })
}

/// The arguments that kernels of a `Linear` end with.
pub(crate) fn with_dropout(args: Args, op: &Linear, call: &Call) -> Args {
    let (alpha, mask) = dropout_of(op, call);
    mask.push(args.f32(alpha))
}

/// Shared memory that a block may have.
pub(crate) fn shared_bytes_max(capability: (u32, u32)) -> u32 {
    KIB * match capability {
        (8, 0 | 7) => 163,
        (9, 0) | (10 | 11, _) => 227,
        _ => 99,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_adapters_fit() {
        let fitting = [(4, 64), (8, 4096), (16, 14336), (24, 8960), (64, 64)];
        let others = [(1, 4096), (6, 4096), (65, 4096), (128, 4096), (16, 4100)];
        assert!(fitting.into_iter().all(|(rank, wide)| fits(rank, wide)));
        assert!(!others.into_iter().any(|(rank, wide)| fits(rank, wide)));
    }

    #[test]
    fn a_rank_gets_the_next_room() {
        let rooms = [8, 16, 24, 32, 48, 64];
        assert_eq!([4, 8, 12, 24, 28, 48, 52].map(|rank| room_for(rank, &rooms)), [8, 8, 16, 24, 32, 48, 64]);
    }

    #[test]
    fn blocks_fit_every_card() {
        for capability in [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)] {
            let limit = shared_bytes_max(capability);
            for room in [8, 16, 24, 32, 48, 64] {
                assert!(Writing::shared_bytes(room, true) <= limit, "{capability:?}: rank {room}");
                // The kernels' own variables want some of it as well.
                let gradient = Gradient::new(room, limit);
                assert!(gradient.shared_bytes + KIB <= limit, "{capability:?}: rank {room}");
                assert!(gradient.groups * gradient.group_warps >= 8, "{capability:?}: rank {room}");
            }
        }
    }

    #[test]
    fn gradients_keep_a_card_busy() {
        const WORKSPACE: usize = 32 << 20;
        let splits = |room: usize, cols: usize, rows: usize, workspace: usize| {
            let gradient = Gradient::new(room, shared_bytes_max((9, 0)));
            let (blocks, splits) = (cols.div_ceil(128), gradient.splits(132, workspace, cols.div_ceil(128), rows));
            assert!(gradient.partial_bytes(blocks, splits) <= workspace, "{room} {cols} {rows} in {workspace}");
            splits
        };
        assert_eq!([4096, 14336, 5120, 18944, 1024].map(|cols| splits(16, cols, 4096, WORKSPACE)), [4, 1, 3, 3, 14]);
        assert_eq!([1, 64, 65, 200].map(|rows| splits(48, 4096, rows, WORKSPACE)), [1, 1, 2, 4]);
        assert_eq!([0, 48 << 10, 3 << 20].map(|bytes| splits(48, 4096, 4096, bytes)), [1, 1, 4]);
        assert_eq!(splits(16, 8, 100_000, WORKSPACE), 106);
        assert_eq!(splits(16, 1 << 20, 4096, WORKSPACE), 1);
    }

    #[test]
    fn writing_keeps_a_card_busy() {
        let columns = |blocks| [1, 100, 4096, 5000].map(|rows| Writing::block_rows(rows, blocks, 528));
        assert_eq!(
            [columns(16), columns(24), columns(112)],
            [[32, 32, 64, 128], [32, 32, 128, 128], [32, 32, 128, 128]]
        );
    }

    #[test]
    fn rounds_are_full_or_as_full_as_can_be() {
        assert_eq!(full_rounds(132, 32, 100), 4);
        assert_eq!(full_rounds(132, 32, 2), 2);
        assert_eq!(full_rounds(132, 133, 1), 1);
        assert_eq!(full_rounds(132, 1, 0), 1);
    }
}
