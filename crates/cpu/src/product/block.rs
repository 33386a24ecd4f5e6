//! One task's block of a product, by one thread: which parts of the operands are packed, and when.
//!
//! A run of columns of the right operand is packed for a run of the depth, as much as stays in the
//! second-level cache. Panels of rows of the left one pass by it; one panel stays in the first-level
//! cache while the columns stream through.

use std::ops::Range;

use plimsoll_graph::CPU_PACKING_BYTES;

use super::kernel::Tile;
use super::level::{Level, VECTORS, tile_rows};
use super::pack::{Lines, Panels};
use super::{Onto, Product};

/// The longest run of the depth. A tile of the result is read and written once for each run.
const DEPTH_RUN: usize = 512;
/// Depth runs are made of so many elements, which packing transposes at a time.
const DEPTH_UNIT: usize = 16;
/// Rows of the left operand that are packed at a time.
const LEFT_ROWS: usize = 56;
const LEFT_ROOM: usize = LEFT_ROWS * DEPTH_RUN;
const RIGHT_ROOM: usize = CPU_PACKING_BYTES / size_of::<f32>() - LEFT_ROOM;

/// Panels of the right operand that are packed together: what they copy is then long enough to be fetched well.
const PANELS_AT_ONCE: usize = 4;

/// With so few columns, packing the left operand costs more than reading it as it lies.
const FEW_COLS: usize = 64;
/// Rows that begin a multiple of so many elements apart fall into few sets of the first-level cache,
/// of eight places each.
const CONFLICTING_STEP: usize = 512;
const CONFLICT_FREE_ROWS: usize = 8;

/// How the kernels get at an operand.
#[derive(Clone, Copy, PartialEq)]
enum Access {
    /// From where it lies.
    InPlace,
    Packed,
}

/// One block with the decisions made for it.
struct Block<'p> {
    product: &'p Product,
    rows: Range<usize>,
    cols: Range<usize>,
    left: Lines,
    right: Lines,
    left_access: Access,
    right_access: Access,
    /// Rows of a tile.
    height: usize,
    left_room: *mut f32,
    right_room: *mut f32,
}

/// The part of a block that is computed from one run of columns and one of the depth.
struct Part {
    cols: Range<usize>,
    depth: Range<usize>,
}

/// Length of the runs that `len` is divided into: about equal, multiples of `unit`, at most `most`, which is one too.
fn run_length(len: usize, most: usize, unit: usize) -> usize {
    let runs = len.div_ceil(most).max(1);
    len.div_ceil(runs).next_multiple_of(unit).max(unit)
}

fn runs(len: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(length).map(move |start| start..len.min(start + length))
}

/// Computes a block of the result.
///
/// # Safety
/// The processor must have the instructions. The product's addresses must hold what its shapes say,
/// `room` must have [`CPU_PACKING_BYTES`], and nobody else may touch the room or this block of the result.
pub(super) unsafe fn run<L: Level>(product: &Product, rows: Range<usize>, cols: Range<usize>, room: *mut f32) {
    let block = Block::new::<L>(product, rows, cols, room);
    let depth_run = run_length(product.depth, DEPTH_RUN, DEPTH_UNIT);
    let width = VECTORS * L::LANES;
    let col_run = run_length(block.cols.len(), RIGHT_ROOM / depth_run / width * width, width);
    for cols in runs(block.cols.len(), col_run) {
        let mut depth = 0..depth_run.min(product.depth);
        // Even without any depth there is a result.
        loop {
            let part = Part { cols: cols.clone(), depth: depth.clone() };
            // SAFETY: the caller's promises are passed on; the part lies in the block.
            unsafe { block.part::<L>(&part) };
            if depth.end == product.depth {
                break;
            }
            depth = depth.end..product.depth.min(depth.end + depth_run);
        }
    }
}

impl<'p> Block<'p> {
    fn new<L: Level>(product: &'p Product, rows: Range<usize>, cols: Range<usize>, room: *mut f32) -> Self {
        let (left, right) = (product.left, product.right);
        let left = Lines { start: left.start, line_step: left.row_stride, depth_step: left.col_stride };
        let right = Lines { start: right.start, line_step: right.col_stride, depth_step: right.row_stride };
        let few_rows = rows.len() <= 2 * L::ROWS;
        let in_place = |yes: bool| if yes { Access::InPlace } else { Access::Packed };
        let left_access =
            in_place(left.depth_step == 1 || (left.line_step == 1 && (few_rows || cols.len() <= FEW_COLS)));
        let adds = product.depth > DEPTH_RUN || matches!(product.onto, Onto::Present | Onto::PresentAndBias(_));
        let conflicting = |step: usize| step.is_multiple_of(CONFLICTING_STEP);
        let conflict = (left_access == Access::InPlace && left.depth_step == 1 && conflicting(left.line_step))
            || (adds && conflicting(product.result_stride));
        let most_rows = if conflict { CONFLICT_FREE_ROWS.min(L::ROWS) } else { L::ROWS };
        Self {
            product,
            left: left.at(rows.start, 0),
            right: right.at(cols.start, 0),
            left_access,
            right_access: in_place(right.line_step == 1 && few_rows),
            height: run_length(rows.len(), most_rows, 2).min(most_rows),
            rows,
            cols,
            left_room: room,
            right_room: room.wrapping_add(LEFT_ROOM),
        }
    }

    /// # Safety
    /// As for [`run`].
    unsafe fn part<L: Level>(&self, part: &Part) {
        let depth = part.depth.len();
        // SAFETY: the caller's promises are passed on. The rooms are large enough for the runs.
        unsafe {
            self.pack_right::<L>(part);
            let step = match self.left_access {
                Access::InPlace => self.rows.len(),
                Access::Packed => LEFT_ROWS / self.height * self.height,
            };
            for rows in runs(self.rows.len(), step.max(1)) {
                if self.left_access == Access::Packed {
                    let from = self.left.at(rows.start, part.depth.start);
                    pack_left::<L>(from, rows.len(), self.height, depth, self.left_room);
                }
                self.tiles::<L>(part, rows);
            }
        }
    }

    /// Packs what of the right operand's columns is not read in place.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn pack_right<L: Level>(&self, part: &Part) {
        let (width, depth) = (VECTORS * L::LANES, part.depth.len());
        let whole = part.cols.len() / width;
        let from = |panel: usize| self.right.at(part.cols.start + panel * width, part.depth.start);
        let to = |panel: usize| self.right_room.wrapping_add(panel * width * depth);
        let pack = |panel: usize, number: usize, width: usize, count: usize| {
            let panels = Panels { lines: from(panel), number, width, count, depth, to: to(panel) };
            // SAFETY: the columns lie in the operand, and the run was chosen to fit the room.
            unsafe { L::pack(&panels) };
        };
        if self.right_access == Access::Packed {
            for panel in (0..whole).step_by(PANELS_AT_ONCE) {
                pack(panel, PANELS_AT_ONCE.min(whole - panel), width, width);
            }
        }
        let rest = part.cols.len() - whole * width;
        if rest > 0 && !self.reads_right_in_place::<L>(rest) {
            pack(whole, 1, rest.next_multiple_of(L::LANES), rest);
        }
    }

    /// Kernels read whole vectors, so a panel with part of one is always packed.
    fn reads_right_in_place<L: Level>(&self, cols: usize) -> bool {
        self.right_access == Access::InPlace && cols.is_multiple_of(L::LANES)
    }

    /// All tiles of some rows.
    ///
    /// # Safety
    /// As for [`run`]; what is to be packed has been.
    unsafe fn tiles<L: Level>(&self, part: &Part, rows: Range<usize>) {
        let product = self.product;
        let depth = part.depth.len();
        let first = part.depth.start == 0;
        let (present, bias) = match product.onto {
            Onto::Nothing => (false, None),
            Onto::Present => (true, None),
            Onto::Bias(bias) => (false, Some(bias)),
            Onto::PresentAndBias(bias) => (true, Some(bias)),
        };
        let along = self.left_access == Access::InPlace && self.left.depth_step == 1;
        let mut row = rows.start;
        while row < rows.end {
            let height = tile_rows::<L>(self.height.min(rows.end - row));
            let (a, a_step) = match self.left_access {
                Access::InPlace if along => (self.left.at(row, part.depth.start).start, self.left.line_step),
                Access::InPlace => (self.left.at(row, part.depth.start).start, self.left.depth_step),
                Access::Packed => (self.left_room.wrapping_add((row - rows.start) * depth).cast_const(), height),
            };
            for cols in runs(part.cols.len(), VECTORS * L::LANES) {
                let in_place = self.reads_right_in_place::<L>(cols.len());
                let vectors = cols.len().div_ceil(L::LANES);
                let col = self.cols.start + part.cols.start + cols.start;
                let tile = Tile {
                    depth,
                    alpha: product.alpha,
                    a,
                    a_step,
                    b: if in_place {
                        self.right.at(part.cols.start + cols.start, part.depth.start).start
                    } else {
                        self.right_room.wrapping_add(cols.start * depth)
                    },
                    b_step: if in_place { self.right.depth_step } else { vectors * L::LANES },
                    c: product.result.wrapping_add((self.rows.start + row) * product.result_stride + col),
                    c_step: product.result_stride,
                    cols: cols.len(),
                    add: present || !first,
                    bias: bias.filter(|_| first).map_or(std::ptr::null(), |bias| bias.wrapping_add(col)),
                };
                // SAFETY: the tile lies in the block, and its operands have been packed or are read in place.
                unsafe { L::tile(height, vectors, along, &tile) };
            }
            row += height;
        }
    }
}

/// Packs rows of the left operand, in panels as high as the tiles that [`Block::tiles`] makes of them.
///
/// # Safety
/// As for [`run`]; there are so many rows, and the room holds them.
unsafe fn pack_left<L: Level>(from: Lines, rows: usize, height: usize, depth: usize, room: *mut f32) {
    let pack = |row: usize, number: usize, height: usize| {
        let to = room.wrapping_add(row * depth);
        let panels = Panels { lines: from.at(row, 0), number, width: height, count: height, depth, to };
        // SAFETY: the caller's promises are passed on.
        unsafe { L::pack(&panels) };
    };
    let whole = rows / height;
    pack(0, whole, height);
    let mut row = whole * height;
    while row < rows {
        let height = tile_rows::<L>(rows - row);
        pack(row, 1, height);
        row += height;
    }
}
