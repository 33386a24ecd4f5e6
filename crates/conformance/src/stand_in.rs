//! Sixteen bits without a card: values are stored as asked, arithmetic is the CPU backend's in float32, and every
//! result is rounded once, stochastically where an optimizer does so. It shows that the cases are sound and the tolerances
//! within reach; it proves nothing about the kernels of a card, so it steps back where a card was asked for.

use half::{bf16, f16};
use plimsoll_cpu::CpuBackend;
use plimsoll_graph::ops::{Adafactor, AdamW, Embed, Lion, Muon, Sgd};
use plimsoll_graph::{BackendTraits, DType, Op, Storage};
use plimsoll_plan::lifetimes::ALIGNMENT;
use plimsoll_plan::{Buffer, Place, Region, Step};
use plimsoll_runtime::{Active, Backend, RuntimeError};

use crate::{Blocks, Random};

pub struct StandIn {
    arena: Vec<u8>,
    inner: CpuBackend,
    inner_bytes: usize,
}

impl StandIn {
    pub fn new() -> Self {
        Self { arena: Vec::new(), inner: CpuBackend::new(Some(2)), inner_bytes: 0 }
    }

    /// The buffer's bytes with sixteen-bit numbers as float32. A weight in few bits is decoded and rounded here, where the
    /// step that is run takes it so.
    fn widened(&self, buffer: &Buffer, wide: &Buffer) -> Vec<u8> {
        let bytes = &self.arena[buffer.region.offset..buffer.region.end()];
        if buffer.storage.blocks.is_some() && wide.storage.blocks.is_none() {
            let numbers = Blocks::from_bytes(buffer.storage, buffer.shape.elements(), bytes).numbers();
            return numbers.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
        }
        let pairs = bytes.as_chunks().0.iter();
        match buffer.dtype() {
            _ if buffer.storage.blocks.is_some() => bytes.to_vec(),
            DType::BF16 => pairs.flat_map(|&x| bf16::from_le_bytes(x).to_f32().to_le_bytes()).collect(),
            DType::F16 => pairs.flat_map(|&x| f16::from_le_bytes(x).to_f32().to_le_bytes()).collect(),
            _ => bytes.to_vec(),
        }
    }

    /// Puts a result back where it belongs, rounded to its type.
    fn store(&mut self, buffer: &Buffer, wide: &[u8], stochastic: bool) {
        let floats = wide.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).enumerate();
        let rounded = floats.map(|(index, x)| if stochastic { chosen(x, buffer.dtype(), index) } else { x });
        let low_rank: Vec<u8> = match buffer.dtype() {
            _ if buffer.storage.blocks.is_some() => wide.to_vec(),
            DType::BF16 => rounded.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
            DType::F16 => rounded.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
            _ => wide.to_vec(),
        };
        self.arena[buffer.region.offset..buffer.region.end()].copy_from_slice(&low_rank);
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), RuntimeError> {
        if bytes > self.inner_bytes {
            self.inner_bytes = bytes.next_power_of_two();
            self.inner.allocate(self.inner_bytes)?;
        }
        Ok(())
    }
}

impl Default for StandIn {
    fn default() -> Self {
        Self::new()
    }
}

/// One of the two neighbours of a number, the nearer one the more often; drawn from its place and its bits.
fn chosen(x: f32, dtype: DType, index: usize) -> f32 {
    let (nearest, number): (u16, fn(u16) -> f32) = match dtype {
        DType::BF16 => (bf16::from_f32(x).to_bits(), |bits| bf16::from_bits(bits).to_f32()),
        DType::F16 => (f16::from_f32(x).to_bits(), |bits| f16::from_bits(bits).to_f32()),
        _ => return x,
    };
    // One bit less is one step towards zero.
    let inner = if number(nearest).abs() > x.abs() { nearest - 1 } else { nearest };
    let (low, high) = (number(inner), number(inner.wrapping_add(1)));
    let draw = 0.5 + 0.5 * Random::new(index as u64 ^ u64::from(x.to_bits()) << 32).unit() as f32;
    if draw < (x - low) / (high - low) { high } else { low }
}

/// Of an update, whether there is a master copy.
fn master_of(op: &mut Op) -> Option<&mut bool> {
    match op {
        Op::AdamW(AdamW { master, .. })
        | Op::Sgd(Sgd { master, .. })
        | Op::Lion(Lion { master, .. })
        | Op::Muon(Muon { master, .. })
        | Op::Adafactor(Adafactor { master, .. }) => Some(master),
        _ => None,
    }
}

/// Whether a result is rounded stochastically: what gathers small steps, unless a master copy gathers them.
fn stochastic(op: &Op, output: usize) -> bool {
    master_of(&mut op.clone()).is_some_and(|master| output > 0 || !*master)
}

fn wide_type(dtype: DType) -> DType {
    if dtype.bytes() == 2 { DType::F32 } else { dtype }
}

/// The same step in float32, laid out anew, and its end. What shares memory goes on sharing it.
fn widen(step: &Step) -> (Step, usize) {
    let mut places: Vec<(usize, Region)> = Vec::new();
    let mut end = 0;
    let mut place = |at: usize, bytes: usize| match places.iter().find(|(outer, _)| *outer == at) {
        Some(&(_, region)) => region,
        None => {
            let region = Region { place: Place::Device, offset: end, bytes };
            end = (end + bytes).next_multiple_of(ALIGNMENT);
            places.push((at, region));
            region
        }
    };
    let codes = match &step.op {
        Op::Linear(linear) => linear.fp8,
        op => matches!(op, Op::RoundRows(_) | Op::WidenRows(_)),
    };
    let mut widen_buffer = |buffer: &Buffer| {
        let dtype = wide_type(buffer.dtype());
        // Codes that are multiplied or kept are those of any type.
        let blocks = buffer.storage.blocks.filter(|_| codes || dtype == buffer.dtype());
        let (bytes, decoded) = (buffer.region.bytes, buffer.shape.elements() * dtype.bytes());
        let bytes = match (buffer.storage.blocks, blocks) {
            (Some(_), Some(_)) => bytes,
            (Some(_), None) => decoded,
            _ => bytes / buffer.dtype().bytes() * dtype.bytes(),
        };
        let storage = Storage { element: dtype, blocks };
        Buffer { region: place(buffer.region.offset, bytes), storage, ..*buffer }
    };
    let inputs = step.inputs.iter().map(&mut widen_buffer).collect();
    let outputs = step.outputs.iter().map(&mut widen_buffer).collect();
    // Scratch may hold sixteen-bit numbers too.
    let workspace = step.workspace.map(|region| place(region.offset, 2 * region.bytes));
    let op = match &step.op {
        Op::Embed(embed) => Embed { dtype: wide_type(embed.dtype), ..embed.clone() }.into(),
        op => op.clone(),
    };
    (Step { op, inputs, outputs, workspace, ..step.clone() }, end)
}

/// An update with a master copy is, in float32, the same update of that copy.
fn without_master(step: &Step) -> Step {
    let mut step = step.clone();
    if master_of(&mut step.op).is_some_and(std::mem::take) {
        step.inputs.swap_remove(0);
        step.outputs.swap_remove(0);
    }
    step
}

impl Backend for StandIn {
    fn name(&self) -> &str {
        "cpu storing sixteen bits"
    }

    fn traits(&self) -> BackendTraits {
        self.inner.traits()
    }

    fn allocate(&mut self, bytes: usize) -> Result<(), RuntimeError> {
        self.arena = vec![0; bytes];
        Ok(())
    }

    fn run(&mut self, step: &Step, active: Active) -> Result<(), RuntimeError> {
        let (wide, end) = widen(step);
        self.reserve(end)?;
        let buffers = |step: &Step| step.outputs.iter().chain(&step.inputs).copied().collect::<Vec<_>>();
        for (outer, inner) in buffers(step).iter().zip(buffers(&wide)) {
            let bytes = self.widened(outer, &inner);
            self.inner.write(inner.region, &bytes)?;
        }
        let run = without_master(&wide);
        self.inner.run(&run, active)?;
        // Where there was a master copy, the parameter is read from it.
        let results = run.outputs[..1].iter().chain(&wide.outputs[1..]);
        for (index, (outer, inner)) in step.outputs.iter().zip(results).enumerate() {
            let mut bytes = vec![0; inner.region.bytes];
            self.inner.read(inner.region, &mut bytes)?;
            self.store(outer, &bytes, stochastic(&step.op, index));
        }
        Ok(())
    }

    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.arena[region.offset..region.offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, region: Region, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        bytes.copy_from_slice(&self.arena[region.offset..region.end()]);
        Ok(())
    }

    fn host_bytes(&mut self, region: Region) -> Option<&mut [u8]> {
        Some(&mut self.arena[region.offset..region.end()])
    }
}
