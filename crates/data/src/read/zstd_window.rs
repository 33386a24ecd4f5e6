//! How much of what it has written zstd has to look back at, as a file's first frame says.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// zstd's own default limit; a frame that wants more is refused.
pub(super) const LOG_MAX: u32 = 27;
/// What every level but the two highest keeps to. Frames behind the first may need so much although that one does not.
const LOG_MIN: u32 = 23;
/// Blocks on their way in and out, and the tables of their codes.
const CONTEXT_BYTES: u64 = 768 << 10;

/// The window that is allowed for a file, as a power of two.
pub(super) fn log(path: &Path) -> u32 {
    let mut head = [0; 18];
    let read = File::open(path).and_then(|file| file.read_at(&mut head, 0)).unwrap_or(0);
    let window = of_frame(&head[..read]).unwrap_or(1 << LOG_MAX);
    window.next_power_of_two().trailing_zeros().clamp(LOG_MIN, LOG_MAX)
}

/// What unpacking with such a window holds.
pub(super) fn unpacking_bytes(log: u32) -> u64 {
    (1 << log) + CONTEXT_BYTES
}

/// RFC 8878, 3.1.1.1; `None` if the file begins with anything else.
fn of_frame(head: &[u8]) -> Option<u64> {
    let (descriptor, rest) = head.strip_prefix(&[0x28, 0xB5, 0x2F, 0xFD])?.split_first()?;
    if descriptor & 0x20 == 0 {
        let window = rest.first()?;
        let base = 1u64 << (10 + (window >> 3));
        return Some((base + base / 8 * u64::from(window & 7)).min(1 << 40));
    }
    // In one segment: as much as the content.
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let width = [1, 2, 4, 8][usize::from(descriptor >> 6)];
    let mut size = [0; 8];
    size[..width].copy_from_slice(rest.get(dictionary..dictionary + width)?);
    Some(u64::from_le_bytes(size).saturating_add(if width == 2 { 256 } else { 0 }).min(1 << 40))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_says_the_window() {
        let frame = |level: i32, log: Option<u32>, bytes: usize| {
            let mut packer = zstd::stream::write::Encoder::new(Vec::new(), level).expect("packs");
            if let Some(log) = log {
                packer.window_log(log).expect("packs");
            }
            std::io::Write::write_all(&mut packer, &vec![7; bytes]).expect("packs");
            packer.finish().expect("packs")
        };
        for log in [10, 17, 23, 26] {
            assert_eq!(of_frame(&frame(3, Some(log), 100)), Some(1 << log));
        }
        // Of known size, in one segment.
        let bulk = zstd::bulk::compress(&[1; 70_000], 3).expect("packs");
        assert_eq!(of_frame(&bulk), Some(70_000));
        assert_eq!(of_frame(b"text"), None);
        assert_eq!(of_frame(&bulk[..5]), None);
    }
}
