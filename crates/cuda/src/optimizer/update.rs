//! What element-wise updates share: tensors of one launch in a table, kernels named after types.

use plimsoll_graph::{BlockFormat, DType, GPU_UPDATES_PER_LAUNCH, Op, Scales, Storage};
use plimsoll_runtime::RuntimeError;

use super::{OTHER_BYTES_MAX, PARAMETER_BYTES_MAX, adamw, lion, pair, sgd};
use crate::call::{Args, Call, Operand, type_suffix};

const UPDATE_THREADS: u32 = 256;
/// Elements of a tensor that one block of an update has.
const UPDATE_CHUNK: usize = 16384;

/// Elements of a state in eight bits that share a scale: those of one warp.
const INT8_BLOCK: usize = 256;
/// Where states are in eight bits: threads of a block, and such blocks that a multiprocessor holds at a time. First of one
/// tensor's update, then of many.
const CODED: [(u32, u32); 2] = [(512, 2), (256, 3)];

/// Addresses of parameter, gradient, states and master, elements, and the site below the end of its blocks.
type UpdateRow = [u64; 7];

const _: () = assert!(GPU_UPDATES_PER_LAUNCH * size_of::<UpdateRow>() + OTHER_BYTES_MAX <= PARAMETER_BYTES_MAX);

/// How one optimizer updates a tensor.
pub(super) struct Rule {
    /// The file of its kernels.
    pub module: &'static str,
    /// What they are named after.
    pub name: &'static str,
    /// The inputs `hyper` and `clip`.
    pub shared: [usize; 2],
    /// Outputs that are states, at most two, all of one type.
    pub states: Vec<usize>,
    /// The output that is the master copy.
    pub master: Option<usize>,
    /// What kernels take behind `hyper` and `clip`.
    pub numbers: Vec<f32>,
}

impl Rule {
    fn of(call: &Call) -> Result<Self, RuntimeError> {
        match &call.step.op {
            Op::AdamW(op) => Ok(adamw::rule(op)),
            Op::Sgd(op) => Ok(sgd::rule(op)),
            Op::Lion(op) => Ok(lion::rule(op)),
            _ => Err(call.error("is no update of a tensor")),
        }
    }
}

/// How kernel names spell what a state is stored as; `None` for what no kernel reads.
fn state_suffix(storage: Storage) -> Option<&'static str> {
    match (storage.element, storage.blocks) {
        (dtype @ (DType::F32 | DType::BF16), None) => Some(dtype.name()),
        (DType::F32, Some(BlockFormat { elements: INT8_BLOCK, scales: Scales::F32, .. })) => Some("int8"),
        _ => None,
    }
}

/// Types of parameter, gradient and states as kernel names spell them.
fn update_types(call: &Call, p: DType, g: DType, states: &[Storage]) -> Result<String, RuntimeError> {
    if type_suffix(p).is_none() {
        return Err(call.unsupported(p));
    }
    if g != p && g != DType::F32 {
        return Err(call.unsupported(g));
    }
    let suffixes: Vec<_> = states.iter().map(|&state| state_suffix(state)).collect();
    let state = suffixes.first().copied().unwrap_or(Some(DType::F32.name()));
    match state {
        Some(state) if suffixes.iter().all(|&other| other == Some(state)) => {
            Ok(format!("{}_{}_{state}", p.name(), g.name()))
        }
        _ => Err(call.error(format!("has no kernel for states stored as {states:?}"))),
    }
}

/// The address of a master copy, null if there is none. It is always float32.
pub(super) fn master_address(call: &Call, master: Option<Operand>) -> Result<u64, RuntimeError> {
    match master {
        Some(master) if master.dtype != DType::F32 => Err(call.unsupported(master.dtype)),
        master => Ok(master.map_or(0, |master| master.ptr)),
    }
}

/// What tells one parameter's random draws from another's. Its slot is the same under every plan.
pub(super) fn site(call: &Call) -> u32 {
    call.step.inputs[0].slot.map_or(0, |slot| slot.0)
}

/// One tensor and all that its update touches. Addresses of what is absent are null.
struct Update {
    rule: Rule,
    types: String,
    /// Whether states are in codes.
    coded: bool,
    len: usize,
    p: u64,
    g: u64,
    states: [u64; 2],
    master: u64,
    site: u32,
}

impl Update {
    fn new(rule: Rule, call: &Call) -> Result<Self, RuntimeError> {
        let (p, g) = (call.output(0), call.output(1));
        let storages: Vec<Storage> = rule.states.iter().map(|&at| call.step.outputs[at].storage).collect();
        let types = update_types(call, p.dtype, g.dtype, &storages)?;
        let master = master_address(call, rule.master.map(|at| call.output(at)))?;
        let address = |at: usize| rule.states.get(at).map_or(0, |&at| call.output(at).ptr);
        let states = [address(0), address(1)];
        let coded = storages.iter().any(|storage| storage.blocks.is_some());
        Ok(Self { types, coded, len: p.len(), p: p.ptr, g: g.ptr, states, master, site: site(call), rule })
    }

    /// Its row in a table in which its blocks end at `end`.
    fn row(&self, end: usize) -> UpdateRow {
        let [m, v] = self.states;
        [self.p, self.g, m, v, self.master, self.len as u64, pair(self.site, end as u32)]
    }
}

/// What a rule needs beside the tensors, the same for all tensors of a launch: `hyper`, `clip`, and numbers of its own.
fn with_numbers(args: Args, call: &Call, rule: &Rule) -> Args {
    let args = rule.shared.iter().fold(args, |args, &at| args.ptr(call.input(at).ptr));
    rule.numbers.iter().fold(args, |args, &number| args.f32(number))
}

/// The update of one tensor.
pub(crate) fn update_one(call: &Call) -> Result<(), RuntimeError> {
    update_by(Rule::of(call)?, call)
}

pub(super) fn update_by(rule: Rule, call: &Call) -> Result<(), RuntimeError> {
    let Update { rule, types, coded, len, p, g, states: [m, v], master, site } = Update::new(rule, call)?;
    let args = Args::new().ptr(p).ptr(g).ptr(m).ptr(v).ptr(master).u64(len as u64).u32(site);
    let kernel = format!("{}_{types}", rule.name);
    let args = with_numbers(args, call, &rule);
    let (blocks, threads) = match coded {
        true => resident(call, CODED[0], len.div_ceil(CODED[0].0 as usize / 32 * INT8_BLOCK)),
        false => (len.div_ceil(UPDATE_CHUNK) as u32, UPDATE_THREADS),
    };
    call.launch(rule.module, &kernel, (blocks, 1, 1), threads, 0, args)
}

/// Blocks and their threads: as many as there is work for, but no more than the card holds at a time. They stay, and share
/// the work evenly.
fn resident(call: &Call, (threads, held): (u32, u32), blocks: usize) -> (u32, u32) {
    (blocks.min((held * call.sm_count()) as usize) as u32, threads)
}

/// Updates of different tensors by the same rule with the same numbers: bit for bit what each alone would give.
pub(crate) fn update_many(calls: &[Call]) -> Result<(), RuntimeError> {
    for calls in calls.chunks(GPU_UPDATES_PER_LAUNCH) {
        let updates = calls.iter().map(|call| Update::new(Rule::of(call)?, call)).collect::<Result<Vec<_>, _>>()?;
        let (rows, blocks) = update_rows(&updates);
        let args = Args::with_table(&rows, GPU_UPDATES_PER_LAUNCH).u32(rows.len() as u32);
        let Update { rule, types, coded, .. } = &updates[0];
        let kernel = format!("{}_many_{types}", rule.name);
        let args = with_numbers(args, &calls[0], rule);
        let (blocks, threads) = match coded {
            true => resident(&calls[0], CODED[1], blocks),
            false => (blocks as u32, UPDATE_THREADS),
        };
        calls[0].launch(rule.module, &kernel, (blocks, 1, 1), threads, 0, args)?;
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
    use plimsoll_graph::ops::Sgd;

    use super::*;

    #[test]
    fn every_chunk_of_every_tensor_has_a_block() {
        let rule = || sgd::rule(&Sgd { momentum: 0.0, weight_decay: 0.0, master: false });
        let update = |len| Update {
            rule: rule(),
            types: String::new(),
            coded: false,
            len,
            p: 1,
            g: 2,
            states: [3, 4],
            master: 5,
            site: 6,
        };
        let (rows, blocks) = update_rows(&[update(1), update(UPDATE_CHUNK), update(0), update(UPDATE_CHUNK + 1)]);
        let ends: Vec<u64> = rows.iter().map(|row| row[6] >> 32).collect();
        assert_eq!((ends.as_slice(), blocks), ([1, 2, 2, 4].as_slice(), 4));
        assert_eq!(rows[1], [1, 2, 3, 4, 5, UPDATE_CHUNK as u64, pair(6, 2)]);
    }
}
