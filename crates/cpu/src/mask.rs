//! Which elements dropout keeps: a hash of (key, site, row id, column) and nothing else, so that the
//! backward pass and every other backend draw the same mask without storing it.
//!
//! With 32-bit arithmetic that wraps, and
//!
//! ```text
//! mix(x) = { x ^= x >> 16; x *= 0x7feb352d; x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16 }
//! k0     = key[0] ^ mix(key[2] ^ 0x51ed270b)
//! k1     = key[1] ^ mix(key[3] + mix(key[2]))
//! a      = mix(mix(mix(k0 ^ 0x9e3779b9) + site) ^ row)
//! b      = mix(mix(mix(k1 ^ 0x85ebca6b) ^ row) + site)
//! word   = { x = column / 2 + a; x ^= x >> 16; x *= 0x7feb352d; x ^= b; x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16 }
//! draw   = the low half of the word in an even column, the high half in an odd one
//! ```
//!
//! an element is kept when `draw >= t`, where `t` is `p·2¹⁶` rounded to the nearest, and then scaled by
//! `2¹⁶ / (2¹⁶ - t)`: p is taken as a 65536th part, and with that one the expectation is exact.

/// Draws are 16 bits wide.
const DRAWS: u32 = 1 << 16;

/// The mask of one dropout site during one update.
#[derive(Debug, Clone, Copy)]
pub struct Mask {
    /// The four words of the key, folded.
    key: [u32; 2],
    site: u32,
    /// Draws below it are dropped.
    threshold: u32,
    scale: f32,
}

/// The mask of one row.
#[derive(Debug, Clone, Copy)]
pub struct RowMask {
    a: u32,
    b: u32,
    threshold: u32,
    scale: f32,
}

#[inline(always)]
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

impl Mask {
    pub fn new(p: f32, site: u32, key: [u32; 4]) -> Self {
        let key = [key[0] ^ mix(key[2] ^ 0x51ed_270b), key[1] ^ mix(key[3].wrapping_add(mix(key[2])))];
        let threshold = ((f64::from(p) * f64::from(DRAWS)).round() as u32).min(DRAWS);
        // From 1 on nothing is kept: the scale is zero.
        let scale = if threshold < DRAWS { DRAWS as f32 / (DRAWS - threshold) as f32 } else { 0.0 };
        Self { key, site, threshold, scale }
    }

    pub fn row(&self, row_id: u32) -> RowMask {
        let a = mix(mix(mix(self.key[0] ^ 0x9e37_79b9).wrapping_add(self.site)) ^ row_id);
        let b = mix(mix(mix(self.key[1] ^ 0x85eb_ca6b) ^ row_id).wrapping_add(self.site));
        RowMask { a, b, threshold: self.threshold, scale: self.scale }
    }
}

impl RowMask {
    /// What an element is multiplied by: zero, or the scale.
    #[inline(always)]
    pub fn factor(&self, column: u32) -> f32 {
        // `mix` with the row's second word thrown in half-way.
        let mut word = (column / 2).wrapping_add(self.a);
        word ^= word >> 16;
        word = word.wrapping_mul(0x7feb_352d) ^ self.b;
        word ^= word >> 15;
        word = word.wrapping_mul(0x846c_a68b);
        word ^= word >> 16;
        // Both halves, and then the one: lanes of a vector do the same work.
        let draw = if column.is_multiple_of(2) { word % DRAWS } else { word / DRAWS };
        if draw >= self.threshold { self.scale } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_right_share() {
        for p in [0.0f32, 0.1, 0.5, 0.9] {
            let mask = Mask::new(p, 3, [17, 99, 5, 0]);
            let kept = (0..500).flat_map(|row| (0..400).map(move |column| (row, column)));
            let kept = kept.filter(|&(row, column)| mask.row(row).factor(column) != 0.0).count();
            let share = kept as f32 / 200_000.0;
            assert!((share - (1.0 - p)).abs() < 0.005, "p {p}: kept {share}");
        }
    }

    #[test]
    fn what_is_kept_makes_up_for_what_is_dropped() {
        for p in [0.0f32, 0.05, 0.1, 1.0 / 3.0, 0.5, 0.999] {
            let mask = Mask::new(p, 3, [17, 99, 5, 0]);
            let taken = f64::from(mask.threshold) / f64::from(DRAWS);
            assert!((taken - f64::from(p)).abs() <= 0.5 / f64::from(DRAWS), "{p} became {taken}");
            assert!((f64::from(mask.scale) * (1.0 - taken) - 1.0).abs() < 1e-7, "{p}: scale {}", mask.scale);
        }
        let none = Mask::new(1.0, 3, [17, 99, 5, 0]).row(1);
        assert!((0..1000).all(|column| none.factor(column) == 0.0));
    }

    #[test]
    fn two_columns_of_one_word_are_independent() {
        let p = 0.3f64;
        let mask = Mask::new(p as f32, 3, [17, 99, 5, 0]);
        let mut counts = [0u32; 4];
        for row in 0..1000 {
            let row = mask.row(row);
            for pair in 0..200 {
                let [left, right] = [2 * pair, 2 * pair + 1].map(|column| usize::from(row.factor(column) == 0.0));
                counts[2 * left + right] += 1;
            }
        }
        let expected = [(1.0 - p) * (1.0 - p), p * (1.0 - p), p * (1.0 - p), p * p];
        for (count, share) in counts.into_iter().zip(expected) {
            assert!((f64::from(count) / 200_000.0 - share).abs() < 0.005, "{counts:?}");
        }
    }

    #[test]
    fn every_part_of_the_counter_matters() {
        let draw = |key, site, row| -> Vec<bool> {
            let row = Mask::new(0.5, site, key).row(row);
            (0..256).map(|column| row.factor(column) != 0.0).collect()
        };
        let base = draw([1, 2, 3, 4], 3, 4);
        assert_eq!(base, draw([1, 2, 3, 4], 3, 4));
        for other in [
            draw([2, 2, 3, 4], 3, 4),
            draw([1, 3, 3, 4], 3, 4),
            draw([1, 2, 4, 4], 3, 4),
            draw([1, 2, 3, 5], 3, 4),
            draw([1, 2, 3, 4], 4, 4),
            draw([1, 2, 3, 4], 3, 5),
        ] {
            let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!((80..176).contains(&same), "{same} of 256 draws agree");
        }
    }
}
