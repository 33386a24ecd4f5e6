//! As much of FlatBuffers as Arrow's tables of contents need, with every access checked.

use super::Result;

#[derive(Clone, Copy)]
pub(super) struct Flat<'a> {
    bytes: &'a [u8],
}

/// A table: fields found through its list of offsets.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    flat: Flat<'a>,
    at: usize,
    /// The list of offsets, and how many bytes it has.
    offsets: usize,
    offsets_bytes: usize,
}

/// A list of elements of a fixed width.
#[derive(Clone, Copy)]
pub(super) struct List<'a> {
    flat: Flat<'a>,
    at: usize,
    pub len: usize,
    width: usize,
}

fn outside() -> String {
    "a message points outside of itself".to_owned()
}

impl<'a> Flat<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn array<const N: usize>(self, at: usize) -> Result<[u8; N]> {
        let bytes = self.bytes.get(at..).and_then(<[u8]>::first_chunk);
        bytes.copied().ok_or_else(outside)
    }

    fn target(self, at: usize) -> Result<usize> {
        let distance = u32::from_le_bytes(self.array(at)?) as usize;
        at.checked_add(distance).filter(|target| *target < self.bytes.len()).ok_or_else(outside)
    }

    pub(super) fn root(self) -> Result<Table<'a>> {
        self.table(self.target(0)?)
    }

    fn table(self, at: usize) -> Result<Table<'a>> {
        let back = i64::from(i32::from_le_bytes(self.array(at)?));
        let offsets = usize::try_from(at as i64 - back).map_err(|_| outside())?;
        let offsets_bytes = usize::from(u16::from_le_bytes(self.array(offsets)?));
        if offsets_bytes < 4 || offsets.checked_add(offsets_bytes).is_none_or(|end| end > self.bytes.len()) {
            return Err(outside());
        }
        Ok(Table { flat: self, at, offsets, offsets_bytes })
    }
}

impl<'a> Table<'a> {
    /// Where the field with this number is; `None` if it has its default.
    fn field(&self, number: usize) -> Result<Option<usize>> {
        let entry = 4 + 2 * number;
        if entry + 2 > self.offsets_bytes {
            return Ok(None);
        }
        let offset = usize::from(u16::from_le_bytes(self.flat.array(self.offsets + entry)?));
        Ok((offset > 0).then_some(self.at + offset))
    }

    fn number<const N: usize>(&self, number: usize) -> Result<Option<[u8; N]>> {
        self.field(number)?.map(|at| self.flat.array(at)).transpose()
    }

    pub(super) fn u8(&self, number: usize) -> Result<Option<u8>> {
        Ok(self.number::<1>(number)?.map(|[byte]| byte))
    }

    pub(super) fn i16(&self, number: usize) -> Result<Option<i16>> {
        Ok(self.number(number)?.map(i16::from_le_bytes))
    }

    pub(super) fn i32(&self, number: usize) -> Result<Option<i32>> {
        Ok(self.number(number)?.map(i32::from_le_bytes))
    }

    pub(super) fn i64(&self, number: usize) -> Result<Option<i64>> {
        Ok(self.number(number)?.map(i64::from_le_bytes))
    }

    pub(super) fn table(&self, number: usize) -> Result<Option<Table<'a>>> {
        self.field(number)?.map(|at| self.flat.table(self.flat.target(at)?)).transpose()
    }

    pub(super) fn list(&self, number: usize, width: usize) -> Result<Option<List<'a>>> {
        let Some(at) = self.field(number)? else { return Ok(None) };
        let at = self.flat.target(at)?;
        let len = u32::from_le_bytes(self.flat.array(at)?) as usize;
        let space = self.flat.bytes.len() - (at + 4);
        if len.checked_mul(width).is_none_or(|bytes| bytes > space) {
            return Err(outside());
        }
        Ok(Some(List { flat: self.flat, at: at + 4, len, width }))
    }

    pub(super) fn text(&self, number: usize) -> Result<Option<&'a str>> {
        let Some(list) = self.list(number, 1)? else { return Ok(None) };
        let bytes = &self.flat.bytes[list.at..list.at + list.len];
        std::str::from_utf8(bytes).map(Some).map_err(|_| "a name is not valid UTF-8".to_owned())
    }
}

impl<'a> List<'a> {
    pub(super) fn table(&self, index: usize) -> Result<Table<'a>> {
        self.flat.table(self.flat.target(self.at + index * self.width)?)
    }

    /// The `word`-th number of an element made of such.
    pub(super) fn i64(&self, index: usize, word: usize) -> Result<i64> {
        Ok(i64::from_le_bytes(self.flat.array(self.at + index * self.width + 8 * word)?))
    }
}
