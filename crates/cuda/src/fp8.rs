//! Products of codes: rows rounded to e4m3 with a scale each, by a weight of rows of e4m3. Both factors lie along the sum,
//! as the library wants them; for the input's gradient the weight's codes are transposed a part at a time.

use std::ops::Range;

use plimsoll_graph::DType;
use plimsoll_graph::ops::{FP8_ROWS, LinearKind};
use plimsoll_runtime::RuntimeError;

use crate::blas::{Bias, Codes, Factor};
use crate::call::{Args, type_suffix};
use crate::device::Device;
use crate::error::CudaError;
use crate::low_rank::{KIB, shared_bytes_max};
use crate::stored::StoredProduct;

const MODULE: &str = "fp8";
const WARP: usize = 32;
/// What a thread reads at a time.
const PACK_BYTES: usize = 16;
/// Packs of a row that each thread holds, as in `kernels/fp8.cu`.
const HELD: usize = 4;
/// Threads that a multiprocessor has registers for.
const RESIDENT_THREADS: usize = 1024;
/// More blocks on a multiprocessor fetch no faster.
const RESIDENT_BLOCKS_MAX: usize = 8;
/// Sides of a tile that is transposed.
const TILE: usize = 128;
const TILE_THREADS: u32 = 256;
/// Sides of a block of sums of our own product.
const SIDE: usize = 64;
const PRODUCT_THREADS: u32 = 256;
/// What the library wants sizes of codes and addresses to be multiples of.
const LIBRARY_ALIGNMENT: usize = 16;
/// What begins in scratch begins at a multiple of it.
const SCRATCH_ALIGNMENT: usize = 256;

/// Sums of a forward product may be kept in fewer bits between steps of the tensor cores: what that costs lies far below the
/// rounding of the activations to three bits of fraction.
const FAST_FORWARD: bool = true;
/// Those of a gradient may not. They run over all that a layer puts out, errors of one layer are the next one's input,
/// and it costs 6 % of the product's speed.
const FAST_INPUT_GRAD: bool = false;

/// `y = onto + α·x·Wᵀ + b`, or `dx = onto + α·dy·W`, of codes.
pub(crate) fn run(product: &StoredProduct) -> Result<(), RuntimeError> {
    match product.op.kind {
        LinearKind::Forward => forward(product),
        _ => input_grad(product),
    }
}

/// Runs of rows that are rounded at a time.
fn runs(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(FP8_ROWS).map(move |start| start..rows.min(start + FP8_ROWS))
}

/// The weight's codes lie as the product reads them, so all columns are multiplied at once.
fn forward(product: &StoredProduct) -> Result<(), RuntimeError> {
    let (weight, all) = (&product.weight, 0..product.across());
    let right = Right { codes: weight.codes, scales: weight.scales, fast: FAST_FORWARD };
    for rows in runs(product.left.rows) {
        round_rows(product, &rows, 0)?;
        let mut done = None;
        if by_library(product, &all) {
            done = multiply_by_library(product, &rows, &all, right, product.scratch.own)?;
        }
        let done =
            done.map_or_else(|| multiply_ourselves(product, &rows, &all, weight.scales, [weight.cols(), 1]), Ok)?;
        product.finish(&rows, &all, done)?;
    }
    Ok(())
}

/// Parts of the weight are transposed, runs of rows rounded, and every pair multiplied; what is more work is done once.
fn input_grad(product: &StoredProduct) -> Result<(), RuntimeError> {
    let (parts, runs): (Vec<_>, Vec<_>) = (product.parts().collect(), runs(product.left.rows).collect());
    let weight_bytes = 2 * product.depth * product.across();
    let rows_bytes = product.left.rows * product.depth * (product.left.dtype.bytes() + 1);
    // Either every run is rounded once and parts are transposed for each, or the other way round.
    let rows_outside = rows_bytes * parts.len().saturating_sub(1) > weight_bytes * runs.len().saturating_sub(1);
    let pairs: Vec<(&Range<usize>, &Range<usize>)> = if rows_outside {
        runs.iter().flat_map(|rows| parts.iter().map(move |part| (rows, part))).collect()
    } else {
        parts.iter().flat_map(|part| runs.iter().map(move |rows| (rows, part))).collect()
    };
    let (mut rounded, mut transposed) = (None, None);
    for (rows, part) in pairs {
        if rounded != Some(rows) {
            round_rows(product, rows, product.weight.scales)?;
            rounded = Some(rows);
        }
        let mut done = None;
        if let Some((ones, rest)) = room_for_ones(product, part).filter(|_| by_library(product, part)) {
            if transposed != Some(part) {
                transpose(product, part, ones)?;
                transposed = Some(part);
            }
            let right = Right { codes: product.scratch.weight, scales: ones, fast: FAST_INPUT_GRAD };
            done = multiply_by_library(product, rows, part, right, rest)?;
        }
        let done = done.map_or_else(|| multiply_ourselves(product, rows, part, 0, [1, product.weight.cols()]), Ok)?;
        product.finish(rows, part, done)?;
    }
    Ok(())
}

/// The rows' codes and scales, to scratch.
fn round_rows(product: &StoredProduct, rows: &Range<usize>, col_scales: u64) -> Result<(), RuntimeError> {
    let (call, left) = (product.call, &product.left);
    let rounding = RowsToRound {
        x: left.at(rows.start, product.left_first),
        dtype: left.dtype,
        stride: left.cols,
        col_scales,
        codes: product.scratch.rows,
        scales: product.scratch.row_scales,
        rows: rows.len(),
        cols: product.depth,
    };
    rounding.launch(call.device).map_err(|error| call.error(error))
}

/// Rows of floats, `stride` apart, and where their codes and scales go. Columns are multiplied by `col_scales` first, unless
/// that is null.
pub(crate) struct RowsToRound {
    pub x: u64,
    pub dtype: DType,
    pub stride: usize,
    pub col_scales: u64,
    pub codes: u64,
    pub scales: u64,
    pub rows: usize,
    pub cols: usize,
}

impl RowsToRound {
    pub(crate) fn launch(&self, device: &Device) -> Result<(), CudaError> {
        let args = Args::new()
            .ptr(self.x)
            .ptr(self.col_scales)
            .ptr(self.codes)
            .ptr(self.scales)
            .u64(self.stride as u64)
            .u32(self.rows as u32)
            .u32(self.cols as u32);
        let way = self.way();
        let kernel = format!("round_rows_{}_{}", way.name, self.dtype.name());
        let threads = row_threads(self.cols, self.dtype, way);
        let blocks = even_blocks(
            self.rows,
            (RESIDENT_THREADS / threads).clamp(1, RESIDENT_BLOCKS_MAX) * device.sm_count() as usize,
        );
        // The kernel's own variables want some of it as well.
        let room = (shared_bytes_max(device.compute_capability()) - 2 * KIB) as usize;
        let shared_bytes = Some(self.cols * DType::F32.bytes()).filter(|&bytes| self.col_scales != 0 && bytes <= room);
        let shared_bytes = shared_bytes.filter(|_| way.is_scaled).unwrap_or(0) as u32;
        let args = args.u32(shared_bytes / DType::F32.bytes() as u32);
        device.launch(MODULE, &kernel, (blocks as u32, 1, 1), threads as u32, shared_bytes, args)
    }

    fn way(&self) -> &'static Way {
        let pack = PACK_BYTES / self.dtype.bytes();
        let starts = [self.x, self.col_scales, self.codes];
        let packed = starts.iter().all(|start| start.is_multiple_of(PACK_BYTES as u64));
        let short = self.cols <= PLAIN.threads_max * HELD * pack;
        match packed && self.cols.is_multiple_of(pack) && self.stride.is_multiple_of(pack) {
            false => &SINGLY,
            true if self.col_scales == 0 && short => &PLAIN,
            true => &SCALED,
        }
    }
}

/// A kernel that rounds rows, as in `kernels/fp8.cu`.
#[derive(Debug)]
struct Way {
    name: &'static str,
    threads_max: usize,
    is_scaled: bool,
}

const PLAIN: Way = Way { name: "plain", threads_max: 512, is_scaled: false };
/// By scales of columns, or too long for the other one.
const SCALED: Way = Way { name: "scaled", threads_max: 1024, is_scaled: true };
const SINGLY: Way = Way { name: "singly", ..PLAIN };

/// So many that a row is held in registers, if it can be.
fn row_threads(cols: usize, dtype: DType, way: &Way) -> usize {
    let packs = cols.div_ceil(PACK_BYTES / dtype.bytes());
    packs.div_ceil(HELD).next_multiple_of(WARP).clamp(WARP, way.threads_max)
}

/// Blocks for some rows, at most so many, that have about as many rows each.
fn even_blocks(rows: usize, blocks_max: usize) -> usize {
    rows.div_ceil(rows.div_ceil(blocks_max.max(1)).max(1))
}

/// A part's columns of codes as rows, to scratch, and a scale of one for each of them, to `ones`.
fn transpose(product: &StoredProduct, part: &Range<usize>, ones: u64) -> Result<(), RuntimeError> {
    let weight = &product.weight;
    let args = Args::new()
        .ptr(weight.codes + part.start as u64)
        .ptr(product.scratch.weight)
        .ptr(ones)
        .u32(weight.rows() as u32)
        .u32(part.len() as u32)
        .u64(weight.cols() as u64);
    let grid = (weight.rows().div_ceil(TILE) as u32, part.len().div_ceil(TILE) as u32, 1);
    product.call.launch(MODULE, "transpose_codes", grid, TILE_THREADS, 0, args)
}

/// Whether the library multiplies codes of such sizes. They decide, not addresses: what begins anywhere begins at a multiple
/// of more than the library wants.
fn by_library(product: &StoredProduct, part: &Range<usize>) -> bool {
    let aligned = |bytes: usize| bytes.is_multiple_of(LIBRARY_ALIGNMENT);
    let first_bytes = (product.result_at(0, part) - product.result.ptr) as usize;
    let result = aligned(product.result.cols * product.result.dtype.bytes()) && aligned(first_bytes);
    let sizes = aligned(product.depth) && aligned(part.len()) && aligned(product.weight.cols());
    product.call.device.multiplies_codes() && sizes && result
}

/// A part's scales, which are ones, at the beginning of the product's own scratch, and the rest of that.
fn room_for_ones(product: &StoredProduct, part: &Range<usize>) -> Option<(u64, (u64, usize))> {
    let (start, bytes) = product.scratch.own;
    let taken = (part.len() * DType::F32.bytes()).next_multiple_of(SCRATCH_ALIGNMENT);
    Some((start, (start + taken as u64, bytes.checked_sub(taken)?)))
}

/// Codes that lie along the sum, one row of them for each column of the result, with a scale.
#[derive(Clone, Copy)]
struct Right {
    codes: u64,
    scales: u64,
    fast: bool,
}

/// `None` where the library has nothing for it.
fn multiply_by_library(
    product: &StoredProduct,
    rows: &Range<usize>,
    part: &Range<usize>,
    right: Right,
    workspace: (u64, usize),
) -> Result<Option<Bias>, RuntimeError> {
    let left = Factor::new(product.scratch.rows, product.depth);
    let mut of_codes = product.product(rows, part, left, Factor::new(right.codes, product.depth).transposed());
    of_codes.dtype = DType::E4m3;
    // The library adds biases of sixteen bits alone to sums of codes.
    let bias = of_codes.bias.take_if(|_| product.result.dtype == DType::F32);
    let codes = Codes { left_scales: product.scratch.row_scales, right_scales: right.scales, fast: right.fast };
    let call = product.call;
    let done = call.device.blas().run_codes(call.device, &of_codes, codes, workspace);
    let done = done.map_err(|error| call.error(error))?;
    Ok(done.map(|done| if bias.is_some() { Bias::Left } else { done }))
}

/// By a kernel for any sizes, at a fraction of the tensor cores' speed. `right` are the strides from one column of the
/// result to the next and along the sum.
fn multiply_ourselves(
    product: &StoredProduct,
    rows: &Range<usize>,
    part: &Range<usize>,
    col_scales: u64,
    right: [usize; 2],
) -> Result<Bias, RuntimeError> {
    let (call, result) = (product.call, &product.result);
    let suffix = type_suffix(result.dtype).ok_or_else(|| call.unsupported(result.dtype))?;
    let [stride, step] = right;
    let col_scales = if col_scales == 0 { 0 } else { col_scales + (part.start * DType::F32.bytes()) as u64 };
    let args = Args::new()
        .ptr(product.scratch.rows)
        .ptr(product.scratch.row_scales)
        .ptr(product.weight.codes + (part.start * stride) as u64)
        .ptr(col_scales)
        .ptr(product.result_at(rows.start, part))
        .ptr(product.bias_at(part).unwrap_or(0))
        .u64(stride as u64)
        .u64(step as u64)
        .u64(result.cols as u64)
        .u32(rows.len() as u32)
        .u32(part.len() as u32)
        .u32(product.depth as u32)
        .f32(product.op.alpha)
        .u32(u32::from(product.accumulates()));
    let grid = (rows.len().div_ceil(SIDE) as u32, part.len().div_ceil(SIDE) as u32, 1);
    call.launch(MODULE, &format!("multiply_codes_{suffix}"), grid, PRODUCT_THREADS, 0, args)?;
    Ok(Bias::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(cols: usize, col_scales: u64, dtype: DType) -> RowsToRound {
        RowsToRound { x: 256, dtype, stride: cols, col_scales, codes: 512, scales: 1024, rows: 7, cols }
    }

    #[test]
    fn rows_up_to_the_widest_of_models_are_read_once() {
        for cols in [16, 896, 4096, 14_336, 28_672] {
            for col_scales in [0, 256] {
                let way = rows(cols, col_scales, DType::BF16).way();
                let threads = row_threads(cols, DType::BF16, way);
                assert!(threads.is_multiple_of(WARP) && threads <= way.threads_max, "{cols} by {way:?}");
                assert!(threads * HELD * 8 >= cols, "{cols} by {way:?}");
            }
        }
    }

    #[test]
    fn rows_are_rounded_by_the_kernel_for_their_size() {
        let way = |cols, col_scales, dtype| rows(cols, col_scales, dtype).way().name;
        assert_eq!(way(4096, 0, DType::BF16), "plain");
        assert_eq!(way(4096, 256, DType::BF16), "scaled");
        assert_eq!(way(28_672, 256, DType::BF16), "scaled");
        assert_eq!(way(16_384, 0, DType::BF16), "plain");
        assert_eq!(way(16_392, 0, DType::BF16), "scaled");
        assert_eq!(way(4100, 0, DType::BF16), "singly");
        assert_eq!(way(4096, 260, DType::BF16), "singly");
    }

    #[test]
    fn blocks_have_about_as_many_rows_each() {
        for (rows, blocks_max) in [(0, 528), (1, 528), (528, 528), (529, 528), (4096, 528), (4096, 132)] {
            let blocks = even_blocks(rows, blocks_max);
            assert!(blocks <= blocks_max && blocks * rows.div_ceil(blocks_max) >= rows, "{rows} to {blocks}");
        }
    }

    #[test]
    fn runs_cover_all_rows() {
        for rows in [0, 1, FP8_ROWS, FP8_ROWS + 1, 3 * FP8_ROWS] {
            assert_eq!(runs(rows).flatten().collect::<Vec<_>>(), (0..rows).collect::<Vec<_>>());
        }
    }
}
