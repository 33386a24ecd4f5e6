//! A reader of the format that shares no line with the writer.

use std::collections::BTreeMap;
use std::path::Path;

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Count(u64),
    Number(f32),
    Flag(bool),
    Text(String),
    List(Vec<Value>),
}

#[derive(Debug)]
pub struct Tensor {
    /// The innermost first.
    pub dims: Vec<u64>,
    pub kind: u32,
    pub data: Vec<u8>,
}

#[derive(Debug)]
pub struct Gguf {
    pub keys: BTreeMap<String, Value>,
    pub tensors: BTreeMap<String, Tensor>,
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, tail) = self.0.split_first_chunk().expect("the file goes on");
        self.0 = tail;
        *head
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn text(&mut self) -> String {
        let (text, rest) = self.0.split_at(self.u64_peeked() as usize + 8);
        self.0 = rest;
        String::from_utf8(text[8..].to_vec()).expect("UTF-8")
    }

    fn u64_peeked(&self) -> u64 {
        u64::from_le_bytes(*self.0.first_chunk().expect("the file goes on"))
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 => Value::Count(u64::from(self.take::<1>()[0])),
            4 | 5 => Value::Count(u64::from(self.u32())),
            6 => Value::Number(f32::from_bits(self.u32())),
            7 => Value::Flag(self.take::<1>()[0] == 1),
            8 => Value::Text(self.text()),
            9 => {
                let kind = self.u32();
                let len = self.u64();
                Value::List((0..len).map(|_| self.value(kind)).collect())
            }
            other => panic!("a value of kind {other}"),
        }
    }
}

pub fn read(path: &Path) -> Gguf {
    let file = std::fs::read(path).expect("readable");
    let mut bytes = Bytes(&file);
    assert_eq!(&bytes.take::<4>(), b"GGUF");
    assert_eq!(bytes.u32(), 3, "the version");
    let (tensors, keys) = (bytes.u64(), bytes.u64());
    let mut key = || {
        let name = bytes.text();
        let kind = bytes.u32();
        (name, bytes.value(kind))
    };
    let keys: BTreeMap<String, Value> = (0..keys).map(|_| key()).collect();
    let mut entry = || {
        let name = bytes.text();
        let dims: Vec<u64> = (0..bytes.u32()).map(|_| bytes.u64()).collect();
        (name, dims, bytes.u32(), bytes.u64() as usize)
    };
    let entries: Vec<_> = (0..tensors).map(|_| entry()).collect();
    let start = (file.len() - bytes.0.len()).next_multiple_of(32);
    let mut found = BTreeMap::new();
    let mut expected = 0;
    for (name, dims, kind, offset) in entries {
        assert_eq!(offset, expected, "{name} begins where the one before it ends, at a multiple of 32");
        let numbers = dims.iter().product::<u64>() as usize;
        let bytes = match kind {
            0 => numbers * 4,
            1 | 30 => numbers * 2,
            8 => numbers / 32 * 34,
            other => panic!("{name} is of kind {other}"),
        };
        expected = (offset + bytes).next_multiple_of(32);
        let data = file[start + offset..start + offset + bytes].to_vec();
        assert!(found.insert(name, Tensor { dims, kind, data }).is_none(), "each once");
    }
    assert_eq!(file.len(), start + expected, "nothing behind the last tensor");
    Gguf { keys, tensors: found }
}

impl Gguf {
    pub fn count(&self, key: &str) -> u64 {
        let Value::Count(count) = self.keys[key] else { panic!("{key}: {:?}", self.keys[key]) };
        count
    }

    pub fn text(&self, key: &str) -> &str {
        let Value::Text(text) = &self.keys[key] else { panic!("{key}: {:?}", self.keys[key]) };
        text
    }

    pub fn list(&self, key: &str) -> &[Value] {
        let Value::List(list) = &self.keys[key] else { panic!("{key}: {:?}", self.keys[key]) };
        list
    }
}

impl Tensor {
    /// The numbers as they are stored.
    pub fn numbers(&self) -> Vec<f32> {
        match self.kind {
            0 => self.data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            30 => self
                .data
                .as_chunks()
                .0
                .iter()
                .map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16))
                .collect(),
            8 => self.data.chunks(34).flat_map(block).collect(),
            other => panic!("numbers of kind {other}"),
        }
    }
}

fn block(bytes: &[u8]) -> Vec<f32> {
    let scale = half(u16::from_le_bytes([bytes[0], bytes[1]]));
    bytes[2..].iter().map(|byte| scale * f32::from(*byte as i8)).collect()
}

/// Sixteen bits that are neither infinite nor NaN.
fn half(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023) / 1024.0);
    match exponent {
        0 => fraction * 2f32.powi(-14),
        exponent => (1.0 + fraction) * 2f32.powi(exponent - 15),
    }
}
