//! The pages of a column, by their headers alone: what decoding them will hold, before anything is decoded.
//!
//! A footer tells how large a column is and nothing of its pages. Their headers do (Thrift's compact protocol), and a
//! header may claim that a few bytes unpack to gigabytes; the decoder would believe it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use parquet::data_type::ByteArray;

/// What one page may unpack to, and what a dictionary may take.
pub(super) const PAGE_BYTES_MAX: u64 = 256 << 20;
/// Lengths of texts in a page that packs them: of what is shared with the text before, and of the rest.
const LENGTHS_BYTES: u64 = 2 * size_of::<i32>() as u64;
/// DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY in the format's own numbers.
const PACKS_LENGTHS: [i64; 2] = [6, 7];
/// A header with its statistics.
const HEADER_BYTES_MAX: usize = 1 << 20;
/// Read at first; nearly all are far smaller.
const HEADER_BYTES: usize = 1 << 10;
const DEPTH_MAX: usize = 16;

type Result<T> = std::result::Result<T, String>;

/// The largest of a column's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Pages {
    /// The dictionary, with a place for each of its values.
    pub dictionary: u64,
    /// Of the data pages, unpacked, with the lengths that they pack.
    pub largest: u64,
    /// Of all of them, as they are in the file.
    pub packed: u64,
}

impl Pages {
    /// Passes over the headers of the pages from `start` on, `length` bytes of the file.
    pub(super) fn scan(file: &File, start: u64, length: u64) -> Result<Self> {
        let end = start.checked_add(length).ok_or("a column claims to lie behind the file's end")?;
        let (mut at, mut pages) = (start, Self::default());
        while at < end {
            let (header, header_bytes) = read_header(file, at, end)?;
            let unpacked = size(header.unpacked)?;
            let packed = size(header.packed)?;
            if unpacked > PAGE_BYTES_MAX {
                return Err(format!("a page claims {unpacked} bytes unpacked, more than {} MiB", PAGE_BYTES_MAX >> 20));
            }
            at += header_bytes;
            if packed > end - at {
                return Err("a page ends behind its column".to_owned());
            }
            at += packed;
            pages.packed = pages.packed.max(packed);
            match header.dictionary_values {
                Some(values) => {
                    // Each value is at least a byte; the shortest texts are four, and hold as much again and more.
                    let values = size(values)?;
                    let table = values.saturating_mul(size_of::<ByteArray>() as u64);
                    if values > unpacked || unpacked + table > PAGE_BYTES_MAX {
                        return Err(format!("a dictionary claims {values} values in {unpacked} bytes"));
                    }
                    pages.dictionary = pages.dictionary.max(unpacked + table);
                }
                None => {
                    let values = size(header.lengths)?;
                    let unpacked = unpacked.saturating_add(values.saturating_mul(LENGTHS_BYTES));
                    if unpacked > PAGE_BYTES_MAX {
                        return Err(format!("a page claims {values} lengths of texts"));
                    }
                    pages.largest = pages.largest.max(unpacked);
                }
            }
        }
        Ok(pages)
    }
}

fn size(claimed: i64) -> Result<u64> {
    u64::try_from(claimed).map_err(|_| format!("a page claims a size of {claimed}"))
}

#[derive(Default)]
struct Header {
    unpacked: i64,
    packed: i64,
    dictionary_values: Option<i64>,
    /// Values whose lengths are packed, if it is such a page.
    lengths: i64,
}

fn read_header(file: &File, at: u64, end: u64) -> Result<(Header, u64)> {
    let mut wanted = HEADER_BYTES;
    loop {
        let mut bytes = vec![0; usize::try_from(end - at).unwrap_or(usize::MAX).min(wanted)];
        file.read_exact_at(&mut bytes, at).map_err(|error| format!("cannot read a page's header: {error}"))?;
        let mut thrift = Thrift { bytes: &bytes, at: 0 };
        if let Some(header) = thrift.header() {
            return Ok((header, thrift.at as u64));
        }
        if bytes.len() < wanted || wanted >= HEADER_BYTES_MAX {
            return Err("a page's header is damaged".to_owned());
        }
        wanted *= 32;
    }
}

/// Reads on while it can: `None` where the bytes end or make no sense.
pub(super) struct Thrift<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl Thrift<'_> {
    fn header(&mut self) -> Option<Header> {
        let mut header = Header::default();
        let (mut last, mut sized) = (0, 0);
        while let Some((id, kind)) = self.field(&mut last)? {
            match (id, kind) {
                (2, 5) => (header.unpacked, sized) = (self.integer()?, sized + 1),
                (3, 5) => (header.packed, sized) = (self.integer()?, sized + 1),
                (5, 12) => header.lengths = self.lengths(2)?,
                (7, 12) => header.dictionary_values = Some(self.first_integer()?),
                (8, 12) => header.lengths = self.lengths(4)?,
                _ => self.skip(kind, DEPTH_MAX)?,
            }
        }
        (sized == 2).then_some(header)
    }

    /// The values of a data page that packs their lengths, 0 of any other; `encoding` is the field that tells.
    fn lengths(&mut self, encoding: i64) -> Option<i64> {
        let (mut last, mut values, mut packs) = (0, 0, false);
        while let Some((id, kind)) = self.field(&mut last)? {
            match (id, kind) {
                (1, 5) => values = self.integer()?,
                (id, 5) if id == encoding => packs = PACKS_LENGTHS.contains(&self.integer()?),
                _ => self.skip(kind, DEPTH_MAX)?,
            }
        }
        Some(if packs { values } else { 0 })
    }

    /// The field 1 of a struct.
    fn first_integer(&mut self) -> Option<i64> {
        let (mut last, mut found) = (0, None);
        while let Some((id, kind)) = self.field(&mut last)? {
            match (id, kind) {
                (1, 5) => found = Some(self.integer()?),
                _ => self.skip(kind, DEPTH_MAX)?,
            }
        }
        found
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// The next field's number and type; `Some(None)` at the end of the struct.
    #[expect(clippy::option_option, reason = "the outer one is damage, the inner one the end")]
    fn field(&mut self, last: &mut i64) -> Option<Option<(i64, u8)>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some(None);
        }
        *last = match byte >> 4 {
            0 => self.integer()?,
            step => last.checked_add(i64::from(step))?,
        };
        Some(Some((*last, byte & 0x0F)))
    }

    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn integer(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
    }

    pub fn pass(&mut self, bytes: u64) -> Option<()> {
        let end = self.at.checked_add(usize::try_from(bytes).ok()?)?;
        self.at = Some(end).filter(|end| *end <= self.bytes.len())?;
        Some(())
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            // Booleans in a struct are their type.
            1 | 2 => Some(()),
            3 => self.pass(1),
            4..=6 => self.varint().map(drop),
            7 => self.pass(8),
            8 => {
                let length = self.varint()?;
                self.pass(length)
            }
            9 | 10 => {
                let byte = self.byte()?;
                let length = if byte >> 4 == 15 { self.varint()? } else { u64::from(byte >> 4) };
                for _ in 0..length {
                    match byte & 0x0F {
                        1 | 2 => self.pass(1)?,
                        element => self.skip(element, depth)?,
                    }
                }
                Some(())
            }
            12 => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip(kind, depth)?;
                }
                Some(())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn integer(field: u8, value: i64) -> Vec<u8> {
        let mut zigzag = ((value << 1) ^ (value >> 63)).cast_unsigned();
        let mut bytes = vec![field << 4 | 5];
        while zigzag >= 0x80 {
            bytes.push(zigzag as u8 | 0x80);
            zigzag >>= 7;
        }
        bytes.push(zigzag as u8);
        bytes
    }

    /// A page of `packed` bytes behind a header that claims so much.
    fn page(unpacked: i64, packed: i64, dictionary: Option<i64>) -> Vec<u8> {
        let mut bytes = [integer(1, 0), integer(1, unpacked), integer(1, packed)].concat();
        // Field 7, a struct with a number; or field 5 with a text and a list to pass over.
        bytes.extend(match dictionary {
            Some(values) => [vec![0x4C], integer(1, values), vec![0]].concat(),
            None => vec![0x2C, 0x18, 3, b'a', b'b', b'c', 0x19, 0x21, 1, 2, 0x11, 0],
        });
        bytes.push(0);
        bytes.extend(vec![9; packed.max(0) as usize]);
        bytes
    }

    fn scan(bytes: &[u8]) -> Result<Pages> {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("writes");
        Pages::scan(&file, 0, bytes.len() as u64)
    }

    #[test]
    fn headers_say_what_decoding_holds() {
        let pages = [page(500, 30, Some(100)), page(9000, 70, None), page(400, 2000, None)].concat();
        let dictionary = 500 + 100 * size_of::<ByteArray>() as u64;
        assert_eq!(scan(&pages), Ok(Pages { dictionary, largest: 9000, packed: 2000 }));
    }

    /// A page of either kind that packs the lengths of so many texts, or encodes them otherwise.
    fn texts(second: bool, values: i64, encoding: i64) -> Vec<u8> {
        let mut bytes = [integer(1, 0), integer(1, 1000), integer(1, 20)].concat();
        let (field, of_encoding) = if second { (0x5C, 3) } else { (0x2C, 1) };
        bytes.push(field);
        bytes.extend([integer(1, values), integer(of_encoding, encoding)].concat());
        bytes.extend([0, 0]);
        bytes.extend(vec![9; 20]);
        bytes
    }

    #[test]
    fn lengths_that_are_packed_count() {
        for second in [false, true] {
            let largest = |encoding| scan(&texts(second, 300, encoding)).expect("a page").largest;
            assert_eq!([0, 6, 7].map(largest), [1000, 1000 + 300 * 8, 1000 + 300 * 8]);
            let reason = scan(&texts(second, 40 << 20, 6)).expect_err("refused");
            assert!(reason.contains("lengths of texts"), "{reason}");
        }
    }

    #[test]
    fn claims_beyond_all_measure_are_refused() {
        let check = |bytes: &[u8], part: &str| {
            let reason = scan(bytes).expect_err("refused");
            assert!(reason.contains(part), "{reason}");
        };
        check(&page(i64::from(i32::MAX), 30, None), "claims 2147483647 bytes");
        check(&page(-1, 30, None), "size of -1");
        check(&page(100, 30, Some(101)), "101 values");
        check(&page(200 << 20, 30, Some(100 << 20)), "dictionary");
        let cut = page(100, 30, None);
        check(&cut[..cut.len() - 1], "behind its column");
        check(&[0x15, 0x80], "damaged");
        check(&[0], "damaged");
    }

    proptest! {
        #[test]
        fn any_bytes_are_pages_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = scan(&bytes);
        }
    }
}
