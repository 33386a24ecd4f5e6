//! Scores of sequences, and the losses over pairs of them and over their classes, with the gradients.

use plimsoll_graph::ops::{CLASS_STATS, ClassLoss, PAIR_STATS, PairLoss};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix, Rows};
use crate::vector::{fill, sum, vectorized};

/// Columns of the weight's gradient that one task adds up.
const GRAD_COLUMNS: usize = 512;

pub(crate) fn pair_loss(op: &PairLoss, call: &Call) -> Result<(), RuntimeError> {
    let (hidden, weight): (Matrix, Matrix) = (call.input(0)?, call.input(1)?);
    let pairs = Pairs::new(call, 2)?;
    // SAFETY: the scale is not written while the step runs.
    let scale = unsafe { *call.input::<f32>(3)?.ptr() };
    let dim = hidden.cols;
    let scores: Matrix = call.workspace(hidden.rows, 1)?;
    call.workers.for_each(hidden.rows, |_, sequence| {
        // SAFETY: both have `dim` elements; the workspace has a place for every sequence, this one the task's alone.
        unsafe { *scores.row(sequence) = dot(dim, hidden.row(sequence), weight.ptr()) };
    });
    let margins = op.margins_input().map(|at| call.input(at)).transpose()?;
    let found = compare(scores, &pairs, margins, op.centring, scale);
    found.add_to(call, scale)?;
    // From here on the scores are their gradients.
    if let Some(before) = op.weight_grad_input() {
        let dw: Matrix = call.output(3)?;
        call.carry_over(call.input(before)?, dw);
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
pub(crate) struct Pairs<'a> {
    boundaries: &'a [i32],
}

impl<'a> Pairs<'a> {
    /// `at`: where the boundaries stand among the inputs.
    pub(crate) fn new(call: &Call<'a>, at: usize) -> Result<Self, RuntimeError> {
        // SAFETY: nobody writes to the boundaries while a step runs.
        let boundaries = unsafe { call.input::<i32>(at)?.slice() };
        let sequences = boundaries.len() - 1;
        if !sequences.is_multiple_of(2) {
            return Err(call.error(format!("{sequences} sequences are not pairs")));
        }
        Ok(Self { boundaries })
    }

    pub(crate) fn sequences(&self) -> usize {
        self.boundaries.len() - 1
    }

    /// Whether neither sequence of its pair is empty.
    pub(crate) fn counts(&self, sequence: usize) -> bool {
        let empty = |s: usize| self.boundaries[s] == self.boundaries[s + 1];
        !empty(sequence) && !empty(sequence ^ 1)
    }

    /// Every sequence that counts.
    fn counting(&self) -> impl Iterator<Item = usize> {
        (0..self.sequences()).filter(|&sequence| self.counts(sequence))
    }
}

/// What one micro-batch adds to the loss and to the statistics.
pub(crate) struct Found<const STATS: usize> {
    pub loss: f64,
    pub stats: [f64; STATS],
}

impl<const STATS: usize> Found<STATS> {
    pub(crate) const NOTHING: Self = Self { loss: 0.0, stats: [0.0; STATS] };

    fn add_to(&self, call: &Call, scale: f32) -> Result<(), RuntimeError> {
        self.add_from(4, call, scale)
    }

    /// `before`: where the loss stands among the inputs; the statistics follow.
    pub(crate) fn add_from(&self, before: usize, call: &Call, scale: f32) -> Result<(), RuntimeError> {
        let (loss_before, loss): (Rows<f64>, Rows<f64>) = (call.input(before)?, call.output(0)?);
        let (stats_before, stats): (Rows<f64>, Rows<f64>) = (call.input(before + 1)?, call.output(1)?);
        debug_assert_eq!(stats.len(), STATS);
        // SAFETY: one element and as many as there are statistics, and the same ones if they are updated in place.
        unsafe {
            *loss.ptr() = *loss_before.ptr() + f64::from(scale) * self.loss;
            for (at, more) in self.stats.into_iter().enumerate() {
                *stats.ptr().add(at) = *stats_before.ptr().add(at) + more;
            }
        }
        Ok(())
    }
}

/// Sums up the pairs in their order and puts each score's gradient in its place.
fn compare(scores: Matrix, pairs: &Pairs, margins: Option<Matrix>, centring: f32, scale: f32) -> Found<PAIR_STATS> {
    let mut found = Found::NOTHING;
    for chosen in (0..pairs.sequences()).step_by(2) {
        let (ours, theirs) = (scores.row(chosen), scores.row(chosen + 1));
        if !pairs.counts(chosen) {
            // SAFETY: the workspace has a place for every sequence.
            unsafe { (*ours, *theirs) = (0.0, 0.0) };
            continue;
        }
        // SAFETY: the workspace has a place for every sequence, and nobody writes to margins.
        unsafe {
            let (chosen_score, rejected_score) = (f64::from(*ours), f64::from(*theirs));
            found.count_pair(chosen_score, rejected_score);
            let asked = margins.map_or(0.0, |margins| f64::from(*margins.row(chosen)));
            let (loss, doubt) = logistic_loss(chosen_score - rejected_score - asked);
            let total = chosen_score + rejected_score;
            found.loss += loss + f64::from(centring) * total * total;
            let pull = 2.0 * f64::from(centring) * total;
            *ours = (f64::from(scale) * (pull - doubt)) as f32;
            *theirs = (f64::from(scale) * (pull + doubt)) as f32;
        }
    }
    found
}

impl Found<PAIR_STATS> {
    pub(crate) fn count_pair(&mut self, chosen: f64, rejected: f64) {
        let right = f64::from(u8::from(chosen > rejected));
        for (stat, more) in self.stats.iter_mut().zip([1.0, right, chosen - rejected, chosen, rejected]) {
            *stat += more;
        }
    }
}

/// `−log σ(x)`, and `σ(−x)`, which is minus its slope: from the exponential that cannot overflow.
pub(crate) fn logistic_loss(x: f64) -> (f64, f64) {
    let small = (-x.abs()).exp();
    (small.ln_1p() - x.min(0.0), if x > 0.0 { small } else { 1.0 } / (1.0 + small))
}

pub(crate) fn class_loss(op: &ClassLoss, call: &Call) -> Result<(), RuntimeError> {
    let (hidden, weight): (Matrix, Matrix) = (call.input(0)?, call.input(1)?);
    let labels = labels(call, weight.rows)?;
    // SAFETY: the scale is not written while the step runs.
    let scale = unsafe { *call.input::<f32>(3)?.ptr() };
    let (dim, classes) = (hidden.cols, weight.rows);
    let logits: Matrix = call.workspace(hidden.rows, classes)?;
    call.workers.for_each(hidden.rows, |_, sequence| {
        for class in 0..classes {
            // SAFETY: both have `dim` elements; this row of the workspace is the task's alone.
            unsafe { *logits.row(sequence).add(class) = dot(dim, hidden.row(sequence), weight.row(class)) };
        }
    });
    classify(logits, labels, scale).add_to(call, scale)?;
    // From here on the logits are their gradients.
    if op.grad.is_some_and(|g| g.weight) {
        let dw: Matrix = call.output(3)?;
        call.carry_over(call.input(6)?, dw);
        let parts = dim.div_ceil(GRAD_COLUMNS);
        call.workers.for_each(classes * parts, |_, task| {
            let (class, start) = (task / parts, task % parts * GRAD_COLUMNS);
            let len = GRAD_COLUMNS.min(dim - start);
            for sequence in (0..hidden.rows).filter(|&sequence| labels[sequence] >= 0) {
                // SAFETY: these columns of the class are this task's alone.
                unsafe {
                    let gradient = *logits.row(sequence).add(class);
                    add_scaled(len, gradient, hidden.row(sequence).add(start), dw.row(class).add(start));
                }
            }
        });
    }
    if op.grad.is_some() {
        // Last, because it may be written over `hidden`.
        let d_hidden: Matrix = call.output(2)?;
        call.workers.rows(d_hidden.rows, dim * classes, |rows| {
            for sequence in rows {
                // SAFETY: the row is this task's alone, and nothing reads `hidden` any more. Zero is all zero bits.
                unsafe { d_hidden.row(sequence).write_bytes(0, dim) };
                for class in (0..classes).filter(|_| labels[sequence] >= 0) {
                    // SAFETY: as above.
                    unsafe {
                        let gradient = *logits.row(sequence).add(class);
                        add_scaled(dim, gradient, weight.row(class), d_hidden.row(sequence));
                    }
                }
            }
        });
    }
    Ok(())
}

/// One for each sequence; below zero where it has none.
fn labels<'a>(call: &Call<'a>, classes: usize) -> Result<&'a [i32], RuntimeError> {
    // SAFETY: nobody writes to labels while a step runs.
    let labels = unsafe { call.input::<i32>(2)?.slice() };
    match labels.iter().find(|&&label| label >= 0 && label as usize >= classes) {
        Some(bad) => Err(call.error(format!("label {bad} is none of {classes} classes"))),
        None => Ok(labels),
    }
}

/// Sums up the sequences in their order and puts the logits' gradients in their place.
fn classify(logits: Matrix, labels: &[i32], scale: f32) -> Found<CLASS_STATS> {
    let mut found = Found::NOTHING;
    for (sequence, &label) in labels.iter().enumerate() {
        // SAFETY: the workspace has a row for every sequence, and nobody else is at work.
        let row = unsafe { std::slice::from_raw_parts_mut(logits.row(sequence), logits.cols) };
        if label < 0 {
            row.fill(0.0);
            continue;
        }
        let label = label as usize;
        // The first one of equals.
        let best = (1..row.len()).fold(0, |best, class| if row[class] > row[best] { class } else { best });
        let (largest, own) = (f64::from(row[best]), f64::from(row[label]));
        // The largest has the share one of the total. Without it nothing cancels where that share is nearly all.
        let relative = |logit: f32| (f64::from(logit) - largest).exp();
        let rest: f64 = row.iter().enumerate().filter(|(class, _)| *class != best).map(|(_, &x)| relative(x)).sum();
        found.loss += rest.ln_1p() + (largest - own);
        found.stats[0] += 1.0;
        found.stats[1] += f64::from(u8::from(best == label));
        let factor = f64::from(scale) / (1.0 + rest);
        let others = if best == label { rest } else { 1.0 + rest - relative(row[label]) };
        for (class, logit) in row.iter_mut().enumerate() {
            *logit = (factor * if class == label { -others } else { relative(*logit) }) as f32;
        }
    }
    found
}

vectorized! {
    pub(crate) unsafe fn dot(len: usize, a: *const f32, b: *const f32) -> f32 {
        // SAFETY: the caller vouches for `len` elements of each.
        sum(len, |i, partial| unsafe { (*a.add(i)).mul_add(*b.add(i), partial) })
    }
}

vectorized! {
    pub(crate) unsafe fn add_scaled(len: usize, factor: f32, x: *const f32, total: *mut f32) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, total, |i| factor.mul_add(*x.add(i), *total.add(i))) };
    }
}

vectorized! {
    pub(crate) unsafe fn scaled(len: usize, factor: f32, x: *const f32, out: *mut f32) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, out, |i| factor * *x.add(i)) };
    }
}
