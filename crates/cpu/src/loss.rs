//! The vocabulary projection and the cross entropy, a chunk of tokens at a time, with the gradients.

use std::ops::Range;

use plimsoll_graph::ops::{LastLogits, VocabLoss};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix, Rows};
use crate::math::{exp, tanh};
use crate::product::{Factor, Onto, PackingRoom, Product};
use crate::vector::{fill, maximum, sum, vectorized};

/// Rows whose losses are held until they are summed up in order.
const LOSS_ROWS: usize = 512;
/// So many rows without a target, one behind another, are left out of the products.
const GAP_ROWS: usize = 32;

pub(crate) fn vocab_loss(op: &VocabLoss, call: &Call) -> Result<(), RuntimeError> {
    let (hidden, weight): (Matrix, Matrix) = (call.input(0)?, call.input(1)?);
    let targets = targets(call, weight.rows)?;
    let scale = match op.scale_input() {
        // SAFETY: the scale is not written while the step runs.
        Some(at) => unsafe { *call.input::<f32>(at)?.ptr() },
        None => 1.0,
    };
    let weights = op.weights_input().map(|at| call.input(at)).transpose()?;
    let nll = op.nll_output().map(|at| call.output(at)).transpose()?;
    let d_hidden = op.grad_output().map(|at| call.output(at)).transpose()?;
    let dw = weight_grad(op, call)?;
    let planned = call.planned_rows(0);
    let chunk_rows = op.chunk_rows(planned).max(1);
    let logits = call.workspace_behind_packing(chunk_rows, weight.rows)?;
    let packing = call.packing()?;
    let softcap = op.softcap;
    let head = Head { call, packing, hidden, weight, targets, weights, softcap, scale, logits, nll, d_hidden, dw };
    let mut total = 0.0;
    for start in (0..hidden.rows).step_by(chunk_rows) {
        total += head.chunk(start..hidden.rows.min(start + chunk_rows));
    }
    let Some(at) = op.scale_input() else { return Ok(()) };
    let (loss_before, loss): (Rows<f64>, Rows<f64>) = (call.input(at + 1)?, call.output(0)?);
    // SAFETY: one element each, and the same one if the loss is updated in place.
    unsafe { *loss.ptr() = *loss_before.ptr() + f64::from(scale) * total };
    Ok(())
}

/// The gradient of the weight matrix with what it was so far.
fn weight_grad(op: &VocabLoss, call: &Call) -> Result<Option<Matrix>, RuntimeError> {
    let (Some(before), Some(d_hidden)) = (op.weight_grad_input(), op.grad_output()) else { return Ok(None) };
    let dw = call.output(d_hidden + 1)?;
    call.carry_over(call.input(before)?, dw);
    Ok(Some(dw))
}

fn targets<'a>(call: &Call<'a>, vocabulary: usize) -> Result<&'a [i32], RuntimeError> {
    // SAFETY: nobody writes to targets while a step runs.
    let targets = unsafe { call.input::<i32>(2)?.slice() };
    match targets.iter().find(|&&t| t >= 0 && t as usize >= vocabulary) {
        Some(bad) => Err(call.error(format!("target {bad} is outside the vocabulary of {vocabulary}"))),
        None => Ok(targets),
    }
}

/// What all chunks share.
#[derive(Clone, Copy)]
struct Head<'a> {
    call: &'a Call<'a>,
    packing: PackingRoom,
    hidden: Matrix,
    weight: Matrix,
    targets: &'a [i32],
    /// What each token's loss weighs; without them, one.
    weights: Option<Matrix>,
    softcap: Option<f32>,
    scale: f32,
    logits: Matrix,
    /// Where each token's negative log-likelihood goes.
    nll: Option<Matrix>,
    d_hidden: Option<Matrix>,
    dw: Option<Matrix>,
}

impl Head<'_> {
    /// Sum of the rows' losses, before scaling.
    fn chunk(&self, rows: Range<usize>) -> f64 {
        let mut total = 0.0;
        let mut done = rows.start;
        while let Some(run) = next_run(self.targets, done..rows.end) {
            self.clear(done..run.start);
            done = run.end;
            total += self.run(run);
        }
        self.clear(done..rows.end);
        total
    }

    /// Rows that bear no loss have no gradient and no likelihood.
    fn clear(&self, rows: Range<usize>) {
        if let Some(nll) = self.nll {
            // SAFETY: the output has a number for each of these rows.
            unsafe { nll.row(rows.start).write_bytes(0, rows.len()) };
        }
        if let Some(d_hidden) = self.d_hidden {
            // SAFETY: the output has these rows, and no product needs what is there any more.
            unsafe { d_hidden.row(rows.start).write_bytes(0, rows.len() * d_hidden.cols) };
        }
    }

    /// Logits, losses and gradients of a run of rows. The gradient of the weights comes first, because
    /// `d_hidden` may be written over `hidden`.
    fn run(&self, rows: Range<usize>) -> f64 {
        let Self { call, packing, hidden, weight, logits, .. } = *self;
        let (vocabulary, dim) = (weight.rows, weight.cols);
        let to_logits = Product {
            rows: rows.len(),
            cols: vocabulary,
            depth: dim,
            alpha: 1.0,
            left: Factor::new(hidden.row(rows.start), dim),
            right: Factor::new(weight.ptr(), dim).transposed(),
            result: logits.ptr(),
            result_stride: vocabulary,
            onto: Onto::Nothing,
        };
        // SAFETY: the workspace has room for a chunk of logits; the rest was checked with the graph.
        unsafe { to_logits.run(call.workers, packing) };
        let total = self.losses(rows.clone());
        let d_logits = Factor::new(logits.ptr(), vocabulary);
        if let Some(dw) = self.dw {
            // SAFETY: shapes as above, and `dw` lies apart from both factors.
            unsafe {
                Product {
                    rows: vocabulary,
                    cols: dim,
                    depth: rows.len(),
                    left: d_logits.transposed(),
                    right: Factor::new(hidden.row(rows.start), dim),
                    result: dw.ptr(),
                    result_stride: dim,
                    onto: Onto::Present,
                    ..to_logits
                }
                .run(call.workers, packing);
            }
        }
        if let Some(d_hidden) = self.d_hidden {
            // SAFETY: shapes as above; `hidden` is not read any more in these rows.
            unsafe {
                Product {
                    cols: dim,
                    depth: vocabulary,
                    left: d_logits,
                    right: Factor::new(weight.ptr(), dim),
                    result: d_hidden.row(rows.start),
                    result_stride: dim,
                    ..to_logits
                }
                .run(call.workers, packing);
            }
        }
        total
    }

    /// The weighted losses of a run whose logits lie in the workspace, summed in the order of the rows.
    fn losses(&self, rows: Range<usize>) -> f64 {
        let mut total = 0.0;
        for start in rows.clone().step_by(LOSS_ROWS) {
            let count = LOSS_ROWS.min(rows.end - start);
            let mut held = [0.0f64; LOSS_ROWS];
            let held_start = Rows::of(&mut held[..]);
            self.call.workers.for_each(count, |_, index| {
                let row = start + index;
                let logits = self.logits.row(row - rows.start);
                // SAFETY: this row of the logits, of weights and likelihoods, and this place are the task's alone.
                unsafe {
                    let weight = self.weights.map(|weights| *weights.row(row));
                    let scale = weight.map_or(self.scale, |weight| self.scale * weight);
                    let nll = self.row_nll(logits, self.targets[row], scale);
                    if let Some(all) = self.nll {
                        *all.row(row) = nll as f32;
                    }
                    // A token without a target bears no loss, whatever its weight is.
                    let bears = self.targets[row] >= 0;
                    *held_start.row(index) = weight.filter(|_| bears).map_or(nll, |weight| f64::from(weight) * nll);
                }
            });
            total += held[..count].iter().sum::<f64>();
        }
        total
    }

    /// A row's negative log-likelihood. Its logits become their gradient, `scale` times over.
    ///
    /// # Safety
    /// `logits` must be a row of the workspace that nobody else touches.
    unsafe fn row_nll(&self, logits: *mut f32, target: i32, scale: f32) -> f64 {
        let vocabulary = self.weight.rows;
        // SAFETY: the caller vouches for the row.
        unsafe {
            if let Some(cap) = self.softcap {
                soften_row(vocabulary, logits, cap);
            }
            let max = row_maximum(vocabulary, logits);
            let gradient = self.d_hidden.is_some();
            if target < 0 {
                logits.write_bytes(0, vocabulary);
                return 0.0;
            }
            let own = *logits.add(target as usize);
            let total = match (gradient, self.softcap) {
                (true, None) => exponentials_row(vocabulary, logits, max),
                _ => exponential_sum(vocabulary, logits, max),
            };
            if gradient {
                let onto_target = |at: *mut f32, slope: f32| *at -= scale * slope;
                match self.softcap {
                    None => {
                        scale_row(vocabulary, logits, scale / total);
                        onto_target(logits.add(target as usize), 1.0);
                    }
                    Some(cap) => {
                        capped_gradient_row(vocabulary, logits, max, scale / total, cap);
                        let bend = own / cap;
                        onto_target(logits.add(target as usize), 1.0 - bend * bend);
                    }
                }
            }
            f64::from(total).ln() + f64::from(max) - f64::from(own)
        }
    }
}

/// The next run of rows to put through the products: begins and ends with a target, without a long gap.
fn next_run(targets: &[i32], rows: Range<usize>) -> Option<Range<usize>> {
    let start = rows.clone().find(|&row| targets[row] >= 0)?;
    let mut last = start;
    for row in start + 1..rows.end {
        if targets[row] >= 0 {
            last = row;
        } else if row - last >= GAP_ROWS {
            break;
        }
    }
    Some(start..last + 1)
}

vectorized! {
    unsafe fn soften_row(len: usize, logits: *mut f32, cap: f32) {
        // SAFETY: the caller vouches for `len` elements.
        unsafe { fill(len, logits, |i| cap * tanh(*logits.add(i) / cap)) };
    }
}

vectorized! {
    unsafe fn row_maximum(len: usize, x: *const f32) -> f32 {
        // SAFETY: the caller vouches for `len` elements.
        maximum(len, |i| unsafe { *x.add(i) })
    }
}

vectorized! {
    unsafe fn exponential_sum(len: usize, x: *const f32, max: f32) -> f32 {
        // SAFETY: the caller vouches for `len` elements.
        sum(len, |i, partial| partial + exp(unsafe { *x.add(i) } - max))
    }
}

vectorized! {
    /// Replaces the row by `exp(x - max)`; returns the sum.
    unsafe fn exponentials_row(len: usize, x: *mut f32, max: f32) -> f32 {
        // SAFETY: the caller vouches for `len` elements.
        unsafe {
            fill(len, x, |i| exp(*x.add(i) - max));
            sum(len, |i, partial| partial + *x.add(i))
        }
    }
}

vectorized! {
    unsafe fn scale_row(len: usize, x: *mut f32, factor: f32) {
        // SAFETY: the caller vouches for `len` elements.
        unsafe { fill(len, x, |i| *x.add(i) * factor) };
    }
}

vectorized! {
    /// Replaces capped logits by `factor·exp(x - max)·(1 - (x / cap)²)`.
    unsafe fn capped_gradient_row(len: usize, x: *mut f32, max: f32, factor: f32, cap: f32) {
        // SAFETY: the caller vouches for `len` elements.
        unsafe {
            fill(len, x, |i| {
                let bend = *x.add(i) / cap;
                factor * exp(*x.add(i) - max) * (-bend).mul_add(bend, 1.0)
            });
        }
    }
}

pub(crate) fn last_logits(op: &LastLogits, call: &Call) -> Result<(), RuntimeError> {
    let (hidden, weight, out): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(1)?, call.output(0)?);
    // SAFETY: nobody writes to the boundaries while a step runs.
    let boundaries = unsafe { call.input::<i32>(2)?.slice() };
    let gathered = call.workspace_behind_packing(out.rows, hidden.cols)?;
    let packing = call.packing()?;
    for (row, &end) in boundaries[1..].iter().enumerate() {
        if end < 1 || end as usize > hidden.rows {
            return Err(call.error(format!("sequence {row} ends at {end} of {} tokens", hidden.rows)));
        }
        // SAFETY: the token exists, and the workspace has a row for every sequence.
        unsafe { std::ptr::copy_nonoverlapping(hidden.row(end as usize - 1), gathered.row(row), hidden.cols) };
    }
    let product = Product {
        rows: out.rows,
        cols: weight.rows,
        depth: weight.cols,
        alpha: 1.0,
        left: Factor::new(gathered.ptr(), hidden.cols),
        right: Factor::new(weight.ptr(), weight.cols).transposed(),
        result: out.ptr(),
        result_stride: out.cols,
        onto: Onto::Nothing,
    };
    // SAFETY: the shapes were checked when the graph was built.
    unsafe { product.run(call.workers, packing) };
    if let Some(cap) = op.softcap {
        call.workers.rows(out.rows, out.cols, |rows| {
            // SAFETY: these rows are this task's alone.
            unsafe { soften_row(rows.len() * out.cols, out.row(rows.start), cap) };
        });
    }
    Ok(())
}
