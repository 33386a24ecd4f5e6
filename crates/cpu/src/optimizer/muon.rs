//! Muon: momentum, made orthogonal by products.

use plimsoll_graph::ops::{MUON_EPS, Muon, NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS};
use plimsoll_runtime::RuntimeError;

use super::state::StateMemory;
use super::step::{Update, for_each_element};
use super::sum_squares_of;
use crate::args::{Call, Matrix};
use crate::product::{Factor, Onto, Product};
use crate::vector::vectorized;

/// The numbers of one update of one matrix.
#[derive(Clone, Copy)]
struct Step {
    clip: f32,
    momentum: f32,
    nesterov: bool,
}

pub(crate) fn muon(op: &Muon, call: &Call) -> Result<(), RuntimeError> {
    let update = Update::new(call, 3, op.master)?;
    let state = StateMemory::output(call, 2)?;
    let cols = update.p.cols;
    let scratch = Scratch::new(call, op.scratch(cols))?;
    if update.left_out(call) {
        return Ok(());
    }
    let [lr, momentum, ..] = update.hyper;
    let step = Step { clip: update.clip, momentum, nesterov: op.nesterov };
    // States in blocks begin in the parameter, not in the matrix, so the momentum of all matrices comes first; the
    // direction takes the gradient's place.
    update.elementwise(call, [state], |len, _, g, [m]| {
        // SAFETY: two different buffers, and this part of each is this task's alone.
        unsafe { direction(len, g, m, step) };
    });
    for rows in op.matrices.iter() {
        let span = |whole: Matrix| whole.part(rows.start * cols, rows.len(), cols);
        let (p, moved) = (span(update.p), scratch.orthogonal(call, span(update.g))?);
        let (size, keep) = (lr * op.scale.factor(rows.len(), cols) as f32, 1.0 - lr * op.weight_decay);
        // SAFETY: both have these elements; nobody writes to others than the task that reads them.
        let stepped = |i: usize| unsafe { (-size).mul_add(*moved.ptr().add(i), *p.ptr().add(i) * keep) };
        for_each_element(call, p, stepped);
    }
    update.zero_gradient(call);
    Ok(())
}

vectorized! {
    /// Takes the gradient into the momentum, and leaves the direction in its place.
    unsafe fn direction(len: usize, g: *mut f32, m: *mut f32, step: Step) {
        // SAFETY: the caller vouches for `len` elements of two different buffers.
        let (g, m) = unsafe { (std::slice::from_raw_parts_mut(g, len), std::slice::from_raw_parts_mut(m, len)) };
        for (g, m) in g.iter_mut().zip(m) {
            let grad = *g * step.clip;
            *m = (grad - *m).mul_add(1.0 - step.momentum, *m);
            *g = if step.nesterov { (*m - grad).mul_add(step.momentum, grad) } else { *m };
        }
    }
}

/// A matrix and what it becomes, `X·Xᵀ` and the polynomial of that.
struct Scratch {
    whole: [Matrix; 2],
    square: [Matrix; 2],
}

impl Scratch {
    fn new(call: &Call, elements: [usize; 4]) -> Result<Self, RuntimeError> {
        let all = call.workspace_behind_packing(1, elements.iter().sum())?;
        let mut end = 0;
        let [x, y, a, b] = elements.map(|len| {
            end += len;
            all.part(end - len, 1, len)
        });
        Ok(Self { whole: [x, y], square: [a, b] })
    }

    /// The matrix `from` once its singular values are near one.
    fn orthogonal(&self, call: &Call, from: Matrix) -> Result<Matrix, RuntimeError> {
        let (rows, cols) = (from.rows, from.cols);
        let (short, long, wide) = (rows.min(cols), rows.max(cols), rows <= cols);
        let packing = call.packing()?;
        let [mut x, mut y] = self.whole.map(|scratch| scratch.part(0, rows, cols));
        let [gram, polynomial] = self.square.map(|scratch| scratch.part(0, short, short));
        let product = |left: Factor, right: Factor, depth: usize, result: Matrix| {
            let Matrix { rows, cols, .. } = result;
            let (onto, result) = (Onto::Nothing, result.ptr());
            let product = Product { rows, cols, depth, alpha: 1.0, left, right, result, result_stride: cols, onto };
            // SAFETY: parts of the scratch that do not overlap, as large as the shapes say; the packing room lies apart.
            unsafe { product.run(call.workers, packing) };
        };
        let norm = sum_squares_of(call, from).sqrt().max(MUON_EPS) as f32;
        // SAFETY: as many elements, to which nobody writes.
        for_each_element(call, x, |i| unsafe { *from.ptr().add(i) } / norm);
        let [a, b, c] = NEWTON_SCHULZ.map(|number| number as f32);
        let square = |matrix: Matrix| Factor::new(matrix.ptr(), short);
        for _ in 0..NEWTON_SCHULZ_STEPS {
            // With more rows than columns, all of this is done to the transpose.
            let as_it_lies = Factor::new(x.ptr(), cols);
            let lying = if wide { as_it_lies } else { as_it_lies.transposed() };
            product(lying, lying.transposed(), long, gram);
            product(square(gram), square(gram), short, polynomial);
            for_each_element(call, polynomial, |i| {
                let identity = if i % (short + 1) == 0 { a } else { 0.0 };
                // SAFETY: both have `short²` elements; this one of the polynomial is this call's alone.
                let (gram, squared) = unsafe { (*gram.ptr().add(i), *polynomial.ptr().add(i)) };
                c.mul_add(squared, b.mul_add(gram, identity))
            });
            match wide {
                true => product(square(polynomial), as_it_lies, short, y),
                false => product(as_it_lies, square(polynomial), short, y),
            }
            std::mem::swap(&mut x, &mut y);
        }
        Ok(x)
    }
}
