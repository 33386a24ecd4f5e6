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
//! draw   = mix((mix(column + a) ^ b))
//! ```
//!
//! an element is kept when `draw >= p·2³²` (rounded down), and then scaled by `1 / (1 - p)`.

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
        // From 1 on nothing is kept: the scale is zero.
        let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
        Self { key, site, threshold: (f64::from(p) * 4_294_967_296.0) as u32, scale }
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
        let draw = mix(mix(column.wrapping_add(self.a)) ^ self.b);
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
