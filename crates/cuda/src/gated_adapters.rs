//! The gated activation and its gradient, with what adapters add to the product made on the way.
//!
//! Small ranks in sixteen bits have kernels on tensor cores; everything else takes plain sums. Which it is follows from
//! types and shapes alone, so a plan does not show in the bits.

use plimsoll_graph::DType;
use plimsoll_graph::ops::{Activation, Adapters};
use plimsoll_runtime::RuntimeError;

use crate::activation::curve;
use crate::call::{Args, Call, Operand};
use crate::elementwise::{THREADS, row_grid};
use crate::narrow::{WARP, fits, room_for};

/// Narrow columns that the kernels on tensor cores have room for.
const ROOMS: [usize; 3] = [16, 32, 64];
/// `SPANS_MAX` in `kernels/gated_adapters_plain.cu`.
const SPANS_MAX: usize = 8;

/// What the operator reads; `dy` for the gradient.
pub(crate) struct Operands {
    pub gate_up: Operand,
    pub dy: Option<Operand>,
    pub narrow: Operand,
    pub b: Operand,
}

impl Operands {
    fn kind(&self) -> &'static str {
        if self.dy.is_some() { "gated_grad" } else { "gated" }
    }

    /// Columns of one half.
    fn cols(&self) -> usize {
        self.gate_up.cols / 2
    }
}

pub(crate) fn gated_adapters(
    activation: Activation,
    adapters: &Adapters,
    call: &Call,
    operands: &Operands,
) -> Result<(), RuntimeError> {
    let Operands { gate_up, dy, narrow, b } = operands;
    let mut all = vec![*gate_up, *narrow, *b, call.output(0)];
    all.extend(*dy);
    let suffix = call.suffix_of(&all)?;
    let name = format!("{}_{}_{suffix}", operands.kind(), curve(activation));
    let module = match gate_up.dtype {
        DType::BF16 => Some("gated_adapters_bf16"),
        DType::F16 => Some("gated_adapters_f16"),
        _ => None,
    };
    match (module, halves(adapters)) {
        (Some(module), Some(halves)) if fits(b.cols, operands.cols()) => {
            on_tensor_cores(module, &name, adapters, halves, call, operands)
        }
        _ => plain(&name, adapters, call, operands),
    }
}

/// Which of the adapters the gate's columns have, and which the up's; `None` if adapters have other columns than those.
fn halves(adapters: &Adapters) -> Option<[Option<usize>; 2]> {
    let half = adapters.total / 2;
    let mut found = [None; 2];
    for (index, block) in adapters.blocks.iter().enumerate() {
        let side = [0, half].iter().position(|&start| block.start == start && block.len == half)?;
        found[side] = Some(index);
    }
    Some(found)
}

/// As in `kernels/gated_adapters.cuh`.
struct Shape {
    room: usize,
    shared_bytes: u32,
    block_rows: usize,
}

impl Shape {
    const WARPS: usize = 4;
    const STAGES: usize = 3;
    const BLOCK_COLS: usize = Self::WARPS * 32;
    /// Rows of a block: many, for each reads its share of the second matrices; fewer where blocks would be.
    const ROWS_MAX: usize = 128;
    const ROWS_MIN: usize = 32;
    const BLOCKS_PER_MULTIPROCESSOR: usize = 6;

    fn new(rank: usize, gradient: bool, rows: usize, cols: usize, sm_count: usize) -> Self {
        let room = room_for(rank, &ROOMS);
        let wide = if gradient { 3 } else { 2 };
        let stage_bytes = wide * 1024 + 2 * (room / 16 * 512);
        let column_blocks = cols.div_ceil(Self::BLOCK_COLS);
        let mut block_rows = Self::ROWS_MAX;
        while block_rows > Self::ROWS_MIN
            && column_blocks * rows.div_ceil(block_rows) < Self::BLOCKS_PER_MULTIPROCESSOR * sm_count
        {
            block_rows /= 2;
        }
        Self { room, shared_bytes: (Self::WARPS * Self::STAGES * stage_bytes) as u32, block_rows }
    }
}

fn on_tensor_cores(
    module: &'static str,
    name: &str,
    adapters: &Adapters,
    halves: [Option<usize>; 2],
    call: &Call,
    operands: &Operands,
) -> Result<(), RuntimeError> {
    let Operands { gate_up, dy, narrow, b } = operands;
    let (rows, cols, rank) = (gate_up.rows, operands.cols(), b.cols);
    let shape = Shape::new(rank, dy.is_some(), rows, cols, call.sm_count() as usize);
    let at = |place: fn(usize, &Operand, usize, usize) -> u64, operand: &Operand| {
        halves.map(|index| index.map_or(0, |index| place(index, operand, cols, rank)))
    };
    let matrices = at(|index, b, cols, _| b.at(index * cols, 0), b);
    let narrows = at(|index, narrow, _, rank| narrow.at(0, index * rank), narrow);
    let mut args = Args::new().ptr(gate_up.ptr);
    if let Some(dy) = dy {
        args = args.ptr(dy.ptr);
    }
    let args = args
        .ptr(matrices[0])
        .ptr(matrices[1])
        .ptr(narrows[0])
        .ptr(narrows[1])
        .ptr(call.output(0).ptr)
        .u32(narrow.cols as u32)
        .u32(rows as u32)
        .u32(cols as u32)
        .u32(rank as u32)
        .u32(shape.block_rows as u32)
        .f32(adapters.alpha);
    let grid = (cols.div_ceil(Shape::BLOCK_COLS) as u32, rows.div_ceil(shape.block_rows) as u32, 1);
    let kernel = format!("{name}_{}", shape.room);
    call.launch(module, &kernel, grid, Shape::WARPS as u32 * WARP, shape.shared_bytes, args)
}

/// Any rank, any columns, any type.
fn plain(name: &str, adapters: &Adapters, call: &Call, operands: &Operands) -> Result<(), RuntimeError> {
    let Operands { gate_up, dy, narrow, b } = operands;
    if adapters.blocks.len() > SPANS_MAX {
        return Err(call.error(format!("{} adapters are more than {SPANS_MAX}", adapters.blocks.len())));
    }
    let spans: Vec<[u64; 4]> = adapters
        .places(b.cols)
        .map(|(block, row, first)| [block.start, block.len, row, first].map(|n| n as u64))
        .collect();
    let mut args = Args::with_table(&spans, SPANS_MAX).ptr(gate_up.ptr);
    if let Some(dy) = dy {
        args = args.ptr(dy.ptr);
    }
    let args = args
        .ptr(narrow.ptr)
        .ptr(b.ptr)
        .ptr(call.output(0).ptr)
        .u32(narrow.cols as u32)
        .u32(gate_up.rows as u32)
        .u32(operands.cols() as u32)
        .u32(b.cols as u32)
        .f32(adapters.alpha);
    let half = Operand { cols: operands.cols(), ..*gate_up };
    call.launch("gated_adapters_plain", name, row_grid(call, &half)?, THREADS, 0, args)
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::ops::Block;

    use super::*;
    use crate::narrow::shared_bytes_max;

    fn adapters(blocks: &[(usize, usize)]) -> Adapters {
        let blocks = blocks.iter().map(|&(start, len)| Block { start, len }).collect();
        Adapters { alpha: 1.0, blocks, total: 128 }
    }

    #[test]
    fn whole_halves_are_found() {
        assert_eq!(halves(&adapters(&[(0, 64), (64, 64)])), Some([Some(0), Some(1)]));
        assert_eq!(halves(&adapters(&[(64, 64)])), Some([None, Some(0)]));
        assert_eq!(halves(&adapters(&[(0, 64)])), Some([Some(0), None]));
        assert_eq!(halves(&adapters(&[(0, 128)])), None);
        assert_eq!(halves(&adapters(&[(0, 32), (64, 64)])), None);
    }

    #[test]
    fn blocks_fit_every_card() {
        for capability in [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)] {
            for (rank, gradient) in ROOMS.into_iter().flat_map(|rank| [(rank, false), (rank, true)]) {
                let shape = Shape::new(rank, gradient, 4096, 14336, 132);
                assert!(shape.shared_bytes <= shared_bytes_max(capability), "{capability:?} rank {rank}");
            }
        }
        assert_eq!(Shape::new(16, true, 4096, 14336, 132).block_rows, 128);
        assert_eq!(Shape::new(16, true, 100, 1024, 132).block_rows, 32);
    }
}
