//! The container: a header of keys and tensors, then their bytes. Little-endian, version 3.

/// Tensors begin at multiples of this.
const ALIGNMENT: usize = 32;
const VERSION: u32 = 3;

/// How a tensor's numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufType {
    F32,
    F16,
    BF16,
    /// Blocks of 32 numbers: a scale in sixteen bits and eight bits for each.
    Q8_0,
}

/// Numbers that share a scale.
pub(super) const BLOCK: usize = 32;

impl GgufType {
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// What a file calls it, for a tensor.
    pub(super) fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 8,
            Self::BF16 => 30,
        }
    }

    /// What a file calls it, for all tensors together.
    pub(super) fn file_code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::BF16 => 32,
        }
    }

    pub(super) fn bytes(self, numbers: usize) -> usize {
        match self {
            Self::F32 => numbers * 4,
            Self::F16 | Self::BF16 => numbers * 2,
            Self::Q8_0 => numbers / BLOCK * (2 + BLOCK),
        }
    }
}

/// A tensor's entry in the header.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub name: &'a str,
    /// Rows first, as everywhere here; the file has them the other way round.
    pub dims: &'a [usize],
    pub stored: GgufType,
}

impl Entry<'_> {
    pub fn bytes(&self) -> usize {
        self.stored.bytes(self.dims.iter().product())
    }
}

/// The keys of a file, as bytes.
#[derive(Debug, Default)]
pub(super) struct Keys {
    bytes: Vec<u8>,
    count: u64,
}

/// What a key can hold here.
#[derive(Debug)]
pub(super) enum Item<'a> {
    Count(usize),
    Number(f32),
    Flag(bool),
    Text(&'a str),
    Texts(&'a [String]),
    Types(&'a [i32]),
    Numbers(&'a [f32]),
    Bytes(&'a [u8]),
}

const UINT8: u32 = 0;
const UINT32: u32 = 4;
const INT32: u32 = 5;
const FLOAT32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

impl Keys {
    pub fn put(&mut self, key: &str, item: Item<'_>) {
        put_text(&mut self.bytes, key);
        self.count += 1;
        let out = &mut self.bytes;
        match item {
            Item::Count(count) => {
                put(out, UINT32);
                put(out, u32::try_from(count).unwrap_or(u32::MAX));
            }
            Item::Number(number) => {
                put(out, FLOAT32);
                out.extend(number.to_le_bytes());
            }
            Item::Flag(flag) => {
                put(out, BOOL);
                out.push(u8::from(flag));
            }
            Item::Text(text) => {
                put(out, STRING);
                put_text(out, text);
            }
            Item::Texts(texts) => {
                begin_list(out, STRING, texts.len());
                texts.iter().for_each(|text| put_text(out, text));
            }
            Item::Types(types) => {
                begin_list(out, INT32, types.len());
                types.iter().for_each(|kind| out.extend(kind.to_le_bytes()));
            }
            Item::Numbers(numbers) => {
                begin_list(out, FLOAT32, numbers.len());
                numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
            }
            Item::Bytes(bytes) => {
                begin_list(out, UINT8, bytes.len());
                out.extend(bytes);
            }
        }
    }
}

/// Everything before the first tensor's bytes.
pub(super) fn header(keys: &Keys, entries: &[Entry<'_>]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    put(&mut out, VERSION);
    out.extend((entries.len() as u64).to_le_bytes());
    out.extend(keys.count.to_le_bytes());
    out.extend(&keys.bytes);
    let mut offset = 0;
    for entry in entries {
        put_text(&mut out, entry.name);
        put(&mut out, entry.dims.len() as u32);
        for dim in entry.dims.iter().rev() {
            out.extend((*dim as u64).to_le_bytes());
        }
        put(&mut out, entry.stored.code());
        out.extend((offset as u64).to_le_bytes());
        offset += padded(entry.bytes());
    }
    out.resize(padded(out.len()), 0);
    out
}

pub(super) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

fn begin_list(out: &mut Vec<u8>, kind: u32, len: usize) {
    put(out, ARRAY);
    put(out, kind);
    out.extend((len as u64).to_le_bytes());
}

fn put(out: &mut Vec<u8>, number: u32) {
    out.extend(number.to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
