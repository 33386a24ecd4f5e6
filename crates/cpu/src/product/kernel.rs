//! The innermost loops: one tile of the result held in registers over a run of the depth.

use super::vectors::{Vector, prefetch};

/// `c = onto + alpha·a·b` for one tile. How many rows and vectors it has is the kernel's own.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub depth: usize,
    pub alpha: f32,
    pub a: *const f32,
    /// From one row of `a` to the next if its rows are contiguous, else from one place of the depth to the next.
    pub a_step: usize,
    pub b: *const f32,
    /// From one place of the depth to the next; the columns are contiguous.
    pub b_step: usize,
    pub c: *mut f32,
    pub c_step: usize,
    /// Columns to write, at most those of the vectors.
    pub cols: usize,
    /// Whether to add to what is there.
    pub add: bool,
    /// Added to every row, unless null.
    pub bias: *const f32,
}

/// From this depth on it pays to ask for the result's lines before they are written.
const FAR_DEPTH: usize = 64;

impl Tile {
    /// `ALONG`: rows of `a` are contiguous. Otherwise its columns are, as they are once packed.
    ///
    /// # Safety
    /// The processor must have the vector's instructions, and the addresses must hold what the tile says:
    /// `ROWS` rows, and whole vectors of columns in `b`.
    #[inline(always)]
    pub(super) unsafe fn run<V: Vector, const ROWS: usize, const VECTORS: usize, const ALONG: bool>(&self) {
        if self.add || self.depth >= FAR_DEPTH {
            for row in 0..ROWS {
                for v in 0..VECTORS {
                    prefetch(self.c.wrapping_add(row * self.c_step + v * V::LANES));
                }
            }
        }
        // SAFETY: the caller's promises are passed on.
        unsafe {
            let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
            let (mut a, mut b) = (self.a, self.b);
            for _ in 0..self.depth {
                let mut right = [V::splat(0.0); VECTORS];
                for (v, right) in right.iter_mut().enumerate() {
                    *right = V::load(b.add(v * V::LANES));
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let left = V::splat(*a.add(if ALONG { row * self.a_step } else { row }));
                    for (sum, &right) in sums.iter_mut().zip(&right) {
                        *sum = left.mul_add(right, *sum);
                    }
                }
                a = a.wrapping_add(if ALONG { 1 } else { self.a_step });
                b = b.wrapping_add(self.b_step);
            }
            self.write(&sums);
        }
    }

    /// # Safety
    /// As for [`Tile::run`].
    #[inline(always)]
    unsafe fn write<V: Vector, const ROWS: usize, const VECTORS: usize>(&self, sums: &[[V; VECTORS]; ROWS]) {
        let whole = self.cols == VECTORS * V::LANES;
        // SAFETY: the caller's promises are passed on; only `cols` columns are touched.
        unsafe {
            let alpha = V::splat(self.alpha);
            for v in 0..VECTORS {
                let first = v * V::LANES;
                let count = self.cols.saturating_sub(first).min(V::LANES);
                let bias = if self.bias.is_null() {
                    V::splat(0.0)
                } else {
                    V::load_first(self.bias.wrapping_add(first), count)
                };
                for (row, sums) in sums.iter().enumerate() {
                    let to = self.c.wrapping_add(row * self.c_step + first);
                    if whole {
                        let onto = if self.add { V::load(to).add(bias) } else { bias };
                        sums[v].mul_add(alpha, onto).store(to);
                    } else {
                        let onto = if self.add { V::load_first(to, count).add(bias) } else { bias };
                        sums[v].mul_add(alpha, onto).store_first(to, count);
                    }
                }
            }
        }
    }
}
