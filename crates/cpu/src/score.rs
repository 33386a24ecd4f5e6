//! Scores of sequences, and the loss over pairs of them, with the gradients.

use plimsoll_graph::ops::PairLoss;
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix, Rows};
use crate::vector::{fill, sum, vectorized};

/// Columns of the weight's gradient that one task adds up.
const GRAD_COLUMNS: usize = 512;

pub(crate) fn pair_loss(op: &PairLoss, call: &Call) -> Result<(), RuntimeError> {
    let (hidden, weight): (Matrix, Matrix) = (call.input(0)?, call.input(1)?);
    let pairs = Pairs::new(call)?;
    // SAFETY: the scale is not written while the step runs.
    let scale = unsafe { *call.input::<f32>(3)?.ptr() };
    let dim = hidden.cols;
    let scores: Matrix = call.workspace(hidden.rows, 1)?;
    call.workers.for_each(hidden.rows, |_, sequence| {
        // SAFETY: both have `dim` elements; the workspace has a place for every sequence, this one the task's alone.
        unsafe { *scores.row(sequence) = dot(dim, hidden.row(sequence), weight.ptr()) };
    });
    let found = compare(scores, &pairs, scale);
    found.add_to(call, scale)?;
    // From here on the scores are their gradients.
    if op.grad.is_some_and(|g| g.weight) {
        let dw: Matrix = call.output(3)?;
        call.carry_over(call.input(6)?, dw);
        call.workers.for_each(dim.div_ceil(GRAD_COLUMNS), |_, task| {
            let start = task * GRAD_COLUMNS;
            let len = GRAD_COLUMNS.min(dim - start);
            for sequence in pairs.counting() {
                // SAFETY: these columns are this task's alone.
                unsafe { add_scaled(len, *scores.row(sequence), hidden.row(sequence).add(start), dw.ptr().add(start)) };
            }
        });
    }
    if op.grad.is_some() {
        // Last, because it may be written over `hidden`.
        let d_hidden: Matrix = call.output(2)?;
        call.workers.rows(d_hidden.rows, dim, |rows| {
            for sequence in rows {
                // SAFETY: the row is this task's alone, and nothing reads `hidden` any more.
                unsafe { scaled(dim, *scores.row(sequence), weight.ptr(), d_hidden.row(sequence)) };
            }
        });
    }
    Ok(())
}

/// Which sequences there are to compare.
struct Pairs<'a> {
    boundaries: &'a [i32],
}

impl<'a> Pairs<'a> {
    fn new(call: &Call<'a>) -> Result<Self, RuntimeError> {
        // SAFETY: nobody writes to the boundaries while a step runs.
        let boundaries = unsafe { call.input::<i32>(2)?.slice() };
        let sequences = boundaries.len() - 1;
        if !sequences.is_multiple_of(2) {
            return Err(call.error(format!("{sequences} sequences are not pairs")));
        }
        Ok(Self { boundaries })
    }

    fn sequences(&self) -> usize {
        self.boundaries.len() - 1
    }

    /// Whether neither sequence of its pair is empty.
    fn counts(&self, sequence: usize) -> bool {
        let empty = |s: usize| self.boundaries[s] == self.boundaries[s + 1];
        !empty(sequence) && !empty(sequence ^ 1)
    }

    /// Every sequence that counts.
    fn counting(&self) -> impl Iterator<Item = usize> {
        (0..self.sequences()).filter(|&sequence| self.counts(sequence))
    }
}

/// What one micro-batch adds to the loss and to the statistics.
#[derive(Default)]
struct Found {
    loss: f64,
    pairs: f64,
    right: f64,
    margin: f64,
}

impl Found {
    fn add_to(&self, call: &Call, scale: f32) -> Result<(), RuntimeError> {
        let (loss_before, loss): (Rows<f64>, Rows<f64>) = (call.input(4)?, call.output(0)?);
        let (stats_before, stats): (Rows<f64>, Rows<f64>) = (call.input(5)?, call.output(1)?);
        // SAFETY: one element and three, and the same ones if they are updated in place.
        unsafe {
            *loss.ptr() = *loss_before.ptr() + f64::from(scale) * self.loss;
            for (at, more) in [self.pairs, self.right, self.margin].into_iter().enumerate() {
                *stats.ptr().add(at) = *stats_before.ptr().add(at) + more;
            }
        }
        Ok(())
    }
}

/// Sums up the pairs in their order and puts each score's gradient in its place.
fn compare(scores: Matrix, pairs: &Pairs, scale: f32) -> Found {
    let mut found = Found::default();
    for chosen in (0..pairs.sequences()).step_by(2) {
        let (ours, theirs) = (scores.row(chosen), scores.row(chosen + 1));
        if !pairs.counts(chosen) {
            // SAFETY: the workspace has a place for every sequence.
            unsafe { (*ours, *theirs) = (0.0, 0.0) };
            continue;
        }
        // SAFETY: the workspace has a place for every sequence.
        unsafe {
            let margin = f64::from(*ours) - f64::from(*theirs);
            found.pairs += 1.0;
            found.right += f64::from(u8::from(margin > 0.0));
            found.margin += margin;
            let small = (-margin.abs()).exp();
            found.loss += small.ln_1p() - margin.min(0.0);
            // σ(−margin), from the exponential that cannot overflow.
            let doubt = if margin > 0.0 { small } else { 1.0 } / (1.0 + small);
            let slope = (f64::from(scale) * doubt) as f32;
            (*ours, *theirs) = (-slope, slope);
        }
    }
    found
}

vectorized! {
    unsafe fn dot(len: usize, a: *const f32, b: *const f32) -> f32 {
        // SAFETY: the caller vouches for `len` elements of each.
        sum(len, |i, partial| unsafe { (*a.add(i)).mul_add(*b.add(i), partial) })
    }
}

vectorized! {
    unsafe fn add_scaled(len: usize, factor: f32, x: *const f32, total: *mut f32) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, total, |i| factor.mul_add(*x.add(i), *total.add(i))) };
    }
}

vectorized! {
    unsafe fn scaled(len: usize, factor: f32, x: *const f32, out: *mut f32) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, out, |i| factor * *x.add(i)) };
    }
}
