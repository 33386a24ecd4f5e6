//! From the low-rank rows of adapters to their layers' columns, and back.

use plimsoll_graph::ops::{AdapterUp, AdapterUpGrad};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix};
use crate::product::{Factor, Onto, Product};

/// `y = α·h_j·b_jᵀ` in the columns of each block, zero in the others.
pub(crate) fn adapter_up(op: &AdapterUp, call: &Call) -> Result<(), RuntimeError> {
    let (h, b, y): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(1)?, call.output(0)?);
    let packing = call.packing()?;
    if op.0.rows() < op.0.total {
        call.workers.rows(y.rows, y.cols, |rows| {
            // SAFETY: the rows are this task's alone.
            unsafe { std::ptr::write_bytes(y.row(rows.start), 0, rows.len() * y.cols) };
        });
    }
    for (block, first_row, first_col) in op.0.places(b.cols) {
        let product = Product {
            rows: h.rows,
            cols: block.len,
            depth: b.cols,
            alpha: op.0.alpha,
            left: Factor::new(h.ptr().wrapping_add(first_col), h.cols),
            right: Factor::new(b.row(first_row), b.cols).transposed(),
            result: y.ptr().wrapping_add(block.start),
            result_stride: y.cols,
            onto: Onto::Nothing,
        };
        // SAFETY: the shapes were checked when the graph was built, the rows by `args`; `y` lies apart from both.
        unsafe { product.run(call.workers, packing) };
    }
    Ok(())
}

/// `dh_j = α·dy_j·b_j` and `db_j += α·dy_jᵀ·h_j`.
pub(crate) fn adapter_up_grad(op: &AdapterUpGrad, call: &Call) -> Result<(), RuntimeError> {
    let (dy, h, b): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let (dh, db): (Matrix, Matrix) = (call.output(0)?, call.output(1)?);
    call.carry_over(call.input(3)?, db);
    let packing = call.packing()?;
    for (block, first_row, first_col) in op.0.places(b.cols) {
        let from = Factor::new(dy.ptr().wrapping_add(block.start), dy.cols);
        let low_rank = Product {
            rows: dy.rows,
            cols: b.cols,
            depth: block.len,
            alpha: op.0.alpha,
            left: from,
            right: Factor::new(b.row(first_row), b.cols),
            result: dh.ptr().wrapping_add(first_col),
            result_stride: dh.cols,
            onto: Onto::Nothing,
        };
        let gradient = Product {
            rows: block.len,
            cols: b.cols,
            depth: dy.rows,
            alpha: op.0.alpha,
            left: from.transposed(),
            right: Factor::new(h.ptr().wrapping_add(first_col), h.cols),
            result: db.row(first_row),
            result_stride: db.cols,
            onto: Onto::Present,
        };
        // SAFETY: the shapes were checked when the graph was built, the rows by `args`; outputs lie apart from all inputs
        // but the gradient's own old value.
        unsafe {
            low_rank.run(call.workers, packing);
            gradient.run(call.workers, packing);
        }
    }
    Ok(())
}
