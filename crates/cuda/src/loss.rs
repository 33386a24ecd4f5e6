//! The vocabulary projection and the cross entropy, a chunk of tokens at a time, with the gradients.

use plimsoll_graph::DType;
use plimsoll_graph::ops::{LastLogits, VocabLoss, logits_stride};
use plimsoll_runtime::RuntimeError;

use crate::blas::{Factor, Onto, Product};
use crate::call::{Args, Call, Operand, type_suffix};
use crate::linear::multiply;

const MODULE: &str = "loss";
const ROW_BLOCK: u32 = 1024;
const SUM_BLOCK: u32 = 1024;
/// What the workspace is divided at.
const ALIGNMENT: usize = 256;

pub(crate) fn vocab_loss(op: &VocabLoss, call: &Call) -> Result<(), RuntimeError> {
    let (hidden, weight) = (call.input(0), call.input(1));
    let targets = call.input(2);
    let total = op.scale_input().map(|at| (call.input(at), call.input(at + 1), call.output(0)));
    if let Some((_, before, loss)) = &total {
        call.carry_over(before, loss)?;
    }
    let total = total.map(|(scale, _, loss)| (scale, loss));
    let weights = op.weights_input().map(|at| call.input(at));
    if let Some(weights) = weights.filter(|weights| weights.dtype != DType::F32) {
        return Err(call.unsupported(weights.dtype));
    }
    let nll = op.nll_output().map(|at| call.output(at));
    let d_hidden = op.grad_output().map(|at| call.output(at));
    let dw = op.weight_grad_input().zip(op.grad_output()).map(|(before, at)| (call.input(before), call.output(at + 1)));
    if let Some((before, dw)) = dw {
        call.carry_over(&before, &dw)?;
    }
    let dw = dw.map(|(_, dw)| dw);
    if hidden.dtype != weight.dtype || type_suffix(hidden.dtype).is_none() {
        return Err(call.unsupported(weight.dtype));
    }
    let chunk_rows = op.chunk_rows(hidden.planned_rows).max(1);
    let scratch = Scratch::new(call, chunk_rows, logits_stride(weight.rows), hidden.dtype, d_hidden.is_some())?;
    let softcap = op.softcap;
    let head = Head { call, hidden, weight, targets, weights, total, nll, d_hidden, dw, softcap, scratch };
    for start in (0..hidden.rows).step_by(chunk_rows) {
        head.chunk(start, chunk_rows.min(hidden.rows - start))?;
    }
    Ok(())
}

/// How a chunk divides the workspace: logits, their gradient, and the rest, which belongs to the
/// products and between them holds the rows' losses.
#[derive(Clone, Copy)]
struct Scratch {
    logits: u64,
    /// The same place as the logits where both are float32.
    d_logits: u64,
    rest: (u64, usize),
}

impl Scratch {
    fn new(call: &Call, rows: usize, stride: usize, dtype: DType, grad: bool) -> Result<Self, RuntimeError> {
        let (start, bytes) = call.workspace();
        let entries = rows * stride;
        let sixteen = grad && dtype != DType::F32;
        let d_logits = if sixteen { entries * 4 } else { 0 };
        let used = entries * if sixteen { 6 } else { 4 };
        let taken = used.next_multiple_of(ALIGNMENT);
        let needed = taken + rows * 8;
        if needed > bytes {
            return Err(call.error(format!("needs {needed} bytes of workspace, {bytes} were planned")));
        }
        Ok(Self { logits: start, d_logits: start + d_logits as u64, rest: (start + taken as u64, bytes - taken) })
    }
}

/// What all chunks share.
struct Head<'a> {
    call: &'a Call<'a>,
    hidden: Operand,
    weight: Operand,
    targets: Operand,
    /// What each token's loss weighs; without them, one.
    weights: Option<Operand>,
    /// The scale, and the loss to add to.
    total: Option<(Operand, Operand)>,
    /// Where each token's negative log-likelihood goes.
    nll: Option<Operand>,
    d_hidden: Option<Operand>,
    dw: Option<Operand>,
    softcap: Option<f32>,
    scratch: Scratch,
}

impl Head<'_> {
    /// Logits, losses and gradients of some rows. The gradient of the weights comes first, because
    /// `d_hidden` may be written over `hidden`.
    fn chunk(&self, start: usize, rows: usize) -> Result<(), RuntimeError> {
        let Self { call, hidden, weight, scratch, .. } = self;
        let (vocabulary, dim, stride) = (weight.rows, weight.cols, logits_stride(weight.rows));
        let to_logits = Product {
            rows,
            cols: vocabulary,
            depth: dim,
            alpha: 1.0,
            left: Factor::new(hidden.at(start, 0), dim),
            right: Factor::new(weight.ptr, dim).transposed(),
            dtype: hidden.dtype,
            result: scratch.logits,
            result_stride: stride,
            result_dtype: DType::F32,
            onto: Onto::Nothing,
            bias: None,
        };
        multiply(call, &to_logits, scratch.rest)?;
        self.losses(start, rows)?;
        let d_logits = Factor::new(scratch.d_logits, stride);
        if let Some(dw) = self.dw {
            let product = Product {
                rows: vocabulary,
                cols: dim,
                depth: rows,
                left: d_logits.transposed(),
                right: Factor::new(hidden.at(start, 0), dim),
                result: dw.ptr,
                result_stride: dim,
                result_dtype: dw.dtype,
                onto: Onto::Matrix(dw.ptr),
                ..to_logits
            };
            multiply(call, &product, scratch.rest)?;
        }
        if let Some(d_hidden) = self.d_hidden {
            let product = Product {
                cols: dim,
                depth: vocabulary,
                left: d_logits,
                right: Factor::new(weight.ptr, dim),
                result: d_hidden.at(start, 0),
                result_stride: dim,
                result_dtype: d_hidden.dtype,
                ..to_logits
            };
            multiply(call, &product, scratch.rest)?;
        }
        Ok(())
    }

    /// The losses of rows whose logits lie in the workspace; turns the logits into their gradient.
    fn losses(&self, start: usize, rows: usize) -> Result<(), RuntimeError> {
        let Self { call, scratch, .. } = self;
        let row_losses = scratch.rest.0;
        let kernel = match (self.d_hidden, type_suffix(self.hidden.dtype)) {
            (Some(_), Some(suffix)) => format!("loss_rows_{suffix}"),
            _ => "loss_rows".to_owned(),
        };
        let rows_of = |operand: Option<Operand>| operand.map_or(0, |operand| operand.at(start, 0));
        let args = Args::new()
            .ptr(scratch.logits)
            .ptr(scratch.d_logits)
            .ptr(self.targets.at(start, 0))
            .ptr(rows_of(self.weights))
            .ptr(self.total.map_or(0, |(scale, _)| scale.ptr))
            .ptr(row_losses)
            .ptr(rows_of(self.nll))
            .u32(self.weight.rows as u32)
            .u32(logits_stride(self.weight.rows) as u32)
            .f32(self.softcap.unwrap_or(0.0));
        call.launch(MODULE, &kernel, (rows as u32, 1, 1), ROW_BLOCK, 0, args)?;
        let Some((scale, loss)) = self.total else { return Ok(()) };
        let args = Args::new().ptr(row_losses).u32(rows as u32).ptr(scale.ptr).ptr(loss.ptr);
        call.launch(MODULE, "sum_losses", (1, 1, 1), SUM_BLOCK, 0, args)
    }
}

pub(crate) fn last_logits(op: &LastLogits, call: &Call) -> Result<(), RuntimeError> {
    let (hidden, weight, boundaries, out) = (call.input(0), call.input(1), call.input(2), call.output(0));
    let Some(suffix) = type_suffix(hidden.dtype).filter(|_| hidden.dtype == weight.dtype) else {
        return Err(call.unsupported(weight.dtype));
    };
    let (start, bytes) = call.workspace();
    let taken = (out.rows * hidden.cols * hidden.dtype.bytes()).next_multiple_of(ALIGNMENT);
    if taken > bytes {
        return Err(call.error(format!("needs {taken} bytes of workspace, {bytes} were planned")));
    }
    let args =
        Args::new().ptr(hidden.ptr).ptr(boundaries.ptr).ptr(start).u32(hidden.rows as u32).u32(hidden.cols as u32);
    call.launch(MODULE, &format!("gather_last_{suffix}"), (out.rows as u32, 1, 1), 256, 0, args)?;
    let product = Product {
        rows: out.rows,
        cols: weight.rows,
        depth: weight.cols,
        alpha: 1.0,
        left: Factor::new(start, hidden.cols),
        right: Factor::new(weight.ptr, weight.cols).transposed(),
        dtype: hidden.dtype,
        result: out.ptr,
        result_stride: out.cols,
        result_dtype: out.dtype,
        onto: Onto::Nothing,
        bias: None,
    };
    multiply(call, &product, (start + taken as u64, bytes - taken))?;
    let Some(cap) = op.softcap else { return Ok(()) };
    let args = Args::new().ptr(out.ptr).u64(out.len() as u64).f32(cap);
    call.launch(MODULE, "soften", (out.len().div_ceil(256).min(4096) as u32, 1, 1), 256, 0, args)
}
