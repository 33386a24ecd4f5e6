//! The sum of a product and what adapters add to it, made where it is read: some rows of some columns at a time, in a
//! local array.

use plimsoll_graph::ops::Adapters;

use crate::args::Matrix;

pub(crate) const TILE_ROWS: usize = 16;
pub(crate) const TILE_COLS: usize = 64;
/// Narrow columns whose part of the second matrix is turned at a time.
const PANEL_DEPTH: usize = 16;

pub(crate) type Tile = [[f32; TILE_COLS]; TILE_ROWS];
type Panel = [[f32; TILE_COLS]; PANEL_DEPTH];

/// A product, and its adapters with their narrow rows and second matrices.
#[derive(Clone, Copy)]
pub(crate) struct Adapted<'a> {
    pub product: Matrix,
    pub adapters: &'a Adapters,
    pub narrow: Matrix,
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
        let rank = self.b.cols;
        for (block, first_row, first_col) in self.adapters.places(rank) {
            let (start, end) = (block.start.max(col), (block.start + block.len).min(col + cols));
            if start >= end {
                continue;
            }
            for depth in (0..rank).step_by(PANEL_DEPTH) {
                let len = PANEL_DEPTH.min(rank - depth);
                // SAFETY: these rows and columns belong to the block, whose matrices were checked with the graph.
                unsafe {
                    let weight = self.b.row(first_row + start - block.start).add(depth);
                    let panel = turned(weight, rank, start - col..end - col, len);
                    for (offset, line) in tile[..rows].iter_mut().enumerate() {
                        let narrow = self.narrow.row(row + offset).add(first_col + depth);
                        add_row(line, &panel, narrow, len, self.adapters.alpha);
                    }
                }
            }
        }
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
unsafe fn add_row(line: &mut [f32; TILE_COLS], panel: &Panel, narrow: *const f32, len: usize, alpha: f32) {
    let mut sums = [0.0f32; TILE_COLS];
    for (depth, weights) in panel[..len].iter().enumerate() {
        // SAFETY: the caller vouches for as many narrow columns.
        let factor = unsafe { *narrow.add(depth) };
        for (sum, weight) in sums.iter_mut().zip(weights) {
            *sum = factor.mul_add(*weight, *sum);
        }
    }
    for (x, sum) in line.iter_mut().zip(&sums) {
        *x = alpha.mul_add(*sum, *x);
    }
}
