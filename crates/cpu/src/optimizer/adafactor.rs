//! Adafactor: second moments of a matrix from those of its rows and columns.

use plimsoll_graph::ops::Adafactor;
use plimsoll_runtime::RuntimeError;

use super::state::StateMemory;
use super::step::{Update, for_each_element};
use super::sum_squares_of;
use crate::args::{Call, Matrix, Rows};
use crate::vector::{fill, sum, vectorized};

/// Columns that one task sums.
const COLUMNS: usize = 64;
/// Parts of a matrix in which squares of the step are summed.
const PARTS: usize = 64;

/// What one update asks of every matrix.
#[derive(Clone, Copy)]
struct Step {
    clip: f32,
    eps: f32,
    beta2: f32,
    beta2_complement: f32,
}

pub(crate) fn adafactor(op: &Adafactor, call: &Call) -> Result<(), RuntimeError> {
    let update = Update::new(call, 2, op.master)?;
    let second: [Matrix; 2] = [call.output(2)?, call.output(if op.factored { 3 } else { 2 })?];
    let momentum = op.momentum_output().map(|at| StateMemory::output(call, at)).transpose()?;
    if update.left_out(call) {
        return Ok(());
    }
    let [rate, beta2, beta2_complement, _] = update.hyper;
    let step = Step { clip: update.clip, eps: op.eps, beta2, beta2_complement };
    let cols = update.p.cols;
    for (index, rows) in op.matrices.iter().enumerate() {
        let span = |whole: Matrix| whole.part(rows.start * whole.cols, rows.len(), whole.cols);
        let (p, g) = (span(update.p), span(update.g));
        let squares = match op.factored {
            true => {
                let (row, col) = (second[0].part(rows.start, rows.len(), 1), second[1].part(index * cols, 1, cols));
                factored(call, g, row, col, step)
            }
            false => unfactored(call, g, span(second[0]), step),
        };
        let root_mean = |squares: f64| (squares / g.len() as f64).sqrt() as f32;
        let scale = op.least_scale.map_or(1.0, |least| root_mean(sum_squares_of(call, p)).max(least));
        let alpha = rate * scale;
        let size = alpha / (root_mean(squares) / op.clip_threshold).max(1.0);
        let keep = 1.0 - op.weight_decay * alpha;
        // SAFETY: each element is read by the task that writes it.
        for_each_element(call, g, |i| unsafe { size * *g.ptr().add(i) });
        // SAFETY: as above.
        for_each_element(call, p, |i| unsafe { keep * *p.ptr().add(i) });
    }
    match (momentum, op.beta1) {
        // SAFETY: three different buffers, and this part of each is this task's alone.
        (Some(m), Some(beta1)) => update.elementwise(call, [m], |len, p, g, [m]| unsafe {
            move_by_mean(len, p, g, m, beta1 as f32, (1.0 - beta1) as f32);
        }),
        // SAFETY: two different buffers, and this part of each is this task's alone.
        _ => update.elementwise(call, [], |len, p, g, []| unsafe { fill(len, p, |i| *p.add(i) - *g.add(i)) }),
    }
    update.zero_gradient(call);
    Ok(())
}

/// Takes the gradient's squares in, leaves `u` in its place and gives the sum of its squares.
fn factored(call: &Call, g: Matrix, row: Matrix, col: Matrix, step: Step) -> f64 {
    let Step { clip, eps, beta2, beta2_complement } = step;
    let square = move |g: f32| (g * clip).mul_add(g * clip, eps);
    call.workers.rows(g.rows, g.cols, |rows| {
        for at in rows {
            // SAFETY: the row lies in the matrix; its mean is this task's alone.
            unsafe {
                let mean = row_squares(g.cols, g.row(at), clip, eps) / g.cols as f32;
                *row.row(at) = beta2.mul_add(*row.row(at), beta2_complement * mean);
            }
        }
    });
    // Every column over the rows in their order, whatever the number of threads.
    call.workers.for_each(g.cols.div_ceil(COLUMNS), |_, task| {
        let start = task * COLUMNS;
        let len = COLUMNS.min(g.cols - start);
        let mut sums = [0.0f64; COLUMNS];
        for at in 0..g.rows {
            // SAFETY: the columns lie in every row.
            let squares = unsafe { std::slice::from_raw_parts(g.row(at).add(start), len) };
            sums.iter_mut().zip(squares).for_each(|(sum, &g)| *sum += f64::from(square(g)));
        }
        for (index, sum) in sums[..len].iter().enumerate() {
            // SAFETY: these columns' means are this task's alone.
            unsafe {
                let mean = col.ptr().add(start + index);
                *mean = beta2.mul_add(*mean, beta2_complement * (sum / g.rows as f64) as f32);
            }
        }
    });
    // SAFETY: all rows were just written; nobody else is at work.
    let rows_mean = unsafe { row.slice() }.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64;
    in_parts(call, g.rows, |at| {
        // SAFETY: the row is this task's alone; the means are only read.
        unsafe { scaled_row(g.cols, g.row(at), col.ptr(), clip / (*row.row(at) / rows_mean as f32).sqrt()) }
    })
}

/// The same with a second moment of every element.
fn unfactored(call: &Call, g: Matrix, v: Matrix, step: Step) -> f64 {
    let Step { clip, eps, beta2, beta2_complement } = step;
    let len = g.len();
    in_parts(call, len.div_ceil(COLUMNS), |part| {
        let elements = part * COLUMNS..len.min((part + 1) * COLUMNS);
        let one = |i: usize| {
            // SAFETY: the element is this task's alone.
            unsafe {
                let (g, v) = (g.ptr().add(i), v.ptr().add(i));
                let grad = *g * clip;
                *v = beta2.mul_add(*v, beta2_complement * grad.mul_add(grad, eps));
                *g = grad / (*v).sqrt();
                f64::from(*g) * f64::from(*g)
            }
        };
        elements.map(one).sum()
    })
}

/// `Σ sum(i)` for `i < count`, in parts that follow from the count alone.
fn in_parts(call: &Call, count: usize, sum: impl Fn(usize) -> f64 + Sync) -> f64 {
    let mut sums = [0.0f64; PARTS];
    let partial = Rows::of(&mut sums);
    let part_len = count.div_ceil(PARTS).max(1);
    call.workers.for_each(count.div_ceil(part_len), |_, part| {
        let total: f64 = (part * part_len..count.min((part + 1) * part_len)).map(&sum).sum();
        // SAFETY: this part's sum is this task's alone.
        unsafe { *partial.row(part) = total };
    });
    sums.iter().sum()
}

vectorized! {
    unsafe fn row_squares(len: usize, g: *const f32, clip: f32, eps: f32) -> f32 {
        // SAFETY: the caller vouches for `len` elements.
        let g = unsafe { std::slice::from_raw_parts(g, len) };
        sum(len, |i, partial| partial + (g[i] * clip).mul_add(g[i] * clip, eps))
    }
}

vectorized! {
    /// `g ← factor·g / √col`, and the sum of its squares.
    unsafe fn scaled_row(len: usize, g: *mut f32, col: *const f32, factor: f32) -> f64 {
        // SAFETY: the caller vouches for `len` elements of two different buffers.
        let (g, col) = unsafe { (std::slice::from_raw_parts_mut(g, len), std::slice::from_raw_parts(col, len)) };
        for (g, col) in g.iter_mut().zip(col) {
            *g *= factor / col.sqrt();
        }
        f64::from(sum(len, |i, partial| g[i].mul_add(g[i], partial)))
    }
}

vectorized! {
    /// `m ← β1·m + (1 - β1)·u`, by which the parameter moves.
    unsafe fn move_by_mean(len: usize, p: *mut f32, u: *mut f32, m: *mut f32, beta1: f32, complement: f32) {
        // SAFETY: the caller vouches for `len` elements of different buffers.
        let (p, u, m) = unsafe {
            (
                std::slice::from_raw_parts_mut(p, len),
                std::slice::from_raw_parts(u, len),
                std::slice::from_raw_parts_mut(m, len),
            )
        };
        for ((p, u), m) in p.iter_mut().zip(u).zip(m) {
            *m = m.mul_add(beta1, complement * u);
            *p -= *m;
        }
    }
}
