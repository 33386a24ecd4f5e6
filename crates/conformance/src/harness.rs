//! Runs one operator on one backend, in memory where every mistake shows: buffers lie between guard
//! bands, results and scratch start as NaN, rows that are not in use are poisoned, and afterwards
//! every byte the operator had no right to write is compared with what it was.

use plimsoll_graph::ops::{Add, Dropout, InnerDropout};
use plimsoll_graph::{Alias, DType, Io, Op, OpRule, Phase, Value, ValueId};
use plimsoll_plan::{Buffer, Lane, Place, Region, Step};
use plimsoll_runtime::{Active, Backend, RuntimeError};

use crate::Tensor;
use crate::reference::{Array, MaskSource};
use crate::rounding::SIXTEEN;

const CASE_BYTES_MAX: usize = 80 << 20;
/// Addresses of buffers are multiples of this, as in plans; libraries count on it.
const ALIGN: usize = plimsoll_plan::lifetimes::ALIGNMENT;
/// At least this much lies between two buffers.
const GUARD_BYTES: usize = 256;
/// Fills what belongs to no buffer. Not a number as f32, f64 and, in its upper half, as bf16 and f16, and a
/// negative index.
const GUARD_WORD: u32 = 0xFFF5_A5A5;
/// Fills results and scratch. Not a number either.
const POISON_BYTE: u8 = 0xFF;

/// Where the buffers of one run lie.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Placement {
    /// The permitted aliases that are taken, as (output, input).
    pub shared: Vec<(usize, usize)>,
    /// Moves everything up, in steps of the alignment.
    pub shift: usize,
}

/// Every way to place an operator's outputs: apart, and with each set of permitted aliases that do
/// not contradict each other.
pub fn placements(op: &Op, inputs: &[Tensor]) -> Vec<Placement> {
    let outputs = describe(op, inputs).1;
    let mut sets: Vec<Vec<(usize, usize)>> = vec![Vec::new()];
    for alias in op.aliases() {
        if let Alias::May { output, input } = alias {
            assert_eq!(outputs[output].bytes(), inputs[input].value().bytes(), "{}: alias of another size", op.name());
            let compatible = |set: &&Vec<(usize, usize)>| set.iter().all(|&(o, i)| o != output && i != input);
            let grown: Vec<_> =
                sets.iter().filter(compatible).map(|set| [&set[..], &[(output, input)]].concat()).collect();
            sets.extend(grown);
        }
    }
    sets.into_iter().map(|shared| Placement { shared, shift: 0 }).collect()
}

/// One backend with its arena.
pub struct Harness {
    backend: Box<dyn Backend>,
    arena_bytes: usize,
    stores_sixteen: bool,
}

impl Harness {
    pub fn new(mut backend: Box<dyn Backend>) -> Self {
        let arena_bytes = CASE_BYTES_MAX + backend.traits().matmul_workspace_bytes;
        backend.allocate(arena_bytes).expect("a small arena");
        let stored = SIXTEEN.map(|format| stores(backend.as_mut(), format));
        assert_eq!(stored[0], stored[1], "{} has one of the sixteen-bit types only", backend.name());
        Self { backend, arena_bytes, stores_sixteen: stored[0] }
    }

    /// Whether this backend has the sixteen-bit types at all. One that has must run every case.
    pub fn stores_sixteen(&self) -> bool {
        self.stores_sixteen
    }

    pub fn name(&self) -> String {
        format!("{} ({} workers)", self.backend.name(), self.backend.traits().workers)
    }

    /// Runs the operator and gives its outputs, rows that are not in use included.
    pub fn run(&mut self, op: &Op, inputs: &[Tensor], active: Active, placement: &Placement) -> Vec<Tensor> {
        let (input_values, output_values) = describe(op, inputs);
        let io = Io { inputs: input_values.iter().collect(), outputs: output_values.iter().collect() };
        let workspace_bytes = op.workspace_bytes(&io, &self.backend.traits());
        let layout = Layout::new(op, &io, workspace_bytes, placement);
        let before = layout.image(inputs, active);
        let whole = Region { place: Place::Device, offset: 0, bytes: before.len() };
        assert!(before.len() <= self.arena_bytes, "{}: the case needs {} bytes", op.name(), before.len());

        self.backend.write(whole, &before).expect("inputs written");
        let step = layout.step(op, &io);
        if let Err(error) = self.backend.run(&step, active) {
            panic!("{} on {}: {error}", op.name(), self.name());
        }
        self.backend.synchronize().expect("synchronized");
        let mut after = vec![0; before.len()];
        self.backend.read(whole, &mut after).expect("outputs read");

        if let Some(offset) = layout.stray_write(&before, &after) {
            let place = layout.describe(offset);
            panic!("{} on {} wrote where it must not: {place} ({placement:?})", op.name(), self.name());
        }
        let bytes = |region: &Region| &after[region.offset..region.end()];
        output_values.iter().zip(&layout.outputs).map(|(v, region)| Tensor::from_bytes(v, bytes(region))).collect()
    }

    /// Which elements this backend's dropout keeps, one row for each id.
    pub fn keep(&mut self, dropout: InnerDropout, row_ids: &[u32], key: [u32; 4], cols: usize) -> Vec<bool> {
        let rows = row_ids.len();
        let ones = Tensor::tokens(rows, cols, vec![1.0; rows * cols]);
        let inputs = [ones, Tensor::row_ids(row_ids.to_vec()), Tensor::rng_key(key)];
        let op = Dropout { p: dropout.p, site: dropout.site }.into();
        let active = Active::one(rows, 1);
        let outputs = self.run(&op, &inputs, active, &Placement::default());
        outputs[0].f32s().iter().map(|&x| x != 0.0).collect()
    }
}

/// The mask is the backend's own choice; what must hold is that every operator uses the same one,
/// so the reference asks for it.
impl MaskSource for Harness {
    fn keep(&mut self, dropout: InnerDropout, row_ids: &Array, key: &Array, cols: usize) -> Vec<bool> {
        let ids: Vec<u32> = row_ids.data.iter().map(|&x| x as u32).collect();
        let key = [0, 1, 2, 3].map(|i| key.data[i] as u32);
        Harness::keep(self, dropout, &ids, key, cols)
    }
}

/// Whether a backend can add two numbers of a type.
fn stores(backend: &mut dyn Backend, dtype: DType) -> bool {
    let ones = Tensor::tokens(1, 8, vec![1.0; 8]).stored(dtype);
    let (op, inputs, active) = (Add.into(), [ones.clone(), ones], Active::one(1, 1));
    let (input_values, output_values) = describe(&op, &inputs);
    let io = Io { inputs: input_values.iter().collect(), outputs: output_values.iter().collect() };
    let layout = Layout::new(&op, &io, 0, &Placement::default());
    let image = layout.image(&inputs, active);
    let whole = Region { place: Place::Device, offset: 0, bytes: image.len() };
    backend.write(whole, &image).expect("inputs written");
    match backend.run(&layout.step(&op, &io), active) {
        Ok(()) => true,
        Err(RuntimeError::Unsupported { .. }) => false,
        Err(error) => panic!("adding {} on {}: {error}", dtype.name(), backend.name()),
    }
}

fn describe(op: &Op, inputs: &[Tensor]) -> (Vec<Value>, Vec<Value>) {
    let input_values: Vec<Value> = inputs.iter().map(Tensor::value).collect();
    let references: Vec<&Value> = input_values.iter().collect();
    let output_values = op.outputs(&references).unwrap_or_else(|error| panic!("the case is wrong: {error}"));
    (input_values, output_values)
}

struct Layout {
    inputs: Vec<Region>,
    outputs: Vec<Region>,
    workspace: Option<Region>,
    end: usize,
}

impl Layout {
    fn new(op: &Op, io: &Io, workspace_bytes: usize, placement: &Placement) -> Self {
        let mut end = ALIGN * placement.shift;
        let mut place = |bytes: usize| {
            let offset = (end + GUARD_BYTES).next_multiple_of(ALIGN);
            end = offset + bytes;
            Region { place: Place::Device, offset, bytes }
        };
        let inputs: Vec<Region> = io.inputs.iter().map(|v| place(v.bytes())).collect();
        let must = op.aliases().into_iter().filter_map(|alias| match alias {
            Alias::Must { output, input } => Some((output, input)),
            Alias::May { .. } => None,
        });
        let shared: Vec<(usize, usize)> = must.chain(placement.shared.iter().copied()).collect();
        let outputs = (0..io.outputs.len())
            .map(|output| match shared.iter().find(|(o, _)| *o == output) {
                Some(&(_, input)) => inputs[input],
                None => place(io.outputs[output].bytes()),
            })
            .collect();
        let workspace = (workspace_bytes > 0).then(|| place(workspace_bytes));
        let end = (end + GUARD_BYTES).next_multiple_of(ALIGN);
        Self { inputs, outputs, workspace, end }
    }

    /// The arena's content before the run.
    fn image(&self, inputs: &[Tensor], active: Active) -> Vec<u8> {
        let mut image = GUARD_WORD.to_le_bytes().repeat(self.end / 4);
        for region in self.outputs.iter().chain(&self.workspace) {
            image[region.offset..region.end()].fill(POISON_BYTE);
        }
        for (tensor, region) in inputs.iter().zip(&self.inputs) {
            image[region.offset..region.end()].copy_from_slice(&tensor.poisoned_bytes(active));
        }
        image
    }

    fn step(&self, op: &Op, io: &Io) -> Step {
        let inputs = self.inputs.iter().zip(&io.inputs).enumerate().map(|(i, (r, v))| buffer(i, *r, v)).collect();
        let first = io.inputs.len();
        let outputs = self.outputs.iter().zip(&io.outputs).enumerate().map(|(i, (r, v))| buffer(first + i, *r, v));
        Step {
            op: op.clone(),
            inputs,
            outputs: outputs.collect(),
            workspace: self.workspace,
            lane: Lane::Compute,
            phase: Phase::Forward,
            layer: None,
            after: Vec::new(),
            frees: Vec::new(),
        }
    }

    /// The first byte outside outputs and workspace that changed: a guard band, or an input.
    fn stray_write(&self, before: &[u8], after: &[u8]) -> Option<usize> {
        let mut expected = before.to_vec();
        for region in self.outputs.iter().chain(&self.workspace) {
            expected[region.offset..region.end()].copy_from_slice(&after[region.offset..region.end()]);
        }
        if expected == after {
            return None;
        }
        expected.iter().zip(after).position(|(e, a)| e != a)
    }

    /// An offset in words, relative to the buffer before it.
    fn describe(&self, offset: usize) -> String {
        let inputs = self.inputs.iter().enumerate().map(|(i, r)| (format!("input {i}"), *r));
        let outputs = self.outputs.iter().enumerate().map(|(i, r)| (format!("output {i}"), *r));
        let workspace = self.workspace.iter().map(|r| ("workspace".to_owned(), *r));
        let before = inputs.chain(outputs).chain(workspace).filter(|(_, r)| r.offset <= offset);
        match before.max_by_key(|(_, r)| r.offset) {
            Some((name, r)) => format!("byte {} of {name}, which has {}", offset - r.offset, r.bytes),
            None => "before the first buffer".to_owned(),
        }
    }
}

fn buffer(index: usize, region: Region, value: &Value) -> Buffer {
    Buffer {
        value: ValueId(index as u32),
        slot: None,
        region,
        shape: value.shape,
        storage: value.storage,
        extent: value.extent,
    }
}
