//! Sums, multiples, dropout and zeros.

use plimsoll_graph::DType;
use plimsoll_graph::ops::{Dropout, Scale, Zeros};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Element, Matrix, Rows};
use crate::mask::{Mask, RowMask};
use crate::vector::{fill, vectorized};

pub(crate) fn add(call: &Call) -> Result<(), RuntimeError> {
    let (a, b, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
    let (a, b, out): (Matrix, Matrix, Matrix) = (a, b, out);
    call.workers.rows(out.rows, out.cols, |rows| {
        let at = rows.start;
        // SAFETY: all three have these rows; the output is an input or lies elsewhere.
        unsafe { add_run(rows.len() * out.cols, a.row(at), b.row(at), out.row(at)) };
    });
    Ok(())
}

vectorized! {
    unsafe fn add_run(len: usize, a: *const f32, b: *const f32, out: *mut f32) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, out, |i| *a.add(i) + *b.add(i)) };
    }
}

pub(crate) fn scale(op: &Scale, call: &Call) -> Result<(), RuntimeError> {
    let (x, out): (Matrix, Matrix) = (call.input(0)?, call.output(0)?);
    call.workers.rows(out.rows, out.cols, |rows| {
        // SAFETY: both have these rows; the output is the input or lies elsewhere.
        unsafe { scale_run(rows.len() * out.cols, op.factor, x.row(rows.start), out.row(rows.start)) };
    });
    Ok(())
}

vectorized! {
    unsafe fn scale_run(len: usize, factor: f32, x: *const f32, out: *mut f32) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, out, |i| factor * *x.add(i)) };
    }
}

pub(crate) fn dropout(op: &Dropout, call: &Call) -> Result<(), RuntimeError> {
    let (x, out) = (call.input::<f32>(0)?, call.output::<f32>(0)?);
    let site = DropoutSite::new(call, op.p, op.site, 1)?;
    call.workers.rows(out.rows, out.cols, |rows| {
        for row in rows {
            // SAFETY: both have this row; the output is the input or lies elsewhere.
            unsafe { drop_row(out.cols, x.row(row), out.row(row), site.row(row)) };
        }
    });
    Ok(())
}

pub(crate) fn zeros(op: &Zeros, call: &Call) -> Result<(), RuntimeError> {
    match op.dtype {
        DType::F64 => zero(call, call.output::<f64>(0)?),
        _ => zero(call, call.output::<f32>(0)?),
    }
    Ok(())
}

fn zero<T: Element>(call: &Call, out: Rows<T>) {
    call.workers.rows(out.rows, out.cols, |rows| {
        // SAFETY: all bits zero are a number of each type, and these rows are this task's alone.
        unsafe { std::ptr::write_bytes(out.row(rows.start), 0, rows.len() * out.cols) };
    });
}

/// A step's dropout: its mask and the ids of its rows.
#[derive(Clone, Copy)]
pub(crate) struct DropoutSite<'a> {
    mask: Mask,
    row_ids: &'a [u32],
}

impl<'a> DropoutSite<'a> {
    /// `at` is the position of `row_ids` among the inputs; `rng_key` follows it.
    pub(crate) fn new(call: &'a Call, p: f32, site: u32, at: usize) -> Result<Self, RuntimeError> {
        let (ids, key) = (call.input::<u32>(at)?, call.input::<u32>(at + 1)?);
        // SAFETY: nobody writes to ids and keys while a step runs.
        let (row_ids, key) = unsafe { (ids.slice(), key.slice()) };
        let key = key.first_chunk::<4>().ok_or_else(|| call.error("the key has fewer than four words"))?;
        Ok(Self { mask: Mask::new(p, site, *key), row_ids })
    }

    pub(crate) fn row(&self, row: usize) -> RowMask {
        self.mask.row(self.row_ids[row])
    }
}

vectorized! {
    /// `out = drop(x)` for one row.
    pub(crate) unsafe fn drop_row(len: usize, x: *const f32, out: *mut f32, mask: RowMask) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, out, |i| *x.add(i) * mask.factor(i as u32)) };
    }
}

vectorized! {
    /// `out += drop(x)` for one row.
    pub(crate) unsafe fn add_dropped_row(len: usize, x: *const f32, out: *mut f32, mask: RowMask) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, out, |i| (*x.add(i)).mul_add(mask.factor(i as u32), *out.add(i))) };
    }
}
