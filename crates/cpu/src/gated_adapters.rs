//! Sums of a product and what adapters add to it, made where they are read: some rows of some columns at a time, in a
//! local array.

use plimsoll_graph::ops::Adapters;

use crate::args::Matrix;
use crate::elementwise::DropoutSite;

pub(crate) const TILE_ROWS: usize = 16;
pub(crate) const TILE_COLS: usize = 64;
/// Low-rank columns whose part of the second matrix is turned at a time.
const PANEL_DEPTH: usize = 16;

pub(crate) type Tile = [[f32; TILE_COLS]; TILE_ROWS];
type Panel = [[f32; TILE_COLS]; PANEL_DEPTH];

/// A product, and what is added to it, if anything is.
#[derive(Clone, Copy)]
pub(crate) struct Adapted<'a> {
    pub product: Matrix,
    pub adapters: Option<Added<'a>>,
}

/// Adapters with their low-rank rows and second matrices.
#[derive(Clone, Copy)]
pub(crate) struct Added<'a> {
    pub adapters: &'a Adapters,
    pub low_rank: Matrix,
    pub b: Matrix,
}

impl Adapted<'_> {
    /// `rows` rows from `row` on of `cols` columns from `col` on, with what the adapters add.
    ///
    /// # Safety
    /// The rows and columns must lie in the product, and fit a tile.
    #[inline(always)]
    pub(crate) unsafe fn load(&self, row: usize, rows: usize, col: usize, cols: usize, tile: &mut Tile) {
        for (offset, line) in tile[..rows].iter_mut().enumerate() {
            // SAFETY: the caller vouches for the rows and columns.
            unsafe {
                let from = self.product.row(row + offset).add(col);
                std::ptr::copy_nonoverlapping(from, line.as_mut_ptr(), cols);
            }
        }
        let Some(Added { adapters, low_rank, b }) = self.adapters else { return };
        let rank = b.cols;
        for (block, first_row, first_col) in adapters.places(rank) {
            let (start, end) = (block.start.max(col), (block.start + block.len).min(col + cols));
            if start >= end {
                continue;
            }
            for depth in (0..rank).step_by(PANEL_DEPTH) {
                let len = PANEL_DEPTH.min(rank - depth);
                // SAFETY: these rows and columns belong to the block, whose matrices were checked with the graph.
                unsafe {
                    let weight = b.row(first_row + start - block.start).add(depth);
                    let panel = turned(weight, rank, start - col..end - col, len);
                    for (offset, line) in tile[..rows].iter_mut().enumerate() {
                        let low_rank = low_rank.row(row + offset).add(first_col + depth);
                        add_row(line, &panel, low_rank, len, adapters.alpha);
                    }
                }
            }
        }
    }
}

/// A gradient, and the share of it that an adapter's first matrix gives, if that is still to be added.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub gradient: Matrix,
    pub share: Option<Share<'a>>,
}

/// `drop(α·dh·A)`.
#[derive(Clone, Copy)]
pub(crate) struct Share<'a> {
    pub alpha: f32,
    pub dh: Matrix,
    pub a: Matrix,
    pub site: Option<DropoutSite<'a>>,
}

impl Shared<'_> {
    /// One row of `cols` columns from `col` on, with the share.
    ///
    /// # Safety
    /// The row and the columns must lie in the gradient, and fit a tile's row.
    #[inline(always)]
    pub(crate) unsafe fn load(&self, row: usize, col: usize, cols: usize) -> [f32; TILE_COLS] {
        let mut line = [0.0; TILE_COLS];
        // SAFETY: the caller vouches for the row and the columns.
        unsafe { std::ptr::copy_nonoverlapping(self.gradient.row(row).add(col), line.as_mut_ptr(), cols) };
        let Some(share) = self.share else { return line };
        let mut sums = [0.0f32; TILE_COLS];
        for depth in 0..share.a.rows {
            // SAFETY: as above; the matrices were checked with the graph.
            let (factor, weights) = unsafe { (*share.dh.row(row).add(depth), share.a.row(depth).add(col)) };
            for (index, sum) in sums[..cols].iter_mut().enumerate() {
                // SAFETY: as above.
                *sum = unsafe { factor.mul_add(*weights.add(index), *sum) };
            }
        }
        let mask = share.site.map(|site| site.row(row));
        for (index, (x, sum)) in line.iter_mut().zip(&sums).enumerate() {
            let kept = mask.map_or(1.0, |mask| mask.factor((col + index) as u32));
            *x = (share.alpha * kept).mul_add(*sum, *x);
        }
        line
    }
}

/// Rows of a second matrix as columns of a panel; zero in the other columns.
#[inline(always)]
unsafe fn turned(weight: *const f32, stride: usize, cols: std::ops::Range<usize>, len: usize) -> Panel {
    let mut panel = [[0.0; TILE_COLS]; PANEL_DEPTH];
    for (index, col) in cols.enumerate() {
        for (depth, line) in panel[..len].iter_mut().enumerate() {
            // SAFETY: the caller vouches for the rows.
            line[col] = unsafe { *weight.add(index * stride + depth) };
        }
    }
    panel
}

#[inline(always)]
unsafe fn add_row(line: &mut [f32; TILE_COLS], panel: &Panel, low_rank: *const f32, len: usize, alpha: f32) {
    let mut sums = [0.0f32; TILE_COLS];
    for (depth, weights) in panel[..len].iter().enumerate() {
        // SAFETY: the caller vouches for as many low-rank columns.
        let factor = unsafe { *low_rank.add(depth) };
        for (sum, weight) in sums.iter_mut().zip(weights) {
            *sum = factor.mul_add(*weight, *sum);
        }
    }
    for (x, sum) in line.iter_mut().zip(&sums) {
        *x = alpha.mul_add(*sum, *x);
    }
}
