//! Products in which one side has few columns, as adapters have them: the token matrix on the other side
//! is read or written once, with dropout drawn on the way, and everything else is small.

use plimsoll_graph::DType;
use plimsoll_graph::ops::{Cols, Dest, Linear, LinearKind};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand};
use crate::mask::Keep;

const MODULE: &str = "narrow";
/// Columns of the narrow matrix at most.
const RANK_MAX: usize = 64;
/// `ARRIVALS_MAX` in the kernels: tiles whose sums blocks may share.
const SHARED_TILES_MAX: usize = 1024;
/// Rows of a tile in one step of the tensor cores.
const STEP_ROWS: usize = 16;
const WARP: u32 = 32;
const KIB: u32 = 1 << 10;

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

/// The kernels read the wide matrix in packs of eight and the narrow one in fours.
fn fits(rank: usize, wide: usize) -> bool {
    rank <= RANK_MAX && rank.is_multiple_of(4) && wide.is_multiple_of(8)
}

/// The first of the columns an operator works on, if they can be read in packs.
fn first_col(cols: Option<Cols>) -> Option<usize> {
    let start = cols.map_or(0, |cols| cols.start);
    let whole = start.is_multiple_of(8) && cols.is_none_or(|cols| cols.total.is_multiple_of(8));
    whole.then_some(start)
}

/// `y = onto + α·drop(x)·Wᵀ`.
fn forward(op: &Linear, call: &Call, x: &Operand, weight: &Operand, y: &Operand) -> Option<Result<(), RuntimeError>> {
    if y.dtype != x.dtype {
        return None;
    }
    if fits(weight.rows, weight.cols) && op.dest == Dest::Fresh && op.cols.is_none() {
        let down = Down { wide: x.ptr, stride: x.cols, weight: weight.ptr, rank_first: true, narrow: y };
        return Some(down.launch(op, call, weight.cols));
    }
    let start = first_col(op.cols)?;
    if fits(weight.cols, weight.rows) && op.dropout.is_none() {
        let up = Up { narrow: x, weight: weight.ptr, rank_first: false, wide: y, start, cols: weight.rows };
        return Some(up.launch(op, call));
    }
    None
}

/// `dx = onto + drop(α·dy·W)`.
fn input_grad(
    op: &Linear,
    call: &Call,
    dy: &Operand,
    weight: &Operand,
    dx: &Operand,
) -> Option<Result<(), RuntimeError>> {
    if dx.dtype != dy.dtype {
        return None;
    }
    if fits(weight.rows, weight.cols) && op.cols.is_none() {
        let up = Up { narrow: dy, weight: weight.ptr, rank_first: true, wide: dx, start: 0, cols: weight.cols };
        return Some(up.launch(op, call));
    }
    let start = first_col(op.cols)?;
    if fits(weight.cols, weight.rows) && op.dest == Dest::Fresh && op.dropout.is_none() {
        let wide = dy.at(0, start);
        let down = Down { wide, stride: dy.cols, weight: weight.ptr, rank_first: false, narrow: dx };
        return Some(down.launch(op, call, weight.rows));
    }
    None
}

/// `dW += α·dyᵀ·drop(x)`.
fn weight_grad(op: &Linear, call: &Call, dy: &Operand, x: &Operand, dw: &Operand) -> Option<Result<(), RuntimeError>> {
    if dw.dtype != DType::F32 && dw.dtype != x.dtype {
        return None;
    }
    if fits(dw.rows, dw.cols) && op.cols.is_none() {
        let gradient = Gradient { narrow: dy, wide: x.ptr, stride: x.cols, cols: dw.cols, rank_first: true };
        return Some(gradient.launch(op, call, dw));
    }
    let start = first_col(op.cols)?;
    if fits(dw.cols, dw.rows) && op.dropout.is_none() {
        let wide = dy.at(0, start);
        let gradient = Gradient { narrow: x, wide, stride: dy.cols, cols: dw.rows, rank_first: false };
        return Some(gradient.launch(op, call, dw));
    }
    None
}

/// `narrow = α·drop(wide)·W`; the weight is `[rank, depth]` if `rank_first`, else `[depth, rank]`.
struct Down<'a> {
    wide: u64,
    stride: usize,
    weight: u64,
    rank_first: bool,
    narrow: &'a Operand,
}

impl Down<'_> {
    /// Rows of a tile, runs of 32 columns in a step, and stages, up to rank 16, as in `kernels/narrow_down.cuh`.
    const SMALL: (usize, usize, usize) = (64, 1, 4);
    const SMALL_WARPS: u32 = 8;

    fn launch(&self, op: &Linear, call: &Call, depth: usize) -> Result<(), RuntimeError> {
        let (rows, rank) = (self.narrow.rows, self.narrow.cols);
        let room = rank.next_power_of_two().max(8);
        let (tile_rows, runs, stages) = if room <= 16 { Self::SMALL } else { (64, 1, 3) };
        let warp_bytes = stages * runs * (tile_rows * 64 + 32 * 16 * ((room / 8) | 1));
        let warps_max = if room <= 16 { Self::SMALL_WARPS } else { 8 };
        let block = Block::new(call, warp_bytes as u32, warps_max, 1);
        let tiles = rows.div_ceil(tile_rows);
        // Enough blocks for every multiprocessor, as long as each warp has a few steps.
        let splits_max = depth / (32 * runs) / (2 * block.warps as usize);
        let splits = block.splits(call, tiles, splits_max, tile_rows * room * 4);
        let args = Args::new()
            .ptr(self.wide)
            .u64(self.stride as u64)
            .ptr(self.weight)
            .u32(u32::from(self.rank_first))
            .ptr(self.narrow.ptr)
            .ptr(call.workspace().0)
            .u32(rows as u32)
            .u32(depth as u32)
            .u32(rank as u32);
        let kernel = format!("down_{}_{room}", self.narrow.dtype.name());
        let grid = (tiles as u32, splits as u32, 1);
        call.launch(MODULE, &kernel, grid, block.threads(), block.shared_bytes, with_dropout(args, op, call))
    }
}

/// `wide[:, start..] = onto + drop(α·narrow·W)`; the weight is `[rank, cols]` if `rank_first`, else `[cols, rank]`.
struct Up<'a> {
    narrow: &'a Operand,
    weight: u64,
    rank_first: bool,
    wide: &'a Operand,
    start: usize,
    cols: usize,
}

impl Up<'_> {
    const WARPS: usize = 4;
    const WARP_COLS: usize = 64;
    /// Rows of a block: many, for each reads its share of the weight; fewer where blocks would be.
    const ROWS_MAX: usize = 128;
    const ROWS_MIN: usize = 32;
    const BLOCKS_PER_MULTIPROCESSOR: usize = 4;

    fn launch(&self, op: &Linear, call: &Call) -> Result<(), RuntimeError> {
        let (rows, rank) = (self.wide.rows, self.narrow.cols);
        let from = self.onto(op, call)?;
        let room = rank.next_power_of_two().max(16);
        // As in `kernels/narrow_up.cuh`.
        let stage_bytes = 2048 + room / 16 * 512 + 64;
        let shared_bytes = (Self::WARPS * 4 * stage_bytes) as u32;
        let column_blocks = self.cols.div_ceil(Self::WARPS * Self::WARP_COLS);
        let wanted = Self::BLOCKS_PER_MULTIPROCESSOR * call.device.sm_count() as usize;
        let mut block_rows = Self::ROWS_MAX;
        while block_rows > Self::ROWS_MIN && column_blocks * rows.div_ceil(block_rows) < wanted {
            block_rows /= 2;
        }
        let args = Args::new()
            .ptr(self.narrow.ptr)
            .ptr(self.weight)
            .u32(u32::from(self.rank_first))
            .ptr(from)
            .ptr(self.wide.at(0, self.start))
            .u64(self.wide.cols as u64)
            .u32(rows as u32)
            .u32(self.cols as u32)
            .u32(rank as u32)
            .u32(block_rows as u32);
        let kernel = format!("up_{}_{room}", self.wide.dtype.name());
        let grid = (column_blocks as u32, rows.div_ceil(block_rows) as u32, 1);
        let threads = Self::WARPS as u32 * WARP;
        call.launch(MODULE, &kernel, grid, threads, shared_bytes, with_dropout(args, op, call))
    }

    /// The address of what the product is added to; 0 for nothing.
    fn onto(&self, op: &Linear, call: &Call) -> Result<u64, RuntimeError> {
        let Some(dest) = op.dest_input().map(|at| call.input(at)) else { return Ok(0) };
        // Without other columns to keep, the one matrix is read and the other written.
        if self.cols == self.wide.cols && op.dest == Dest::Accumulate {
            return Ok(dest.at(0, self.start));
        }
        call.carry_over(&dest, self.wide)?;
        Ok(if op.dest == Dest::Accumulate { self.wide.at(0, self.start) } else { 0 })
    }
}

/// `grad += α·narrowᵀ·drop(wide)`, `[rank, cols]`, or its transpose unless `rank_first`.
struct Gradient<'a> {
    narrow: &'a Operand,
    wide: u64,
    stride: usize,
    cols: usize,
    rank_first: bool,
}

impl Gradient<'_> {
    /// Of a warp.
    const WARP_COLS: usize = 64;
    /// Warps side by side, stages and all warps up to rank 32, as in `kernels/narrow_gradient.cuh`.
    const SMALL: (usize, usize, u32) = (4, 4, 16);

    fn launch(&self, op: &Linear, call: &Call, grad: &Operand) -> Result<(), RuntimeError> {
        call.carry_over(&call.input(2), grad)?;
        let (rows, rank) = (self.narrow.rows, self.narrow.cols);
        if rows == 0 {
            return Ok(());
        }
        let room = rank.next_power_of_two().max(16);
        let (col_warps, stages, warps_max) = if room <= 32 { Self::SMALL } else { (2, 4, 8) };
        let warp_bytes = stages * (2048 + 16 * 16 * ((room / 8) | 1) + 64);
        let block = Block::new(call, warp_bytes as u32, warps_max, col_warps as u32);
        let tile_cols = col_warps * Self::WARP_COLS;
        let tiles = self.cols.div_ceil(tile_cols);
        let splits_max = rows / STEP_ROWS / (2 * block.warps as usize / col_warps);
        let splits = block.splits(call, tiles, splits_max, room * tile_cols * 4);
        let args = Args::new()
            .ptr(self.narrow.ptr)
            .ptr(self.wide)
            .u64(self.stride as u64)
            .ptr(grad.ptr)
            .u32(u32::from(self.rank_first))
            .u32(u32::from(grad.dtype == DType::F32))
            .ptr(call.workspace().0)
            .u32(rows as u32)
            .u32(self.cols as u32)
            .u32(rank as u32);
        let kernel = format!("gradient_{}_{room}", self.narrow.dtype.name());
        let grid = (tiles as u32, splits as u32, 1);
        call.launch(MODULE, &kernel, grid, block.threads(), block.shared_bytes, with_dropout(args, op, call))
    }
}

/// The arguments all kernels end with: alpha, which holds the scale of what dropout keeps, and the mask.
fn with_dropout(args: Args, op: &Linear, call: &Call) -> Args {
    let (Some(dropout), Some(at)) = (op.dropout, op.dropout_inputs()) else {
        return args.f32(op.alpha).ptr(0).ptr(0).u32(0).u32(0);
    };
    let keep = Keep::new(dropout.p);
    args.f32(op.alpha * keep.scale)
        .ptr(call.input(at).ptr)
        .ptr(call.input(at + 1).ptr)
        .u32(dropout.site)
        .u32(keep.threshold)
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
    /// As many warps as fit, in groups of `group`.
    fn new(call: &Call, warp_bytes: u32, warps_max: u32, group: u32) -> Self {
        Self::within(shared_bytes_max(call.compute_capability()), warp_bytes, warps_max, group)
    }

    fn within(shared_bytes_max: u32, warp_bytes: u32, warps_max: u32, group: u32) -> Self {
        // A KiB is left to the kernels' own variables, and one more goes to the system.
        let warps = ((shared_bytes_max - KIB) / warp_bytes).min(warps_max) / group * group;
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
fn shared_bytes_max(capability: (u32, u32)) -> u32 {
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
    fn columns_must_start_at_a_pack() {
        let cols = |start, total| Some(Cols { start, len: 8, total });
        assert_eq!(first_col(None), Some(0));
        assert_eq!(first_col(cols(16, 64)), Some(16));
        assert_eq!(first_col(cols(4, 64)), None);
        assert_eq!(first_col(cols(8, 60)), None);
    }

    #[test]
    fn blocks_fit_every_card() {
        for capability in [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)] {
            let limit = shared_bytes_max(capability);
            for (warp_bytes, group) in [(4 * 5632, 1), (3 * 8704, 1), (4 * 2880, 4), (4 * 3392, 4), (4 * 4416, 2)] {
                let block = Block::within(limit, warp_bytes, 16, group);
                assert!(block.warps >= 3 && block.shared_bytes < limit, "{capability:?}: {block:?}");
                assert!(block.warps.is_multiple_of(group), "{capability:?}: {block:?}");
                assert!(block.resident * block.shared_bytes < limit + KIB, "{capability:?}: {block:?}");
            }
        }
        let hopper = shared_bytes_max((9, 0));
        assert_eq!(Block::within(hopper, 4 * 2880, 8, 4), Block { warps: 8, shared_bytes: 92_160, resident: 2 });
        assert_eq!(Block::within(hopper, 4 * 2880, 16, 4), Block { warps: 16, shared_bytes: 184_320, resident: 1 });
    }
}
