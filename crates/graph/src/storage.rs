//! How a tensor lies in memory, and so how many bytes it takes.

use crate::{Code, DType, GraphError, Shape};

/// No tensor is larger. With at most [`crate::VALUES_MAX`] of them, no sum of sizes overflows.
pub const TENSOR_BYTES_MAX: usize = 1 << 42;

/// How scales of blocks are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scales {
    F32,
    /// As codes of [`Code::DynamicSigned`], of which [`NESTED_SCALES`] at a time share a scale and an offset in float32: a
    /// block's scale is `number(code)·scale + offset`.
    Nested,
}

/// Scales that share a scale.
pub const NESTED_SCALES: usize = 256;

/// Elements that share a scale: codes of `elements` of them, one behind another (of four bits, the first of two is the
/// upper half of its byte), and a scale for every such block behind all of them, at a multiple of its size. Nested
/// scales are a byte each, behind which, at a multiple of eight bytes, every [`NESTED_SCALES`] of them have their scale
/// and their offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockFormat {
    pub elements: usize,
    pub code: Code,
    pub scales: Scales,
}

impl BlockFormat {
    /// Where the scales of a tensor of so many elements begin.
    pub fn scales_at(&self, elements: usize) -> Option<usize> {
        let codes = elements.checked_mul(self.code.bits())?.div_ceil(8);
        match self.scales {
            Scales::F32 => codes.checked_next_multiple_of(DType::F32.bytes()),
            Scales::Nested => Some(codes),
        }
    }

    /// Where the scales' own scales and offsets begin; only of nested ones.
    pub fn nested_at(&self, elements: usize) -> Option<usize> {
        self.scales_at(elements)?.checked_add(elements.div_ceil(self.elements))?.checked_next_multiple_of(8)
    }

    fn bytes(&self, elements: usize) -> Option<usize> {
        let blocks = elements.div_ceil(self.elements);
        match self.scales {
            Scales::F32 => blocks.checked_mul(DType::F32.bytes())?.checked_add(self.scales_at(elements)?),
            Scales::Nested => {
                let pairs = blocks.div_ceil(NESTED_SCALES).checked_mul(2 * DType::F32.bytes())?;
                pairs.checked_add(self.nested_at(elements)?)
            }
        }
    }
}

/// Formats of few bits that frozen weights may be stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// Blocks of 64 as bitsandbytes has them with double quantisation. Where a tensor's scales do not divide evenly,
    /// they are stored as what nested ones come to.
    Nf4,
    /// A scale for each row.
    Int8,
    /// A scale for each row.
    E4m3,
}

/// Every one, the one that changes weights least first.
pub const WEIGHT_FORMATS: [WeightFormat; 3] = [WeightFormat::Int8, WeightFormat::E4m3, WeightFormat::Nf4];

/// Elements that share a scale in [`WeightFormat::Nf4`].
const NF4_BLOCK: usize = 64;

impl WeightFormat {
    /// As run files have it.
    pub fn name(self) -> &'static str {
        match self {
            WeightFormat::Nf4 => "nf4",
            WeightFormat::Int8 => "int8",
            WeightFormat::E4m3 => "fp8",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        WEIGHT_FORMATS.into_iter().find(|format| format.name() == name)
    }

    pub fn code(self) -> Code {
        match self {
            WeightFormat::Nf4 => Code::Nf4,
            WeightFormat::Int8 => Code::Int8,
            WeightFormat::E4m3 => Code::E4m3,
        }
    }

    /// How a weight is stored in which these matrices lie one below the other, each with scales of its own; `None` where
    /// their blocks would not.
    pub fn storage(self, element: DType, matrices: &[Shape]) -> Option<Storage> {
        let divides = |size: usize| matrices.iter().all(|shape| shape.elements().is_multiple_of(size));
        let (elements, scales) = match self {
            WeightFormat::Nf4 if divides(NF4_BLOCK * NESTED_SCALES) => (NF4_BLOCK, Scales::Nested),
            WeightFormat::Nf4 if divides(NF4_BLOCK) => (NF4_BLOCK, Scales::F32),
            WeightFormat::Nf4 => return None,
            WeightFormat::Int8 | WeightFormat::E4m3 => (matrices.first()?.cols(), Scales::F32),
        };
        Some(Storage { element, blocks: Some(BlockFormat { elements, code: self.code(), scales }) })
    }
}

/// The element type, and the blocks with their scales where elements are stored in fewer bits than they are read in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Storage {
    /// What an element is read as.
    pub element: DType,
    pub blocks: Option<BlockFormat>,
}

impl From<DType> for Storage {
    fn from(element: DType) -> Self {
        Self { element, blocks: None }
    }
}

impl Storage {
    /// What a tensor of this shape takes. Fails where no memory could hold it.
    pub fn bytes(&self, shape: &Shape) -> Result<usize, GraphError> {
        let bytes = shape.checked_elements().and_then(|elements| match self.blocks {
            None => elements.checked_mul(self.element.bytes()),
            Some(format) => format.bytes(elements),
        });
        bytes
            .filter(|&bytes| bytes <= TENSOR_BYTES_MAX)
            .ok_or_else(|| GraphError::TooLarge { shape: shape.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted_or_refused() {
        let format = BlockFormat { elements: 64, code: Code::DynamicSigned, scales: Scales::F32 };
        let int8 = Storage { element: DType::BF16, blocks: Some(format) };
        let bytes = |storage: Storage, dims: &[usize]| storage.bytes(&Shape::new(dims)).ok();
        assert_eq!(bytes(DType::BF16.into(), &[3, 5]), Some(30));
        assert_eq!(bytes(int8, &[128, 64]), Some(8192 + 4 * 128));
        // Scales begin where they can be read.
        assert_eq!(bytes(int8, &[1, 65]), Some(68 + 4 * 2));
        let nf4 = |dims: &[usize]| {
            let storage = WeightFormat::Nf4.storage(DType::BF16, &[Shape::new(dims)]).expect("whole blocks");
            (bytes(storage, dims).expect("small"), storage.blocks.expect("blocks").scales)
        };
        // Half a byte each, a byte for 64, eight for 64 times 256; or four for 64.
        assert_eq!(nf4(&[4096, 4096]), ((8 << 20) + (256 << 10) + 8 * 1024, Scales::Nested));
        assert_eq!(nf4(&[3, 64]), (96 + 3 * 4, Scales::F32));
        assert_eq!(WeightFormat::Nf4.storage(DType::BF16, &[Shape::new(&[3, 65])]), None);
        let rows = WeightFormat::E4m3.storage(DType::BF16, &[Shape::new(&[3, 65])]).expect("rows are always whole");
        assert_eq!(bytes(rows, &[3, 65]), Some(196 + 3 * 4));
        assert_eq!(bytes(DType::U8.into(), &[TENSOR_BYTES_MAX]), Some(TENSOR_BYTES_MAX));
        for dims in [&[usize::MAX, 2][..], &[1 << 62, 1 << 2], &[TENSOR_BYTES_MAX + 1], &[1 << 41]] {
            assert_eq!(bytes(DType::F32.into(), dims), None, "{dims:?}");
            assert_eq!(bytes(Storage { element: DType::F32, ..int8 }, &[usize::MAX]), None);
        }
    }
}
