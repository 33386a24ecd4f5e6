//! What inner loops are made of: compiling a kernel once per instruction set, writing results where
//! an input may lie, and sums of fixed order.

/// Defines an `unsafe fn` whose body is compiled for AVX-512, for AVX2 and for the baseline, and
/// picks among them when called. The body is inlined into each version, so that the loop vectoriser
/// works with that version's registers. All versions do the same operations in the same order.
macro_rules! vectorized {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident $(<$generic:ident: $bound:path>)?
        ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis unsafe fn $name $(<$generic: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            unsafe fn body $(<$generic: $bound>)? ($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2")]
                unsafe fn wide $(<$generic: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller's promises are passed on.
                    unsafe { body $(::<$generic>)? ($($arg),*) }
                }
                #[target_feature(enable = "avx2,fma,bmi1,bmi2")]
                unsafe fn middle $(<$generic: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller's promises are passed on.
                    unsafe { body $(::<$generic>)? ($($arg),*) }
                }
                match $crate::vector::level() {
                    // SAFETY: the processor has these instructions; the caller's promises are passed on.
                    $crate::vector::Level::Avx512 => return unsafe { wide $(::<$generic>)? ($($arg),*) },
                    // SAFETY: as above.
                    $crate::vector::Level::Avx2 => return unsafe { middle $(::<$generic>)? ($($arg),*) },
                    $crate::vector::Level::Baseline => {}
                }
            }
            // SAFETY: the caller's promises are passed on.
            unsafe { body $(::<$generic>)? ($($arg),*) }
        }
    };
}
pub(crate) use vectorized;

#[cfg(target_arch = "x86_64")]
pub(crate) enum Level {
    Avx512,
    Avx2,
    Baseline,
}

/// What the processor can do. The standard library remembers the answer.
#[cfg(target_arch = "x86_64")]
pub(crate) fn level() -> Level {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx512, avx2) {
        (true, true) => Level::Avx512,
        (false, true) => Level::Avx2,
        _ => Level::Baseline,
    }
}

/// Results are computed a block at a time and then written. An output may be an input's own memory,
/// and through a local array the compiler sees that writing cannot disturb what is still to be read.
const BLOCK: usize = 64;
const SMALL_BLOCK: usize = 16;

/// `out[i] = value(i)` for `i < len`.
///
/// # Safety
/// `out` must have room for `len`; `value` may read element `i` of memory that is `out` itself or
/// lies elsewhere.
#[inline(always)]
pub(crate) unsafe fn fill(len: usize, out: *mut f32, value: impl Fn(usize) -> f32) {
    let mut start = 0;
    // SAFETY: blocks that lie below `len`.
    unsafe {
        while start + BLOCK <= len {
            fill_block::<BLOCK>(start, out, &value);
            start += BLOCK;
        }
        while start + SMALL_BLOCK <= len {
            fill_block::<SMALL_BLOCK>(start, out, &value);
            start += SMALL_BLOCK;
        }
        for index in start..len {
            *out.add(index) = value(index);
        }
    }
}

#[inline(always)]
unsafe fn fill_block<const LEN: usize>(start: usize, out: *mut f32, value: &impl Fn(usize) -> f32) {
    let mut block = [0.0f32; LEN];
    for (offset, slot) in block.iter_mut().enumerate() {
        *slot = value(start + offset);
    }
    // SAFETY: the caller vouches for the room.
    unsafe { out.add(start).cast::<[f32; LEN]>().write_unaligned(block) };
}

/// As [`fill`], with two results for each `i`.
///
/// # Safety
/// As for [`fill`], with element `i` of either output taken for element `i` of the inputs.
#[inline(always)]
pub(crate) unsafe fn fill_two(len: usize, first: *mut f32, second: *mut f32, value: impl Fn(usize) -> (f32, f32)) {
    let mut start = 0;
    // SAFETY: blocks that lie below `len`.
    unsafe {
        while start + BLOCK <= len {
            fill_two_blocks::<BLOCK>(start, first, second, &value);
            start += BLOCK;
        }
        while start + SMALL_BLOCK <= len {
            fill_two_blocks::<SMALL_BLOCK>(start, first, second, &value);
            start += SMALL_BLOCK;
        }
        for index in start..len {
            (*first.add(index), *second.add(index)) = value(index);
        }
    }
}

#[inline(always)]
unsafe fn fill_two_blocks<const LEN: usize>(
    start: usize,
    first: *mut f32,
    second: *mut f32,
    value: &impl Fn(usize) -> (f32, f32),
) {
    let (mut a, mut b) = ([0.0f32; LEN], [0.0f32; LEN]);
    for (offset, (a, b)) in a.iter_mut().zip(&mut b).enumerate() {
        (*a, *b) = value(start + offset);
    }
    // SAFETY: the caller vouches for the room.
    unsafe {
        first.add(start).cast::<[f32; LEN]>().write_unaligned(a);
        second.add(start).cast::<[f32; LEN]>().write_unaligned(b);
    }
}

/// Partial results kept side by side: enough to hide an addition's latency, and the same number on
/// every instruction set, so that sums come out the same.
const LANES: usize = 64;
const VECTOR: usize = 16;

/// `Σ term(i)` for `i < len`, in an order that depends on `len` alone. `term(i, partial)` adds to a
/// partial sum.
#[inline(always)]
pub(crate) fn sum(len: usize, term: impl Fn(usize, f32) -> f32) -> f32 {
    reduce(len, 0.0, term, |a, b| a + b)
}

/// The largest `value(i)` for `i < len`; negative infinity if there is none.
#[inline(always)]
pub(crate) fn maximum(len: usize, value: impl Fn(usize) -> f32) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    reduce(len, f32::NEG_INFINITY, |i, best| larger(value(i), best), larger)
}

#[inline(always)]
fn reduce(len: usize, neutral: f32, term: impl Fn(usize, f32) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [neutral; LANES];
    let mut start = 0;
    while start + LANES <= len {
        for (lane, partial) in lanes.iter_mut().enumerate() {
            *partial = term(start + lane, *partial);
        }
        start += LANES;
    }
    while start + VECTOR <= len {
        for (lane, partial) in lanes[..VECTOR].iter_mut().enumerate() {
            *partial = term(start + lane, *partial);
        }
        start += VECTOR;
    }
    let mut rest = neutral;
    for index in start..len {
        rest = term(index, rest);
    }
    // Loops rather than `array::from_fn`, whose calls the compiler leaves standing in large kernels.
    let mut total = [neutral; VECTOR];
    for lane in 0..VECTOR {
        let (low, high) = (join(lanes[lane], lanes[lane + 16]), join(lanes[lane + 32], lanes[lane + 48]));
        total[lane] = join(low, high);
    }
    for lane in 0..8 {
        total[lane] = join(total[lane], total[lane + 8]);
    }
    for lane in 0..4 {
        total[lane] = join(total[lane], total[lane + 4]);
    }
    join(join(join(total[0], total[2]), join(total[1], total[3])), rest)
}
