//! How likely whole sequences are, and losses that prefer one of a pair to the other by that.

use plimsoll_graph::ops::{LOG_PROB_MAX, Preference, PreferenceLoss, SequenceLogProb, SequenceLogProbGrad};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call};

const MODULE: &str = "preference";
const BLOCK: u32 = 256;

pub(crate) fn sequence_log_prob(op: &SequenceLogProb, call: &Call) -> Result<(), RuntimeError> {
    let out = call.output(0);
    per_sequence(call, "sequence_log_prob", out.ptr, out.rows, op.mean)
}

pub(crate) fn sequence_log_prob_grad(op: &SequenceLogProbGrad, call: &Call) -> Result<(), RuntimeError> {
    per_sequence(call, "sequence_log_prob_grad", call.output(0).ptr, call.input(0).rows, op.mean)
}

fn per_sequence(call: &Call, kernel: &str, out: u64, sequences: usize, mean: bool) -> Result<(), RuntimeError> {
    let [numbers, targets, boundaries] = [0, 1, 2].map(|at| call.input(at).ptr);
    let args = Args::new().ptr(numbers).ptr(targets).ptr(boundaries).ptr(out).u32(u32::from(mean));
    call.launch(MODULE, kernel, (sequences as u32, 1, 1), BLOCK, 0, args)
}

pub(crate) fn preference_loss(op: &PreferenceLoss, call: &Call) -> Result<(), RuntimeError> {
    let log_probs = call.input(0);
    call.carry_over(&call.input(3), &call.output(0))?;
    call.carry_over(&call.input(4), &call.output(1))?;
    let sequences = log_probs.rows;
    if !sequences.is_multiple_of(2) {
        return Err(call.error(format!("{sequences} sequences are not pairs")));
    }
    let (strength, other, reference) = match op.preference {
        Preference::Dpo { beta, label_smoothing } => (beta, f64::from(label_smoothing), call.input(5).ptr),
        Preference::Orpo { lambda } => (lambda, LOG_PROB_MAX, 0),
    };
    let args = Args::new()
        .ptr(log_probs.ptr)
        .ptr(reference)
        .ptr(call.input(1).ptr)
        .u32(sequences as u32)
        .f32(strength)
        .u64(other.to_bits())
        .ptr(call.input(2).ptr)
        .ptr(call.output(0).ptr)
        .ptr(call.output(1).ptr)
        .ptr(if op.grad { call.output(2).ptr } else { 0 });
    call.launch(MODULE, "preference", (u32::from(sequences > 0), 1, 1), 1, 0, args)
}
