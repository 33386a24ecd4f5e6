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

use plimsoll_graph::ops::GlobalNorm;
use plimsoll_graph::{DType, GPU_PARTIAL_ROWS};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand, type_suffix};

const MODULE: &str = "optimizer";
const NORM_THREADS: u32 = 512;
const FACTOR_THREADS: u32 = 1024;
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
    let gradients: Vec<Operand> = (1..call.step.inputs.len()).map(|index| call.input(index)).collect();
    if let Some(odd) = gradients.iter().find(|gradient| type_suffix(gradient.dtype).is_none()) {
        return Err(call.unsupported(odd.dtype));
    }
    let (partial, planned) = call.workspace();
    let mut parts = 0;
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let alike: Vec<&Operand> = gradients.iter().filter(|gradient| gradient.dtype == dtype).collect();
        for some in alike.chunks(NORM_ROWS) {
            let (rows, blocks) = norm_rows(some);
            let end = (parts + blocks) * size_of::<f64>();
            if end > planned {
                return Err(call.error(format!("needs {end} bytes of workspace or more, {planned} were planned")));
            }
            let at = partial + (parts * size_of::<f64>()) as u64;
            let args = Args::with_table(&rows, NORM_ROWS).u32(rows.len() as u32).ptr(at);
            let kernel = format!("square_sums_{}", dtype.name());
            call.launch(MODULE, &kernel, (blocks as u32, 1, 1), NORM_THREADS, 0, args)?;
            parts += blocks;
        }
    }
    let max_norm = op.max_norm.unwrap_or(f32::INFINITY);
    let args = Args::new().ptr(partial).ptr(call.output(0).ptr).u32(parts as u32).f32(max_norm);
    call.launch(MODULE, "clip_factor", (1, 1, 1), FACTOR_THREADS, 0, args)
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
