//! Once per update: the global norm, the clip factor, the step. Gradients are left zeroed.

use plimsoll_graph::DType;
use plimsoll_graph::ops::{AdamW, GlobalNorm, Sgd};
use plimsoll_plan::GPU_PARTIAL_ROWS;
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand, type_suffix};

const MODULE: &str = "optimizer";
const NORM_THREADS: u32 = 256;
const FACTOR_THREADS: u32 = 1024;
/// Elements of a gradient that are worth a block of their own.
const NORM_PART_LEN: usize = 8192;
const UPDATE_THREADS: u32 = 256;
/// Elements that a thread of an update has.
const UPDATE_ELEMENTS: usize = 8;

pub(crate) fn global_norm(op: &GlobalNorm, call: &Call) -> Result<(), RuntimeError> {
    let (partial, planned) = call.workspace();
    let mut parts = 0;
    for index in 1..call.step.inputs.len() {
        let gradient = call.input(index);
        let kernel = format!("square_sums_{}", call.suffix_of(&[gradient])?);
        let blocks = gradient.len().div_ceil(NORM_PART_LEN).min(GPU_PARTIAL_ROWS);
        let end = (parts + blocks) * size_of::<f64>();
        if end > planned {
            return Err(call.error(format!("needs {end} bytes of workspace or more, {planned} were planned")));
        }
        let at = partial + (parts * size_of::<f64>()) as u64;
        let args = Args::new().ptr(gradient.ptr).ptr(at).u64(gradient.len() as u64);
        call.launch(MODULE, &kernel, (blocks as u32, 1, 1), NORM_THREADS, 0, args)?;
        parts += blocks;
    }
    let max_norm = op.max_norm.unwrap_or(f32::INFINITY);
    let args = Args::new().ptr(partial).ptr(call.output(0).ptr).u32(parts as u32).f32(max_norm);
    call.launch(MODULE, "clip_factor", (1, 1, 1), FACTOR_THREADS, 0, args)
}

/// `1 - β` for the β that was written as a decimal: a float32 of 0.999 is off by a part in 10⁵ there.
fn complement(beta: f32) -> f32 {
    let written = (f64::from(beta) * 1e7).round() / 1e7;
    (1.0 - written) as f32
}

/// Types of parameter, gradient and state as kernel names spell them.
fn update_types(call: &Call, p: DType, g: DType, state: DType) -> Result<String, RuntimeError> {
    let odd = if type_suffix(p).is_none() {
        Some(p)
    } else if g != p && g != DType::F32 {
        Some(g)
    } else {
        Some(state).filter(|state| !matches!(state, DType::F32 | DType::BF16))
    };
    match odd {
        Some(dtype) => Err(call.unsupported(dtype)),
        None => Ok(format!("{}_{}_{}", p.name(), g.name(), state.name())),
    }
}

/// The address of a master copy, null if there is none. It is always float32.
fn master_address(call: &Call, master: Option<Operand>) -> Result<u64, RuntimeError> {
    match master {
        Some(master) if master.dtype != DType::F32 => Err(call.unsupported(master.dtype)),
        master => Ok(master.map_or(0, |master| master.ptr)),
    }
}

/// What tells one parameter's random draws from another's. Its slot is the same under every plan.
fn site(call: &Call) -> u32 {
    call.step.inputs[0].slot.map_or(0, |slot| slot.0)
}

fn update_grid(p: &Operand) -> (u32, u32, u32) {
    (p.len().div_ceil(UPDATE_ELEMENTS).div_ceil(UPDATE_THREADS as usize) as u32, 1, 1)
}

pub(crate) fn adamw(op: &AdamW, call: &Call) -> Result<(), RuntimeError> {
    let (p, g, m, v) = (call.output(0), call.output(1), call.output(2), call.output(3));
    call.suffix_of(&[m, v])?;
    let kernel = format!("adamw_{}", update_types(call, p.dtype, g.dtype, m.dtype)?);
    let args = Args::new()
        .ptr(p.ptr)
        .ptr(g.ptr)
        .ptr(m.ptr)
        .ptr(v.ptr)
        .ptr(master_address(call, op.master.then(|| call.output(4)))?)
        .ptr(call.input(4).ptr)
        .ptr(call.input(5).ptr)
        .u64(p.len() as u64)
        .u32(site(call))
        .f32(complement(op.beta1))
        .f32(op.beta2)
        .f32(complement(op.beta2))
        .f32(op.eps)
        .f32(op.weight_decay);
    call.launch(MODULE, &kernel, update_grid(&p), UPDATE_THREADS, 0, args)
}

pub(crate) fn sgd(op: &Sgd, call: &Call) -> Result<(), RuntimeError> {
    let (p, g) = (call.output(0), call.output(1));
    let momentum = (op.momentum != 0.0).then(|| call.output(2));
    let master = op.master.then(|| call.output(2 + usize::from(momentum.is_some())));
    let state = momentum.map_or(DType::F32, |momentum| momentum.dtype);
    let kernel = format!("sgd_{}", update_types(call, p.dtype, g.dtype, state)?);
    let args = Args::new()
        .ptr(p.ptr)
        .ptr(g.ptr)
        .ptr(momentum.map_or(0, |momentum| momentum.ptr))
        .ptr(master_address(call, master)?)
        .ptr(call.input(2).ptr)
        .ptr(call.input(3).ptr)
        .u64(p.len() as u64)
        .u32(site(call))
        .f32(op.momentum)
        .f32(op.weight_decay);
    call.launch(MODULE, &kernel, update_grid(&p), UPDATE_THREADS, 0, args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complements_are_those_of_the_decimal() {
        assert_eq!(complement(0.999), 0.001);
        assert_eq!(complement(0.9), 0.1);
        assert_eq!(complement(0.95), 0.05);
    }
}
