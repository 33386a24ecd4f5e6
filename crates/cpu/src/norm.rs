//! RMS norms: of a token's features, alone or joined with the residual sum, and of each head.

use plimsoll_graph::CPU_PARTIAL_ROWS;
use plimsoll_graph::ops::{HeadNorm, HeadNormGrad, Heads, RmsNorm, RmsNormGrad, weight_addend};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix};
use crate::vector::{fill, sum, vectorized};

pub(crate) fn rms_norm(op: &RmsNorm, call: &Call) -> Result<(), RuntimeError> {
    let residual = usize::from(op.residual);
    let x: Matrix = call.input(0)?;
    let joined: Option<(Matrix, Matrix)> = if op.residual { Some((call.input(1)?, call.output(0)?)) } else { None };
    let weight: Option<Matrix> = if op.weight { Some(call.input(1 + residual)?) } else { None };
    let (normed, rstd): (Matrix, Matrix) = (call.output(residual)?, call.output(residual + 1)?);
    let (cols, scale) = (x.cols, Scale { offset: weight_addend(op.offset), eps: op.eps });
    call.workers.rows(x.rows, cols, |rows| {
        for row in rows {
            let mut source = x.row(row).cast_const();
            // SAFETY: every buffer has this row. The sum is complete before the norm is written, so either
            // may take an input's place.
            unsafe {
                if let Some((h, total)) = joined {
                    add_row(cols, source, h.row(row), total.row(row));
                    source = total.row(row);
                }
                *rstd.row(row) = norm_row(cols, source, Matrix::ptr_or_null(weight), normed.row(row), scale);
            }
        }
    });
    Ok(())
}

vectorized! {
    unsafe fn add_row(len: usize, a: *const f32, b: *const f32, out: *mut f32) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, out, |i| *a.add(i) + *b.add(i)) };
    }
}

/// What is added to the weight, and to the mean of the squares.
#[derive(Clone, Copy)]
struct Scale {
    offset: f32,
    eps: f32,
}

vectorized! {
    /// `out = x·rstd·[offset + w]`; returns rstd. A null weight stands for factors of one.
    unsafe fn norm_row(len: usize, x: *const f32, weight: *const f32, out: *mut f32, scale: Scale) -> f32 {
        let Scale { offset, eps } = scale;
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe {
            let squares = sum(len, |i, partial| (*x.add(i)).mul_add(*x.add(i), partial));
            let rstd = 1.0 / (squares / len as f32 + eps).sqrt();
            if weight.is_null() {
                fill(len, out, |i| *x.add(i) * rstd);
            } else {
                fill(len, out, |i| *x.add(i) * rstd * (offset + *weight.add(i)));
            }
            rstd
        }
    }
}

pub(crate) fn rms_norm_grad(op: &RmsNormGrad, call: &Call) -> Result<(), RuntimeError> {
    let (x, rstd, d_normed): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let mut next = 3;
    let mut optional = |present: bool| -> Result<Option<Matrix>, RuntimeError> {
        next += usize::from(present);
        if present { call.input(next - 1).map(Some) } else { Ok(None) }
    };
    let weight = optional(op.weight)?;
    let so_far = optional(op.accumulate)?;
    let dx: Matrix = call.output(0)?;
    let dw: Option<Matrix> = if op.weight_grad { Some(call.output(1)?) } else { None };
    let cols = x.cols;
    let scratch: Matrix = call.workspace(if op.weight_grad { CPU_PARTIAL_ROWS } else { 0 }, cols)?;
    let shares = call.workers.shares(x.rows, |share, rows| {
        let partial = clear_share(op.weight_grad, scratch, share);
        for row in rows {
            let parts = GradRow {
                x: x.row(row),
                dy: d_normed.row(row),
                weight: Matrix::ptr_or_null(weight),
                offset: weight_addend(op.offset),
                so_far: so_far.map_or(std::ptr::null(), |m| m.row(row).cast_const()),
                dx: dx.row(row),
                dw: partial,
            };
            // SAFETY: every buffer has this row; dx takes the place of an input only element by element.
            unsafe { norm_grad_row(cols, parts, *rstd.row(row)) };
        }
    });
    if let Some(dw) = dw {
        // SAFETY: `shares` rows of the workspace were just filled.
        unsafe { add_shares(dw.ptr(), scratch.ptr(), shares, cols, cols) };
    }
    Ok(())
}

/// What the gradient of one norm reads and writes. Null: not there.
#[derive(Clone, Copy)]
struct GradRow {
    x: *const f32,
    dy: *const f32,
    weight: *const f32,
    /// Added to the weight.
    offset: f32,
    so_far: *const f32,
    dx: *mut f32,
    /// Running sum of the weight's gradient.
    dw: *mut f32,
}

vectorized! {
    /// `dx = rstd·(g - x̂·mean(g·x̂))` with `g = dy·(offset + w)` and `x̂ = x·rstd`; `dw += dy·x̂`.
    unsafe fn norm_grad_row(len: usize, row: GradRow, rstd: f32) {
        let GradRow { x, dy, weight, offset, so_far, dx, dw } = row;
        // SAFETY: the caller vouches for `len` elements of each pointer that is not null.
        unsafe {
            if !dw.is_null() {
                fill(len, dw, |i| (*dy.add(i) * rstd).mul_add(*x.add(i), *dw.add(i)));
            }
            let dot = if weight.is_null() {
                sum(len, |i, partial| (*dy.add(i)).mul_add(*x.add(i), partial))
            } else {
                sum(len, |i, partial| (*dy.add(i) * (offset + *weight.add(i))).mul_add(*x.add(i), partial))
            };
            let pull = dot * rstd * rstd * rstd / len as f32;
            match (weight.is_null(), so_far.is_null()) {
                (false, false) => fill(len, dx, |i| {
                    (*dy.add(i) * (offset + *weight.add(i))).mul_add(rstd, (*x.add(i)).mul_add(-pull, *so_far.add(i)))
                }),
                (false, true) => fill(len, dx, |i| (*dy.add(i) * (offset + *weight.add(i))).mul_add(rstd, -pull * *x.add(i))),
                (true, false) => {
                    fill(len, dx, |i| (*dy.add(i)).mul_add(rstd, (*x.add(i)).mul_add(-pull, *so_far.add(i))));
                }
                (true, true) => fill(len, dx, |i| (*dy.add(i)).mul_add(rstd, -pull * *x.add(i))),
            }
        }
    }
}

/// A share's row of the workspace, zeroed; null if no sums are kept.
pub(crate) fn clear_share(kept: bool, scratch: Matrix, share: usize) -> *mut f32 {
    if !kept {
        return std::ptr::null_mut();
    }
    // SAFETY: the row belongs to this share alone.
    unsafe { scratch.row(share).write_bytes(0, scratch.cols) };
    scratch.row(share)
}

/// `total += Σ shares`, in their order.
///
/// # Safety
/// `total` has `len` elements, and `partial` that many in each of `shares` rows that lie `stride` apart.
pub(crate) unsafe fn add_shares(total: *mut f32, partial: *const f32, shares: usize, len: usize, stride: usize) {
    for share in 0..shares {
        let row = partial.wrapping_add(share * stride);
        // SAFETY: the caller vouches for both.
        unsafe { add_row(len, total, row, total) };
    }
}

pub(crate) fn head_norm(op: &HeadNorm, call: &Call) -> Result<(), RuntimeError> {
    let (qkv, out, rstd): (Matrix, Matrix, Matrix) = (call.input(0)?, call.output(0)?, call.output(1)?);
    let weights = head_weights(op.weight, call, 1)?;
    let Heads { query, kv, head_dim } = op.heads;
    let scale = Scale { offset: weight_addend(op.offset), eps: op.eps };
    call.workers.rows(qkv.rows, qkv.cols, |rows| {
        for row in rows {
            let (from, to) = (qkv.row(row).cast_const(), out.row(row));
            for head in 0..query + kv {
                let at = head * head_dim;
                // SAFETY: the head lies in the row, in both buffers.
                unsafe {
                    let weight = Matrix::ptr_or_null(weights[usize::from(head >= query)]);
                    *rstd.row(row).add(head) = norm_row(head_dim, from.add(at), weight, to.add(at), scale);
                }
            }
            // SAFETY: the rest of the same row.
            unsafe { copy_rest(from, to, (query + kv) * head_dim, kv * head_dim) };
        }
    });
    Ok(())
}

pub(crate) fn head_norm_grad(op: &HeadNormGrad, call: &Call) -> Result<(), RuntimeError> {
    let (qkv, rstd, dy): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let dx: Matrix = call.output(0)?;
    let weights = head_weights(op.weight, call, 3)?;
    let Heads { query, kv, head_dim } = op.heads;
    let stride = 2 * head_dim;
    let scratch: Matrix = call.workspace(if op.weight_grad { CPU_PARTIAL_ROWS } else { 0 }, stride)?;
    let shares = call.workers.shares(qkv.rows, |share, rows| {
        let partial = clear_share(op.weight_grad, scratch, share);
        for row in rows {
            for head in 0..query + kv {
                let at = head * head_dim;
                let of_query = head < query;
                let dw = if of_query || !op.weight_grad { partial } else { partial.wrapping_add(head_dim) };
                // SAFETY: the head lies in the row, in every buffer.
                unsafe {
                    let parts = GradRow {
                        x: qkv.row(row).add(at),
                        dy: dy.row(row).add(at),
                        weight: Matrix::ptr_or_null(weights[usize::from(!of_query)]),
                        offset: weight_addend(op.offset),
                        so_far: std::ptr::null(),
                        dx: dx.row(row).add(at),
                        dw,
                    };
                    norm_grad_row(head_dim, parts, *rstd.row(row).add(head));
                }
            }
            // SAFETY: the rest of the same row.
            unsafe { copy_rest(dy.row(row), dx.row(row), (query + kv) * head_dim, kv * head_dim) };
        }
    });
    if op.weight_grad {
        let (dwq, dwk): (Matrix, Matrix) = (call.output(1)?, call.output(2)?);
        // SAFETY: `shares` rows of the workspace were just filled, each with both halves.
        unsafe {
            add_shares(dwq.ptr(), scratch.ptr(), shares, head_dim, stride);
            add_shares(dwk.ptr(), scratch.ptr().add(head_dim), shares, head_dim, stride);
        }
    }
    Ok(())
}

/// The weights of the query heads and of the key heads, if there are any.
fn head_weights(present: bool, call: &Call, at: usize) -> Result<[Option<Matrix>; 2], RuntimeError> {
    Ok(if present { [Some(call.input(at)?), Some(call.input(at + 1)?)] } else { [None; 2] })
}

/// Copies `len` elements behind `start`, unless both rows are the same.
///
/// # Safety
/// Both rows hold them, and are the same or lie apart.
pub(crate) unsafe fn copy_rest(from: *const f32, to: *mut f32, start: usize, len: usize) {
    if from != to.cast_const() {
        // SAFETY: the caller vouches for it.
        unsafe { std::ptr::copy_nonoverlapping(from.add(start), to.add(start), len) };
    }
}
