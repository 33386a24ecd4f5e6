//! From the low-rank rows of adapters to their layers' columns, and back.
//!
//! Small ranks have kernels of their own (`adapter_low_rank`), which touch the wide matrix once; others are products of the
//! library, one for each layer.

use plimsoll_graph::DType;
use plimsoll_graph::ops::{AdapterUp, AdapterUpGrad};
use plimsoll_runtime::RuntimeError;

use crate::adapter_low_rank::{gather, spread};
use crate::blas::{Factor, Onto, Product};
use crate::call::{Call, type_suffix};
use crate::linear::multiply;

/// `y = α·h_j·b_jᵀ` in the columns of each block, zero in the others.
pub(crate) fn adapter_up(op: &AdapterUp, call: &Call) -> Result<(), RuntimeError> {
    let (h, b, y) = (call.input(0), call.input(1), call.output(0));
    if let Some(done) = spread(&op.0, call) {
        return done;
    }
    let dtype = one_type(call, &[h.dtype, b.dtype, y.dtype])?;
    if op.0.rows() < op.0.total {
        call.zero(y.ptr, y.bytes())?;
    }
    for (block, first_row, first_col) in op.0.places(b.cols) {
        let product = Product {
            rows: h.rows,
            cols: block.len,
            depth: b.cols,
            alpha: op.0.alpha,
            left: Factor::new(h.at(0, first_col), h.cols),
            right: Factor::new(b.at(first_row, 0), b.cols).transposed(),
            dtype,
            result: y.at(0, block.start),
            result_stride: y.cols,
            result_dtype: dtype,
            onto: Onto::Nothing,
            bias: None,
        };
        multiply(call, &product, call.workspace())?;
    }
    Ok(())
}

/// `dh_j = α·dy_j·b_j` and `db_j += α·dy_jᵀ·h_j`.
pub(crate) fn adapter_up_grad(op: &AdapterUpGrad, call: &Call) -> Result<(), RuntimeError> {
    let (dy, h, b) = (call.input(0), call.input(1), call.input(2));
    let (dh, db) = (call.output(0), call.output(1));
    call.carry_over(&call.input(3), &db)?;
    if let Some(done) = gather(&op.0, call) {
        return done;
    }
    let dtype = one_type(call, &[dy.dtype, h.dtype, b.dtype, dh.dtype])?;
    for (block, first_row, first_col) in op.0.places(b.cols) {
        let from = Factor::new(dy.at(0, block.start), dy.cols);
        let low_rank = Product {
            rows: dy.rows,
            cols: b.cols,
            depth: block.len,
            alpha: op.0.alpha,
            left: from,
            right: Factor::new(b.at(first_row, 0), b.cols),
            dtype,
            result: dh.at(0, first_col),
            result_stride: dh.cols,
            result_dtype: dtype,
            onto: Onto::Nothing,
            bias: None,
        };
        multiply(call, &low_rank, call.workspace())?;
        let gradient = Product {
            rows: block.len,
            cols: b.cols,
            depth: dy.rows,
            left: from.transposed(),
            right: Factor::new(h.at(0, first_col), h.cols),
            result: db.at(first_row, 0),
            result_stride: db.cols,
            result_dtype: db.dtype,
            onto: Onto::Matrix(db.at(first_row, 0)),
            ..low_rank
        };
        multiply(call, &gradient, call.workspace())?;
    }
    Ok(())
}

fn one_type(call: &Call, dtypes: &[DType]) -> Result<DType, RuntimeError> {
    let dtype = dtypes[0];
    match dtypes.iter().find(|&&other| other != dtype || type_suffix(other).is_none()) {
        Some(&other) => Err(call.unsupported(other)),
        None => Ok(dtype),
    }
}
