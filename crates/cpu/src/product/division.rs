//! How a product is divided among tasks. It follows from the shape and the number of threads.

use std::ops::Range;

use super::Product;
use super::level::{Level, VECTORS};

/// Blocks of equal size, row after row of blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Division {
    rows: usize,
    cols: usize,
    block_rows: usize,
    block_cols: usize,
}

/// Below this many multiplications one thread does it all.
const SERIAL_WORK: usize = 48 * 48 * 256;
/// Tasks for each thread, at most.
const TASKS_PER_THREAD: usize = 4;
/// What packing an element costs, in vector operations.
const PACKING_COST: f64 = 0.5;
/// A division that leaves each thread one task costs so much more than one that gives it several,
/// because another program may hold a thread up.
const FEW_TASKS_COST: f64 = 0.02;

impl Division {
    pub(super) fn new<L: Level>(product: &Product, threads: usize) -> Self {
        let &Product { rows, cols, depth, .. } = product;
        let whole = Self { rows, cols, block_rows: rows.max(1), block_cols: cols.max(1) };
        if threads == 1 || rows * cols * depth < SERIAL_WORK {
            return whole;
        }
        let left_packing = if product.left.col_stride == 1 { 0.0 } else { PACKING_COST };
        let (row_panels, col_panels) = (rows.div_ceil(L::ROWS), cols.div_ceil(VECTORS * L::LANES));
        let most = TASKS_PER_THREAD * threads;
        let mut best = (f64::INFINITY, whole);
        for down in 1..=most.min(row_panels) {
            for across in 1..=(most / down).min(col_panels) {
                let block_rows = row_panels.div_ceil(down) * L::ROWS;
                let block_cols = col_panels.div_ceil(across) * VECTORS * L::LANES;
                let division = Self { block_rows, block_cols, ..whole };
                let cost = division.cost::<L>(threads, left_packing);
                if cost < best.0 {
                    best = (cost, division);
                }
            }
        }
        best.1
    }

    /// Time until the last thread is done, for each place of the depth, in vector operations.
    fn cost<L: Level>(&self, threads: usize, left_packing: f64) -> f64 {
        let rounds = self.tasks().div_ceil(threads) as f64;
        let (rows, cols) = (self.block_rows.min(self.rows) as f64, self.block_cols.min(self.cols) as f64);
        let task = rows * cols / L::LANES as f64 + left_packing * rows + PACKING_COST * cols;
        let few_tasks = if self.tasks() < 2 * threads { FEW_TASKS_COST } else { 0.0 };
        rounds * task * (1.0 + few_tasks)
    }

    fn across(&self) -> usize {
        self.cols.div_ceil(self.block_cols)
    }

    pub(super) fn tasks(&self) -> usize {
        self.rows.div_ceil(self.block_rows) * self.across()
    }

    /// Rows and columns of a task.
    pub(super) fn block(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let (row, col) = ((task / self.across()) * self.block_rows, (task % self.across()) * self.block_cols);
        (row..self.rows.min(row + self.block_rows), col..self.cols.min(col + self.block_cols))
    }
}

#[cfg(test)]
mod tests {
    use super::super::level::Baseline;
    use super::super::{Factor, Onto};
    use super::*;

    fn product(rows: usize, cols: usize, depth: usize) -> Product {
        let factor = Factor { start: std::ptr::null(), row_stride: depth, col_stride: 1 };
        let result = std::ptr::null_mut();
        let onto = Onto::Nothing;
        Product { rows, cols, depth, alpha: 1.0, left: factor, right: factor, result, result_stride: cols, onto }
    }

    #[test]
    fn threads_get_equal_shares() {
        for (rows, cols) in [(2048, 1152), (2048, 384), (384, 2048), (16, 4096), (4096, 16), (1000, 1000)] {
            for threads in [2, 3, 4, 8, 16] {
                let division = Division::new::<Baseline>(&product(rows, cols, 512), threads);
                let busiest = division.tasks().div_ceil(threads) * division.block_rows * division.block_cols;
                assert!(busiest * threads <= rows * cols * 5 / 4, "{rows}x{cols}, {threads} threads: {division:?}");
            }
        }
    }

    #[test]
    fn blocks_cover_the_result_once() {
        for (rows, cols, threads) in [(1, 1, 2), (100, 700, 2), (333, 77, 3), (2048, 384, 16), (0, 5, 2), (5, 0, 2)] {
            let division = Division::new::<Baseline>(&product(rows, cols, 512), threads);
            let mut seen = vec![0; rows * cols];
            for task in 0..division.tasks() {
                let (block_rows, block_cols) = division.block(task);
                for row in block_rows {
                    seen[row * cols..][block_cols.clone()].iter_mut().for_each(|count| *count += 1);
                }
            }
            assert!(seen.iter().all(|&count| count == 1), "{division:?}");
        }
    }
}
