//! The rows of sequences' last tokens, and their gradient's way back among those of all tokens. Runs of rows.

use plimsoll_graph::DType;
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Element, Matrix, Rows};

pub(crate) fn last_rows(call: &Call) -> Result<(), RuntimeError> {
    match call.step.inputs[0].dtype() {
        DType::I32 | DType::U32 => gather::<u32>(call),
        _ => gather::<f32>(call),
    }
}

fn gather<T: Element>(call: &Call) -> Result<(), RuntimeError> {
    let (x, out): (Rows<T>, Rows<T>) = (call.input(0)?, call.output(0)?);
    let last = LastTokens::new(call, x.rows)?;
    call.workers.rows(out.rows, out.cols, |sequences| {
        for sequence in sequences {
            // SAFETY: the token exists, and this row is the task's alone; zero bytes are a zero.
            unsafe {
                match last.row(sequence) {
                    Some(row) => std::ptr::copy_nonoverlapping(x.row(row), out.row(sequence), out.cols),
                    None => out.row(sequence).write_bytes(0, out.cols),
                }
            }
        }
    });
    Ok(())
}

pub(crate) fn last_rows_grad(call: &Call) -> Result<(), RuntimeError> {
    let (dy, dx): (Matrix, Matrix) = (call.input(0)?, call.output(0)?);
    let last = LastTokens::new(call, dx.rows)?;
    call.workers.rows(dx.rows, dx.cols, |rows| {
        // SAFETY: these rows are this task's alone.
        unsafe { dx.row(rows.start).write_bytes(0, rows.len() * dx.cols) };
    });
    for sequence in 0..dy.rows {
        if let Some(row) = last.row(sequence) {
            // SAFETY: the token exists; the gradients lie apart.
            unsafe { std::ptr::copy_nonoverlapping(dy.row(sequence), dx.row(row), dx.cols) };
        }
    }
    Ok(())
}

pub(crate) fn split_rows(call: &Call) -> Result<(), RuntimeError> {
    match call.step.inputs[0].dtype() {
        DType::I32 | DType::U32 => split::<u32>(call),
        _ => split::<f32>(call),
    }
}

/// The runs lie one behind another in what is divided; those without rows in use are empty.
fn split<T: Element>(call: &Call) -> Result<(), RuntimeError> {
    let (x, mut start): (Rows<T>, usize) = (call.input(0)?, 0);
    for index in 0..call.step.outputs.len() {
        let run: Rows<T> = call.output(index)?;
        copy(call, x.part(start * x.cols, run.rows, run.cols), run);
        start += run.rows;
    }
    Ok(())
}

pub(crate) fn join_rows(call: &Call) -> Result<(), RuntimeError> {
    let (y, mut start): (Matrix, usize) = (call.output(0)?, 0);
    for index in 0..call.step.inputs.len() {
        let run: Matrix = call.input(index)?;
        copy(call, run, y.part(start * y.cols, run.rows, run.cols));
        start += run.rows;
    }
    Ok(())
}

fn copy<T: Element>(call: &Call, from: Rows<T>, to: Rows<T>) {
    call.workers.rows(from.rows, from.cols, |rows| {
        // SAFETY: both are of one size and lie apart, and these rows are this task's alone.
        unsafe { std::ptr::copy_nonoverlapping(from.row(rows.start), to.row(rows.start), rows.len() * from.cols) };
    });
}

/// Where the sequences end, from the second input.
struct LastTokens<'a> {
    boundaries: &'a [i32],
}

impl<'a> LastTokens<'a> {
    fn new(call: &Call<'a>, tokens: usize) -> Result<Self, RuntimeError> {
        // SAFETY: nobody writes to the boundaries while a step runs.
        let boundaries = unsafe { call.input::<i32>(1)?.slice() };
        let ordered = boundaries.is_sorted() && boundaries[0] >= 0;
        let end = boundaries[boundaries.len() - 1];
        if !ordered || end as usize > tokens {
            return Err(call.error(format!("the sequences end at {end} of {tokens} tokens")));
        }
        Ok(Self { boundaries })
    }

    /// The last token of a sequence; `None` if it is empty.
    fn row(&self, sequence: usize) -> Option<usize> {
        let (begin, end) = (self.boundaries[sequence], self.boundaries[sequence + 1]);
        (begin < end).then(|| end as usize - 1)
    }
}
