//! The tables by which kernels decode and encode optimizer states in eight bits, as the text of a header: what codes stand
//! for is the same on the card as on the host because it comes from there.

use std::fmt::Write;
use std::sync::LazyLock;

use plimsoll_graph::Code;

/// What kernel files include it as.
pub(crate) const NAME: &str = "dynamic_tables.cuh";

/// How the nearest code of a number of size one or less is found: the float's leading bits choose a cell, and within a
/// cell there is at most one place where the code changes. A cell's word is such that word plus float, as whole numbers, has
/// the code in its highest byte: where the float is beyond that place, the sum carries.
struct Cells {
    code: Code,
    /// Bits of a float that are not part of a cell's number.
    shift: u32,
    /// The exponent of the smallest size that is told from zero.
    lowest: i32,
}

/// A cell is narrower than any code's share: near one, those are 1/71 wide, and half of that without a sign.
const SIGNED: Cells = Cells { code: Code::DynamicSigned, shift: 17, lowest: -22 };
const UNSIGNED: Cells = Cells { code: Code::DynamicUnsigned, shift: 16, lowest: -23 };
/// Where the code begins in a sum.
const CODE_SHIFT: u32 = 24;

impl Cells {
    /// Sizes below are none: the bits of the smallest one that is.
    fn first_bits(&self) -> u32 {
        ((127 + self.lowest) as u32) << 23
    }

    fn first_cell(&self) -> u32 {
        self.first_bits() >> self.shift
    }

    /// Up to the one that begins with one itself.
    fn count(&self) -> u32 {
        (1f32.to_bits() >> self.shift) + 1 - self.first_cell()
    }

    /// The code of a number with these bits, or, of a negative one, its complement: both ascend with the size.
    fn ascending(&self, bits: u32, negative: bool) -> u8 {
        let size = f32::from_bits(bits);
        if negative { !self.code.nearest(-size) } else { self.code.nearest(size) }
    }

    fn word(&self, cell: u32, negative: bool) -> u32 {
        let (first, last) = (cell << self.shift, ((cell + 1) << self.shift) - 1);
        let code = self.ascending(first, negative);
        // The last float with this code: by bisection, as codes ascend.
        let (mut low, mut high) = (first, last);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.ascending(middle, negative) == code { low = middle } else { high = middle - 1 }
        }
        ((u32::from(code) + 1) << CODE_SHIFT).wrapping_sub(1 + low)
    }

    fn words(&self, negative: bool) -> impl Iterator<Item = u32> {
        (self.first_cell()..self.first_cell() + self.count()).map(move |cell| self.word(cell, negative))
    }
}

/// The header's text.
pub(crate) fn header() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(text);
    &TEXT
}

fn text() -> String {
    let mut text = String::from(
        "// What dynamic codes stand for and how they are found, as `src/dynamic.rs` explains.\n#pragma once\n",
    );
    for (name, code) in [("SIGNED", Code::DynamicSigned), ("UNSIGNED", Code::DynamicUnsigned)] {
        let numbers: Vec<String> = code.numbers().iter().map(|number| format!("{number:e}f")).collect();
        let _ = writeln!(text, "__device__ constexpr float DYNAMIC_{name}[256] = {{{}}};", numbers.join(","));
    }
    for (name, cells, signs) in [("SIGNED", SIGNED, &[false, true][..]), ("UNSIGNED", UNSIGNED, &[false])] {
        let words: Vec<String> =
            signs.iter().flat_map(|&negative| cells.words(negative)).map(|word| format!("{word}u")).collect();
        let _ = writeln!(text, "#define {name}_FIRST_BITS {}u", cells.first_bits());
        let _ = writeln!(text, "#define {name}_SHIFT {}", cells.shift);
        let _ = writeln!(text, "#define {name}_CELLS {}", cells.count());
        let _ = writeln!(
            text,
            "__device__ constexpr unsigned int {name}_WORDS[{}] = {{{}}};",
            words.len(),
            words.join(",")
        );
    }
    let _ = writeln!(text, "#define CODE_SHIFT {CODE_SHIFT}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `nearest_code` and `highest_bytes` in `kernels/coded_states.cuh`, word for word.
    fn found(cells: &Cells, words: &[u32], number: f32) -> u8 {
        let first = cells.first_bits();
        let size = number.abs().max(f32::from_bits(first)).to_bits();
        let cell = (size >> cells.shift) - (first >> cells.shift);
        if cells.code == Code::DynamicUnsigned {
            return (words[cell as usize].wrapping_add(size) >> CODE_SHIFT) as u8;
        }
        let negative = (number.to_bits().cast_signed() >> 31).cast_unsigned();
        let cell = cell.wrapping_sub(negative.wrapping_mul(cells.count()));
        ((words[cell as usize].wrapping_add(size) ^ negative) >> CODE_SHIFT) as u8
    }

    fn tables() -> [(Cells, Vec<u32>); 2] {
        let signed = SIGNED.words(false).chain(SIGNED.words(true)).collect();
        [(SIGNED, signed), (UNSIGNED, UNSIGNED.words(false).collect())]
    }

    /// Codes ascend with the size, and so do sums within a cell. So where a cell's ends and both sides of each place where
    /// the code changes have their code, all floats in between have it.
    #[test]
    fn every_float_has_the_code_of_the_nearest_number() {
        for (cells, words) in tables() {
            let signs = if cells.code == Code::DynamicSigned { &[false, true][..] } else { &[false] };
            let check = |bits: u32, negative: bool| {
                let number = f32::from_bits(bits) * if negative { -1.0 } else { 1.0 };
                assert_eq!(found(&cells, &words, number), cells.code.nearest(number), "{number:e} as {:?}", cells.code);
            };
            for &negative in signs {
                let (mut changes, mut code) = (0, cells.ascending(cells.first_bits(), negative));
                for cell in cells.first_cell()..cells.first_cell() + cells.count() {
                    let (first, last) = (cell << cells.shift, ((cell + 1) << cells.shift) - 1);
                    let codes = [first, last].map(|bits| cells.ascending(bits, negative));
                    assert!(codes[1] - codes[0] <= 1, "{codes:?} in one cell of {:?}", cells.code);
                    let word = words[(cell - cells.first_cell() + if negative { cells.count() } else { 0 }) as usize];
                    // Where the sum carries.
                    let change = ((u32::from(codes[0]) + 1) << CODE_SHIFT).wrapping_sub(word);
                    assert!((first..=last + 1).contains(&change), "a change outside of its cell");
                    changes += u32::from(codes[0] - code) + u32::from(codes[1] - codes[0]);
                    code = codes[1];
                    for bits in [first, change - 1, change.min(last), last] {
                        check(bits.max(first), negative);
                    }
                }
                // All codes there are but the one for zero, where sizes begin.
                let expected = match (cells.code, negative) {
                    (Code::DynamicSigned, false) => 128,
                    (Code::DynamicSigned, true) => 127,
                    _ => 255,
                };
                assert_eq!(changes, expected, "{:?}", cells.code);
                // What is smaller than every cell.
                (0..cells.first_bits()).step_by(65_537).for_each(|bits| check(bits, negative));
            }
            let zero = cells.code.nearest(0.0);
            for number in [0.0, -0.0, f32::NAN, -f32::NAN, f32::MIN_POSITIVE, 1e-40] {
                assert_eq!(found(&cells, &words, number), zero, "{number}");
            }
        }
    }

    /// Both sides of every middle between two numbers, and numbers in between, without regard to cells.
    #[test]
    fn middles_belong_to_the_lower_number() {
        for (cells, words) in tables() {
            let numbers = cells.code.numbers();
            for pair in numbers.windows(2) {
                let middle = 0.5 * (pair[0] + pair[1]);
                let inner = (1..64).map(|part| pair[0] + (pair[1] - pair[0]) * part as f32 / 64.0);
                for number in [middle, middle.next_up(), middle.next_down(), pair[0], pair[1]].into_iter().chain(inner)
                {
                    assert_eq!(found(&cells, &words, number), cells.code.nearest(number), "{number:e}");
                }
            }
        }
    }

    /// What a compiler reads of the header are the numbers and words themselves.
    #[test]
    fn the_header_says_what_the_tables_hold() {
        let list = |name: &str| -> Vec<&str> {
            let line = header().lines().find(|line| line.contains(&format!(" {name}["))).expect("one line each");
            let (_, values) = line.split_once('{').expect("a list");
            values.trim_end_matches("};").split(',').collect()
        };
        for (name, code) in [("DYNAMIC_SIGNED", Code::DynamicSigned), ("DYNAMIC_UNSIGNED", Code::DynamicUnsigned)] {
            let read = |text: &str| text.strip_suffix('f').and_then(|text| text.parse::<f32>().ok());
            let numbers: Vec<_> = list(name).into_iter().map(read).collect();
            assert_eq!(numbers, code.numbers().iter().copied().map(Some).collect::<Vec<_>>());
        }
        for ((_, words), name) in tables().into_iter().zip(["SIGNED_WORDS", "UNSIGNED_WORDS"]) {
            let read = |text: &str| text.strip_suffix('u').and_then(|text| text.parse::<u32>().ok());
            assert_eq!(
                list(name).into_iter().map(read).collect::<Vec<_>>(),
                words.into_iter().map(Some).collect::<Vec<_>>()
            );
        }
    }
}
