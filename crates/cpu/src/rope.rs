//! Rotary positions, half-split: pairs are (i, i + head_dim/2).

use plimsoll_graph::ops::{Heads, Rope};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix};
use crate::norm::copy_rest;
use crate::vector::{fill_two, vectorized};

pub(crate) fn rope(op: &Rope, call: &Call) -> Result<(), RuntimeError> {
    let (qkv, table, out): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(1)?, call.output(0)?);
    // SAFETY: nobody writes to positions while a step runs.
    let positions = unsafe { call.input::<i32>(2)?.slice() };
    if let Some(bad) = positions.iter().find(|&&p| p < 0 || p as usize >= table.rows) {
        return Err(call.error(format!("position {bad} is outside the table of {}", table.rows)));
    }
    let Heads { query, kv, head_dim } = op.heads;
    call.workers.rows(qkv.rows, qkv.cols, |rows| {
        for row in rows {
            let angles = table.row(positions[row] as usize);
            // SAFETY: both buffers have this row, the table the position's.
            unsafe {
                rotate_row(query + kv, head_dim, qkv.row(row), angles, op.inverse, out.row(row));
                copy_rest(qkv.row(row), out.row(row), (query + kv) * head_dim, kv * head_dim);
            }
        }
    });
    Ok(())
}

vectorized! {
    /// Turns each of `heads` heads by the row's angles: cosines, then sines.
    unsafe fn rotate_row(heads: usize, head_dim: usize, x: *const f32, angles: *const f32, inverse: bool, out: *mut f32) {
        let half = head_dim / 2;
        let sign = if inverse { -1.0 } else { 1.0 };
        // SAFETY: the caller vouches for `heads` heads in both rows and for one row of the table.
        unsafe {
            let (cos, sin) = (angles, angles.add(half));
            for head in 0..heads {
                let (low, high) = (x.add(head * head_dim), x.add(head * head_dim + half));
                let (to_low, to_high) = (out.add(head * head_dim), out.add(head * head_dim + half));
                fill_two(half, to_low, to_high, |i| {
                    let (c, s) = (*cos.add(i), *sin.add(i) * sign);
                    let (a, b) = (*low.add(i), *high.add(i));
                    (a.mul_add(c, -b * s), b.mul_add(c, a * s))
                });
            }
        }
    }
}
