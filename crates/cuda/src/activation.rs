//! Nonlinearities of the MLP, gated (`act(gate)·up`) and plain.

use plimsoll_graph::ops::{Activation, Gated, GatedGrad, Pointwise, PointwiseGrad};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call};
use crate::elementwise::{THREADS, flat_grid, row_grid};
use crate::gated_adapters::{Added, Operands, Share, gated_adapters};

const MODULE: &str = "activation";

/// As kernel names spell it.
pub(crate) fn curve(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_tanh",
        Activation::Relu => "relu",
        Activation::Relu2 => "relu2",
    }
}

pub(crate) fn gated(op: &Gated, call: &Call) -> Result<(), RuntimeError> {
    if let Some(adapters) = &op.adapters {
        let added = Some(Added { adapters, low_rank: call.input(1), b: call.input(2) });
        let operands = Operands { gate_up: call.input(0), dy: None, added, share: None, value: 0 };
        return gated_adapters(op.activation, call, &operands);
    }
    let (gate_up, out) = (call.input(0), call.output(0));
    let kernel = format!("gated_{}_{}", curve(op.activation), call.suffix_of(&[gate_up, out])?);
    let args = Args::new().ptr(gate_up.ptr).ptr(out.ptr).u32(out.rows as u32).u32(out.cols as u32);
    call.launch(MODULE, &kernel, row_grid(call, &out)?, THREADS, 0, args)
}

pub(crate) fn gated_grad(op: &GatedGrad, call: &Call) -> Result<(), RuntimeError> {
    let value = if op.with_value { call.output(1).ptr } else { 0 };
    if op.adapters.is_some() || op.last_share.is_some() {
        let place = op.adapters.as_ref().zip(op.adapter_inputs());
        let added = place.map(|(adapters, at)| Added { adapters, low_rank: call.input(at), b: call.input(at + 1) });
        let share = op.last_share.zip(op.share_inputs()).map(|(op, at)| Share {
            op,
            dh: call.input(at),
            a: call.input(at + 1),
            mask: op.dropout.map(|_| [call.input(at + 2).ptr, call.input(at + 3).ptr]),
        });
        let operands = Operands { gate_up: call.input(0), dy: Some(call.input(1)), added, share, value };
        return gated_adapters(op.activation, call, &operands);
    }
    let (gate_up, dy, out) = (call.input(0), call.input(1), call.output(0));
    let kernel = format!("gated_grad_{}_{}", curve(op.activation), call.suffix_of(&[gate_up, dy, out])?);
    let args = Args::new().ptr(gate_up.ptr).ptr(dy.ptr).ptr(out.ptr).ptr(value).u32(dy.rows as u32).u32(dy.cols as u32);
    call.launch(MODULE, &kernel, row_grid(call, &dy)?, THREADS, 0, args)
}

pub(crate) fn pointwise(op: &Pointwise, call: &Call) -> Result<(), RuntimeError> {
    let (x, out) = (call.input(0), call.output(0));
    let kernel = format!("pointwise_{}_{}", curve(op.0), call.suffix_of(&[x, out])?);
    let args = Args::new().ptr(x.ptr).ptr(out.ptr).u64(out.len() as u64);
    call.launch(MODULE, &kernel, flat_grid(&out), THREADS, 0, args)
}

pub(crate) fn pointwise_grad(op: &PointwiseGrad, call: &Call) -> Result<(), RuntimeError> {
    let (x, dy, out) = (call.input(0), call.input(1), call.output(0));
    let kernel = format!("pointwise_grad_{}_{}", curve(op.0), call.suffix_of(&[x, dy, out])?);
    let args = Args::new().ptr(x.ptr).ptr(dy.ptr).ptr(out.ptr).u64(out.len() as u64);
    call.launch(MODULE, &kernel, flat_grid(&out), THREADS, 0, args)
}
