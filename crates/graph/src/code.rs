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
}

/// Numbers that a code of eight bits has.
const NUMBERS: usize = 256;
const DECADES: [f64; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

type Numbers = [f32; NUMBERS];

static SIGNED: LazyLock<Numbers> = LazyLock::new(|| dynamic(1, true));
static UNSIGNED: LazyLock<Numbers> = LazyLock::new(|| dynamic(2, false));

/// The middles of the parts of each decade, the lowest of which has `parts` and every next one twice as many; zero and one.
fn dynamic(parts: usize, negative: bool) -> Numbers {
    let middles = DECADES.iter().enumerate().flat_map(|(index, decade)| {
        let parts = parts << index;
        (0..parts).map(move |part| decade * (0.1 + 0.9 * (part as f64 + 0.5) / parts as f64))
    });
    let middles: Vec<f32> = middles.map(|number| number as f32).collect();
    let mirrored = middles.iter().rev().map(|number| -number).filter(|_| negative);
    let mut numbers = mirrored.chain([0.0]).chain(middles.iter().copied()).chain([1.0]);
    std::array::from_fn(|_| numbers.next().expect("as many as there are codes"))
}

impl Code {
    pub fn bits(self) -> usize {
        8
    }

    /// What each code stands for, in ascending order.
    pub fn numbers(self) -> &'static Numbers {
        match self {
            Code::DynamicSigned => &SIGNED,
            Code::DynamicUnsigned => &UNSIGNED,
        }
    }

    /// The code of the number that is nearest, the lower one of two.
    pub fn nearest(self, number: f32) -> u8 {
        let numbers = self.numbers();
        let mut code = 0;
        for half in [128, 64, 32, 16, 8, 4, 2, 1] {
            let middle = 0.5 * (numbers[code + half - 1] + numbers[code + half]);
            code += if number > middle { half } else { 0 };
        }
        code as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES: [Code; 2] = [Code::DynamicSigned, Code::DynamicUnsigned];

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
        assert_eq!((signed[0], signed[128]), (-0.992_968_75, 5.5e-7));
        assert_eq!((unsigned[0], unsigned[1], unsigned[254]), (0.0, 3.25e-7, 0.996_484_4));
    }

    #[test]
    fn codes_are_those_of_the_nearest_numbers() {
        for code in CODES {
            let distance =
                |number: f32, code_of: u8| (f64::from(number) - f64::from(code.numbers()[code_of as usize])).abs();
            for index in 0..20_000 {
                // All magnitudes down to below the smallest number, and beyond both ends.
                let size = 10f32.powf(-8.0 * (index % 997) as f32 / 996.0) * 1.1;
                let number = if index % 2 == 0 { size } else { -size };
                let best = (0..=255).map(|code_of| distance(number, code_of)).fold(f64::INFINITY, f64::min);
                let found = distance(number, code.nearest(number));
                assert!(found <= best * (1.0 + 1e-6), "{number} as {code:?}: off by {found}, the nearest by {best}");
            }
            for (index, &number) in code.numbers().iter().enumerate() {
                assert_eq!(usize::from(code.nearest(number)), index, "{number} as {code:?}");
            }
        }
    }
}
