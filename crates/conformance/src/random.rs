//! Repeatable test data (SplitMix64).

use crate::Tensor;

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next_u64() % limit as u64) as usize
    }

    /// In [-1, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// Floats in [-size, size).
    pub fn floats(&mut self, len: usize, size: f64) -> Vec<f32> {
        (0..len).map(|_| (self.unit() * size) as f32).collect()
    }

    pub fn fixed(&mut self, shape: &[usize]) -> Tensor {
        let len = shape.iter().product();
        Tensor::fixed(shape, self.floats(len, 1.0))
    }

    pub fn tokens(&mut self, rows: usize, cols: usize) -> Tensor {
        Tensor::tokens(rows, cols, self.floats(rows * cols, 1.0))
    }

    pub fn token_ints(&mut self, rows: usize, limit: usize) -> Tensor {
        Tensor::token_ints((0..rows).map(|_| self.below(limit) as i32).collect())
    }

    /// Distinct ids in no particular order, as when micro-batches are cut from a shuffled update.
    pub fn row_ids(&mut self, rows: usize) -> Tensor {
        let start = self.next_u64() as u32;
        Tensor::row_ids((0..rows as u32).map(|i| start.wrapping_add(i.wrapping_mul(2_654_435_761))).collect())
    }

    pub fn rng_key(&mut self) -> Tensor {
        Tensor::rng_key([(); 4].map(|()| self.next_u64() as u32))
    }
}
