//! Scores of sequences, and the losses over pairs of them and over their classes, with the gradients.

use plimsoll_graph::ops::{ClassLoss, PairLoss};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, two_types, type_suffix};

const MODULE: &str = "score";
const BLOCK: u32 = 256;
/// A warp for each sequence at a time; all sequences are one block's, so that their sum has one order.
const CLASSIFY_BLOCK: u32 = 1024;

pub(crate) fn pair_loss(op: &PairLoss, call: &Call) -> Result<(), RuntimeError> {
    let (hidden, weight, boundaries) = (call.input(0), call.input(1), call.input(2));
    let Some(suffix) = type_suffix(hidden.dtype).filter(|_| hidden.dtype == weight.dtype) else {
        return Err(call.unsupported(weight.dtype));
    };
    call.carry_over(&call.input(4), &call.output(0))?;
    call.carry_over(&call.input(5), &call.output(1))?;
    let sequences = hidden.rows;
    if !sequences.is_multiple_of(2) {
        return Err(call.error(format!("{sequences} sequences are not pairs")));
    }
    let (scores, bytes) = call.workspace();
    if bytes < sequences * size_of::<f32>() {
        return Err(call.error(format!("{sequences} scores do not fit {bytes} bytes of workspace")));
    }
    let cols = hidden.cols as u32;
    let per_sequence = (sequences as u32, 1, 1);
    let per_column = (cols.div_ceil(BLOCK), 1, 1);

    let args = Args::new().ptr(hidden.ptr).ptr(weight.ptr).ptr(scores).u32(cols);
    call.launch(MODULE, &format!("scores_{suffix}"), per_sequence, BLOCK, 0, args)?;
    let args = Args::new()
        .ptr(scores)
        .ptr(boundaries.ptr)
        .u32(sequences as u32)
        .ptr(op.margins_input().map_or(0, |at| call.input(at).ptr))
        .f32(op.centring)
        .ptr(call.input(3).ptr)
        .ptr(call.output(0).ptr)
        .ptr(call.output(1).ptr);
    call.launch(MODULE, "compare", (u32::from(sequences > 0), 1, 1), 1, 0, args)?;
    // From here on the scores are their gradients.
    if let Some(before) = op.weight_grad_input() {
        let dw = call.output(3);
        call.carry_over(&call.input(before), &dw)?;
        let kernel = format!("score_weight_grad_{}", two_types(call, hidden.dtype, dw.dtype)?);
        let args =
            Args::new().ptr(hidden.ptr).ptr(boundaries.ptr).ptr(scores).ptr(dw.ptr).u32(sequences as u32).u32(cols);
        call.launch(MODULE, &kernel, per_column, BLOCK, 0, args)?;
    }
    if op.grad.is_some() {
        // Last, because it may be written over `hidden`.
        let d_hidden = call.output(2);
        let args = Args::new().ptr(weight.ptr).ptr(scores).ptr(d_hidden.ptr).u32(cols);
        call.launch(MODULE, &format!("score_hidden_grad_{suffix}"), per_sequence, BLOCK, 0, args)?;
    }
    Ok(())
}

pub(crate) fn class_loss(op: &ClassLoss, call: &Call) -> Result<(), RuntimeError> {
    let (hidden, weight, labels) = (call.input(0), call.input(1), call.input(2));
    let Some(suffix) = type_suffix(hidden.dtype).filter(|_| hidden.dtype == weight.dtype) else {
        return Err(call.unsupported(weight.dtype));
    };
    call.carry_over(&call.input(4), &call.output(0))?;
    call.carry_over(&call.input(5), &call.output(1))?;
    let (logits, bytes) = call.workspace();
    let needed = hidden.rows * weight.rows * size_of::<f32>();
    if bytes < needed {
        return Err(call.error(format!("needs {needed} bytes of workspace, {bytes} were planned")));
    }
    let (sequences, classes, cols) = (hidden.rows as u32, weight.rows as u32, hidden.cols as u32);
    let per_sequence = (sequences, 1, 1);

    let args = Args::new().ptr(hidden.ptr).ptr(weight.ptr).ptr(labels.ptr).ptr(logits).u32(classes).u32(cols);
    call.launch(MODULE, &format!("class_logits_{suffix}"), per_sequence, BLOCK, 0, args)?;
    let args = Args::new()
        .ptr(logits)
        .ptr(labels.ptr)
        .u32(sequences)
        .u32(classes)
        .ptr(call.input(3).ptr)
        .ptr(call.output(0).ptr)
        .ptr(call.output(1).ptr);
    call.launch(MODULE, "classify", (u32::from(sequences > 0), 1, 1), CLASSIFY_BLOCK, 0, args)?;
    // From here on the logits are their gradients.
    if op.grad.is_some_and(|grad| grad.weight) {
        let dw = call.output(3);
        call.carry_over(&call.input(6), &dw)?;
        let kernel = format!("class_weight_grad_{}", two_types(call, hidden.dtype, dw.dtype)?);
        let args = Args::new().ptr(hidden.ptr).ptr(labels.ptr).ptr(logits).ptr(dw.ptr).u32(sequences).u32(cols);
        call.launch(MODULE, &kernel, (classes, cols.div_ceil(BLOCK), 1), BLOCK, 0, args)?;
    }
    if op.grad.is_some() {
        // Last, because it may be written over `hidden`.
        let d_hidden = call.output(2);
        let args = Args::new().ptr(weight.ptr).ptr(labels.ptr).ptr(logits).ptr(d_hidden.ptr).u32(classes).u32(cols);
        call.launch(MODULE, &format!("class_hidden_grad_{suffix}"), per_sequence, BLOCK, 0, args)?;
    }
    Ok(())
}
