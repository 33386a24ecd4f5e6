//! Codes of few bits, as blocks of elements are stored in.

use std::sync::LazyLock;

/// What codes stand for, as multiples of their block's scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// Eight bits of which the leading ones are the exponent, after Dettmers: seven decades below one, each divided
    /// evenly, the higher the finer, and zero. For numbers that span many magnitudes, such as optimizer states.
    DynamicSigned,
    /// The same without negative numbers, every decade twice as fine.
    DynamicUnsigned,
    /// Four bits: the quantiles of a normal distribution, after Dettmers and others (QLoRA). For weights.
    Nf4,
    /// Two's complement, in 127ths of the scale.
    Int8,
    /// A float of eight bits with four for the exponent, up to 448 times the scale.
    E4m3,
}

/// Numbers that a code of eight bits has.
const NUMBERS: usize = 256;
/// The largest number of e4m3.
pub const E4M3_MAX: f32 = 448.0;
const DECADES: [f64; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

type Numbers = [f32; NUMBERS];

static SIGNED: LazyLock<Numbers> = LazyLock::new(|| dynamic(1, true));
static UNSIGNED: LazyLock<Numbers> = LazyLock::new(|| dynamic(2, false));

/// The middles of the parts of each decade, the lowest of which has `parts` and every next one twice as many; zero and one.
/// Rounded on the way as PyTorch rounds what bitsandbytes makes its tables of, so that they are the same to the last bit.
fn dynamic(parts: usize, negative: bool) -> Numbers {
    let middles = DECADES.iter().enumerate().flat_map(|(index, decade)| {
        let parts = parts << index;
        (0..parts).map(move |part| (0.5 * (division(part, parts) + division(part + 1, parts))) * *decade as f32)
    });
    let middles: Vec<f32> = middles.collect();
    let mirrored = middles.iter().rev().map(|number| -number).filter(|_| negative);
    let mut numbers = mirrored.chain([0.0]).chain(middles.iter().copied()).chain([1.0]);
    std::array::from_fn(|_| numbers.next().expect("as many as there are codes"))
}

/// Where a part of what lies between a tenth and one begins, counted from the nearer end.
fn division(part: usize, parts: usize) -> f32 {
    let (first, last) = (0.1f32, 1.0f32);
    let step = (last - first) / parts as f32;
    match part < parts.div_ceil(2) {
        true => step.mul_add(part as f32, first),
        false => (-step).mul_add((parts - part) as f32, last),
    }
}

static INT8: LazyLock<Numbers> = LazyLock::new(|| std::array::from_fn(|code| f32::from(code as u8 as i8) / 127.0));
static E4M3: LazyLock<Numbers> = LazyLock::new(|| std::array::from_fn(|code| e4m3(code as u8)));

/// Sixteen quantiles that divide a normal distribution evenly on either side of zero, the outermost put to one.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The number of a code: a sign, four bits of exponent with a bias of seven, three of fraction. The exponent's highest value
/// holds numbers too, but for the last one, which is none.
fn e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * 2f32.powi(-9),
        _ => (8.0 + fraction) * 2f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 { size } else { -size }
}

impl Code {
    pub fn bits(self) -> usize {
        match self {
            Code::Nf4 => 4,
            _ => 8,
        }
    }

    /// What each code stands for. Those of [`Code::DynamicSigned`], [`Code::DynamicUnsigned`] and [`Code::Nf4`] ascend.
    pub fn numbers(self) -> &'static [f32] {
        match self {
            Code::DynamicSigned => &*SIGNED,
            Code::DynamicUnsigned => &*UNSIGNED,
            Code::Nf4 => &NF4,
            Code::Int8 => &*INT8,
            Code::E4m3 => &*E4M3,
        }
    }

    /// The largest number there is, so that a block whose largest number is `largest` loses none and wastes nothing.
    pub fn scale_of(self, largest: f32) -> f32 {
        match self {
            Code::E4m3 => largest / E4M3_MAX,
            _ => largest,
        }
    }

    /// The code of the number that is nearest: of two the lower one, and in [`Code::Int8`] and [`Code::E4m3`] the even one.
    /// What is beyond the ends is the end.
    pub fn nearest(self, number: f32) -> u8 {
        match self {
            Code::Int8 => (number * 127.0).round_ties_even().clamp(-127.0, 127.0) as i8 as u8,
            Code::E4m3 => nearest_e4m3(number),
            Code::DynamicSigned | Code::DynamicUnsigned | Code::Nf4 => {
                let numbers = self.numbers();
                let mut code = 0;
                let mut half = numbers.len() / 2;
                while half > 0 {
                    let middle = 0.5 * (numbers[code + half - 1] + numbers[code + half]);
                    code += if number > middle { half } else { 0 };
                    half /= 2;
                }
                code as u8
            }
        }
    }
}

/// Numbers below 2⁻⁶ are multiples of 2⁻⁹; above, the exponent says of what.
fn nearest_e4m3(number: f32) -> u8 {
    let size = number.abs().min(E4M3_MAX);
    let exponent = ((size.to_bits() >> 23).cast_signed() - 127).max(-6);
    let step = f32::from_bits(((exponent - 3 + 127) as u32) << 23);
    // A whole number of steps, exactly: at most sixteen of them. Rounding up to the next power is the next code, too.
    let steps = (size / step).round_ties_even() as u32;
    let code = ((exponent + 6) as u32 * 8 + steps) as u8;
    if number.is_sign_negative() { code | 0x80 } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES: [Code; 2] = [Code::DynamicSigned, Code::DynamicUnsigned];
    const ALL: [Code; 5] = [Code::DynamicSigned, Code::DynamicUnsigned, Code::Nf4, Code::Int8, Code::E4m3];

    #[test]
    fn numbers_ascend_from_end_to_end() {
        for code in CODES {
            let numbers = code.numbers();
            assert!(numbers.is_sorted_by(|a, b| a < b), "{code:?}");
            assert!(numbers.contains(&0.0) && numbers[255] == 1.0, "{code:?}");
        }
        let [signed, unsigned] = CODES.map(Code::numbers);
        assert!((1..128).all(|k| signed[127 - k] == -signed[127 + k]), "but for one itself, each has its negative");
        // Ends of the published tables.
        assert_eq!((signed[0], signed[128]), (-0.992_968_74, 5.500_000_4e-7));
        assert_eq!((unsigned[0], unsigned[1], unsigned[254]), (0.0, 3.250_000_3e-7, 0.996_484_4));
    }

    #[test]
    fn codes_are_those_of_the_nearest_numbers() {
        for code in ALL {
            let largest = code.numbers().iter().copied().filter(|number| number.is_finite()).fold(0.0, f32::max);
            let distance =
                |number: f32, code_of: u8| (f64::from(number) - f64::from(code.numbers()[code_of as usize])).abs();
            // The lowest number of two's complement has no counterpart and is left alone.
            let unused = |code_of: u8| code == Code::Int8 && code_of == 128;
            let exist = || (0..code.numbers().len()).map(|code_of| code_of as u8).filter(|&code_of| !unused(code_of));
            for index in 0..20_000 {
                // All magnitudes down to below the smallest number, and beyond both ends.
                let size = 10f32.powf(-8.0 * (index % 997) as f32 / 996.0) * 1.1 * largest;
                let number = if index % 2 == 0 { size } else { -size };
                let best = exist().map(|code_of| distance(number, code_of)).fold(f64::INFINITY, f64::min);
                let found = distance(number, code.nearest(number));
                assert!(found <= best * (1.0 + 1e-6), "{number} as {code:?}: off by {found}, the nearest by {best}");
            }
            for (index, &number) in code.numbers().iter().enumerate() {
                if number.is_finite() && !unused(index as u8) {
                    assert_eq!(usize::from(code.nearest(number)), index, "{number} as {code:?}");
                }
            }
        }
    }

    #[test]
    fn e4m3_is_as_published() {
        let number = |code: u8| Code::E4m3.numbers()[usize::from(code)];
        assert_eq!((number(0x7e), number(0x08), number(0x01), number(0x38)), (448.0, 0.015_625, 0.001_953_125, 1.0));
        assert!(number(0x7f).is_nan() && number(0xff).is_nan());
        // Halfway between two codes, the even one; past the largest, the largest.
        for (size, code) in [(1.0625, 0x38), (1.1875, 0x3a), (1e9, 0x7e), (0.000_976_562_5, 0), (15.5, 0x58)] {
            assert_eq!(Code::E4m3.nearest(size), code, "{size}");
            assert_eq!(Code::E4m3.nearest(-size), code | 0x80, "-{size}");
        }
    }
}
