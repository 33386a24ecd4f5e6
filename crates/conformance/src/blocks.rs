//! Tensors stored in blocks: encoded and decoded one element at a time, as the format is defined.

use half::{bf16, f16};
use plimsoll_graph::{BlockFormat, Code, DType, NESTED_SCALES, Scales, Storage};

use crate::reference::Coded;

/// No number as a code of e4m3, and as every byte of a float32.
const POISON_BYTE: u8 = 0xff;

/// The bytes of a tensor stored in blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct Blocks {
    pub format: BlockFormat,
    /// What elements are read as.
    pub element: DType,
    pub elements: usize,
    pub bytes: Vec<u8>,
}

impl Blocks {
    /// The nearest numbers that the format has. Nested scales that share one have an offset of their own, as where several
    /// matrices lie one below the other.
    pub fn encode(storage: Storage, numbers: &[f32]) -> Self {
        let (format, elements) = (storage.blocks.expect("blocks"), numbers.len());
        let largest = |block: &[f32]| block.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        let scales: Vec<f32> =
            numbers.chunks(format.elements).map(|block| format.code.scale_of(largest(block))).collect();
        let share = |(index, x): (usize, &f32)| match scales[index / format.elements] {
            0.0 => 0.0,
            scale => x / scale,
        };
        let codes: Vec<u8> = numbers.iter().enumerate().map(|x| format.code.nearest(share(x))).collect();
        let mut bytes: Vec<u8> = match format.code.bits() {
            4 => codes.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).unwrap_or(&0)).collect(),
            _ => codes,
        };
        bytes.resize(format.scales_at(elements).expect("a small tensor"), 0);
        match format.scales {
            Scales::F32 => bytes.extend(scales.iter().flat_map(|scale| scale.to_le_bytes())),
            Scales::Nested => {
                let (codes, pairs) = nest(&scales);
                bytes.extend(codes);
                bytes.resize(format.nested_at(elements).expect("a small tensor"), 0);
                bytes.extend(pairs.iter().flatten().flat_map(|number| number.to_le_bytes()));
            }
        }
        Self { format, element: storage.element, elements, bytes }
    }

    pub fn from_bytes(storage: Storage, elements: usize, bytes: &[u8]) -> Self {
        let format = storage.blocks.expect("blocks");
        Self { format, element: storage.element, elements, bytes: bytes.to_vec() }
    }

    pub fn storage(&self) -> Storage {
        Storage { element: self.element, blocks: Some(self.format) }
    }

    /// What an element's code stands for.
    fn number(&self, index: usize) -> f64 {
        let code = match self.format.code.bits() {
            4 if index.is_multiple_of(2) => self.bytes[index / 2] >> 4,
            4 => self.bytes[index / 2] & 15,
            _ => self.bytes[index],
        };
        f64::from(self.format.code.numbers()[usize::from(code)])
    }

    /// What a block's numbers are multiplied by: a nested scale is a product rounded to float32, and a sum of it.
    fn scale(&self, block: usize) -> f64 {
        let at = self.format.scales_at(self.elements).expect("a small tensor");
        let float = |at: usize| f64::from(f32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four")));
        match self.format.scales {
            Scales::F32 => float(at + 4 * block),
            Scales::Nested => {
                let number = Code::DynamicSigned.numbers()[usize::from(self.bytes[at + block])];
                let pair = self.format.nested_at(self.elements).expect("a small tensor") + 8 * (block / NESTED_SCALES);
                let product = (f64::from(number) * float(pair)) as f32;
                f64::from((f64::from(product) + float(pair + 4)) as f32)
            }
        }
    }

    /// The elements as they are read: products rounded to float32 and to their type.
    pub fn numbers(&self) -> Vec<f64> {
        let product = |index| (self.number(index) * self.scale(index / self.format.elements)) as f32;
        let read = |number: f32| match self.element {
            DType::BF16 => bf16::from_f32(number).to_f64(),
            DType::F16 => f16::from_f32(number).to_f64(),
            _ => f64::from(number),
        };
        (0..self.elements).map(|index| read(product(index))).collect()
    }

    /// Its bytes, with what belongs to elements beyond `active`, which are whole blocks of eight bits, overwritten by codes
    /// and scales that are no numbers.
    pub fn poisoned_bytes(&self, active: usize) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        if active < self.elements {
            let at = self.format.scales_at(self.elements).expect("a small tensor");
            bytes[active..at].fill(POISON_BYTE);
            bytes[at + 4 * (active / self.format.elements)..].fill(POISON_BYTE);
        }
        bytes
    }

    /// What codes stand for, and the scales apart.
    pub fn coded(&self) -> Coded {
        Coded {
            numbers: (0..self.elements).map(|index| self.number(index)).collect(),
            scales: (0..self.elements.div_ceil(self.format.elements)).map(|block| self.scale(block)).collect(),
        }
    }
}

/// Codes of scales, and the scale and the offset of each so many of them.
fn nest(scales: &[f32]) -> (Vec<u8>, Vec<[f32; 2]>) {
    let (mut codes, mut pairs) = (Vec::new(), Vec::new());
    for scales in scales.chunks(NESTED_SCALES) {
        let offset = scales.iter().sum::<f32>() / scales.len() as f32;
        let largest = scales.iter().fold(0.0, |largest: f32, scale| largest.max((scale - offset).abs()));
        let share = |scale: f32| if largest == 0.0 { 0.0 } else { (scale - offset) / largest };
        codes.extend(scales.iter().map(|&scale| Code::DynamicSigned.nearest(share(scale))));
        pairs.push([largest, offset]);
    }
    (codes, pairs)
}
