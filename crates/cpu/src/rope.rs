//! Rotary positions, half-split: pairs are (i, i + rotated/2).

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
                rotate_row(op, qkv.row(row), angles, out.row(row));
                for head in 0..query + kv {
                    let behind = head * head_dim + op.rotated;
                    copy_rest(qkv.row(row), out.row(row), behind, head_dim - op.rotated);
                }
                copy_rest(qkv.row(row), out.row(row), (query + kv) * head_dim, kv * head_dim);
            }
        }
    });
    Ok(())
}

vectorized! {
    /// Turns the queries and keys of a row by its angles: cosines, then sines.
    unsafe fn rotate_row(op: &Rope, x: *const f32, angles: *const f32, out: *mut f32) {
        let Heads { query, kv, head_dim } = op.heads;
        let half = op.rotated / 2;
        let sign = if op.inverse { -1.0 } else { 1.0 };
        // SAFETY: the caller vouches for the heads in both rows and for one row of the table.
        unsafe {
            let (cos, sin) = (angles, angles.add(half));
            for head in 0..query + kv {
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
