//! The gated activation and its gradient, with what adapters add to the product made on the way.
//!
//! Small ranks in sixteen bits have kernels on tensor cores; everything else takes plain sums. Which it is follows from
//! types and shapes alone, so a plan does not show in the bits.

use plimsoll_graph::DType;
use plimsoll_graph::ops::{Activation, AdapterShare, Adapters, Columns};
use plimsoll_runtime::RuntimeError;

use crate::activation::curve;
use crate::call::{Args, Call, Operand};
use crate::elementwise::{THREADS, row_grid};
use crate::low_rank::{WARP, fits, room_for};
use crate::mask::Keep;

/// Low-rank columns that the kernels on tensor cores have room for.
const ROOMS: [usize; 3] = [16, 32, 64];
/// `SPANS_MAX` in `kernels/gated_adapters_plain.cu`.
const SPANS_MAX: usize = 8;

/// What the operator reads; `dy` for the gradient, which may lack its last share.
pub(crate) struct Operands<'a> {
    pub gate_up: Operand,
    pub dy: Option<Operand>,
    pub added: Option<Added<'a>>,
    pub share: Option<Share>,
    /// Where the gradient puts the value too; null where nobody wants it.
    pub value: u64,
}

/// Adapters, their low-rank rows and second matrices.
#[derive(Clone, Copy)]
pub(crate) struct Added<'a> {
    pub adapters: &'a Adapters,
    pub low_rank: Operand,
    pub b: Operand,
}

/// `drop(α·dh·A)`, with the addresses of row ids and key if anything is dropped.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    pub op: AdapterShare,
    pub dh: Operand,
    pub a: Operand,
    pub mask: Option<[u64; 2]>,
}

impl Share {
    fn keep(&self) -> Keep {
        self.op.dropout.map_or(Keep { threshold: 0, scale: 1.0 }, |dropout| Keep::new(dropout.p))
    }

    fn site(&self) -> u32 {
        self.op.dropout.map_or(0, |dropout| dropout.site)
    }
}

impl Operands<'_> {
    fn kind(&self) -> &'static str {
        if self.dy.is_some() { "gated_grad" } else { "gated" }
    }

    /// Columns of one half.
    fn cols(&self) -> usize {
        self.gate_up.cols / 2
    }

    /// The rank, if all have the same.
    fn rank(&self) -> Option<usize> {
        match (self.added.map(|added| added.b.cols), self.share.map(|share| share.dh.cols)) {
            (Some(rank), Some(other)) => (rank == other).then_some(rank),
            (rank, other) => rank.or(other),
        }
    }

    /// All that have the activation's type.
    fn of_one_type(&self) -> Vec<Operand> {
        let mut all = vec![self.gate_up];
        all.extend(self.dy);
        all.extend(self.added.iter().flat_map(|added| [added.low_rank, added.b]));
        all.extend(self.share.iter().flat_map(|share| [share.dh, share.a]));
        all
    }
}

pub(crate) fn gated_adapters(activation: Activation, call: &Call, operands: &Operands) -> Result<(), RuntimeError> {
    let mut all = operands.of_one_type();
    all.push(call.output(0));
    let suffix = call.suffix_of(&all)?;
    let name = format!("{}_{}_{suffix}", operands.kind(), curve(activation));
    let module = match operands.gate_up.dtype {
        DType::BF16 => Some("gated_adapters_bf16"),
        DType::F16 => Some("gated_adapters_f16"),
        _ => None,
    };
    let halves = operands.added.map_or(Some([None; 2]), |added| halves(added.adapters));
    match (module, halves, operands.rank()) {
        (Some(module), Some(halves), Some(rank)) if fits(rank, operands.cols()) => {
            on_tensor_cores(module, &name, halves, rank, call, operands)
        }
        _ => plain(&name, call, operands),
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
    const BLOCK_COLS: usize = Self::WARPS * 32;
    /// Rows of a block: many, for each reads its share of the second matrices; fewer where blocks would be.
    const ROWS_MAX: usize = 128;
    const ROWS_MIN: usize = 32;
    const BLOCKS_PER_MULTIPROCESSOR: usize = 6;

    fn new(rank: usize, gradient: bool, rows: usize, cols: usize, sm_count: usize) -> Self {
        let room = room_for(rank, &ROOMS);
        let wide = if gradient { 3 } else { 2 };
        let stage_bytes = wide * (1024 + room / 16 * 512) + if gradient { 128 } else { 0 };
        // Small cards have room for no more.
        let stages = if gradient && room == 64 { 2 } else { 3 };
        let column_blocks = cols.div_ceil(Self::BLOCK_COLS);
        let mut block_rows = Self::ROWS_MAX;
        while block_rows > Self::ROWS_MIN
            && column_blocks * rows.div_ceil(block_rows) < Self::BLOCKS_PER_MULTIPROCESSOR * sm_count
        {
            block_rows /= 2;
        }
        Self { room, shared_bytes: (Self::WARPS * stages * stage_bytes) as u32, block_rows }
    }
}

fn on_tensor_cores(
    module: &'static str,
    name: &str,
    halves: [Option<usize>; 2],
    rank: usize,
    call: &Call,
    operands: &Operands,
) -> Result<(), RuntimeError> {
    let Operands { gate_up, dy, added, share, value } = operands;
    let (rows, cols) = (gate_up.rows, operands.cols());
    let shape = Shape::new(rank, dy.is_some(), rows, cols, call.sm_count() as usize);
    let place = |side: usize, at: fn(&Added, usize, usize, usize) -> u64| match (added, halves[side]) {
        (Some(added), Some(index)) => at(added, index, cols, rank),
        _ => 0,
    };
    let [gate_b, up_b] = [0, 1].map(|side| place(side, |added, index, cols, _| added.b.at(index * cols, 0)));
    let [gate_h, up_h] = [0, 1].map(|side| place(side, |added, index, _, rank| added.low_rank.at(0, index * rank)));
    let mut args = Args::new().ptr(gate_up.ptr);
    if let Some(dy) = dy {
        args = args.ptr(dy.ptr);
    }
    let mut args = args
        .ptr(gate_b)
        .ptr(up_b)
        .ptr(gate_h)
        .ptr(up_h)
        .ptr(call.output(0).ptr)
        .u32(added.map_or(0, |added| added.low_rank.cols) as u32)
        .u32(rows as u32)
        .u32(cols as u32)
        .u32(rank as u32)
        .u32(shape.block_rows as u32)
        .f32(added.map_or(0.0, |added| added.adapters.alpha));
    if dy.is_some() {
        args = match share {
            Some(share) => {
                let ([row_ids, key], keep) = (share.mask.unwrap_or_default(), share.keep());
                let args = args.ptr(share.dh.ptr).ptr(share.a.ptr).f32(share.op.alpha * keep.scale);
                args.ptr(row_ids).ptr(key).u32(share.site()).u32(keep.threshold)
            }
            None => args.ptr(0).ptr(0).f32(0.0).ptr(0).ptr(0).u32(0).u32(0),
        };
        args = args.ptr(*value);
    }
    let grid = (cols.div_ceil(Shape::BLOCK_COLS) as u32, rows.div_ceil(shape.block_rows) as u32, 1);
    let kernel = format!("{name}_{}", shape.room);
    call.launch(module, &kernel, grid, Shape::WARPS as u32 * WARP, shape.shared_bytes, args)
}

/// Any rank, any columns, any type.
fn plain(name: &str, call: &Call, operands: &Operands) -> Result<(), RuntimeError> {
    let Operands { gate_up, dy, added, share, value } = operands;
    let mut spans: Vec<[u64; 4]> = Vec::new();
    if let Some(Added { adapters, b, .. }) = added {
        let span =
            |(block, row, first): (Columns, usize, usize)| [block.start, block.len, row, first].map(|n| n as u64);
        spans.extend(adapters.places(b.cols).map(span));
    }
    if spans.len() > SPANS_MAX {
        return Err(call.error(format!("{} adapters are more than {SPANS_MAX}", spans.len())));
    }
    let mut args = Args::with_table(&spans, SPANS_MAX).ptr(gate_up.ptr);
    if let Some(dy) = dy {
        args = args.ptr(dy.ptr);
    }
    let mut args = args
        .ptr(added.map_or(0, |added| added.low_rank.ptr))
        .ptr(added.map_or(0, |added| added.b.ptr))
        .ptr(call.output(0).ptr)
        .u32(added.map_or(0, |added| added.low_rank.cols) as u32)
        .u32(gate_up.rows as u32)
        .u32(operands.cols() as u32)
        .u32(added.map_or(0, |added| added.b.cols) as u32)
        .f32(added.map_or(0.0, |added| added.adapters.alpha));
    if dy.is_some() {
        args = match share {
            Some(share) => {
                let ([row_ids, key], keep) = (share.mask.unwrap_or_default(), share.keep());
                let args = args.ptr(share.dh.ptr).ptr(share.a.ptr).u32(share.dh.cols as u32).f32(share.op.alpha);
                args.ptr(row_ids).ptr(key).u32(share.site()).u32(keep.threshold).f32(keep.scale)
            }
            None => args.ptr(0).ptr(0).u32(0).f32(0.0).ptr(0).ptr(0).u32(0).u32(0).f32(0.0),
        };
        args = args.ptr(*value);
    }
    let half = Operand { cols: operands.cols(), ..*gate_up };
    call.launch("gated_adapters_plain", name, row_grid(call, &half)?, THREADS, 0, args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::low_rank::shared_bytes_max;

    fn adapters(blocks: &[(usize, usize)]) -> Adapters {
        let blocks = blocks.iter().map(|&(start, len)| Columns { start, len }).collect();
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
