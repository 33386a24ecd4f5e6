//! Products with a weight stored in few bits, which is decoded a part after another into scratch. With `fp8`, rows are
//! rounded to e4m3 as well, and what the codes stand for is multiplied.
//!
//! Parts are columns of the result: no sum is divided, and how a row is rounded depends on nothing but the row.

use std::ops::Range;

use plimsoll_graph::Shape;
use plimsoll_graph::ops::{Dest, FP8_ROWS, Linear, LinearKind, decoded_parts, decoded_width};
use plimsoll_runtime::RuntimeError;
use plimsoll_runtime::codec::{CodedWeight, round_row_to_e4m3};

use crate::args::{Call, Matrix};
use crate::linear::first_col;
use crate::product::{Factor, Onto, PackingRoom, Product};

pub(crate) fn coded_product(op: &Linear, call: &Call, out: Matrix) -> Result<(), RuntimeError> {
    let weight = Weight { coded: call.coded(1)?, shape: call.step.inputs[1].shape, op };
    let bias: Option<Matrix> = if op.bias { Some(call.input(2)?) } else { None };
    let rows: Matrix = call.input(0)?;
    let (part, rounded, packing) = scratch(op, call, &weight.shape, rows)?;
    let product = whole(op, &weight.shape, rows, out, bias);
    if !op.fp8 {
        weight.multiply(call, product, part, packing);
        return Ok(());
    }
    for start in (0..rows.rows).step_by(FP8_ROWS) {
        let run = start..rows.rows.min(start + FP8_ROWS);
        weight.round_rows(call, rows, run.clone(), rounded);
        let left = Factor::new(rounded.ptr(), rounded.cols);
        let result = product.result.wrapping_add(start * out.cols);
        weight.multiply(call, Product { rows: run.len(), left, result, ..product }, part, packing);
    }
    Ok(())
}

/// Room for a part of the weight, and with `fp8` for a run of rounded rows, behind that for packing.
fn scratch(
    op: &Linear,
    call: &Call,
    weight: &Shape,
    rows: Matrix,
) -> Result<(Matrix, Matrix, PackingRoom), RuntimeError> {
    let (width, packing) = (decoded_width(op.kind, weight), call.packing()?);
    let (part_rows, part_cols, deep) = match op.kind {
        LinearKind::Forward => (width, weight.cols(), weight.cols()),
        _ => (weight.rows(), width, weight.rows()),
    };
    let part = call.workspace_behind_packing(part_rows, part_cols)?;
    let run = if op.fp8 { rows.rows.min(FP8_ROWS) } else { 0 };
    // Together they are one piece of scratch, which holds both.
    let both: Matrix = call.workspace_behind_packing(1, part.len() + run * deep)?;
    Ok((part, both.part(part.len(), run, deep), packing))
}

/// The product as it is with the weight whole.
fn whole(op: &Linear, weight: &Shape, rows: Matrix, out: Matrix, bias: Option<Matrix>) -> Product {
    let (features, outputs) = (weight.cols(), weight.rows());
    let left = |first| Factor::new(rows.ptr().wrapping_add(first), rows.cols);
    let (cols, depth, left, first) = match op.kind {
        LinearKind::Forward => (outputs, features, left(0), first_col(op.cols)),
        _ => (features, outputs, left(first_col(op.cols)), 0),
    };
    Product {
        rows: rows.rows,
        cols,
        depth,
        alpha: op.alpha,
        left,
        right: left,
        result: out.ptr().wrapping_add(first),
        result_stride: out.cols,
        onto: match (op.dest, bias) {
            (Dest::Accumulate, Some(bias)) => Onto::PresentAndBias(bias.ptr()),
            (Dest::Accumulate, None) => Onto::Present,
            (_, Some(bias)) => Onto::Bias(bias.ptr()),
            (_, None) => Onto::Nothing,
        },
    }
}

struct Weight<'a> {
    coded: CodedWeight<'a>,
    shape: Shape,
    op: &'a Linear,
}

impl Weight<'_> {
    /// Part after part into its columns of the result.
    fn multiply(&self, call: &Call, product: Product, scratch: Matrix, packing: PackingRoom) {
        for part in decoded_parts(self.op.kind, &self.shape) {
            let right = match self.op.kind {
                LinearKind::Forward => {
                    self.decode(call, part.clone(), 0..self.shape.cols(), scratch);
                    Factor::new(scratch.ptr(), self.shape.cols()).transposed()
                }
                _ => {
                    self.decode(call, 0..self.shape.rows(), part.clone(), scratch);
                    Factor::new(scratch.ptr(), part.len())
                }
            };
            let onto = match product.onto {
                Onto::Bias(bias) => Onto::Bias(bias.wrapping_add(part.start)),
                Onto::PresentAndBias(bias) => Onto::PresentAndBias(bias.wrapping_add(part.start)),
                onto => onto,
            };
            let result = product.result.wrapping_add(part.start);
            // SAFETY: the shapes were checked when the graph was built, the rows by `args`; scratch, which holds the part,
            // and the result lie apart from each other and from the rows.
            unsafe { Product { cols: part.len(), right, result, onto, ..product }.run(call.workers, packing) };
        }
    }

    /// Some rows and columns of the weight, one row behind another. The rows of codes that are multiplied by rows with the
    /// weight's scales in them come without these.
    fn decode(&self, call: &Call, rows: Range<usize>, cols: Range<usize>, scratch: Matrix) {
        let scaled = !(self.op.fp8 && self.op.kind == LinearKind::InputGrad);
        let len = cols.len();
        call.workers.rows(rows.len(), len, |run| {
            for row in run {
                let first = (rows.start + row) * self.shape.cols() + cols.start;
                // SAFETY: the scratch has room for so many such rows, and this one is the task's alone.
                let place = unsafe { std::slice::from_raw_parts_mut(scratch.ptr().wrapping_add(row * len), len) };
                match scaled {
                    true => self.coded.decode(first, place),
                    false => self.coded.decode_codes(first, place),
                }
            }
        });
    }

    /// What e4m3 makes of a run of rows: in the gradient, of their columns times the scales of the weight's rows.
    fn round_rows(&self, call: &Call, rows: Matrix, run: Range<usize>, rounded: Matrix) {
        let first = if self.op.kind == LinearKind::InputGrad { first_col(self.op.cols) } else { 0 };
        call.workers.rows(run.len(), rounded.cols, |tokens| {
            for token in tokens {
                let from = rows.row(run.start + token).wrapping_add(first);
                // SAFETY: the row is there and nobody writes to it; the place is this task's alone.
                let (from, place) = unsafe {
                    let place = std::slice::from_raw_parts_mut(rounded.row(token), rounded.cols);
                    (std::slice::from_raw_parts(from.cast_const(), rounded.cols), place)
                };
                match self.op.kind {
                    LinearKind::InputGrad => {
                        let scaled = from.iter().enumerate().map(|(row, x)| x * self.coded.scale(row));
                        place.iter_mut().zip(scaled).for_each(|(place, x)| *place = x);
                    }
                    _ => place.copy_from_slice(from),
                }
                round_row_to_e4m3(place);
            }
        });
    }
}
