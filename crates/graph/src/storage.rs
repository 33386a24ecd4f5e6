//! How a tensor lies in memory, and so how many bytes it takes.

use crate::{Code, DType, GraphError, Shape};

/// No tensor is larger. With at most [`crate::VALUES_MAX`] of them, no sum of sizes overflows.
pub const TENSOR_BYTES_MAX: usize = 1 << 42;

/// Elements that share a scale: codes of `elements` of them, one behind another, and a scale for every such block behind all
/// of them, at a multiple of its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockFormat {
    pub elements: usize,
    pub code: Code,
    pub scale: DType,
}

impl BlockFormat {
    /// Where the scales of a tensor of so many elements begin.
    pub fn scales_at(&self, elements: usize) -> Option<usize> {
        elements.checked_mul(self.code.bits())?.div_ceil(8).checked_next_multiple_of(self.scale.bytes())
    }

    fn bytes(&self, elements: usize) -> Option<usize> {
        elements.div_ceil(self.elements).checked_mul(self.scale.bytes())?.checked_add(self.scales_at(elements)?)
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
        let format = BlockFormat { elements: 64, code: Code::DynamicSigned, scale: DType::F32 };
        let int8 = Storage { element: DType::BF16, blocks: Some(format) };
        let bytes = |storage: Storage, dims: &[usize]| storage.bytes(&Shape::new(dims)).ok();
        assert_eq!(bytes(DType::BF16.into(), &[3, 5]), Some(30));
        assert_eq!(bytes(int8, &[128, 64]), Some(8192 + 4 * 128));
        // Scales begin where they can be read.
        assert_eq!(bytes(int8, &[1, 65]), Some(68 + 4 * 2));
        assert_eq!(bytes(DType::U8.into(), &[TENSOR_BYTES_MAX]), Some(TENSOR_BYTES_MAX));
        for dims in [&[usize::MAX, 2][..], &[1 << 62, 1 << 2], &[TENSOR_BYTES_MAX + 1], &[1 << 41]] {
            assert_eq!(bytes(DType::F32.into(), dims), None, "{dims:?}");
            assert_eq!(bytes(Storage { element: DType::F32, ..int8 }, &[usize::MAX]), None);
        }
    }
}
