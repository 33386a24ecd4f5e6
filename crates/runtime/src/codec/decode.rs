//! Codes and scales to numbers.

use std::ops::Range;

use plimsoll_graph::{BlockFormat, Code, NESTED_SCALES, Scales};

use super::code_bytes;
use super::encode::{encode_e4m3, largest};

/// A weight as it lies in memory.
#[derive(Debug, Clone, Copy)]
pub struct CodedWeight<'a> {
    format: BlockFormat,
    codes: &'a [u8],
    scales: &'a [u8],
    /// Scales of the scales, and their offsets.
    nested: &'a [u8],
}

impl<'a> CodedWeight<'a> {
    /// `bytes` are those that the format says for so many elements; `None` if there are fewer.
    pub fn new(format: BlockFormat, elements: usize, bytes: &'a [u8]) -> Option<Self> {
        let (codes, blocks) = (code_bytes(&format, elements), elements.div_ceil(format.elements));
        let scales_at = format.scales_at(elements)?;
        let (scale_bytes, nested) = match format.scales {
            Scales::F32 => (4 * blocks, 0..0),
            Scales::Nested => {
                let nested_at = format.nested_at(elements)?;
                (blocks, nested_at..nested_at + 8 * blocks.div_ceil(NESTED_SCALES))
            }
        };
        let scales = bytes.get(scales_at..scales_at + scale_bytes)?;
        Some(Self { format, codes: bytes.get(..codes)?, scales, nested: bytes.get(nested)? })
    }

    /// What a block's codes are multiplied by.
    #[inline]
    pub fn scale(&self, block: usize) -> f32 {
        match self.format.scales {
            Scales::F32 => float(self.scales, block),
            Scales::Nested => {
                let group = block / NESTED_SCALES;
                nested_scale(self.scales[block], float(self.nested, 2 * group), float(self.nested, 2 * group + 1))
            }
        }
    }

    /// The numbers from the element `first` on.
    pub fn decode(&self, first: usize, out: &mut [f32]) {
        self.each_block(first, out, |block, elements, out| self.multiply(elements, self.scale(block), out));
    }

    /// What the codes from the element `first` on stand for, without their scales.
    pub fn decode_codes(&self, first: usize, out: &mut [f32]) {
        self.each_block(first, out, |_, elements, out| self.multiply(elements, 1.0, out));
    }

    /// Calls `decode` with each block that elements from `first` on lie in, those elements, and their places.
    fn each_block(&self, first: usize, mut out: &mut [f32], decode: impl Fn(usize, Range<usize>, &mut [f32])) {
        let mut at = first;
        while !out.is_empty() {
            let block = at / self.format.elements;
            let end = ((block + 1) * self.format.elements).min(at + out.len());
            let (place, rest) = out.split_at_mut(end - at);
            decode(block, at..end, place);
            (at, out) = (end, rest);
        }
    }

    #[inline]
    fn multiply(&self, elements: Range<usize>, scale: f32, out: &mut [f32]) {
        if self.format.code == Code::Nf4 {
            return self.multiply_fours(elements, scale, out);
        }
        let numbers: &[f32; 256] = self.format.code.numbers().try_into().expect("codes of eight bits");
        let codes = &self.codes[elements];
        out.iter_mut().zip(codes).for_each(|(x, &code)| *x = numbers[usize::from(code)] * scale);
    }

    /// Two codes a byte: the sixteen products are made once.
    fn multiply_fours(&self, elements: Range<usize>, scale: f32, mut out: &mut [f32]) {
        let numbers: &[f32; 16] = self.format.code.numbers().try_into().expect("codes of four bits");
        let products = numbers.map(|number| number * scale);
        let (upper, lower) = (|byte: u8| products[usize::from(byte >> 4)], |byte: u8| products[usize::from(byte & 15)]);
        let mut at = elements.start;
        if !at.is_multiple_of(2) {
            out[0] = lower(self.codes[at / 2]);
            (at, out) = (at + 1, &mut out[1..]);
        }
        let codes = &self.codes[at / 2..elements.end.div_ceil(2)];
        let (pairs, last) = out.as_chunks_mut::<2>();
        pairs.iter_mut().zip(codes).for_each(|(pair, &byte)| *pair = [upper(byte), lower(byte)]);
        if let [last] = last {
            *last = upper(codes[codes.len() - 1]);
        }
    }
}

/// What the code of a nested scale stands for.
pub(crate) fn nested_scale(code: u8, scale: f32, offset: f32) -> f32 {
    Code::DynamicSigned.numbers()[usize::from(code)] * scale + offset
}

/// The numbers from the element `first` on of whole blocks, whose codes and scales these are.
pub(crate) fn decode_blocks(format: &BlockFormat, mut codes: Vec<u8>, scales: &[f32], first: usize, out: &mut [f32]) {
    let format = BlockFormat { scales: Scales::F32, ..*format };
    let elements = scales.len() * format.elements;
    codes.resize(format.scales_at(elements).expect("a piece of a tensor"), 0);
    codes.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
    CodedWeight::new(format, elements, &codes).expect("codes and scales are there").decode(first, out);
}

fn float(bytes: &[u8], index: usize) -> f32 {
    f32::from_le_bytes(bytes.as_chunks().0[index])
}

/// Codes that are held at a time.
const RUN: usize = 256;

/// Makes of a row what it is as codes of e4m3 with a scale of its own, its largest magnitude over 448. What is no number
/// stays none.
pub fn round_row_to_e4m3(row: &mut [f32]) {
    let (scale, numbers) = (Code::E4m3.scale_of(largest(row)), Code::E4m3.numbers());
    let mut codes = [0; RUN];
    for run in row.chunks_mut(RUN) {
        let codes = &mut codes[..run.len()];
        encode_e4m3(run, scale, codes);
        for (x, code) in run.iter_mut().zip(codes) {
            *x = if x.is_nan() { *x } else { numbers[usize::from(*code)] * scale };
        }
    }
}
