//! Once per update: the global norm, the clip factor, the step. Gradients are left zeroed. Most tensors
//! are small, so a launch takes many of them: a table of addresses travels in the kernel's parameters.

use plimsoll_graph::ops::{AdamW, GlobalNorm, Sgd};
use plimsoll_graph::{DType, GPU_PARTIAL_ROWS, GPU_UPDATES_PER_LAUNCH, Op, OpRule};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand, type_suffix};

const MODULE: &str = "optimizer";
const NORM_THREADS: u32 = 512;
const FACTOR_THREADS: u32 = 1024;
/// Elements of a gradient that are worth a block of their own.
const NORM_PART_LEN: usize = 16 * 1024;
const UPDATE_THREADS: u32 = 256;
/// Elements of a tensor that one block of an update has.
const UPDATE_CHUNK: usize = 16384;

/// All parameters of a kernel together have this much under every driver.
const PARAMETER_BYTES_MAX: usize = 4096;
/// What the parameters beside a table may take.
const OTHER_BYTES_MAX: usize = 64;
const NORM_ROWS: usize = 168;

/// Address, elements, and the end of its blocks below the elements of each.
type NormRow = [u64; 3];
/// Addresses of parameter, gradient, states and master, elements, and the site below the end of its blocks.
type UpdateRow = [u64; 7];

const _: () = assert!(NORM_ROWS * size_of::<NormRow>() + OTHER_BYTES_MAX <= PARAMETER_BYTES_MAX);
const _: () = assert!(GPU_UPDATES_PER_LAUNCH * size_of::<UpdateRow>() + OTHER_BYTES_MAX <= PARAMETER_BYTES_MAX);

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

/// One tensor and all that its update touches. Addresses of what is absent are null.
struct Update {
    rule: &'static str,
    types: String,
    len: usize,
    p: u64,
    g: u64,
    states: [u64; 2],
    master: u64,
    site: u32,
}

impl Update {
    fn new(call: &Call) -> Result<Self, RuntimeError> {
        match &call.step.op {
            Op::AdamW(op) => {
                let states = [call.output(2), call.output(3)];
                call.suffix_of(&states)?;
                let master = op.master.then(|| call.output(4));
                Self::of(call, "adamw", states[0].dtype, states.map(|state| state.ptr), master)
            }
            Op::Sgd(op) => {
                let momentum = (op.momentum != 0.0).then(|| call.output(2));
                let master = op.master.then(|| call.output(2 + usize::from(momentum.is_some())));
                let state = momentum.map_or(DType::F32, |momentum| momentum.dtype);
                Self::of(call, "sgd", state, [momentum.map_or(0, |momentum| momentum.ptr), 0], master)
            }
            _ => Err(call.error("is no update of a tensor")),
        }
    }

    fn of(
        call: &Call,
        rule: &'static str,
        state: DType,
        states: [u64; 2],
        master: Option<Operand>,
    ) -> Result<Self, RuntimeError> {
        let (p, g) = (call.output(0), call.output(1));
        let types = update_types(call, p.dtype, g.dtype, state)?;
        let master = master_address(call, master)?;
        Ok(Self { rule, types, len: p.len(), p: p.ptr, g: g.ptr, states, master, site: site(call) })
    }

    /// Its row in a table in which its blocks end at `end`.
    fn row(&self, end: usize) -> UpdateRow {
        let [m, v] = self.states;
        [self.p, self.g, m, v, self.master, self.len as u64, pair(self.site, end as u32)]
    }
}

/// What an update's rule needs beside the tensors, the same for all tensors of a launch: `hyper`, `clip`, and numbers of
/// its own.
fn with_numbers(args: Args, call: &Call) -> Args {
    let shared = call.step.op.shared_numbers().into_iter().flatten();
    let args = shared.fold(args, |args, at| args.ptr(call.input(at).ptr));
    match &call.step.op {
        Op::AdamW(AdamW { beta1, beta2, eps, weight_decay, .. }) => {
            args.f32((1.0 - beta1) as f32).f32(*beta2 as f32).f32((1.0 - beta2) as f32).f32(*eps).f32(*weight_decay)
        }
        Op::Sgd(Sgd { momentum, weight_decay, .. }) => args.f32(*momentum).f32(*weight_decay),
        _ => args,
    }
}

/// The update of one tensor.
pub(crate) fn update_one(call: &Call) -> Result<(), RuntimeError> {
    let Update { rule, types, len, p, g, states: [m, v], master, site } = Update::new(call)?;
    let args = Args::new().ptr(p).ptr(g).ptr(m).ptr(v).ptr(master).u64(len as u64).u32(site);
    let blocks = len.div_ceil(UPDATE_CHUNK) as u32;
    let kernel = format!("{rule}_{types}");
    call.launch(MODULE, &kernel, (blocks, 1, 1), UPDATE_THREADS, 0, with_numbers(args, call))
}

/// Updates of different tensors by the same rule with the same numbers: bit for bit what each alone would give.
pub(crate) fn update_many(calls: &[Call]) -> Result<(), RuntimeError> {
    for calls in calls.chunks(GPU_UPDATES_PER_LAUNCH) {
        let updates = calls.iter().map(Update::new).collect::<Result<Vec<_>, _>>()?;
        let (rows, blocks) = update_rows(&updates);
        let args = Args::with_table(&rows, GPU_UPDATES_PER_LAUNCH).u32(rows.len() as u32);
        let kernel = format!("{}_many_{}", updates[0].rule, updates[0].types);
        calls[0].launch(MODULE, &kernel, (blocks as u32, 1, 1), UPDATE_THREADS, 0, with_numbers(args, &calls[0]))?;
    }
    Ok(())
}

/// Rows for some tensors, and how many blocks update them.
fn update_rows(updates: &[Update]) -> (Vec<UpdateRow>, usize) {
    let mut end = 0;
    let row = |update: &Update| {
        end += update.len.div_ceil(UPDATE_CHUNK);
        update.row(end)
    };
    (updates.iter().map(row).collect(), end)
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

    #[test]
    fn every_chunk_of_every_tensor_has_a_block() {
        let update =
            |len| Update { rule: "adamw", types: String::new(), len, p: 1, g: 2, states: [3, 4], master: 5, site: 6 };
        let (rows, blocks) = update_rows(&[update(1), update(UPDATE_CHUNK), update(0), update(UPDATE_CHUNK + 1)]);
        let ends: Vec<u64> = rows.iter().map(|row| row[6] >> 32).collect();
        assert_eq!((ends.as_slice(), blocks), ([1, 2, 2, 4].as_slice(), 4));
        assert_eq!(rows[1], [1, 2, 3, 4, 5, UPDATE_CHUNK as u64, pair(6, 2)]);
    }
}
