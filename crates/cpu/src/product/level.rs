//! The instruction sets, and what is compiled for each of them.

use super::kernel::Tile;
use super::pack::Panels;
use super::vectors::{Four, Vector};

/// An instruction set.
pub(super) trait Level {
    /// Rows of the highest tile: as many as leave registers for the operands.
    const ROWS: usize;
    const LANES: usize;

    /// `along` as in [`Tile::run`].
    ///
    /// # Safety
    /// The processor must have these instructions; otherwise as for [`Tile::run`].
    unsafe fn tile(rows: usize, vectors: usize, along: bool, tile: &Tile);

    /// # Safety
    /// The processor must have these instructions; otherwise as for [`Panels::pack`].
    unsafe fn pack(panels: &Panels);
}

/// Vectors across the widest tile.
pub(super) const VECTORS: usize = 2;

/// Rows of a tile when so many are left: the most there can be, else an even number, else one.
pub(super) fn tile_rows<L: Level>(left: usize) -> usize {
    match left.min(L::ROWS) {
        1 => 1,
        rows => rows & !1,
    }
}

macro_rules! level {
    ($(#[$doc:meta])* $name:ident, $vector:ty, rows $most:literal $($rows:literal)* $(, $features:literal)?) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl Level for $name {
            const ROWS: usize = $most;
            const LANES: usize = <$vector as Vector>::LANES;

            unsafe fn tile(rows: usize, vectors: usize, along: bool, tile: &Tile) {
                $(#[target_feature(enable = $features)])?
                unsafe fn run<const ROWS: usize, const VECTORS: usize, const ALONG: bool>(tile: &Tile) {
                    // SAFETY: the caller's promises are passed on.
                    unsafe { tile.run::<$vector, ROWS, VECTORS, ALONG>() }
                }
                macro_rules! with_rows {
                    ($vectors:literal, $along:literal) => {
                        match rows {
                            $most => run::<$most, $vectors, $along>,
                            $($rows => run::<$rows, $vectors, $along>,)*
                            _ => unreachable!("no tile has {rows} rows"),
                        }
                    };
                }
                let run = match (vectors, along) {
                    (1, false) => with_rows!(1, false),
                    (1, true) => with_rows!(1, true),
                    (_, false) => with_rows!(2, false),
                    (_, true) => with_rows!(2, true),
                };
                // SAFETY: the caller's promises are passed on.
                unsafe { run(tile) }
            }

            unsafe fn pack(panels: &Panels) {
                $(#[target_feature(enable = $features)])?
                unsafe fn run(panels: &Panels) {
                    // SAFETY: the caller's promises are passed on.
                    unsafe { panels.pack::<$vector>() }
                }
                // SAFETY: the caller's promises are passed on.
                unsafe { run(panels) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
level!(
    /// 32 registers of sixteen.
    Avx512,
    std::arch::x86_64::__m512,
    rows 14 12 10 8 6 4 2 1,
    "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma"
);
#[cfg(target_arch = "x86_64")]
level!(
    /// 16 registers of eight.
    Avx2,
    std::arch::x86_64::__m256,
    rows 6 4 2 1,
    "avx2,fma"
);
level!(
    /// Whatever there is, in fours.
    Baseline,
    Four,
    rows 4 2 1
);
