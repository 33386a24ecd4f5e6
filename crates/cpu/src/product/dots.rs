//! Products of very few rows with columns that are contiguous, as when one token's logits are made:
//! each element is a sum along both, for packing the columns would take longer than using them once.

use super::{Onto, Product};
use crate::vector::{sum, vectorized};
use crate::workers::Workers;

/// More rows are worth packing for.
const FEW_ROWS: usize = 4;
/// Shorter sums are over before they fill the partial ones.
const LEAST_DEPTH: usize = 128;
/// Columns of a task: few, so that threads get equal shares even of a small matrix.
const TASK_COLS: usize = 64;

impl Product {
    pub(super) fn is_few_dots(&self) -> bool {
        self.rows <= FEW_ROWS && self.depth >= LEAST_DEPTH && self.left.col_stride == 1 && self.right.row_stride == 1
    }

    /// # Safety
    /// As for [`Product::run`], and the product must be such a one.
    pub(super) unsafe fn run_dots(self, workers: &Workers) {
        workers.for_each(self.cols.div_ceil(TASK_COLS), |_, task| {
            let start = task * TASK_COLS;
            for col in start..self.cols.min(start + TASK_COLS) {
                for row in 0..self.rows {
                    // SAFETY: the element is this task's alone; the operands hold its row and its column.
                    unsafe { self.dot(row, col) };
                }
            }
        });
    }

    /// # Safety
    /// As for [`Product::run`]; nobody else may touch the element.
    unsafe fn dot(&self, row: usize, col: usize) {
        // SAFETY: the caller's promises are passed on.
        unsafe {
            let left = self.left.start.add(row * self.left.row_stride);
            let right = self.right.start.add(col * self.right.col_stride);
            let to = self.result.add(row * self.result_stride + col);
            let onto = match self.onto {
                Onto::Nothing => 0.0,
                Onto::Present => *to,
                Onto::Bias(bias) => *bias.add(col),
                Onto::PresentAndBias(bias) => *to + *bias.add(col),
            };
            *to = self.alpha.mul_add(dot(self.depth, left, right), onto);
        }
    }
}

vectorized! {
    unsafe fn dot(len: usize, a: *const f32, b: *const f32) -> f32 {
        // SAFETY: the caller vouches for `len` elements of each.
        sum(len, |i, partial| unsafe { (*a.add(i)).mul_add(*b.add(i), partial) })
    }
}
