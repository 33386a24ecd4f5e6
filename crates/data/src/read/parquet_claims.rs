//! What pages claim about themselves once they are unpacked, before a decoder makes room for it.
//!
//! Lengths of texts may be packed as differences, and how many there are stands in front of them: the parquet crate takes
//! memory for as many, and where there is none, the process ends without a panic that could be caught.

use parquet::basic::{Encoding, Type as PhysicalType};
use parquet::bloom_filter::Sbbf;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;

use super::parquet_pages::{PAGE_BYTES_MAX, Thrift};

/// A row group whose pages are looked at before they are decoded.
pub(super) struct Checked<'a>(pub &'a dyn RowGroupReader);

impl RowGroupReader for Checked<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.0.metadata()
    }

    fn num_columns(&self) -> usize {
        self.0.num_columns()
    }

    fn get_column_page_reader(&self, leaf: usize) -> Result<Box<dyn PageReader>> {
        let schema = self.metadata().schema_descr();
        let column = schema.column(leaf);
        let is_fixed = column.physical_type() == PhysicalType::FIXED_LEN_BYTE_ARRAY;
        Ok(Box::new(CheckedPages {
            pages: self.0.get_column_page_reader(leaf)?,
            levels: [column.max_rep_level(), column.max_def_level()],
            value_bytes: if is_fixed { column.type_length().max(0).cast_unsigned().into() } else { 0 },
        }))
    }

    fn get_column_bloom_filter(&self, leaf: usize) -> Option<&Sbbf> {
        self.0.get_column_bloom_filter(leaf)
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

struct CheckedPages {
    pages: Box<dyn PageReader>,
    /// The highest of repetition and of definition.
    levels: [i16; 2],
    /// Where all values have the same.
    value_bytes: u64,
}

impl CheckedPages {
    fn check(&self, page: &Page) -> Result<()> {
        let values = u64::from(page.num_values());
        if values.saturating_mul(self.value_bytes) > PAGE_BYTES_MAX {
            return Err(refused(format!("a page claims {values} values of {} bytes", self.value_bytes)));
        }
        let streams = match page.encoding() {
            Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            // How much of a text is that of the one before, and how long the rest is.
            Encoding::DELTA_BYTE_ARRAY => 2,
            _ => return Ok(()),
        };
        // A page without its levels is the decoder's to refuse.
        let Some(bytes) = self.behind_levels(page) else { return Ok(()) };
        let mut at = 0;
        for _ in 0..streams {
            match lengths_end(&bytes[at..], values)? {
                Some(end) => at += end,
                None => break,
            }
        }
        Ok(())
    }

    /// The values of a data page.
    fn behind_levels<'a>(&self, page: &'a Page) -> Option<&'a [u8]> {
        match page {
            Page::DataPage { buf, num_values, def_level_encoding, rep_level_encoding, .. } => {
                let mut at = 0;
                for (highest, encoding) in self.levels.into_iter().zip([rep_level_encoding, def_level_encoding]) {
                    if highest > 0 {
                        at += levels_bytes(buf.get(at..)?, *encoding, highest, *num_values)?;
                    }
                }
                buf.get(at..)
            }
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let at = (*def_levels_byte_len as usize).checked_add(*rep_levels_byte_len as usize)?;
                buf.get(at..)
            }
            Page::DictionaryPage { .. } => None,
        }
    }
}

/// What levels take at the front of a page of the first kind.
fn levels_bytes(bytes: &[u8], encoding: Encoding, highest: i16, values: u32) -> Option<usize> {
    if encoding == Encoding::RLE {
        let (length, _) = bytes.split_first_chunk::<4>()?;
        return usize::try_from(i32::from_le_bytes(*length)).ok()?.checked_add(4);
    }
    let bits = u64::from(i16::BITS - highest.leading_zeros());
    usize::try_from((u64::from(values) * bits).div_ceil(8)).ok()
}

/// Where packed lengths end, of which there may be as many as the page has values; `None` where they make no sense, which
/// the decoder will find too.
fn lengths_end(bytes: &[u8], values: u64) -> Result<Option<usize>> {
    let mut packed = Thrift { bytes, at: 0 };
    let mut header = || Some([packed.varint()?, packed.varint()?, packed.varint()?, packed.varint()?]);
    let Some([block_values, parts, count, _first]) = header() else { return Ok(None) };
    if count > values {
        return Err(refused(format!("a page of {values} values claims {count} lengths")));
    }
    if parts == 0 || block_values < parts {
        return Ok(None);
    }
    let part_values = block_values / parts;
    let mut left = count.saturating_sub(1);
    let mut end_of_block = || {
        let _least = packed.varint()?;
        let widths_at = packed.at;
        packed.pass(parts)?;
        for &width in &bytes[widths_at..packed.at] {
            if left > 0 {
                packed.pass((u64::from(width)).checked_mul(part_values)? / 8)?;
            }
            left = left.saturating_sub(part_values);
        }
        Some(left)
    };
    if count > 1 {
        while match end_of_block() {
            None => return Ok(None),
            Some(left) => left > 0,
        } {}
    }
    Ok(Some(packed.at))
}

fn refused(message: String) -> ParquetError {
    ParquetError::General(message)
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        page.as_ref().map_or(Ok(()), |page| self.check(page))?;
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.pages.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        self.pages.take_deferred_dictionary()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    /// Lengths in blocks of 128 in four parts, all as wide as their block says; the parts behind the last value have no
    /// bytes.
    fn lengths(count: u64, width: u8) -> Vec<u8> {
        let mut bytes = [varint(128), varint(4), varint(count), varint(10)].concat();
        let mut left = count.saturating_sub(1);
        while left > 0 {
            bytes.extend([0, width, width, width, width]);
            let parts = left.min(128).div_ceil(32);
            bytes.extend(vec![7; (parts * 4 * u64::from(width)) as usize]);
            left = left.saturating_sub(128);
        }
        bytes
    }

    #[test]
    fn lengths_end_where_they_were_written_to() {
        for (count, width) in [(0, 0), (1, 3), (2, 3), (33, 5), (129, 1), (130, 9), (1000, 0), (1000, 32)] {
            let bytes = [lengths(count, width), vec![1, 2, 3]].concat();
            let end = lengths_end(&bytes, count).expect("no more than there are values");
            assert_eq!(end, Some(bytes.len() - 3), "{count} of {width} bits");
        }
    }

    #[test]
    fn more_lengths_than_values_are_refused() {
        let reason = lengths_end(&lengths(1001, 0), 1000).expect_err("refused").to_string();
        assert!(reason.contains("a page of 1000 values claims 1001 lengths"), "{reason}");
        assert!(lengths_end(&[varint(128), varint(4), varint((1 << 56) - 1), varint(0)].concat(), 9).is_err());
        assert_eq!(lengths_end(&[varint(128), varint(0), varint(3), varint(0)].concat(), 9).ok(), Some(None));
        assert_eq!(lengths_end(&lengths(200, 8)[..60], 200).ok(), Some(None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_lengths_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..200), values in 0u64..5000) {
            if let Ok(Some(end)) = lengths_end(&bytes, values) {
                prop_assert!(end <= bytes.len());
            }
        }
    }
}
