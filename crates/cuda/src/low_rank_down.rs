//! `low_rank = α·drop(wide)·Wᵀ`, where the weight is `[rank, depth]`: the wide matrix is read once, at the memory's speed.

use plimsoll_graph::ops::Linear;
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand};
use crate::low_rank::{MODULE, SHARED_TILES_MAX, WARP, full_rounds, room_for, shared_bytes_max, with_dropout};

pub(crate) fn down(
    op: &Linear,
    call: &Call,
    wide: &Operand,
    weight: &Operand,
    low_rank: &Operand,
) -> Result<(), RuntimeError> {
    let (rows, rank, depth) = (low_rank.rows, low_rank.cols, weight.cols);
    let shape = Shape::new(rank, call.compute_capability());
    let tiles = rows.div_ceil(Shape::ROWS);
    let splits = shape.splits(call.sm_count() as usize, call.workspace().1, tiles, depth);
    let args = Args::new()
        .ptr(wide.ptr)
        .u64(wide.cols as u64)
        .ptr(weight.ptr)
        .ptr(low_rank.ptr)
        .ptr(call.workspace().0)
        .u32(rows as u32)
        .u32(depth as u32)
        .u32(rank as u32);
    let kernel = format!("down_{}_{}", low_rank.dtype.name(), shape.room);
    let grid = (tiles as u32, splits as u32, 1);
    call.launch(MODULE, &kernel, grid, Shape::WARPS * WARP, shape.shared_bytes(), with_dropout(args, op, call))
}

/// What a block does, as in `kernels/low_rank_down.cuh`.
#[derive(Debug, Clone, Copy)]
struct Shape {
    room: usize,
    /// Columns of a stage.
    run: usize,
    stages: usize,
}

impl Shape {
    const ROWS: usize = 128;
    const WARPS: u32 = 8;

    fn new(rank: usize, capability: (u32, u32)) -> Self {
        let (run, stages) = match shared_bytes_max(capability) >> 10 {
            227.. => (128, 4),
            163.. => (64, 6),
            _ => (64, 4),
        };
        Self { room: room_for(rank, &[8, 16, 24, 32, 48, 64]), run, stages }
    }

    fn shared_bytes(&self) -> u32 {
        (self.stages * (Self::ROWS + self.room) * self.run * 2) as u32
    }

    fn partial_bytes(&self, tiles: usize, splits: usize) -> usize {
        tiles * splits * Self::ROWS * self.room * 4
    }

    /// Blocks that share the depth of a tile of rows, each with two stages at least: as many as the card runs at a time, or
    /// where tiles are more than that, as many as fill rounds. Depends on shapes and the card alone, as the order of sums does.
    fn splits(&self, sm_count: usize, workspace_bytes: usize, tiles: usize, depth: usize) -> usize {
        if tiles == 0 || tiles > SHARED_TILES_MAX {
            return 1;
        }
        let fit = workspace_bytes / self.partial_bytes(tiles, 1);
        let most = (depth.div_ceil(self.run) / 2).min(fit).max(1);
        let one_round = sm_count / tiles;
        if one_round > 0 { one_round.min(most) } else { full_rounds(sm_count, tiles, most) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARDS: [(u32, u32); 8] = [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (11, 0), (12, 0)];
    const WORKSPACE: usize = 32 << 20;

    #[test]
    fn stages_fit_every_card() {
        for capability in CARDS {
            for rank in [4, 8, 16, 24, 32, 48, 64] {
                let shape = Shape::new(rank, capability);
                // The kernel's own variables want some of it as well.
                assert!(shape.shared_bytes() + 1024 <= shared_bytes_max(capability), "{capability:?}: {shape:?}");
                // The sums of both halves of the warps lie there in the end.
                assert!(shape.shared_bytes() as usize >= 2 * shape.partial_bytes(1, 1), "{capability:?}: {shape:?}");
                let under_way = (shape.stages - 1) * Shape::ROWS * shape.run * 2;
                assert!(under_way >= 48 << 10, "{capability:?}: {shape:?}");
            }
        }
    }

    /// The kernel has the same numbers in its source.
    #[test]
    fn kernels_have_the_same_stages() {
        let source = include_str!("../kernels/low_rank_down.cuh");
        for capability in CARDS {
            let Shape { run, stages, .. } = Shape::new(16, capability);
            let stated = format!("#define DOWN_RUN {run}\n#define DOWN_STAGES {stages}\n");
            assert!(source.contains(&stated), "{capability:?}: {stated}");
        }
        assert!(source.contains(&format!("ROWS = {}, RANK", Shape::ROWS)));
    }

    #[test]
    fn blocks_keep_a_card_busy() {
        let shape = Shape::new(16, (9, 0));
        let splits = |rows: usize, depth: usize| shape.splits(132, WORKSPACE, rows.div_ceil(Shape::ROWS), depth);
        assert_eq!([4096, 2048, 8192, 16384].map(|rows| splits(rows, 4096)), [4, 8, 2, 1]);
        assert_eq!([4096, 14336, 512, 256, 8].map(|depth| splits(4096, depth)), [4, 4, 2, 1, 1]);
        assert_eq!([1, 128, 129, 513].map(|rows| splits(rows, 4096)), [16, 16, 16, 16]);
        assert_eq!([4224, 4225, 8448, 8449].map(|rows| splits(rows, 4096)), [4, 3, 2, 1]);
        // More tiles than multiprocessors: one too many for a round, and almost two rounds.
        assert_eq!([17_000, 33_000].map(|rows| splits(rows, 4096)), [4, 1]);
        assert_eq!(splits(SHARED_TILES_MAX * Shape::ROWS + 1, 4096), 1);
        assert_eq!(splits(0, 4096), 1);
    }

    #[test]
    fn sums_fit_the_workspace() {
        for rank in [4, 16, 48, 64] {
            let shape = Shape::new(rank, (9, 0));
            for tiles in [1, 5, 32, 1000] {
                for workspace in [0, 8 << 10, 300 << 10, 4 << 20, WORKSPACE] {
                    let splits = shape.splits(132, workspace, tiles, 14336);
                    assert!(splits == 1 || shape.partial_bytes(tiles, splits) <= workspace, "{shape:?}: {tiles} tiles");
                }
            }
        }
    }
}
