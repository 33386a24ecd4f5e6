//! Damage: the same for a seed on every machine.

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Inputs do not grow beyond this.
const BYTES_MAX: usize = 256 << 10;
/// Where headers and footers lie.
const EDGE_BYTES: usize = 1 << 10;
/// Sizes and counts that are none.
const NUMBERS: [u64; 10] =
    [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, 0x8000_0000_0000_0000, u64::MAX];
const DIGITS: [&[u8]; 8] =
    [b"-1", b"0", b"4294967296", b"18446744073709551616", b"1e308", b"9223372036854775807", b"0.5", b"1000000000000"];

/// One of the seeds with a few things wrong. `words` mean something to whoever reads it.
pub fn damaged(seeds: &[Vec<u8>], words: &[&[u8]], random: &mut Random) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(5) {
        change(&mut bytes, seeds, words, random);
        bytes.truncate(BYTES_MAX);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], words: &[&[u8]], random: &mut Random) {
    let at = place(bytes.len(), random);
    let end = (at + 1 + random.below(24)).min(bytes.len());
    match random.below(10) {
        0 | 1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        2 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.next() as u8;
            }
        }
        3 => {
            let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4)];
            for (place, byte) in bytes.iter_mut().skip(at).zip(&number[..width]) {
                *place = *byte;
            }
        }
        4 => drop(bytes.drain(at.min(end)..end)),
        5 => {
            // Deep nesting and long lists.
            let part = bytes[at.min(end)..end].to_vec();
            let times = [1, 2, 40, 3000][random.below(4)];
            let repeated = part.repeat(times);
            bytes.splice(at..at, repeated.into_iter().take(BYTES_MAX));
        }
        6 => bytes.truncate(at),
        7 => {
            let word = if words.is_empty() { &b"\0"[..] } else { words[random.below(words.len())] };
            bytes.splice(at..at, word.iter().copied());
        }
        8 => {
            let other = &seeds[random.below(seeds.len())];
            let from = place(other.len(), random);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => digits(bytes, at, random),
    }
}

/// At an edge more often than not, for that is where sizes stand.
fn place(len: usize, random: &mut Random) -> usize {
    match random.below(4) {
        0 => random.below(len + 1),
        1 => len.saturating_sub(random.below(EDGE_BYTES.min(len) + 1)),
        _ => random.below(EDGE_BYTES.min(len) + 1),
    }
}

/// The next number in a text becomes another one.
fn digits(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|found| at + found) else { return };
    let len = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    bytes.splice(start..start + len, DIGITS[random.below(DIGITS.len())].iter().copied());
}
