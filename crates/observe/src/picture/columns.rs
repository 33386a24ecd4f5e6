//! Columns of numbers in few bytes: differences to the number before, as variable-length integers, in base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The script on the page reads this back.
pub fn encode(numbers: impl IntoIterator<Item = u64>) -> String {
    let mut bytes = Vec::new();
    let mut before = 0i64;
    for number in numbers {
        let number = number as i64;
        let difference = number.wrapping_sub(before);
        before = number;
        // The sign goes into the lowest bit, so that small differences of either sign stay short.
        let mut rest = ((difference << 1) ^ (difference >> 63)) as u64;
        while rest >= 0x80 {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
    }
    STANDARD.encode(bytes)
}

/// Texts of which many are equal, each kept once.
#[derive(Default)]
pub struct Dictionary {
    texts: Vec<String>,
    index: std::collections::HashMap<String, u64>,
}

impl Dictionary {
    pub fn index(&mut self, text: &str) -> u64 {
        if let Some(&known) = self.index.get(text) {
            return known;
        }
        self.texts.push(text.to_owned());
        let index = self.texts.len() as u64 - 1;
        self.index.insert(text.to_owned(), index);
        index
    }

    pub fn into_texts(self) -> Vec<String> {
        self.texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Vec<u64> {
        let (mut numbers, mut before, mut rest, mut shift) = (Vec::new(), 0i64, 0u64, 0);
        for byte in STANDARD.decode(text).expect("base64") {
            rest |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                before = before.wrapping_add((rest >> 1) as i64 ^ -((rest & 1) as i64));
                numbers.push(before as u64);
                (rest, shift) = (0, 0);
            }
        }
        numbers
    }

    #[test]
    fn columns_come_back() {
        for numbers in [vec![], vec![0], vec![5, 3, 3, 1 << 42, 0], (0..1000).map(|n| n * n % 777).collect()] {
            assert_eq!(decode(&encode(numbers.iter().copied())), numbers);
        }
    }

    #[test]
    fn rising_numbers_take_a_byte_each() {
        assert_eq!(STANDARD.decode(encode(0..300)).expect("base64").len(), 300);
    }
}
