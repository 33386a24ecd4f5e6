//! The vector types that products are computed with, one for each instruction set.

/// A hint that memory will be needed soon.
#[inline(always)]
pub(super) fn prefetch(at: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: any address may be named; the instruction belongs to the baseline.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// A register full of numbers. Methods compile to single instructions only inside a function that
/// enables the instruction set, which is why they are all inlined.
///
/// # Safety
/// Calling anything here needs a processor with the instructions of the type.
pub(super) trait Vector: Copy {
    const LANES: usize;

    unsafe fn splat(x: f32) -> Self;
    /// `LANES` elements, aligned or not.
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// The first `count` elements, of at most `LANES`; nothing behind them is touched, and the rest is zero.
    unsafe fn load_first(from: *const f32, count: usize) -> Self;
    unsafe fn store_first(self, to: *mut f32, count: usize);
    unsafe fn add(self, other: Self) -> Self;
    /// `self·factor + onto`, rounded once where the processor can.
    unsafe fn mul_add(self, factor: Self, onto: Self) -> Self;
    /// Up to `LANES` lines that begin `stride` apart are written side by side: element `i` of line `l`
    /// goes to `to[i·spacing + l]`, for `i < depth` and `depth ≤ LANES`. What is missing of `LANES` lines
    /// is written as zero, so each of the `depth` writes takes `LANES` places.
    unsafe fn transpose(from: *const f32, stride: usize, lines: usize, depth: usize, to: *mut f32, spacing: usize);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Vector;

    #[inline(always)]
    fn first_lanes(count: usize) -> __mmask16 {
        ((1u32 << count) - 1) as __mmask16
    }

    impl Vector for __m512 {
        const LANES: usize = 16;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: as the trait says.
            unsafe { _mm512_set1_ps(x) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: as the trait says.
            unsafe { _mm512_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: as the trait says.
            unsafe { _mm512_storeu_ps(to, self) }
        }

        #[inline(always)]
        unsafe fn load_first(from: *const f32, count: usize) -> Self {
            // SAFETY: as the trait says; masked lanes are not read.
            unsafe { _mm512_maskz_loadu_ps(first_lanes(count), from) }
        }

        #[inline(always)]
        unsafe fn store_first(self, to: *mut f32, count: usize) {
            // SAFETY: as the trait says; masked lanes are not written.
            unsafe { _mm512_mask_storeu_ps(to, first_lanes(count), self) }
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: as the trait says.
            unsafe { _mm512_add_ps(self, other) }
        }

        #[inline(always)]
        unsafe fn mul_add(self, factor: Self, onto: Self) -> Self {
            // SAFETY: as the trait says.
            unsafe { _mm512_fmadd_ps(self, factor, onto) }
        }

        #[inline(always)]
        unsafe fn transpose(from: *const f32, stride: usize, lines: usize, depth: usize, to: *mut f32, spacing: usize) {
            // SAFETY: the caller vouches for `lines` lines of `depth`, and for the room.
            unsafe {
                let mut line = [_mm512_setzero_ps(); 16];
                if lines == 16 && depth == 16 {
                    for (index, line) in line.iter_mut().enumerate() {
                        *line = _mm512_loadu_ps(from.add(index * stride));
                    }
                } else {
                    for (index, line) in line.iter_mut().enumerate() {
                        if index < lines {
                            *line = Self::load_first(from.add(index * stride), depth);
                        }
                    }
                }
                // Groups of four lines are transposed within each quarter of a register, then the
                // quarters change places: first among pairs of groups, then among all four.
                let mut quad = line;
                for group in (0..16).step_by(4) {
                    let (a, b) = (line[group], line[group + 1]);
                    let (c, d) = (line[group + 2], line[group + 3]);
                    let (low, high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                    let (next_low, next_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                    quad[group] = _mm512_shuffle_ps::<0x44>(low, next_low);
                    quad[group + 1] = _mm512_shuffle_ps::<0xee>(low, next_low);
                    quad[group + 2] = _mm512_shuffle_ps::<0x44>(high, next_high);
                    quad[group + 3] = _mm512_shuffle_ps::<0xee>(high, next_high);
                }
                for j in 0..4 {
                    let even = _mm512_shuffle_f32x4::<0x88>(quad[j], quad[j + 4]);
                    let odd = _mm512_shuffle_f32x4::<0xdd>(quad[j], quad[j + 4]);
                    let next_even = _mm512_shuffle_f32x4::<0x88>(quad[j + 8], quad[j + 12]);
                    let next_odd = _mm512_shuffle_f32x4::<0xdd>(quad[j + 8], quad[j + 12]);
                    line[j] = _mm512_shuffle_f32x4::<0x88>(even, next_even);
                    line[j + 4] = _mm512_shuffle_f32x4::<0x88>(odd, next_odd);
                    line[j + 8] = _mm512_shuffle_f32x4::<0xdd>(even, next_even);
                    line[j + 12] = _mm512_shuffle_f32x4::<0xdd>(odd, next_odd);
                }
                for (index, &line) in line.iter().enumerate() {
                    if index < depth {
                        _mm512_storeu_ps(to.add(index * spacing), line);
                    }
                }
            }
        }
    }

    /// Sixteen lanes' worth of all ones and of zeros: eight from place `8 - count` on have `count` set.
    const MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

    #[inline(always)]
    unsafe fn first_of_eight(count: usize) -> __m256i {
        // SAFETY: as the trait says; eight elements from a place of at most eight.
        unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - count).cast()) }
    }

    impl Vector for __m256 {
        const LANES: usize = 8;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: as the trait says.
            unsafe { _mm256_set1_ps(x) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: as the trait says.
            unsafe { _mm256_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: as the trait says.
            unsafe { _mm256_storeu_ps(to, self) }
        }

        #[inline(always)]
        unsafe fn load_first(from: *const f32, count: usize) -> Self {
            // SAFETY: as the trait says; masked lanes are not read.
            unsafe { _mm256_maskload_ps(from, first_of_eight(count)) }
        }

        #[inline(always)]
        unsafe fn store_first(self, to: *mut f32, count: usize) {
            // SAFETY: as the trait says; masked lanes are not written.
            unsafe { _mm256_maskstore_ps(to, first_of_eight(count), self) }
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: as the trait says.
            unsafe { _mm256_add_ps(self, other) }
        }

        #[inline(always)]
        unsafe fn mul_add(self, factor: Self, onto: Self) -> Self {
            // SAFETY: as the trait says.
            unsafe { _mm256_fmadd_ps(self, factor, onto) }
        }

        #[inline(always)]
        unsafe fn transpose(from: *const f32, stride: usize, lines: usize, depth: usize, to: *mut f32, spacing: usize) {
            // SAFETY: the caller vouches for `lines` lines of `depth`, and for the room.
            unsafe {
                let mut line = [_mm256_setzero_ps(); 8];
                for (index, line) in line.iter_mut().enumerate() {
                    if index < lines {
                        let from = from.add(index * stride);
                        *line = if depth == 8 { _mm256_loadu_ps(from) } else { Self::load_first(from, depth) };
                    }
                }
                // As above, with halves for quarters.
                let mut quad = line;
                for group in [0, 4] {
                    let (a, b) = (line[group], line[group + 1]);
                    let (c, d) = (line[group + 2], line[group + 3]);
                    let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                    let (next_low, next_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                    quad[group] = _mm256_shuffle_ps::<0x44>(low, next_low);
                    quad[group + 1] = _mm256_shuffle_ps::<0xee>(low, next_low);
                    quad[group + 2] = _mm256_shuffle_ps::<0x44>(high, next_high);
                    quad[group + 3] = _mm256_shuffle_ps::<0xee>(high, next_high);
                }
                for j in 0..4 {
                    line[j] = _mm256_permute2f128_ps::<0x20>(quad[j], quad[j + 4]);
                    line[j + 4] = _mm256_permute2f128_ps::<0x31>(quad[j], quad[j + 4]);
                }
                for (index, &line) in line.iter().enumerate() {
                    if index < depth {
                        _mm256_storeu_ps(to.add(index * spacing), line);
                    }
                }
            }
        }
    }
}

/// Four numbers without any instructions of their own: the compiler finds those of the baseline.
#[derive(Clone, Copy)]
pub(super) struct Four([f32; 4]);

impl Vector for Four {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for four elements.
        Self(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller vouches for room for four.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        let mut out = [0.0; 4];
        for (lane, out) in out.iter_mut().enumerate().take(count) {
            // SAFETY: the caller vouches for `count` elements.
            *out = unsafe { *from.add(lane) };
        }
        Self(out)
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        for (lane, &x) in self.0.iter().enumerate().take(count) {
            // SAFETY: the caller vouches for room for `count`.
            unsafe { *to.add(lane) = x };
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        let mut out = self;
        for lane in 0..4 {
            out.0[lane] += other.0[lane];
        }
        out
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, onto: Self) -> Self {
        let mut out = onto;
        for lane in 0..4 {
            // Where the baseline has no such instruction, the library's function would be slow.
            out.0[lane] = if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
                self.0[lane].mul_add(factor.0[lane], onto.0[lane])
            } else {
                self.0[lane] * factor.0[lane] + onto.0[lane]
            };
        }
        out
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, lines: usize, depth: usize, to: *mut f32, spacing: usize) {
        for index in 0..depth {
            for line in 0..4 {
                // SAFETY: the caller vouches for `lines` lines of `depth`, and for the room.
                unsafe {
                    let x = if line < lines { *from.add(line * stride + index) } else { 0.0 };
                    *to.add(index * spacing + line) = x;
                }
            }
        }
    }
}
