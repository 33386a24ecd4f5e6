//! Looking tokens up in a table, and summing gradients back into it.

use plimsoll_graph::ops::{Embed, EmbedGrad};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix};
use crate::vector::{fill, vectorized};

/// Columns of the table's gradient that one task adds up.
const GRAD_COLUMNS: usize = 128;

pub(crate) fn embed(op: &Embed, call: &Call) -> Result<(), RuntimeError> {
    let (table, out): (Matrix, Matrix) = (call.input(0)?, call.output(0)?);
    let tokens = tokens(call, table.rows)?;
    call.workers.rows(out.rows, out.cols, |rows| {
        for row in rows {
            // SAFETY: the token was checked to be in the table; the output lies elsewhere.
            unsafe { copy_scaled(out.cols, op.scale, table.row(tokens[row] as usize), out.row(row)) };
        }
    });
    Ok(())
}

/// Tasks divide the columns, so that each row of the table gets its tokens in their order.
pub(crate) fn embed_grad(op: &EmbedGrad, call: &Call) -> Result<(), RuntimeError> {
    let (dx, old, table): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(2)?, call.output(0)?);
    let tokens = tokens(call, table.rows)?;
    call.carry_over(old, table);
    call.workers.for_each(dx.cols.div_ceil(GRAD_COLUMNS), |_, task| {
        let start = task * GRAD_COLUMNS;
        let len = GRAD_COLUMNS.min(dx.cols - start);
        let padding = op.padding.map_or(-1, |token| token as i32);
        for (row, &token) in tokens.iter().enumerate().filter(|(_, token)| **token != padding) {
            // SAFETY: the token was checked to be in the table, and these columns are this task's alone.
            unsafe { add_run(len, op.scale, dx.row(row).add(start), table.row(token as usize).add(start)) };
        }
    });
    Ok(())
}

vectorized! {
    unsafe fn copy_scaled(len: usize, scale: f32, x: *const f32, out: *mut f32) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, out, |i| scale * *x.add(i)) };
    }
}

vectorized! {
    unsafe fn add_run(len: usize, scale: f32, x: *const f32, total: *mut f32) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, total, |i| scale.mul_add(*x.add(i), *total.add(i))) };
    }
}

fn tokens<'a>(call: &Call<'a>, vocabulary: usize) -> Result<&'a [i32], RuntimeError> {
    // SAFETY: nobody writes to tokens while a step runs.
    let tokens = unsafe { call.input::<i32>(1)?.slice() };
    match tokens.iter().find(|&&t| t < 0 || t as usize >= vocabulary) {
        Some(bad) => Err(call.error(format!("token {bad} is outside the vocabulary of {vocabulary}"))),
        None => Ok(tokens),
    }
}
