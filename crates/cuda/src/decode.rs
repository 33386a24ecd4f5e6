//! Frozen weights in few bits, and rows that are kept in such: where codes and scales lie, and a part of them decoded.

use std::ops::Range;

use plimsoll_graph::ops::LinearKind;
use plimsoll_graph::{BlockFormat, Code, DType, Scales, Shape};
use plimsoll_plan::Buffer;
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, type_suffix};

const MODULE: &str = "decode";
/// As in `kernels/decode.cu`: elements of a thread, and the rows and columns of a block.
const PACK: usize = 8;
const WARP: usize = 32;
const WARPS: usize = 4;
const TURNS: usize = 8;
const BLOCK_ROWS: usize = WARPS * TURNS;
const BLOCK_COLS: usize = WARP * PACK;
const THREADS: u32 = (WARPS * WARP) as u32;
/// The most blocks along the second side of a grid; there are more turns instead.
const GRID_ROWS_MAX: usize = 65_535;
/// Elements that share a scale in the format of four bits that is read in packs.
const NF4_BLOCK: usize = 64;

/// A weight `[rows, cols]` in few bits, or rows of tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredWeight {
    pub codes: u64,
    pub scales: u64,
    /// Scales and offsets of the scales; null where these are no codes.
    nested: u64,
    pub shape: Shape,
    pub format: BlockFormat,
    /// What an element is decoded to.
    pub element: DType,
}

impl StoredWeight {
    /// An input that is stored in blocks.
    pub(crate) fn input(call: &Call, index: usize) -> Result<Self, RuntimeError> {
        Self::at(call, &call.step.inputs[index], call.input(index).ptr)
    }

    /// An output that is stored in blocks.
    pub(crate) fn output(call: &Call, index: usize) -> Result<Self, RuntimeError> {
        Self::at(call, &call.step.outputs[index], call.output(index).ptr)
    }

    fn at(call: &Call, buffer: &Buffer, codes: u64) -> Result<Self, RuntimeError> {
        let elements = buffer.shape.elements();
        let format = buffer.storage.blocks.ok_or_else(|| call.error("the weight has no codes"))?;
        let too_large = || call.error(format!("no memory holds {elements} elements"));
        let scales = codes + format.scales_at(elements).ok_or_else(too_large)? as u64;
        let nested = match format.scales {
            Scales::F32 => 0,
            Scales::Nested => codes + format.nested_at(elements).ok_or_else(too_large)? as u64,
        };
        Ok(Self { codes, scales, nested, shape: buffer.shape, format, element: buffer.dtype() })
    }

    pub(crate) fn rows(&self) -> usize {
        self.shape.rows()
    }

    pub(crate) fn cols(&self) -> usize {
        self.shape.cols()
    }

    /// A run of its rows (`Forward`) or of its columns, packed tightly from `to` on.
    pub(crate) fn decode(
        &self,
        call: &Call,
        kind: LinearKind,
        part: &Range<usize>,
        to: u64,
    ) -> Result<(), RuntimeError> {
        let suffix = type_suffix(self.element).ok_or_else(|| call.unsupported(self.element))?;
        let view = View::new(self, kind, part);
        let args = self.args(Args::new()).ptr(to).u64(view.total as u64);
        let args = args.u32(view.width as u32).u64(view.stride as u64).u64(view.first as u64);
        if view.packed {
            let rows = view.total.div_ceil(view.width.max(1));
            // What lies side by side is written about the same time.
            let rows = rows.div_ceil(BLOCK_ROWS).min(GRID_ROWS_MAX);
            let grid = (view.width.div_ceil(BLOCK_COLS) as u32, rows as u32, 1);
            let kernel = format!("decode_{}_{suffix}", self.kernel_name(call)?);
            return call.launch(MODULE, &kernel, grid, THREADS, 0, args.u32(view.first_row as u32));
        }
        let grid = (view.total.div_ceil(THREADS as usize) as u32, 1, 1);
        let args = args.u64(self.format.elements as u64);
        call.launch(MODULE, &format!("decode_any_{}_{suffix}", self.code_name(call)?), grid, THREADS, 0, args)
    }

    /// Where it lies, as kernels take it.
    pub(crate) fn args(&self, args: Args) -> Args {
        args.ptr(self.codes).ptr(self.scales).ptr(self.nested)
    }

    /// Whether the elements of every pack have one scale, as kernels that read packs have it.
    fn shares_scales(&self) -> bool {
        match (self.format.code, self.format.scales) {
            (Code::Nf4, _) => self.format.elements == NF4_BLOCK,
            (_, scales) => self.format.elements == self.cols() && scales == Scales::F32,
        }
    }

    /// Whether rows are whole packs.
    pub(crate) fn rows_are_packs(&self) -> bool {
        self.shares_scales() && self.cols().is_multiple_of(PACK)
    }

    /// What kernels that read packs are called after.
    pub(crate) fn kernel_name(&self, call: &Call) -> Result<&'static str, RuntimeError> {
        match self.format.scales {
            Scales::Nested if self.format.code == Code::Nf4 => Ok("nf4_nested"),
            _ => self.code_name(call),
        }
    }

    fn code_name(&self, call: &Call) -> Result<&'static str, RuntimeError> {
        match self.format.code {
            Code::Nf4 => Ok("nf4"),
            Code::Int8 => Ok("int8"),
            Code::E4m3 => Ok("e4m3"),
            Code::DynamicSigned | Code::DynamicUnsigned => {
                Err(call.error(format!("has no kernel for a weight of {:?}", self.format.code)))
            }
        }
    }
}

/// How kernels walk through a part: rows of `width` elements, `stride` apart from `first` on.
#[derive(Debug, PartialEq, Eq)]
struct View {
    total: usize,
    width: usize,
    stride: usize,
    first: usize,
    first_row: usize,
    /// Whether every pack is one load, shares a scale, and is one store, and no row begins within a block of scales.
    packed: bool,
}

impl View {
    fn new(weight: &StoredWeight, kind: LinearKind, part: &Range<usize>) -> Self {
        let (rows, cols) = (weight.rows(), weight.cols());
        let (rows, width, first, first_row) = match kind {
            LinearKind::Forward => (part.len(), cols, part.start * cols, part.start),
            _ => (rows, part.len(), part.start, 0),
        };
        let total = rows * width;
        let packs = |size: usize| size.is_multiple_of(PACK);
        if weight.format.code != Code::Nf4 {
            let packed = weight.rows_are_packs() && packs(width) && packs(first);
            return Self { total, width, stride: cols, first, first_row, packed };
        }
        let blocks = |size: usize| size.is_multiple_of(NF4_BLOCK);
        if weight.shares_scales() && width == cols && blocks(first) && packs(total) {
            // Blocks go on from row to row, so any length will do for these.
            return Self { total, width: BLOCK_COLS, stride: BLOCK_COLS, first, first_row, packed: true };
        }
        let packed = weight.shares_scales() && blocks(cols) && packs(width) && blocks(first);
        Self { total, width, stride: cols, first, first_row, packed }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::WeightFormat;
    use plimsoll_graph::ops::decoded_parts;

    use super::*;

    fn weight(format: WeightFormat, dims: &[usize]) -> StoredWeight {
        let shape = Shape::new(dims);
        let format = format.storage(DType::BF16, &[shape]).and_then(|storage| storage.blocks).expect("whole blocks");
        StoredWeight { codes: 0, scales: 0, nested: 0, shape, format, element: DType::BF16 }
    }

    /// The elements a kernel reads for a view, in the order it writes them.
    fn walked(view: &View) -> Vec<usize> {
        (0..view.total).map(|index| view.first + index / view.width * view.stride + index % view.width).collect()
    }

    #[test]
    fn a_view_walks_through_its_part() {
        use LinearKind::{Forward, InputGrad};
        for (format, dims, packed) in [
            (WeightFormat::Nf4, [64, 72], true),
            (WeightFormat::Nf4, [64, 9], true),
            (WeightFormat::Int8, [5, 24], true),
            (WeightFormat::Int8, [5, 25], false),
            (WeightFormat::E4m3, [7, 8], true),
        ] {
            let weight = weight(format, &dims);
            for kind in [Forward, InputGrad] {
                let wide = if kind == Forward { dims[0] } else { dims[1] };
                for part in [0..wide, 0..wide / 8 * 4, wide / 8 * 8 - 8 * (wide / 16)..wide] {
                    let view = View::new(&weight, kind, &part);
                    let rows = if kind == Forward { part.clone() } else { 0..dims[0] };
                    let cols = if kind == Forward { 0..dims[1] } else { part.clone() };
                    let expected: Vec<usize> =
                        rows.flat_map(|row| cols.clone().map(move |col| row * dims[1] + col)).collect();
                    assert_eq!(walked(&view), expected, "{format:?} {dims:?} {kind:?} {part:?}");
                    assert!(packed || !view.packed, "{view:?}");
                    if view.packed {
                        assert!([view.total, view.width, view.stride, view.first].iter().all(|n| n % PACK == 0));
                    }
                }
                assert_eq!(View::new(&weight, kind, &(0..wide)).packed, packed, "{format:?} {dims:?}");
            }
        }
    }

    /// Real weights are always decoded in packs.
    #[test]
    fn parts_of_wide_weights_are_packed() {
        for format in [WeightFormat::Nf4, WeightFormat::Int8, WeightFormat::E4m3] {
            let weight = weight(format, &[28_672, 4096]);
            for kind in [LinearKind::Forward, LinearKind::InputGrad] {
                assert!(decoded_parts(kind, &weight.shape).count() > 1);
                assert!(decoded_parts(kind, &weight.shape).all(|part| View::new(&weight, kind, &part).packed));
            }
        }
    }
}
