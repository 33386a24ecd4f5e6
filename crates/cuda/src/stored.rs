//! Products with a frozen weight in few bits, a part of it after the other. A part is columns of the result, so that no sum
//! is divided: each is decoded into scratch and multiplied, or its codes are multiplied by rows that are rounded (`fp8`).

use std::ops::Range;

use plimsoll_graph::ops::{DecodedScratch, Dest, Linear, LinearKind, decoded_parts};
use plimsoll_graph::{BackendTraits, Class, Role, Value};
use plimsoll_plan::Buffer;
use plimsoll_runtime::RuntimeError;

use crate::blas::{Bias, Factor, Onto, Product};
use crate::call::{Call, Operand, type_suffix};
use crate::decode::StoredWeight;
use crate::linear::{add_bias, first_col, multiply};
use crate::{few_rows, fp8};

/// Whether the operator's weight is stored in few bits.
pub(crate) fn is_stored(op: &Linear, call: &Call) -> bool {
    op.kind != LinearKind::WeightGrad && call.step.inputs[1].storage.blocks.is_some()
}

/// `y = onto + α·x·Wᵀ + b`, or `dx = onto + α·dy·W`.
pub(crate) fn linear(op: &Linear, call: &Call) -> Result<(), RuntimeError> {
    let product = StoredProduct::new(op, call)?;
    if let Some(at) = op.dest_input() {
        call.carry_over(&call.input(at), &product.result)?;
    }
    if product.left.rows == 0 {
        return Ok(());
    }
    if op.fp8 {
        return fp8::run(&product);
    }
    few_rows::run_coded(&product).unwrap_or_else(|| product.decoded())
}

/// One product, whatever its kind: rows of `left`, and parts of the weight that are columns of `result`.
pub(crate) struct StoredProduct<'a> {
    pub op: &'a Linear,
    pub call: &'a Call<'a>,
    pub weight: StoredWeight,
    pub left: Operand,
    /// The first of the columns of `left` that are multiplied.
    pub left_first: usize,
    /// How long sums are.
    pub depth: usize,
    pub result: Operand,
    result_first: usize,
    pub scratch: Scratch,
}

/// The step's workspace: the product's own, and behind it what the operator planned.
pub(crate) struct Scratch {
    pub own: (u64, usize),
    /// A part of the weight.
    pub weight: u64,
    pub rows: u64,
    pub row_scales: u64,
}

impl Scratch {
    fn new(op: &Linear, call: &Call) -> Result<Self, RuntimeError> {
        let inputs = [0, 1].map(|index| value(&call.step.inputs[index]));
        let traits = BackendTraits { multiplies_codes: call.device.multiplies_codes(), ..BackendTraits::gpu() };
        let DecodedScratch { rows_at, row_scales_at, bytes, .. } = op.decoded_scratch(&inputs.each_ref(), &traits);
        let (start, planned) = call.workspace();
        let own_bytes = planned
            .checked_sub(bytes)
            .ok_or_else(|| call.error(format!("needs {bytes} bytes of workspace, {planned} were planned")))?;
        let weight = start + own_bytes as u64;
        Ok(Self {
            own: (start, own_bytes),
            weight,
            rows: weight + rows_at as u64,
            row_scales: weight + row_scales_at as u64,
        })
    }
}

/// What the planner knew of a buffer.
fn value(buffer: &Buffer) -> Value {
    Value {
        name: String::new(),
        shape: buffer.shape,
        storage: buffer.storage,
        role: Role::Input,
        extent: buffer.extent,
        layer: None,
        class: Class::NONE,
        slot: buffer.slot,
    }
}

impl<'a> StoredProduct<'a> {
    fn new(op: &'a Linear, call: &'a Call) -> Result<Self, RuntimeError> {
        let (left, weight, result) = (call.input(0), StoredWeight::input(call, 1)?, call.output(0));
        if left.dtype != weight.element || type_suffix(left.dtype).is_none() {
            let (left, weight) = (left.dtype.name(), weight.element.name());
            return Err(call.error(format!("cannot multiply {left} by a weight decoded to {weight}")));
        }
        let first = first_col(op.cols);
        let (left_first, depth, result_first) = match op.kind {
            LinearKind::Forward => (0, weight.cols(), first),
            _ => (first, weight.rows(), 0),
        };
        let scratch = Scratch::new(op, call)?;
        Ok(Self { op, call, weight, left, left_first, depth, result, result_first, scratch })
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        decoded_parts(self.op.kind, &self.weight.shape)
    }

    /// Columns of the result.
    pub(crate) fn across(&self) -> usize {
        if self.op.kind == LinearKind::Forward { self.weight.rows() } else { self.weight.cols() }
    }

    pub(crate) fn accumulates(&self) -> bool {
        match self.op.kind {
            LinearKind::Forward => self.op.dest == Dest::Accumulate,
            _ => self.op.dest_input().is_some(),
        }
    }

    /// The address of a row's first element of a part.
    pub(crate) fn result_at(&self, row: usize, part: &Range<usize>) -> u64 {
        self.result.at(row, self.result_first + part.start)
    }

    fn bias(&self) -> Option<Operand> {
        self.op.bias.then(|| self.call.input(2))
    }

    /// The bias of a part's columns, if it is of the result's type.
    pub(crate) fn bias_at(&self, part: &Range<usize>) -> Option<u64> {
        let bias = self.bias().filter(|bias| bias.dtype == self.result.dtype)?;
        Some(bias.ptr + (part.start * bias.dtype.bytes()) as u64)
    }

    /// Adds the bias of a part's columns to these rows, unless the product did.
    pub(crate) fn finish(&self, rows: &Range<usize>, part: &Range<usize>, done: Bias) -> Result<(), RuntimeError> {
        match self.bias() {
            Some(bias) if done == Bias::Left || bias.dtype != self.result.dtype => {
                let first = self.result_first + part.start;
                let result = Operand { ptr: self.result.at(rows.start, 0), rows: rows.len(), ..self.result };
                let of_part = Operand {
                    ptr: bias.ptr + (part.start * bias.dtype.bytes()) as u64,
                    rows: 1,
                    cols: part.len(),
                    ..bias
                };
                add_bias(self.call, &result, first, &of_part)
            }
            _ => Ok(()),
        }
    }

    /// A product of these rows with a part of the weight, factors and their type to be filled in.
    pub(crate) fn product(&self, rows: &Range<usize>, part: &Range<usize>, left: Factor, right: Factor) -> Product {
        let result = self.result_at(rows.start, part);
        Product {
            rows: rows.len(),
            cols: part.len(),
            depth: self.depth,
            alpha: self.op.alpha,
            left,
            right,
            dtype: self.left.dtype,
            result,
            result_stride: self.result.cols,
            result_dtype: self.result.dtype,
            // Sums are always made in place: see `linear`.
            onto: if self.accumulates() { Onto::Matrix(result) } else { Onto::Nothing },
            bias: self.bias_at(part),
        }
    }

    fn decoded(&self) -> Result<(), RuntimeError> {
        let rows = 0..self.left.rows;
        let left = Factor::new(self.left.at(0, self.left_first), self.left.cols);
        for part in self.parts() {
            self.weight.decode(self.call, self.op.kind, &part, self.scratch.weight)?;
            let right = match self.op.kind {
                LinearKind::Forward => Factor::new(self.scratch.weight, self.depth).transposed(),
                _ => Factor::new(self.scratch.weight, part.len()),
            };
            let done = multiply(self.call, &self.product(&rows, &part, left, right), self.scratch.own)?;
            self.finish(&rows, &part, done)?;
        }
        Ok(())
    }
}
