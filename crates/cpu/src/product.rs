//! Large matrix products: the `gemm` crate on blocks of the result, one block per task.
//!
//! The crate is called single-threaded and we divide the result ourselves. That keeps what it
//! allocates for packed operands bounded (see [`BLOCK_ROWS`]), packs inside the threads, and makes
//! the division depend on nothing but the shape.

use crate::workers::Workers;

/// A factor, by the address of its first element and the distances between its rows and columns.
#[derive(Clone, Copy)]
pub(crate) struct Factor {
    pub start: *const f32,
    pub row_stride: usize,
    pub col_stride: usize,
}

impl Factor {
    pub(crate) fn new(start: *const f32, row_stride: usize) -> Self {
        Self { start, row_stride, col_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Self {
        Self { row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
}

/// What the result is added to.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Onto {
    /// Nothing: the old contents do not matter.
    Nothing,
    /// What is there.
    Present,
    /// A bias, the same for every row.
    Bias(*const f32),
    /// What is there and a bias.
    PresentAndBias(*const f32),
}

/// `result[rows × cols] = onto + alpha·left[rows × depth]·right[depth × cols]`, the result row-major.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub rows: usize,
    pub cols: usize,
    pub depth: usize,
    pub alpha: f32,
    pub left: Factor,
    pub right: Factor,
    pub result: *mut f32,
    pub result_stride: usize,
    pub onto: Onto,
}

// SAFETY: plain addresses; blocks of the result are disjoint.
unsafe impl Send for Product {}
// SAFETY: as above.
unsafe impl Sync for Product {}

/// Largest block given to the crate at once. It bounds the packed copies that the crate keeps for
/// one call to 512·4·(1024 + 1024) bytes in each thread, besides a slab of the second-level cache's size.
const BLOCK_ROWS: usize = 1024;
const BLOCK_COLS: usize = 6144;
/// Blocks are made of whole panels: rows and columns that the crate's kernels go through at a time,
/// on AVX-512 (a few of the six rows at once).
const PANEL_ROWS: usize = 24;
const PANEL_COLS: usize = 64;
/// What a task costs besides its work, in hundredths of a panel's.
const TASK_COST: usize = 10;
const PACKING_TASK_COST: usize = 30;
/// Below this many multiplications one thread does it all.
const SERIAL_WORK: usize = 48 * 48 * 256;

/// How many panels a task takes, so that threads finish together and tasks are neither few (another
/// program may hold a thread up) nor tiny.
/// Besides its panels, a task costs `extra` hundredths of one.
fn panels_per_task(panels: usize, threads: usize, extra: usize) -> usize {
    let span = |size: usize| {
        let tasks = panels.div_ceil(size);
        let rounds = tasks.div_ceil(threads) * (100 * size + extra);
        if tasks < 2 * threads { rounds + rounds / 20 } else { rounds }
    };
    (1..=panels).min_by_key(|&size| span(size)).unwrap_or(1)
}

impl Product {
    /// # Safety
    /// The addresses must hold what the shapes say, and the result must not overlap the factors.
    pub(crate) unsafe fn run(self, workers: &Workers) {
        if self.rows == 0 || self.cols == 0 {
            return;
        }
        let (rows, cols) = self.blocks(workers.count());
        let across = self.cols.div_ceil(cols);
        workers.for_each(self.rows.div_ceil(rows) * across, |_, task| {
            let (row, col) = ((task / across) * rows, (task % across) * cols);
            // SAFETY: the blocks divide the result among the tasks.
            unsafe { self.block(row, rows.min(self.rows - row), col, cols.min(self.cols - col)) };
        });
    }

    /// How large a task's block is. The columns are divided if there are enough of them: the crate packs
    /// the right factor, and so no two tasks pack the same part of it.
    fn blocks(&self, threads: usize) -> (usize, usize) {
        let whole = (self.rows.min(BLOCK_ROWS), self.cols.min(BLOCK_COLS));
        if threads == 1 || self.rows * self.cols * self.depth < SERIAL_WORK {
            return whole;
        }
        let row_panels = self.rows.div_ceil(PANEL_ROWS);
        let col_panels = self.cols.div_ceil(PANEL_COLS);
        if col_panels < 2 * threads {
            ((panels_per_task(row_panels, threads, TASK_COST) * PANEL_ROWS).min(whole.0), whole.1)
        } else {
            // A left factor whose rows are not contiguous is packed by every task.
            let extra = if self.left.col_stride == 1 { TASK_COST } else { PACKING_TASK_COST };
            (whole.0, (panels_per_task(col_panels, threads, extra) * PANEL_COLS).min(whole.1))
        }
    }

    /// # Safety
    /// As for [`Product::run`], and nobody else may touch this block of the result.
    unsafe fn block(&self, row: usize, rows: usize, col: usize, cols: usize) {
        // SAFETY: the block lies inside the matrices.
        unsafe {
            let result = self.result.add(row * self.result_stride + col);
            if let Onto::Bias(bias) | Onto::PresentAndBias(bias) = self.onto {
                let add = matches!(self.onto, Onto::PresentAndBias(_));
                spread_bias(bias.add(col), rows, cols, result, self.result_stride, add);
            }
            gemm::gemm(
                rows,
                cols,
                self.depth,
                result,
                1,
                self.result_stride as isize,
                self.onto != Onto::Nothing,
                self.left.start.add(row * self.left.row_stride),
                self.left.col_stride as isize,
                self.left.row_stride as isize,
                self.right.start.add(col * self.right.col_stride),
                self.right.col_stride as isize,
                self.right.row_stride as isize,
                1.0,
                self.alpha,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    }
}

/// Writes the bias to every row, or adds it.
///
/// # Safety
/// `result` has `rows` rows of `cols`, `bias` has `cols`.
unsafe fn spread_bias(bias: *const f32, rows: usize, cols: usize, result: *mut f32, stride: usize, add: bool) {
    for row in 0..rows {
        // SAFETY: the caller vouches for both; they lie apart.
        unsafe {
            let to = std::slice::from_raw_parts_mut(result.add(row * stride), cols);
            let bias = std::slice::from_raw_parts(bias, cols);
            if add {
                to.iter_mut().zip(bias).for_each(|(to, bias)| *to += bias);
            } else {
                to.copy_from_slice(bias);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_get_equal_shares() {
        // 1152 columns are 18 panels: six tasks of three for two threads.
        assert_eq!(panels_per_task(18, 2, TASK_COST), 3);
        assert_eq!(panels_per_task(6, 2, PACKING_TASK_COST), 3);
        assert_eq!(panels_per_task(16, 2, TASK_COST), 4);
        assert_eq!(panels_per_task(1, 2, TASK_COST), 1);
        for (panels, threads) in [(18, 2), (64, 4), (37, 3), (100, 8)] {
            let size = panels_per_task(panels, threads, TASK_COST);
            let busiest = panels.div_ceil(size).div_ceil(threads) * size;
            assert!(busiest * threads <= panels * 5 / 4, "{panels} panels, {threads} threads: tasks of {size}");
        }
    }
}
