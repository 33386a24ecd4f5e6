//! Rows rounded to codes of e4m3 with a scale for each, and what the codes stand for.

use plimsoll_graph::Code;
use plimsoll_runtime::RuntimeError;
use plimsoll_runtime::codec::encode;

use crate::args::{Call, Matrix};

/// A code that stands for no number.
const NO_NUMBER: u8 = 0x7f;

/// Where codes and scales of rows go.
#[derive(Clone, Copy)]
struct CodedRows {
    codes: *mut u8,
    scales: *mut f32,
}

// SAFETY: plain addresses; tasks have disjoint rows.
unsafe impl Send for CodedRows {}
// SAFETY: as above.
unsafe impl Sync for CodedRows {}

impl CodedRows {
    /// # Safety
    /// There must be such a row, and nobody else may use its place.
    unsafe fn round(&self, row: usize, numbers: &[f32]) {
        let cols = numbers.len();
        // SAFETY: the caller vouches for the row.
        let (codes, scale) =
            unsafe { (std::slice::from_raw_parts_mut(self.codes.add(row * cols), cols), &mut *self.scales.add(row)) };
        encode(Code::E4m3, cols, numbers, codes, std::slice::from_mut(scale));
        for (code, number) in codes.iter_mut().zip(numbers) {
            *code = if number.is_nan() { NO_NUMBER } else { *code };
        }
    }
}

pub(crate) fn round_rows(call: &Call) -> Result<(), RuntimeError> {
    let (x, codes): (Matrix, *mut u8) = (call.input(0)?, call.output_bytes(0)?);
    let rounded = &call.step.outputs[0];
    let format = rounded.storage.blocks.ok_or_else(|| call.error("the rows have no codes"))?;
    let scales_at = format.scales_at(rounded.shape.elements()).expect("its bytes were counted");
    let to = CodedRows { codes, scales: codes.wrapping_add(scales_at).cast() };
    call.workers.rows(x.rows, x.cols, |rows| {
        for row in rows {
            // SAFETY: the row is there and nobody writes to it; its place in the output is this task's alone.
            unsafe { to.round(row, std::slice::from_raw_parts(x.row(row).cast_const(), x.cols)) };
        }
    });
    Ok(())
}

pub(crate) fn widen_rows(call: &Call) -> Result<(), RuntimeError> {
    let (coded, out): (_, Matrix) = (call.coded(0)?, call.output(0)?);
    call.workers.rows(out.rows, out.cols, |rows| {
        for row in rows {
            // SAFETY: the row is this task's alone.
            let place = unsafe { std::slice::from_raw_parts_mut(out.row(row), out.cols) };
            coded.decode(row * out.cols, place);
        }
    });
    Ok(())
}
