//! Numbers to codes and scales.

use std::sync::LazyLock;

use plimsoll_graph::{Code, E4M3_MAX, NESTED_SCALES};

/// Encodes blocks that lie one behind another; the last one may be shorter. There is a scale for each, and room for
/// their codes.
pub fn encode(code: Code, block: usize, numbers: &[f32], codes: &mut [u8], scales: &mut [f32]) {
    let code_bytes = block * code.bits() / 8;
    for ((numbers, codes), scale) in numbers.chunks(block).zip(codes.chunks_mut(code_bytes)).zip(scales) {
        let largest = largest(numbers);
        *scale = code.scale_of(largest);
        match code {
            Code::Nf4 => encode_nf4(numbers, largest, codes),
            Code::Int8 => encode_int8(numbers, largest, codes),
            Code::E4m3 => encode_e4m3(numbers, *scale, codes),
            Code::DynamicSigned | Code::DynamicUnsigned => encode_nearest(code, numbers, largest, codes),
        }
    }
}

/// The largest magnitude, several at a time: the order does not matter.
pub(super) fn largest(numbers: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    let mut most = [0.0f32; LANES];
    for chunk in chunks {
        // No number here is a NaN, and so a comparison is all it takes.
        most.iter_mut().zip(chunk).for_each(|(most, x)| *most = if x.abs() > *most { x.abs() } else { *most });
    }
    most.iter().chain(rest).fold(0.0, |most, x| x.abs().max(most))
}

/// No smaller number is divided by, as bitsandbytes has it: its inverse would be infinite.
const LARGEST_MIN: f32 = 1e-38;

/// Codes of [`Code::Nf4`].
const NF4_CODES: usize = 16;

/// What lies halfway between a code's number and the next one's.
static NF4_MIDDLES: LazyLock<[f32; NF4_CODES - 1]> = LazyLock::new(|| {
    let numbers = Code::Nf4.numbers();
    std::array::from_fn(|code| 0.5 * (numbers[code] + numbers[code + 1]))
});

/// A code is how many of the middles its number lies above.
fn encode_nf4(numbers: &[f32], largest: f32, codes: &mut [u8]) {
    const RUN: usize = 32;
    let (middles, inverse) = (*NF4_MIDDLES, 1.0 / largest.max(LARGEST_MIN));
    let code = |x: f32| middles.iter().fold(0i32, |code, &middle| code + i32::from(x * inverse > middle));
    let (runs, rest) = numbers.as_chunks::<RUN>();
    let (packed_runs, packed_rest) = codes.split_at_mut(runs.len() * RUN / 2);
    for (run, packed) in runs.iter().zip(packed_runs.as_chunks_mut::<{ RUN / 2 }>().0) {
        let codes: [i32; RUN] = run.map(code);
        for (packed, pair) in packed.iter_mut().zip(codes.as_chunks::<2>().0) {
            *packed = (pair[0] << 4 | pair[1]) as u8;
        }
    }
    for (packed, pair) in packed_rest.iter_mut().zip(rest.chunks(2)) {
        *packed = (code(pair[0]) << 4 | pair.get(1).map_or(0, |&x| code(x))) as u8;
    }
}

/// Added to a small number, it leaves the nearest whole number in the lowest bits, of two the even one.
const TO_WHOLE: f32 = 12_582_912.0;

/// The number times the inverse of `largest` times 127, rounded in this order, as bitsandbytes does on a CPU.
fn encode_int8(numbers: &[f32], largest: f32, codes: &mut [u8]) {
    let inverse = (1.0 / largest * 127.0).min(f32::MAX);
    for (code, x) in codes.iter_mut().zip(numbers) {
        *code = (x * inverse + TO_WHOLE).to_bits() as u8;
    }
}

pub(super) fn encode_e4m3(numbers: &[f32], scale: f32, codes: &mut [u8]) {
    if scale == 0.0 {
        return codes.fill(0);
    }
    codes.iter_mut().zip(numbers).for_each(|(code, x)| *code = nearest_e4m3(x / scale));
}

/// As [`Code::nearest`] has it, without a branch.
#[inline(always)]
fn nearest_e4m3(number: f32) -> u8 {
    /// The smallest number with an exponent of its own, below which all are multiples of 2⁻⁹.
    const NORMAL_MIN: f32 = 1.0 / 64.0;
    /// Added to such a small number, it leaves the multiple of 2⁻⁹ in the lowest bits.
    const TO_MULTIPLE: f32 = TO_WHOLE / 512.0;
    /// Bits of a float32's fraction that e4m3 has no room for, and the difference of the exponents' biases.
    const DROPPED: u32 = 20;
    const BIAS: u32 = 127 - 7;
    let bits = number.to_bits();
    let size = f32::from_bits(bits & 0x7fff_ffff);
    let size = if size > E4M3_MAX { E4M3_MAX } else { size };
    let small = (size + TO_MULTIPLE).to_bits() & 0xff;
    let up = (1 << (DROPPED - 1)) - 1 + (size.to_bits() >> DROPPED & 1);
    let normal = (size.to_bits().wrapping_add(up) >> DROPPED).wrapping_sub(BIAS << 3);
    let code = if size < NORMAL_MIN { small } else { normal };
    (code | bits >> 24 & 0x80) as u8
}

fn encode_nearest(code: Code, numbers: &[f32], largest: f32, codes: &mut [u8]) {
    let inverse = 1.0 / largest.max(LARGEST_MIN);
    codes.iter_mut().zip(numbers).for_each(|(place, x)| *place = code.nearest(x * inverse));
}

/// Nests the scales of one matrix: their codes, and for every [`NESTED_SCALES`] of them a scale; gives the offset that all
/// share, their mean.
pub fn nest(scales: &[f32], codes: &mut [u8], nested: &mut [f32]) -> f32 {
    // Summed up in float64, so that the order of the sum does not show.
    let offset = (scales.iter().map(|&scale| f64::from(scale)).sum::<f64>() / scales.len().max(1) as f64) as f32;
    for ((scales, codes), nested) in scales.chunks(NESTED_SCALES).zip(codes.chunks_mut(NESTED_SCALES)).zip(nested) {
        *nested = scales.iter().fold(0.0, |most, scale| (scale - offset).abs().max(most));
        let inverse = 1.0 / *nested;
        let code = |scale: f32| if inverse.is_finite() { nearer((scale - offset) * inverse) } else { 0 };
        codes.iter_mut().zip(scales).for_each(|(place, &scale)| *place = code(scale));
    }
    offset
}

/// The code of the number that is less far away, of two the lower one, distances rounded as bitsandbytes rounds them on a
/// CPU: of a number halfway between two, [`Code::nearest`] may say the other.
fn nearer(number: f32) -> u8 {
    let numbers = Code::DynamicSigned.numbers();
    let right = numbers.partition_point(|&other| other < number).clamp(1, numbers.len() - 1);
    let left = right - 1;
    (if numbers[right] - number < number - numbers[left] { right } else { left }) as u8
}

/// The nested scales with their offset as they lie in memory.
pub fn nested_pairs(nested: &[f32], offset: f32) -> Vec<u8> {
    nested.iter().flat_map(|scale| [scale.to_le_bytes(), offset.to_le_bytes()]).flatten().collect()
}
