//! Once per update: the global norm, the clip factor, the step. Gradients are left zeroed. Most tensors
//! are small, so a launch takes many of them: a table of addresses travels in the kernel's parameters.

mod adafactor;
mod adamw;
mod lion;
mod muon;
mod sgd;
mod update;

pub(crate) use adafactor::adafactor;
pub(crate) use muon::muon;
pub(crate) use update::{update_many, update_one};

use plimsoll_graph::ops::{GlobalNorm, SquareSum};
use plimsoll_graph::{DType, GPU_PARTIAL_ROWS};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand, type_suffix};

const MODULE: &str = "optimizer";
const NORM_THREADS: u32 = 512;
const FACTOR_THREADS: u32 = 1024;
const SUM_THREADS: u32 = 256;
/// Elements of a gradient that are worth a block of their own.
const NORM_PART_LEN: usize = 16 * 1024;

/// All parameters of a kernel together have this much under every driver.
const PARAMETER_BYTES_MAX: usize = 4096;
/// What the parameters beside a table may take.
const OTHER_BYTES_MAX: usize = 64;
const NORM_ROWS: usize = 168;

/// Address, elements, and the end of its blocks below the elements of each.
type NormRow = [u64; 3];

const _: () = assert!(NORM_ROWS * size_of::<NormRow>() + OTHER_BYTES_MAX <= PARAMETER_BYTES_MAX);

/// Two numbers of a row in one word.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Rows for some gradients, and how many blocks sum them. How a gradient is divided follows from its length alone.
fn norm_rows(gradients: &[&Operand]) -> (Vec<NormRow>, usize) {
    let mut end = 0;
    let row = |gradient: &&Operand| {
        let len = gradient.len();
        let part_len = len.div_ceil(GPU_PARTIAL_ROWS).max(1).next_multiple_of(NORM_PART_LEN);
        end += len.div_ceil(part_len);
        [gradient.ptr, len as u64, pair(end as u32, part_len as u32)]
    };
    (gradients.iter().map(row).collect(), end)
}

pub(crate) fn global_norm(op: &GlobalNorm, call: &Call) -> Result<(), RuntimeError> {
    let count = op.gradients(call.step.inputs.len());
    let gradients: Vec<Operand> = (1..=count).map(|index| call.input(index)).collect();
    let unscale = if op.scaled { call.input(1 + count).ptr } else { 0 };
    if let Some(odd) = gradients.iter().find(|gradient| type_suffix(gradient.dtype).is_none()) {
        return Err(call.unsupported(odd.dtype));
    }
    let (partial, planned) = call.workspace();
    // The sum of each gradient behind all parts.
    let sums_bytes = gradients.len() * size_of::<f64>();
    let sums = partial + planned.saturating_sub(sums_bytes) as u64;
    let (mut parts, mut done) = (0, 0);
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let alike: Vec<&Operand> = gradients.iter().filter(|gradient| gradient.dtype == dtype).collect();
        for some in alike.chunks(NORM_ROWS) {
            let (rows, blocks) = norm_rows(some);
            let end = (parts + blocks) * size_of::<f64>() + sums_bytes;
            if end > planned {
                return Err(call.error(format!("needs {end} bytes of workspace or more, {planned} were planned")));
            }
            let at = partial + (parts * size_of::<f64>()) as u64;
            let args = Args::with_table(&rows, NORM_ROWS).u32(rows.len() as u32).ptr(at);
            let kernel = format!("square_sums_{}", dtype.name());
            call.launch(MODULE, &kernel, (blocks as u32, 1, 1), NORM_THREADS, 0, args)?;
            let to = sums + (done * size_of::<f64>()) as u64;
            let args = Args::with_table(&rows, NORM_ROWS).u32(rows.len() as u32).ptr(at).ptr(to);
            call.launch(MODULE, "row_sums", (rows.len() as u32, 1, 1), SUM_THREADS, 0, args)?;
            parts += blocks;
            done += rows.len();
        }
    }
    let max_norm = op.max_norm.unwrap_or(f32::INFINITY);
    norm_of(call, sums, gradients.len(), unscale, max_norm)
}

/// Norm and clip factor from the sums of all gradients.
fn norm_of(call: &Call, sums: u64, count: usize, unscale: u64, max_norm: f32) -> Result<(), RuntimeError> {
    let args = Args::new().ptr(sums).ptr(unscale).ptr(call.output(0).ptr).u32(count as u32).f32(max_norm);
    call.launch(MODULE, "clip_factor", (1, 1, 1), FACTOR_THREADS, 0, args)
}

pub(crate) fn square_sum(op: &SquareSum, call: &Call) -> Result<(), RuntimeError> {
    let gradient = call.input(2);
    let suffix = type_suffix(gradient.dtype).ok_or_else(|| call.unsupported(gradient.dtype))?;
    let (rows, blocks) = norm_rows(&[&gradient]);
    let (partial, planned) = call.workspace();
    if blocks * size_of::<f64>() > planned {
        return Err(call.error(format!("needs {blocks} sums of workspace, {planned} bytes were planned")));
    }
    let args = Args::with_table(&rows, NORM_ROWS).u32(1).ptr(partial);
    call.launch(MODULE, &format!("square_sums_{suffix}"), (blocks as u32, 1, 1), NORM_THREADS, 0, args)?;
    let to = call.output(1).ptr + (op.index * size_of::<f64>()) as u64;
    let args = Args::new().ptr(partial).u32(blocks as u32).ptr(to).ptr(call.output(0).ptr);
    call.launch(MODULE, "guarded_sum", (1, 1, 1), SUM_THREADS, 0, args)
}

pub(crate) fn total_norm(call: &Call) -> Result<(), RuntimeError> {
    let sums = call.input(1);
    norm_of(call, sums.ptr, sums.len(), 0, f32::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradient(ptr: u64, len: usize) -> Operand {
        Operand { ptr, rows: 1, planned_rows: 1, cols: len, dtype: DType::F32 }
    }

    #[test]
    fn gradients_are_divided_by_their_length_alone() {
        let part = NORM_PART_LEN;
        let lengths = [1, 0, part, part + 1, part * GPU_PARTIAL_ROWS, part * GPU_PARTIAL_ROWS + 1];
        let gradients: Vec<Operand> = lengths.iter().map(|&len| gradient(7, len)).collect();
        let (rows, blocks) = norm_rows(&gradients.iter().collect::<Vec<_>>());
        // The last one is too long for the parts that were planned, so its parts are longer.
        let own = [1, 0, 1, 2, GPU_PARTIAL_ROWS, GPU_PARTIAL_ROWS / 2 + 1];
        let part_lens = [part, part, part, part, part, 2 * part];
        let mut end = 0;
        for (index, row) in rows.iter().enumerate() {
            end += own[index];
            assert_eq!(*row, [7, lengths[index] as u64, pair(end as u32, part_lens[index] as u32)], "{index}");
        }
        assert_eq!(blocks, end);
    }
}
