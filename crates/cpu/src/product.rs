//! Large matrix products, computed from packed copies of parts of the operands.
//!
//! The result is divided into blocks, one task each (`division`). A task goes through its block as
//! its caches suggest and packs what comes next (`block`, `pack`); tiles of the result are held in
//! registers (`kernel`), compiled for each instruction set (`level`, `vectors`). A few rows are sums
//! along the operands as they lie (`dots`).
//!
//! An element of the result is always the same sum in the same order: over runs of the depth that
//! follow from the depth alone, each run added up from its beginning. So it depends neither on the
//! division nor on the number of threads nor on addresses.

mod block;
mod division;
mod dots;
mod kernel;
mod level;
mod pack;
#[cfg(test)]
mod tests;
mod vectors;

use plimsoll_graph::CPU_PACKING_BYTES;

use crate::workers::Workers;
use division::Division;
use level::Level;

/// A factor, by the address of its first element and the distances between its rows and columns.
#[derive(Clone, Copy)]
pub(crate) struct Factor {
    pub start: *const f32,
    pub row_stride: usize,
    pub col_stride: usize,
}

impl Factor {
    pub(crate) fn new(start: *const f32, row_stride: usize) -> Self {
        Self { start, row_stride, col_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Self {
        Self { row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
}

/// What the result is added to.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Onto {
    /// Nothing: the old contents do not matter.
    Nothing,
    /// What is there.
    Present,
    /// A bias, the same for every row.
    Bias(*const f32),
    /// What is there and a bias.
    PresentAndBias(*const f32),
}

/// `result[rows × cols] = onto + alpha·left[rows × depth]·right[depth × cols]`, the result row-major.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub rows: usize,
    pub cols: usize,
    pub depth: usize,
    pub alpha: f32,
    pub left: Factor,
    pub right: Factor,
    pub result: *mut f32,
    pub result_stride: usize,
    pub onto: Onto,
}

// SAFETY: plain addresses; blocks of the result are disjoint.
unsafe impl Send for Product {}
// SAFETY: as above.
unsafe impl Sync for Product {}

/// Packing rooms of all threads, one behind another.
#[derive(Clone, Copy)]
pub(crate) struct PackingRoom(*mut f32);

// SAFETY: a plain address; each worker uses a part of its own.
unsafe impl Send for PackingRoom {}
// SAFETY: as above.
unsafe impl Sync for PackingRoom {}

/// What [`PackingRoom::new`] must be given.
pub(crate) fn packing_bytes(workers: &Workers) -> usize {
    workers.count() * CPU_PACKING_BYTES
}

impl PackingRoom {
    /// From the address of as many bytes as [`packing_bytes`] says.
    pub(crate) fn new(start: *mut f32) -> Self {
        Self(start)
    }

    fn of(self, worker: usize) -> *mut f32 {
        self.0.wrapping_byte_add(worker * CPU_PACKING_BYTES)
    }
}

impl Product {
    /// # Safety
    /// The addresses must hold what the shapes say, and the result must overlap neither the factors nor the room.
    pub(crate) unsafe fn run(self, workers: &Workers, room: PackingRoom) {
        // SAFETY: the processor has the instructions; the caller's promises are passed on.
        unsafe {
            if self.is_few_dots() {
                return self.run_dots(workers);
            }
            #[cfg(target_arch = "x86_64")]
            match crate::vector::level() {
                crate::vector::Level::Avx512 => return self.run_with::<level::Avx512>(workers, room),
                crate::vector::Level::Avx2 => return self.run_with::<level::Avx2>(workers, room),
                crate::vector::Level::Baseline => {}
            }
            self.run_with::<level::Baseline>(workers, room);
        }
    }

    /// # Safety
    /// As for [`Product::run`], and the processor must have the instructions.
    unsafe fn run_with<L: Level>(self, workers: &Workers, room: PackingRoom) {
        let division = Division::new::<L>(&self, workers.count());
        workers.for_each(division.tasks(), |worker, task| {
            let (rows, cols) = division.block(task);
            // SAFETY: the blocks divide the result among the tasks, the room is divided among the workers.
            unsafe { block::run::<L>(&self, rows, cols, room.of(worker)) };
        });
    }
}
