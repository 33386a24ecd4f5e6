//! One matrix with its adapter: `W + scale · B·A`, some rows at a time.

use std::num::NonZero;
use std::thread;

use plimsoll_runtime::weights::{Checkpoint, StoredType, TensorInfo, WeightError, from_floats, is_float, to_floats};

use super::{Out, PIECE_BYTES};
use crate::TrainError;

/// Both sides of an adapter.
pub(super) struct LowRank {
    /// `[r, in]`.
    pub a: TensorInfo,
    /// `[out, r]`.
    pub b: TensorInfo,
    pub scale: f32,
}

/// A matrix `[out, in]` and what is added to it.
pub(super) struct Fold {
    name: String,
    weight: TensorInfo,
    low_rank: LowRank,
}

/// Threads that share the rows of a piece, at most.
pub(super) const THREADS_MAX: usize = 16;

impl Fold {
    /// Refuses shapes that do not belong together.
    pub fn new(
        base: &Checkpoint,
        name: &str,
        weight: &TensorInfo,
        adapter: &Checkpoint,
        low_rank: LowRank,
    ) -> Result<Self, TrainError> {
        let name = name.to_owned();
        if !is_float(weight.dtype) {
            let (path, dtype) = (base.path_of(weight).to_owned(), format!("{:?}", weight.dtype));
            return Err(WeightError::DType { path, name, dtype }.into());
        }
        let (a, b) = (&low_rank.a, &low_rank.b);
        let wrong = |info: &TensorInfo, expected: Vec<usize>| {
            let (path, found) = (adapter.path_of(info).to_owned(), info.shape.clone());
            let name = name.clone();
            TrainError::from(WeightError::Shape { path, name, expected, found })
        };
        let &[out, inner] = weight.shape.as_slice() else { return Err(wrong(a, weight.shape.clone())) };
        let r = a.shape.first().copied().unwrap_or(0);
        if a.shape != [r, inner] {
            return Err(wrong(a, vec![r, inner]));
        }
        if b.shape != [out, r] {
            return Err(wrong(b, vec![out, r]));
        }
        Ok(Self { name, weight: weight.clone(), low_rank })
    }

    fn inner(&self) -> usize {
        self.weight.shape[1]
    }

    fn r(&self) -> usize {
        self.low_rank.a.shape[0]
    }

    /// Rows that are in memory at one time.
    fn rows(&self) -> usize {
        let row_bytes = self.inner() * self.weight.dtype.bitsize() / 8;
        (PIECE_BYTES / row_bytes.max(1)).clamp(1, self.weight.shape[0].max(1))
    }

    pub fn memory_bytes(&self) -> u64 {
        let (rows, inner, r) = (self.rows() as u64, self.inner() as u64, self.r() as u64);
        let raw = |info: &TensorInfo, numbers: u64| numbers * info.dtype.bitsize() as u64 / 8;
        let piece = raw(&self.weight, rows * inner);
        let a = 4 * r * inner + raw(&self.low_rank.a, r * inner);
        let b = 4 * r * rows + raw(&self.low_rank.b, r * rows);
        piece + a + b + THREADS_MAX as u64 * 8 * inner
    }

    pub fn write(&self, base: &Checkpoint, adapter: &Checkpoint, out: &mut Out<'_>) -> Result<(), TrainError> {
        let (rows, inner, r) = (self.rows(), self.inner(), self.r());
        let LowRank { a, b, scale } = &self.low_rank;
        let a = numbers(adapter, a, 0, r * inner)?;
        let row_bytes = inner * self.weight.dtype.bitsize() / 8;
        let mut piece = vec![0; rows * row_bytes];
        for first in (0..self.weight.shape[0]).step_by(rows) {
            let count = rows.min(self.weight.shape[0] - first);
            let piece = &mut piece[..count * row_bytes];
            base.read_stored(&self.weight, (first * row_bytes) as u64, piece)?;
            let b = numbers(adapter, b, first * r, count * r)?;
            let sides = Sides { a: &a, b: &b, r, inner, scale: *scale, dtype: self.weight.dtype };
            if !sides.add(piece) {
                let path = base.path_of(&self.weight).to_owned();
                return Err(WeightError::NotFinite { path, name: self.name.clone() }.into());
            }
            out.put(piece)?;
        }
        Ok(())
    }
}

/// Some numbers of a tensor.
pub(super) fn numbers(
    from: &Checkpoint,
    info: &TensorInfo,
    first: usize,
    count: usize,
) -> Result<Vec<f32>, TrainError> {
    let size = info.dtype.bitsize() / 8;
    let mut raw = vec![0; count * size];
    from.read_stored(info, (first * size) as u64, &mut raw)?;
    let mut numbers = vec![0.0; count];
    to_floats(&raw, info.dtype, &mut numbers);
    Ok(numbers)
}

struct Sides<'a> {
    a: &'a [f32],
    b: &'a [f32],
    r: usize,
    inner: usize,
    scale: f32,
    dtype: StoredType,
}

impl Sides<'_> {
    /// Adds to rows as they are stored; whether all of them are finite then. Each row is one thread's, so the result
    /// does not depend on how many there are.
    fn add(&self, piece: &mut [u8]) -> bool {
        let row_bytes = self.inner * self.dtype.bitsize() / 8;
        let rows = piece.len() / row_bytes.max(1);
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
        let each = rows.div_ceil(threads).max(1);
        let mut parts = piece.chunks_mut(each * row_bytes).zip(self.b.chunks(each * self.r));
        let Some((first, first_b)) = parts.next() else { return true };
        thread::scope(|scope| {
            let others: Vec<_> = parts.map(|(part, b)| scope.spawn(move || self.add_rows(part, b))).collect();
            let is_finite = self.add_rows(first, first_b);
            others.into_iter().fold(is_finite, |all, thread| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) && all
            })
        })
    }

    fn add_rows(&self, part: &mut [u8], b: &[f32]) -> bool {
        let row_bytes = self.inner * self.dtype.bitsize() / 8;
        let (mut row, mut delta) = (vec![0f32; self.inner], vec![0f32; self.inner]);
        let mut is_finite = true;
        for (stored, b) in part.chunks_exact_mut(row_bytes).zip(b.chunks_exact(self.r)) {
            delta.fill(0.0);
            for (a, &b) in self.a.chunks_exact(self.inner).zip(b) {
                delta.iter_mut().zip(a).for_each(|(sum, a)| *sum += b * a);
            }
            to_floats(stored, self.dtype, &mut row);
            row.iter_mut().zip(&delta).for_each(|(x, delta)| *x += self.scale * delta);
            from_floats(&row, self.dtype, stored);
            // What is finite in float32 may be beyond the stored type.
            to_floats(stored, self.dtype, &mut row);
            is_finite &= row.iter().all(|x| x.is_finite());
        }
        is_finite
    }
}
