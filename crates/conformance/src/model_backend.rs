//! A backend made of the reference itself, with faults on request: it shows that the suite lets a
//! right backend pass and catches the wrong ones.

use half::{bf16, f16};
use plimsoll_graph::ops::InnerDropout;
use plimsoll_graph::{BackendTraits, BlockFormat, DType, Op, OpRule, Scales};
use plimsoll_plan::{Buffer, Region, Step};
use plimsoll_runtime::{Active, Backend, RuntimeError};

use crate::reference::{self, Array, MaskSource};
use crate::{Random, Tensor};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Writes one element past the last output.
    WritesBeyond,
    /// Leaves a mark in its first input.
    ChangesInput,
    /// Computes with rows that are not in use.
    ReadsInactiveRows,
    /// The last bit depends on the address.
    FollowsAddress,
    /// Off by a little in one entry.
    Imprecise,
    /// Does not write its last entry.
    LeavesGap,
    /// Drops the bits that sixteen have no room for instead of rounding.
    CutsOff,
    /// Takes the lower half of a byte for the first of its two codes.
    SwapsCodes,
    /// Leaves the offsets of nested scales out.
    ForgetsOffsets,
    /// Multiplies rows as they are with codes of e4m3.
    KeepsRows,
}

pub struct ModelBackend {
    arena: Vec<u8>,
    fault: Fault,
}

impl ModelBackend {
    pub fn new(fault: Fault) -> Self {
        Self { arena: Vec::new(), fault }
    }

    fn tensor(&self, buffer: &Buffer) -> Tensor {
        let mut bytes = self.arena[buffer.region.offset..buffer.region.end()].to_vec();
        if let Some(format) = buffer.storage.blocks {
            self.spoil_codes(format, buffer.shape.elements(), &mut bytes);
        }
        Tensor::from_bytes(&value(buffer), &bytes)
    }

    fn spoil_codes(&self, format: BlockFormat, elements: usize, bytes: &mut [u8]) {
        if self.fault == Fault::SwapsCodes && format.code.bits() == 4 {
            bytes[..elements / 2].iter_mut().for_each(|byte| *byte = byte.rotate_left(4));
        }
        if self.fault == Fault::ForgetsOffsets && format.scales == Scales::Nested {
            let pairs = &mut bytes[format.nested_at(elements).expect("a small tensor")..];
            pairs.as_chunks_mut::<8>().0.iter_mut().for_each(|pair| pair[4..].fill(0));
        }
    }

    fn store(&mut self, buffer: &Buffer, index: usize, number: f64) {
        let at = buffer.region.offset + index * buffer.dtype().bytes();
        let cut = self.fault == Fault::CutsOff;
        match buffer.dtype() {
            DType::F64 => self.arena[at..at + 8].copy_from_slice(&number.to_le_bytes()),
            DType::BF16 => self.arena[at..at + 2].copy_from_slice(&nearest(number, cut, bf16::from_f64).to_le_bytes()),
            DType::F16 => self.arena[at..at + 2].copy_from_slice(&nearest(number, cut, f16::from_f64).to_le_bytes()),
            DType::I32 => self.arena[at..at + 4].copy_from_slice(&(number as i32).to_le_bytes()),
            DType::U32 => self.arena[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes()),
            _ => self.arena[at..at + 4].copy_from_slice(&(number as f32).to_le_bytes()),
        }
    }

    fn spoil(&mut self, step: &Step, results: &mut [Array]) {
        let (first, last) = (&step.inputs[0], step.outputs.last().expect("an output"));
        let numbers = &mut results.last_mut().expect("a result").data;
        let Some(number) = numbers.last_mut() else { return };
        match self.fault {
            Fault::None | Fault::ReadsInactiveRows | Fault::LeavesGap | Fault::CutsOff => {}
            Fault::SwapsCodes | Fault::ForgetsOffsets | Fault::KeepsRows => {}
            Fault::WritesBeyond => self.arena[last.region.end()] ^= 1,
            Fault::ChangesInput => self.arena[first.region.offset] ^= 1,
            Fault::FollowsAddress => *number *= 1.0 + (last.region.offset / 64 % 8) as f64 * 1e-7,
            Fault::Imprecise => *number += 1e-4,
        }
    }
}

/// The nearest number of a type; with `cut`, the one before it where it lies beyond.
fn nearest<T: Into<f64> + Copy>(number: f64, cut: bool, round: fn(f64) -> T) -> T {
    let nearest = round(number);
    let beyond = cut && nearest.into().abs() > number.abs();
    let mut step = number - nearest.into();
    let mut other = nearest;
    while beyond && step != 0.0 && other.into() == nearest.into() {
        step *= 2.0;
        other = round(nearest.into() + step);
    }
    other
}

/// The description a buffer was made from, as far as it matters.
fn value(buffer: &Buffer) -> plimsoll_graph::Value {
    plimsoll_graph::Value {
        name: String::new(),
        shape: buffer.shape,
        storage: buffer.storage,
        role: plimsoll_graph::Role::Activation,
        extent: buffer.extent,
        layer: None,
        class: plimsoll_graph::Class::NONE,
        slot: None,
    }
}

/// Draws each element from its own seed.
struct Masks;

impl MaskSource for Masks {
    fn keep(&mut self, dropout: InnerDropout, row_ids: &Array, key: &Array, cols: usize) -> Vec<bool> {
        let mut seed = u64::from(dropout.site);
        for word in &key.data {
            seed = Random::new(seed ^ *word as u64).next_u64();
        }
        let limit = 2.0 * f64::from(dropout.p) - 1.0;
        let unit = |id: f64, col: usize| Random::new(Random::new(seed ^ id as u64).next_u64() ^ col as u64).unit();
        row_ids.data.iter().flat_map(|&id| (0..cols).map(move |col| unit(id, col) >= limit)).collect()
    }
}

impl Backend for ModelBackend {
    fn name(&self) -> &str {
        "model"
    }

    fn traits(&self) -> BackendTraits {
        BackendTraits { workers: 1, partial_rows: 0, matmul_workspace_bytes: 0, multiplies_codes: false }
    }

    fn allocate(&mut self, bytes: usize) -> Result<(), RuntimeError> {
        self.arena = vec![0; bytes];
        Ok(())
    }

    fn run(&mut self, step: &Step, active: Active) -> Result<(), RuntimeError> {
        let read = match self.fault {
            Fault::ReadsInactiveRows => Active::one(step.inputs[0].shape.rows(), active.streams.main().sequences),
            _ => active,
        };
        let inputs: Vec<Array> = step.inputs.iter().map(|b| self.tensor(b).array(read)).collect();
        let mut op = step.op.clone();
        if let (Op::Linear(linear), Fault::KeepsRows) = (&mut op, self.fault) {
            linear.fp8 = false;
        }
        let mut results = reference::evaluate(&op, &inputs.iter().collect::<Vec<_>>(), &mut Masks);
        self.spoil(step, &mut results);
        for (buffer, result) in step.outputs.iter().zip(&results) {
            let written = result.data.len() - usize::from(self.fault == Fault::LeavesGap && !result.data.is_empty());
            for (index, &number) in result.data[..written].iter().enumerate() {
                self.store(buffer, index, number);
            }
        }
        if step.outputs.is_empty() {
            return Err(RuntimeError::Step { step: 0, op: step.op.name(), reason: "it has no outputs".into() });
        }
        Ok(())
    }

    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.arena[region.offset..region.end()].copy_from_slice(bytes);
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
