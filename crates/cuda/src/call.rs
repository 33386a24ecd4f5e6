//! One step on the device: its operands resolved to addresses, and a way to launch kernels.

use plimsoll_graph::{DType, OpRule};
use plimsoll_plan::{Buffer, Step};
use plimsoll_runtime::{Active, RuntimeError};

use crate::device::Device;

/// One step about to run. Its regions were checked against the arena when it was made.
pub(crate) struct Call<'a> {
    pub step: &'a Step,
    pub active: Active,
    pub(crate) device: &'a Device,
}

/// A row-major buffer at its address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand {
    pub ptr: u64,
    /// Rows in use.
    pub rows: usize,
    /// Rows as planned, whether in use or not.
    pub planned_rows: usize,
    pub cols: usize,
    pub dtype: DType,
}

impl Operand {
    /// Elements in use.
    pub(crate) fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// Bytes in use.
    pub(crate) fn bytes(&self) -> usize {
        self.len() * self.dtype.bytes()
    }

    /// The address of an element.
    pub(crate) fn at(&self, row: usize, col: usize) -> u64 {
        self.ptr + ((row * self.cols + col) * self.dtype.bytes()) as u64
    }
}

impl<'a> Call<'a> {
    /// Checks that every region lies in the arena and holds its active rows.
    pub(crate) fn new(step: &'a Step, active: Active, device: &'a Device) -> Result<Self, RuntimeError> {
        let call = Self { step, active, device };
        for buffer in step.inputs.iter().chain(&step.outputs) {
            device.locate(buffer.region)?;
            let rows = active.rows(buffer);
            let bytes = match buffer.storage.blocks {
                None => rows * buffer.shape.cols() * buffer.dtype().bytes(),
                Some(_) => buffer.storage.bytes(&buffer.shape).map_err(|error| call.error(error))?,
            };
            if rows > buffer.shape.rows() || bytes > buffer.region.bytes {
                return Err(call.error(format!(
                    "{rows} rows do not fit value {} of shape {} in {} bytes",
                    buffer.value.0, buffer.shape, buffer.region.bytes
                )));
            }
        }
        if let Some(scratch) = step.workspace {
            device.locate(scratch)?;
        }
        Ok(call)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.step.op.name()
    }

    pub(crate) fn error(&self, reason: impl std::fmt::Display) -> RuntimeError {
        RuntimeError::Device { reason: format!("{}: {reason}", self.name()) }
    }

    /// There is no kernel for this type.
    pub(crate) fn unsupported(&self, dtype: DType) -> RuntimeError {
        RuntimeError::Unsupported { device: self.device.name().to_owned(), op: self.name(), dtype: dtype.name() }
    }

    /// How kernel names spell the storage type that all of the operands have.
    pub(crate) fn suffix_of(&self, operands: &[Operand]) -> Result<&'static str, RuntimeError> {
        let dtype = operands[0].dtype;
        match operands.iter().find(|operand| operand.dtype != dtype) {
            Some(other) => Err(self.error(format!("has no kernel for {} with {}", dtype.name(), other.dtype.name()))),
            None => type_suffix(dtype).ok_or_else(|| self.unsupported(dtype)),
        }
    }

    pub(crate) fn input(&self, index: usize) -> Operand {
        self.operand(&self.step.inputs[index])
    }

    pub(crate) fn output(&self, index: usize) -> Operand {
        self.operand(&self.step.outputs[index])
    }

    fn operand(&self, buffer: &Buffer) -> Operand {
        Operand {
            ptr: self.device.address(buffer.region),
            rows: self.active.rows(buffer),
            planned_rows: buffer.shape.rows(),
            cols: buffer.shape.cols(),
            dtype: buffer.dtype(),
        }
    }

    /// Address and bytes of the step's scratch; (0, 0) if it has none.
    pub(crate) fn workspace(&self) -> (u64, usize) {
        self.step.workspace.map_or((0, 0), |region| (self.device.address(region), region.bytes))
    }

    /// Queues a kernel of `kernels/{module}.cu` on the compute stream. A grid with an empty side does nothing.
    pub(crate) fn launch(
        &self,
        module: &'static str,
        kernel: &str,
        grid: (u32, u32, u32),
        block: u32,
        shared_bytes: u32,
        args: Args,
    ) -> Result<(), RuntimeError> {
        self.device.launch(module, kernel, grid, block, shared_bytes, args).map_err(|error| self.error(error))
    }

    /// Multiprocessors of the card.
    pub(crate) fn sm_count(&self) -> u32 {
        self.device.sm_count()
    }

    pub(crate) fn compute_capability(&self) -> (u32, u32) {
        self.device.compute_capability()
    }

    /// Queues a copy inside the arena on the compute stream; the two places must not overlap.
    pub(crate) fn copy(&self, dst: u64, src: u64, bytes: usize) -> Result<(), RuntimeError> {
        self.device.copy(dst, src, bytes).map_err(|error| self.error(error))
    }

    /// Queues the zeroing of bytes on the compute stream.
    pub(crate) fn zero(&self, dst: u64, bytes: usize) -> Result<(), RuntimeError> {
        self.device.fill(dst, 0, bytes).map_err(|error| self.error(error))
    }

    /// Makes the output hold the input's rows, unless it already is the input.
    pub(crate) fn carry_over(&self, from: &Operand, to: &Operand) -> Result<(), RuntimeError> {
        if from.ptr == to.ptr { Ok(()) } else { self.copy(to.ptr, from.ptr, to.bytes()) }
    }
}

/// The storage type as kernel names spell it; `None` for types no kernel computes on.
pub(crate) fn type_suffix(dtype: DType) -> Option<&'static str> {
    matches!(dtype, DType::F32 | DType::BF16 | DType::F16).then(|| dtype.name())
}

/// The suffix of kernels over tokens of one type and parameters of that or of float32.
pub(crate) fn two_types(call: &Call, tokens: DType, parameter: DType) -> Result<String, RuntimeError> {
    let known = type_suffix(tokens).is_some() && (parameter == tokens || parameter == DType::F32);
    if !known {
        return Err(call.unsupported(parameter));
    }
    Ok(format!("{}_{}", tokens.name(), parameter.name()))
}

const ARGS_MAX: usize = 40;

/// A kernel's arguments, in order.
#[derive(Debug, Clone)]
pub(crate) struct Args {
    /// Each in the low bytes of a word; the driver reads as many as the kernel's parameter has.
    words: [u64; ARGS_MAX],
    count: usize,
    /// A struct passed by value before all others, as large as the kernel's; empty if there is none.
    table: Vec<u64>,
}

impl Default for Args {
    fn default() -> Self {
        Self::new()
    }
}

impl Args {
    pub(crate) fn new() -> Self {
        Self { words: [0; ARGS_MAX], count: 0, table: Vec::new() }
    }

    /// Arguments that begin with a table: `rows_max` rows by value, of which those beyond `rows` are zero.
    pub(crate) fn with_table<const WORDS: usize>(rows: &[[u64; WORDS]], rows_max: usize) -> Self {
        assert!(rows.len() <= rows_max, "{} rows in a table of {rows_max}", rows.len());
        let mut table = rows.as_flattened().to_vec();
        table.resize(rows_max * WORDS, 0);
        Self { table, ..Self::new() }
    }

    fn push(mut self, word: u64) -> Self {
        assert!(self.count < ARGS_MAX, "a kernel takes at most {ARGS_MAX} arguments");
        self.words[self.count] = word;
        self.count += 1;
        self
    }

    pub(crate) fn ptr(self, address: u64) -> Self {
        self.push(address)
    }

    pub(crate) fn i32(self, value: i32) -> Self {
        self.push(u64::from(value as u32))
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.push(u64::from(value))
    }

    pub(crate) fn f32(self, value: f32) -> Self {
        self.push(u64::from(value.to_bits()))
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.push(value)
    }

    /// Whether there is an argument for each of a kernel's parameters, at least as large: the driver reads through
    /// pointers to them without asking.
    pub(crate) fn suffice(&self, parameters: &[usize]) -> bool {
        let table = (!self.table.is_empty()).then_some(size_of_val(self.table.as_slice()));
        let sizes: Vec<usize> = table.into_iter().chain(self.words[..self.count].iter().map(size_of_val)).collect();
        parameters.len() <= sizes.len() && parameters.iter().zip(&sizes).all(|(parameter, size)| parameter <= size)
    }

    /// Pointers to the arguments, as the driver takes them.
    pub(crate) fn pointers(&mut self) -> Vec<*mut std::ffi::c_void> {
        let table = (!self.table.is_empty()).then(|| self.table.as_mut_ptr().cast());
        table
            .into_iter()
            .chain(self.words[..self.count].iter_mut().map(|word| std::ptr::from_mut(word).cast()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_must_suffice_for_the_parameters() {
        let two = Args::new().ptr(16).i32(3);
        for enough in [&[8, 4][..], &[8, 8], &[8], &[]] {
            assert!(two.suffice(enough), "{enough:?}");
        }
        for lacking in [&[8, 4, 4][..], &[16, 4], &[8, 128]] {
            assert!(!two.suffice(lacking), "{lacking:?}");
        }
        let table = Args::with_table(&[[1, 2, 3]], 4).f32(1.0);
        assert!(table.suffice(&[96, 4]));
        assert!(!table.suffice(&[97, 4]));
    }
}
