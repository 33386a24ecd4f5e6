//! Products in which one side has few columns, as adapters have them: the token matrix on the other side
//! is read or written once, with dropout drawn on the way, and everything else is small.

use plimsoll_graph::DType;
use plimsoll_graph::ops::{Dest, Linear, LinearKind};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand};
use crate::mask::Keep;

pub(crate) const MODULE: &str = "low_rank";
/// Columns of the low-rank matrix at most.
const RANK_MAX: usize = 64;
/// `ARRIVALS_MAX` in the kernels: tiles whose sums blocks may share.
const SHARED_TILES_MAX: usize = 1024;
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
    (low_rank && (dw.dtype == DType::F32 || dw.dtype == x.dtype)).then(|| {
        let gradient = Gradient::new(dw.rows, dw.cols, shared_bytes_max(call.compute_capability()));
        gradient.run(op, call, dy, x, dw)
    })
}

/// Rows of a tile, and stages, as in `kernels/low_rank_down.cuh`.
fn down_shape(room: usize) -> (usize, usize) {
    if room <= 16 { (128, 2) } else { (64, 3) }
}

fn down_warp_bytes(room: usize) -> u32 {
    let (tile_rows, stages) = down_shape(room);
    (stages * (tile_rows * 64 + room / 8 * 512)) as u32
}

/// `low_rank = α·drop(wide)·Wᵀ`, the weight `[rank, depth]`.
fn down(op: &Linear, call: &Call, wide: &Operand, weight: &Operand, low_rank: &Operand) -> Result<(), RuntimeError> {
    let (rows, rank, depth) = (low_rank.rows, low_rank.cols, weight.cols);
    let room = room_for(rank, &[8, 16, 24, 32, 48, 64]);
    let (tile_rows, _) = down_shape(room);
    let block = Block::within(shared_bytes_max(call.compute_capability()), down_warp_bytes(room));
    let tiles = rows.div_ceil(tile_rows);
    // Enough blocks for every multiprocessor, as long as each warp has a few steps.
    let splits_max = depth / 32 / (2 * block.warps as usize);
    let splits = block.splits(call, tiles, splits_max, tile_rows * room * 4);
    let args = Args::new()
        .ptr(wide.ptr)
        .u64(wide.cols as u64)
        .ptr(weight.ptr)
        .ptr(low_rank.ptr)
        .ptr(call.workspace().0)
        .u32(rows as u32)
        .u32(depth as u32)
        .u32(rank as u32);
    let kernel = format!("down_{}_{room}", low_rank.dtype.name());
    let grid = (tiles as u32, splits as u32, 1);
    call.launch(MODULE, &kernel, grid, block.threads(), block.shared_bytes, with_dropout(args, op, call))
}

/// How a wide matrix is written: blocks of 4 warps with 64 columns each, as in `kernels/low_rank_up.cuh`.
pub(crate) struct Writing {
    room: usize,
    column_blocks: usize,
    pub(crate) block_rows: usize,
}

impl Writing {
    const WARPS: usize = 4;
    pub(crate) const BLOCK_COLS: usize = Self::WARPS * 64;
    /// Rows of a block: many, for each reads its share of the weight; fewer where blocks would be.
    const ROWS_MAX: usize = 128;
    const ROWS_MIN: usize = 32;
    const BLOCKS_PER_MULTIPROCESSOR: usize = 4;

    pub(crate) fn new(call: &Call, rows: usize, column_blocks: usize, room: usize) -> Self {
        let wanted = Self::BLOCKS_PER_MULTIPROCESSOR * call.device.sm_count() as usize;
        let mut block_rows = Self::ROWS_MAX;
        while block_rows > Self::ROWS_MIN && column_blocks * rows.div_ceil(block_rows) < wanted {
            block_rows /= 2;
        }
        Self { room, column_blocks, block_rows }
    }

    pub(crate) fn launch(&self, call: &Call, name: &str, wide: &Operand, args: Args) -> Result<(), RuntimeError> {
        let stage_bytes = 2048 + self.room / 16 * 512 + 64;
        let shared_bytes = (Self::WARPS * 4 * stage_bytes) as u32;
        let kernel = format!("{name}_{}_{}", wide.dtype.name(), self.room);
        let grid = (self.column_blocks as u32, wide.rows.div_ceil(self.block_rows) as u32, 1);
        call.launch(MODULE, &kernel, grid, Self::WARPS as u32 * WARP, shared_bytes, args)
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
    let writing = Writing::new(call, wide.rows, column_blocks, room_for(rank, &[16, 32, 48, 64]));
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
    warps: usize,
    shared_bytes: u32,
    column_blocks: usize,
}

impl Gradient {
    const STAGES: usize = 4;

    fn new(rank: usize, cols: usize, shared_bytes_max: u32) -> Self {
        let room = room_for(rank, &[16, 32, 48, 64]);
        let warp_cols = if room == 16 { 128 } else { 64 };
        let bytes = |warps: usize| (Self::STAGES * (warps * 32 * warp_cols + 16 * 16 * ((room / 8) | 1) + 64)) as u32;
        let warps = if bytes(8) <= shared_bytes_max { 8 } else { 4 };
        Self { room, warps, shared_bytes: bytes(warps), column_blocks: cols.div_ceil(warps * warp_cols) }
    }

    /// Shares of the rows: as many as make the card busy, have a few steps each, and whose sums the workspace holds.
    fn splits(&self, call: &Call, rows: usize, cols: usize) -> usize {
        let resident = (shared_bytes_max(call.compute_capability()) + KIB) / (self.shared_bytes + KIB);
        let wanted = (resident.clamp(1, 2) * call.sm_count()) as usize / self.column_blocks;
        let fit = call.workspace().1 / (self.room * cols * 4);
        wanted.min(rows.div_ceil(4 * STEP_ROWS)).min(fit).max(1)
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
        let block_rows = rows.div_ceil(self.splits(call, rows, cols)).next_multiple_of(STEP_ROWS);
        let splits = rows.div_ceil(block_rows);
        let (sums, bytes) = call.workspace();
        if splits * self.room * cols * 4 > bytes {
            return Err(call.error(format!("{bytes} bytes of workspace hold no sums")));
        }
        let suffix = format!("{}_{}", low_rank.dtype.name(), self.room);
        let (alpha, mask) = dropout_of(op, call);
        let args = Args::new()
            .ptr(low_rank.ptr)
            .ptr(wide.ptr)
            .u64(cols as u64)
            .ptr(sums)
            .u32(rows as u32)
            .u32(cols as u32)
            .u32(rank as u32)
            .u32(block_rows as u32);
        let grid = (self.column_blocks as u32, splits as u32, 1);
        let threads = self.warps as u32 * WARP;
        call.launch(MODULE, &format!("gradient_{suffix}"), grid, threads, self.shared_bytes, mask.push(args))?;
        let args = Args::new()
            .ptr(sums)
            .ptr(grad.ptr)
            .u32(u32::from(grad.dtype == DType::F32))
            .u32(cols as u32)
            .u32(splits as u32)
            .u32(rank as u32)
            .f32(alpha);
        let grid = ((rank * cols).div_ceil(SUM_NUMBERS) as u32, 1, 1);
        call.launch(MODULE, &format!("gradient_sums_{suffix}"), grid, SUM_THREADS, 0, args)
    }
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
fn with_dropout(args: Args, op: &Linear, call: &Call) -> Args {
    let (alpha, mask) = dropout_of(op, call);
    mask.push(args.f32(alpha))
}

/// A block whose warps each have stages of their own in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    warps: u32,
    shared_bytes: u32,
    /// That one multiprocessor holds.
    resident: u32,
}

impl Block {
    const WARPS_MAX: u32 = 8;

    /// As many warps as fit.
    fn within(shared_bytes_max: u32, warp_bytes: u32) -> Self {
        // A KiB is left to the kernels' own variables, and one more goes to the system.
        let warps = ((shared_bytes_max - KIB) / warp_bytes).min(Self::WARPS_MAX);
        let shared_bytes = warps * warp_bytes;
        let resident = ((shared_bytes_max + KIB) / (shared_bytes + 2 * KIB)).clamp(1, 2);
        Self { warps, shared_bytes, resident }
    }

    fn threads(&self) -> u32 {
        self.warps * WARP
    }

    /// Blocks that share the sums of a tile: as many as the device has room for at a time, but not so
    /// many that they would have little to do. Depends on shapes and the card alone, never on addresses.
    fn splits(&self, call: &Call, tiles: usize, splits_max: usize, tile_bytes: usize) -> usize {
        if tiles == 0 || tiles > SHARED_TILES_MAX {
            return 1;
        }
        let fit = call.workspace().1 / (tiles * tile_bytes);
        let wanted = (self.resident * call.device.sm_count()) as usize / tiles;
        wanted.min(splits_max).min(fit).max(1)
    }
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
                let block = Block::within(limit, down_warp_bytes(room));
                assert!(block.warps >= 3 && block.shared_bytes < limit, "{capability:?}: {block:?}");
                assert!(block.resident * block.shared_bytes < limit + KIB, "{capability:?}: {block:?}");
                assert!(Gradient::new(room, 4096, limit).shared_bytes <= limit, "{capability:?}: rank {room}");
            }
        }
        let hopper = Block::within(shared_bytes_max((9, 0)), down_warp_bytes(16));
        assert_eq!(hopper, Block { warps: 8, shared_bytes: 147_456, resident: 1 });
    }
}
