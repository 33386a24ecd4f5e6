//! Small matrix products inside one thread, on tiles that fit the first-level cache: attention's
//! scores and what is made of them.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::vector::vectorized;

/// Which part of a product is needed where the tile lies on the causal diagonal.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Part {
    All,
    /// Results with `row <= col`. Others may be left as they are.
    Above,
    /// Depth up to the row.
    DepthToRow,
    /// Depth from the row on.
    DepthFromRow,
}

/// `c[rows × cols] (+)= a[rows × depth]·b[depth × cols]`. Rows of `b` and `c` are contiguous, `a` is
/// read one element at a time and may lie either way.
#[derive(Clone, Copy)]
pub(crate) struct TileProduct {
    pub rows: usize,
    pub cols: usize,
    pub depth: usize,
    pub a: *const f32,
    pub a_row: usize,
    pub a_col: usize,
    pub b: *const f32,
    pub b_row: usize,
    pub c: *mut f32,
    pub c_row: usize,
    pub add: bool,
    pub part: Part,
}

impl TileProduct {
    /// # Safety
    /// The addresses must hold what the shapes say, and `c` must not overlap `a` or `b`.
    pub(crate) unsafe fn run(self) {
        pulp::Arch::new().dispatch(self);
    }

    #[inline(always)]
    fn depth_of(&self, row: usize, rows: usize) -> Range<usize> {
        match self.part {
            Part::All | Part::Above => 0..self.depth,
            Part::DepthToRow => 0..self.depth.min(row + rows),
            Part::DepthFromRow => row.min(self.depth)..self.depth,
        }
    }

    #[inline(always)]
    fn sweep<S: Simd, const ROWS: usize>(&self, simd: S) {
        let lanes = S::F32_LANES;
        let mut col = 0;
        while col + 2 * lanes <= self.cols {
            self.column::<S, ROWS, 2, false>(simd, col);
            col += 2 * lanes;
        }
        while col + lanes <= self.cols {
            self.column::<S, ROWS, 1, false>(simd, col);
            col += lanes;
        }
        if col < self.cols {
            self.column::<S, ROWS, 1, true>(simd, col);
        }
    }

    /// All rows of `VECTORS` vectors of columns.
    #[inline(always)]
    fn column<S: Simd, const ROWS: usize, const VECTORS: usize, const TAIL: bool>(&self, simd: S, col: usize) {
        let mut row = 0;
        while row < self.rows {
            if self.part == Part::Above && row >= col + VECTORS * S::F32_LANES {
                return;
            }
            if row + ROWS <= self.rows {
                self.block::<S, ROWS, VECTORS, TAIL>(simd, row, col);
                row += ROWS;
            } else {
                self.block::<S, 1, VECTORS, TAIL>(simd, row, col);
                row += 1;
            }
        }
    }

    /// One block of the result, held in registers over the whole depth.
    #[inline(always)]
    fn block<S: Simd, const ROWS: usize, const VECTORS: usize, const TAIL: bool>(
        &self,
        simd: S,
        row: usize,
        col: usize,
    ) {
        let lanes = S::F32_LANES;
        let mask = simd.mask_between_m32s(0, if TAIL { self.cols - col } else { lanes } as u32);
        let depth = self.depth_of(row, ROWS);
        // SAFETY: `run`'s caller vouches for the shapes; the mask hides what lies behind the last column.
        unsafe {
            let load = |from: *const f32| {
                if TAIL { simd.mask_load_ptr_f32s(mask, from) } else { from.cast::<S::f32s>().read_unaligned() }
            };
            let store = |to: *mut f32, value| {
                if TAIL {
                    simd.mask_store_ptr_f32s(mask, to, value);
                } else {
                    to.cast::<S::f32s>().write_unaligned(value);
                }
            };
            let mut sums = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
            let mut a = self.a.add(row * self.a_row + depth.start * self.a_col);
            let mut b = self.b.add(depth.start * self.b_row + col);
            for _ in depth {
                let mut right = [simd.splat_f32s(0.0); VECTORS];
                for (v, right) in right.iter_mut().enumerate() {
                    *right = load(b.add(v * lanes));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let left = simd.splat_f32s(*a.add(r * self.a_row));
                    for (sum, &right) in sums.iter_mut().zip(&right) {
                        *sum = simd.mul_add_e_f32s(left, right, *sum);
                    }
                }
                a = a.wrapping_add(self.a_col);
                b = b.wrapping_add(self.b_row);
            }
            for (r, sums) in sums.iter().enumerate() {
                for (v, &sum) in sums.iter().enumerate() {
                    let to = self.c.add((row + r) * self.c_row + col + v * lanes);
                    let sum = if self.add { simd.add_f32s(load(to), sum) } else { sum };
                    store(to, sum);
                }
            }
        }
    }
}

impl WithSimd for TileProduct {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // As many rows as leave registers for the right factor: of 32 with AVX-512, of 16 elsewhere.
        if S::F32_LANES >= 16 { self.sweep::<S, 8>(simd) } else { self.sweep::<S, 4>(simd) }
    }
}

vectorized! {
    /// Rows that lie `stride` apart, brought together.
    pub(crate) unsafe fn copy_rows(rows: usize, cols: usize, from: *const f32, stride: usize, to: *mut f32) {
        for row in 0..rows {
            // SAFETY: the caller vouches for the rows and for the room. Short runs of whole vectors are
            // moved here; a call for each row would cost more than the move.
            unsafe {
                let (from, to) = (from.add(row * stride), to.add(row * cols));
                let whole = cols - cols % 16;
                for at in (0..whole).step_by(16) {
                    to.add(at).cast::<[f32; 16]>().write_unaligned(from.add(at).cast::<[f32; 16]>().read_unaligned());
                }
                for at in whole..cols {
                    *to.add(at) = *from.add(at);
                }
            }
        }
    }
}

/// `to[column][row] = factor·from[row][column]`.
///
/// # Safety
/// `from` has `rows` rows of `cols` that lie `stride` apart, `to` has `cols` rows that lie `to_stride` apart.
pub(crate) unsafe fn transpose(
    rows: usize,
    cols: usize,
    from: *const f32,
    stride: usize,
    factor: f32,
    to: *mut f32,
    to_stride: usize,
) {
    // SAFETY: the blocks and the rest stay inside what the caller vouches for.
    unsafe {
        let (whole_rows, whole_cols) = whole_blocks(rows, cols);
        for col in (0..whole_cols).step_by(BLOCK) {
            for row in (0..whole_rows).step_by(BLOCK) {
                transpose_block(from.add(row * stride + col), stride, factor, to.add(col * to_stride + row), to_stride);
            }
        }
        for col in 0..cols {
            let done = if col < whole_cols { whole_rows } else { 0 };
            for row in done..rows {
                *to.add(col * to_stride + row) = factor * *from.add(row * stride + col);
            }
        }
    }
}

/// Rows and columns that are transposed in registers.
const BLOCK: usize = 8;

#[cfg(target_arch = "x86_64")]
fn whole_blocks(rows: usize, cols: usize) -> (usize, usize) {
    if is_x86_feature_detected!("avx") { (rows - rows % BLOCK, cols - cols % BLOCK) } else { (0, 0) }
}

#[cfg(not(target_arch = "x86_64"))]
fn whole_blocks(_rows: usize, _cols: usize) -> (usize, usize) {
    (0, 0)
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn transpose_block(_from: *const f32, _stride: usize, _factor: f32, _to: *mut f32, _to_stride: usize) {
    unreachable!("there are no whole blocks")
}

/// Pairs of lines, then pairs of pairs, then halves change places.
///
/// # Safety
/// The processor must have AVX; both sides hold eight rows of eight.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn transpose_block(from: *const f32, stride: usize, factor: f32, to: *mut f32, to_stride: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller vouches for both blocks.
    unsafe {
        let factor = _mm256_set1_ps(factor);
        let line: [__m256; BLOCK] =
            std::array::from_fn(|row| _mm256_mul_ps(factor, _mm256_loadu_ps(from.add(row * stride))));
        let pair = |a: usize| (_mm256_unpacklo_ps(line[a], line[a + 1]), _mm256_unpackhi_ps(line[a], line[a + 1]));
        let quad = |a: usize| {
            let ((low, high), (next_low, next_high)) = (pair(a), pair(a + 2));
            [
                _mm256_shuffle_ps::<0x44>(low, next_low),
                _mm256_shuffle_ps::<0xee>(low, next_low),
                _mm256_shuffle_ps::<0x44>(high, next_high),
                _mm256_shuffle_ps::<0xee>(high, next_high),
            ]
        };
        let (upper, lower) = (quad(0), quad(4));
        for col in 0..4 {
            _mm256_storeu_ps(to.add(col * to_stride), _mm256_permute2f128_ps::<0x20>(upper[col], lower[col]));
            _mm256_storeu_ps(to.add((col + 4) * to_stride), _mm256_permute2f128_ps::<0x31>(upper[col], lower[col]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposes_blocks_and_what_is_left_of_them() {
        for (rows, cols) in [(1, 1), (8, 8), (64, 64), (13, 21), (64, 6)] {
            let from: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
            let mut to = vec![0.0f32; cols * rows];
            // SAFETY: both have the right size.
            unsafe { transpose(rows, cols, from.as_ptr(), cols, 2.0, to.as_mut_ptr(), rows) };
            for row in 0..rows {
                for col in 0..cols {
                    assert_eq!(to[col * rows + row], 2.0 * from[row * cols + col], "{rows}x{cols}");
                }
            }
        }
    }

    fn check(rows: usize, cols: usize, depth: usize, part: Part) {
        let a: Vec<f32> = (0..rows * depth).map(|i| ((i * 7 % 13) as f32) - 6.0).collect();
        let b: Vec<f32> = (0..depth * cols).map(|i| ((i * 5 % 11) as f32) - 5.0).collect();
        for (add, transposed) in [(false, false), (true, false), (true, true)] {
            let mut c = vec![1.0f32; rows * cols];
            let (a_row, a_col) = if transposed { (1, rows) } else { (depth, 1) };
            let product = TileProduct {
                rows,
                cols,
                depth,
                a: a.as_ptr(),
                a_row,
                a_col,
                b: b.as_ptr(),
                b_row: cols,
                c: c.as_mut_ptr(),
                c_row: cols,
                add,
                part,
            };
            // SAFETY: three vectors of the right sizes.
            unsafe { product.run() };
            for row in 0..rows {
                for col in 0..cols {
                    // Blocks decide about eight rows at a time at most.
                    let (low, high) = match part {
                        Part::DepthToRow => (0, row / 8 * 8 + 8),
                        Part::DepthFromRow => (row / 8 * 8, depth),
                        _ => (0, depth),
                    };
                    let terms = (0..depth).filter(|k| (low..high).contains(k));
                    let want: f32 = terms.map(|k| a[row * a_row + k * a_col] * b[k * cols + col]).sum();
                    let want = if add { 1.0 + want } else { want };
                    if part == Part::All || (part == Part::Above && row <= col) {
                        assert_eq!(c[row * cols + col], want, "{rows}x{cols}x{depth} at {row},{col}");
                    }
                }
            }
        }
    }

    #[test]
    fn agrees_with_the_definition() {
        for rows in [1, 7, 8, 9, 64] {
            for cols in [1, 5, 16, 31, 33, 64] {
                for depth in [1, 6, 64] {
                    check(rows, cols, depth, Part::All);
                    check(rows, cols, depth, Part::Above);
                }
            }
        }
    }
}
