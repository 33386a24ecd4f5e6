//! A bias of attention scores by the distance between key and query, learned for buckets of distances.

use plimsoll_graph::DType;
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand, type_suffix};
use crate::elementwise::THREADS;

const MODULE: &str = "position_bias";

pub(crate) fn position_bias(call: &Call) -> Result<(), RuntimeError> {
    let (table, bucket_of, out) = (call.input(0), call.input(1), call.output(0));
    let kernel = format!("position_bias_{}", suffix(call, &table, &out)?);
    let args = Args::new().ptr(table.ptr).ptr(bucket_of.ptr).ptr(out.ptr);
    let args = args.u32(out.rows as u32).u32(out.cols as u32).i32(table.rows as i32);
    call.launch(MODULE, &kernel, grid(out.len()), THREADS, 0, args)
}

pub(crate) fn position_bias_grad(call: &Call) -> Result<(), RuntimeError> {
    let (d_bias, bucket_of, old, table) = (call.input(0), call.input(1), call.input(2), call.output(0));
    call.carry_over(&old, &table)?;
    let kernel = format!("position_bias_grad_{}", suffix(call, &table, &d_bias)?);
    let args = Args::new().ptr(d_bias.ptr).ptr(bucket_of.ptr).ptr(table.ptr);
    let args = args.u32(d_bias.rows as u32).u32(d_bias.cols as u32).u32(table.rows as u32);
    call.launch(MODULE, &kernel, grid(table.len()), THREADS, 0, args)
}

/// The table has any type, what belongs to scores is float32.
fn suffix(call: &Call, table: &Operand, scores: &Operand) -> Result<&'static str, RuntimeError> {
    if scores.dtype != DType::F32 {
        return Err(call.unsupported(scores.dtype));
    }
    type_suffix(table.dtype).ok_or_else(|| call.unsupported(table.dtype))
}

fn grid(entries: usize) -> (u32, u32, u32) {
    (entries.div_ceil(THREADS as usize) as u32, 1, 1)
}
