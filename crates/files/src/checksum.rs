//! How a file is told from one that was damaged.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use twox_hash::XxHash3_128;

/// A running XXH3 sum of 128 bits, which no accidental change escapes.
#[derive(Clone)]
pub struct Checksum {
    hasher: XxHash3_128,
    bytes: u64,
}

/// What a file holds, as far as it takes to know it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summed {
    pub bytes: u64,
    pub xxh3: u128,
}

impl Default for Checksum {
    fn default() -> Self {
        Self { hasher: XxHash3_128::new(), bytes: 0 }
    }
}

impl std::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checksum").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Checksum {
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.write(bytes);
        self.bytes += bytes.len() as u64;
    }

    pub fn finish(&self) -> Summed {
        Summed { bytes: self.bytes, xxh3: self.hasher.finish_128() }
    }
}

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Reads a whole file, in a bounded buffer.
pub fn sum_file(path: &Path) -> io::Result<Summed> {
    let mut file = File::open(path)?;
    let mut sum = Checksum::default();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(sum.finish()),
            count => sum.update(&piece[..count]),
        }
    }
}
