//! A step's regions as typed memory, checked against the arena.

use plimsoll_graph::{DType, OpRule};
use plimsoll_plan::{Buffer, Region, Step};
use plimsoll_runtime::codec::CodedWeight;
use plimsoll_runtime::{Active, RuntimeError};

use crate::arena::Arena;
use crate::backend::{DEVICE, device_error, locate};
use crate::product::{PackingRoom, packing_bytes};
use crate::workers::Workers;

/// One step about to run.
pub(crate) struct Call<'a> {
    pub step: &'a Step,
    pub active: Active,
    pub arena: &'a Arena,
    pub workers: &'a Workers,
}

/// An element type that buffers hold.
pub(crate) trait Element: Copy {
    const DTYPES: &'static [DType];
}

impl Element for f32 {
    const DTYPES: &'static [DType] = &[DType::F32];
}

impl Element for f64 {
    const DTYPES: &'static [DType] = &[DType::F64];
}

/// Ids may be kept signed or unsigned; their bits are the same.
impl Element for i32 {
    const DTYPES: &'static [DType] = &[DType::I32, DType::U32];
}

impl Element for u32 {
    const DTYPES: &'static [DType] = &[DType::U32, DType::I32];
}

/// The rows in use of a row-major buffer. It is a pointer, not a borrow: an output may be the same
/// memory as an input, and threads write to different rows of it.
#[derive(Clone, Copy)]
pub(crate) struct Rows<T> {
    start: *mut T,
    pub rows: usize,
    pub cols: usize,
}

pub(crate) type Matrix = Rows<f32>;

// SAFETY: kernels hand threads disjoint rows or columns to write.
unsafe impl<T> Send for Rows<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Rows<T> {}

impl<T: Element> Rows<T> {
    /// A local array, one element per row.
    pub(crate) fn of(elements: &mut [T]) -> Self {
        Self { start: elements.as_mut_ptr(), rows: elements.len(), cols: 1 }
    }

    /// A matrix that begins at an element of this one and lies in it.
    pub(crate) fn part(&self, first: usize, rows: usize, cols: usize) -> Self {
        debug_assert!(first + rows * cols <= self.len());
        Self { start: self.start.wrapping_add(first), rows, cols }
    }

    pub(crate) fn ptr(&self) -> *mut T {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// The address of a row; one past the last is allowed, to end a run.
    pub(crate) fn row(&self, row: usize) -> *mut T {
        debug_assert!(row <= self.rows);
        self.start.wrapping_add(row * self.cols)
    }

    /// # Safety
    /// Nobody may write to the elements while the slice lives.
    pub(crate) unsafe fn slice<'s>(&self) -> &'s [T] {
        // SAFETY: the buffer was checked to hold that many; the rest is the caller's word.
        unsafe { std::slice::from_raw_parts(self.start, self.len()) }
    }

    /// The address of an optional buffer; null if there is none.
    pub(crate) fn ptr_or_null(rows: Option<Self>) -> *const T {
        rows.map_or(std::ptr::null(), |rows| rows.start.cast_const())
    }
}

impl<'a> Call<'a> {
    pub(crate) fn name(&self) -> &'static str {
        self.step.op.name()
    }

    pub(crate) fn error(&self, reason: impl std::fmt::Display) -> RuntimeError {
        device_error(format!("{}: {reason}", self.name()))
    }

    pub(crate) fn input<T: Element>(&self, index: usize) -> Result<Rows<T>, RuntimeError> {
        let buffer = self.step.inputs.get(index).ok_or_else(|| self.error(format!("input {index} is missing")))?;
        self.rows(buffer)
    }

    pub(crate) fn output<T: Element>(&self, index: usize) -> Result<Rows<T>, RuntimeError> {
        let buffer = self.step.outputs.get(index).ok_or_else(|| self.error(format!("output {index} is missing")))?;
        self.rows(buffer)
    }

    /// Rows of an input as it was planned, whether in use or not.
    pub(crate) fn planned_rows(&self, index: usize) -> usize {
        self.step.inputs[index].shape.rows()
    }

    /// Scratch for a matrix.
    pub(crate) fn workspace<T: Element>(&self, rows: usize, cols: usize) -> Result<Rows<T>, RuntimeError> {
        let start = self.workspace_from(0, rows * cols * size_of::<T>())?;
        Ok(Rows { start, rows, cols })
    }

    /// Scratch for several matrices one behind another; those of wider elements come first.
    pub(crate) fn workspace_parts(&self) -> Parts<'_> {
        Parts { call: self, used: 0 }
    }

    /// Scratch for a second matrix, behind the first.
    pub(crate) fn workspace_behind(&self, first: Matrix, rows: usize, cols: usize) -> Result<Matrix, RuntimeError> {
        let start = self.workspace_from(first.len() * size_of::<f32>(), rows * cols * size_of::<f32>())?;
        Ok(Rows { start, rows, cols })
    }

    /// Scratch for a matrix in an operator that also computes products: it lies behind the [`Call::packing`] room.
    pub(crate) fn workspace_behind_packing(&self, rows: usize, cols: usize) -> Result<Matrix, RuntimeError> {
        let start = self.workspace_from(packing_bytes(self.workers), rows * cols * size_of::<f32>())?;
        Ok(Rows { start, rows, cols })
    }

    /// Where products pack their operands: the beginning of the workspace.
    pub(crate) fn packing(&self) -> Result<PackingRoom, RuntimeError> {
        let start = self.workspace_from(0, packing_bytes(self.workers))?;
        Ok(PackingRoom::new(start))
    }

    /// The address of `bytes` bytes that begin at `offset` in the workspace.
    fn workspace_from<T: Element>(&self, offset: usize, bytes: usize) -> Result<*mut T, RuntimeError> {
        if bytes == 0 {
            return Ok(std::ptr::dangling_mut());
        }
        let needed = offset + bytes;
        let region = self.step.workspace.filter(|w| w.bytes >= needed);
        let region = region.ok_or_else(|| {
            let planned = self.step.workspace.map_or(0, |w| w.bytes);
            self.error(format!("needs {needed} bytes of workspace, {planned} were planned"))
        })?;
        self.address(Region { offset: region.offset + offset, bytes, ..region })
    }

    /// The address of an output that is stored in blocks: all its bytes as the format has them.
    pub(crate) fn output_bytes(&self, index: usize) -> Result<*mut u8, RuntimeError> {
        let buffer = self.step.outputs.get(index).ok_or_else(|| self.error(format!("output {index} is missing")))?;
        self.block_bytes(buffer).map(|(start, _)| start)
    }

    /// An input that is stored in blocks, decoded to float32: a weight, or rows that were rounded.
    pub(crate) fn coded(&self, index: usize) -> Result<CodedWeight<'a>, RuntimeError> {
        let buffer = self.step.inputs.get(index).ok_or_else(|| self.error(format!("input {index} is missing")))?;
        let format = buffer.storage.blocks.filter(|_| buffer.dtype() == DType::F32);
        let format = format.ok_or_else(|| self.unsupported(buffer))?;
        let (start, bytes) = self.block_bytes(buffer)?;
        // SAFETY: the bytes lie in the arena; nobody writes to a step's inputs while it runs, and no output takes the
        // place of these.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast_const(), bytes) };
        let coded = CodedWeight::new(format, buffer.shape.elements(), bytes);
        coded.ok_or_else(|| self.error(format!("input {index} has no scales")))
    }

    /// Where a buffer stored in blocks begins, and its bytes.
    fn block_bytes(&self, buffer: &Buffer) -> Result<(*mut u8, usize), RuntimeError> {
        let needed = buffer.storage.bytes(&buffer.shape).map_err(|error| self.error(error))?;
        if needed > buffer.region.bytes {
            let (value, has) = (buffer.value.0, buffer.region.bytes);
            return Err(self.error(format!("value {value} needs {needed} bytes, it has {has}")));
        }
        Ok((locate(self.arena, buffer.region)?, needed))
    }

    fn unsupported(&self, buffer: &Buffer) -> RuntimeError {
        let dtype = buffer.dtype().name();
        RuntimeError::Unsupported { device: DEVICE.to_owned(), op: self.name(), dtype }
    }

    fn rows<T: Element>(&self, buffer: &Buffer) -> Result<Rows<T>, RuntimeError> {
        if !T::DTYPES.contains(&buffer.dtype()) || buffer.storage.blocks.is_some() {
            return Err(self.unsupported(buffer));
        }
        let (rows, cols) = (self.active.rows(buffer), buffer.shape.cols());
        if rows > buffer.shape.rows() || rows * cols * size_of::<T>() > buffer.region.bytes {
            return Err(self.error(format!(
                "{rows} rows of {cols} do not fit value {} of shape {} in {} bytes",
                buffer.value.0, buffer.shape, buffer.region.bytes
            )));
        }
        Ok(Rows { start: self.address(buffer.region)?, rows, cols })
    }

    fn address<T: Element>(&self, region: Region) -> Result<*mut T, RuntimeError> {
        let at = locate(self.arena, region)?.cast::<T>();
        if at.is_aligned() { Ok(at) } else { Err(self.error(format!("offset {} is not aligned", region.offset))) }
    }

    /// Makes the output hold the input's rows, unless it already is the input.
    pub(crate) fn carry_over(&self, from: Matrix, to: Matrix) {
        if from.ptr() == to.ptr() {
            return;
        }
        self.workers.rows(to.rows, to.cols, |rows| {
            // SAFETY: an output that is not the input lies elsewhere; both have these rows.
            unsafe { std::ptr::copy_nonoverlapping(from.row(rows.start), to.row(rows.start), rows.len() * to.cols) };
        });
    }
}

/// The workspace as it is handed out.
pub(crate) struct Parts<'a> {
    call: &'a Call<'a>,
    used: usize,
}

impl Parts<'_> {
    pub(crate) fn take<T: Element>(&mut self, rows: usize, cols: usize) -> Result<Rows<T>, RuntimeError> {
        let bytes = rows * cols * size_of::<T>();
        let start = self.call.workspace_from(self.used, bytes)?;
        self.used += bytes;
        Ok(Rows { start, rows, cols })
    }
}
