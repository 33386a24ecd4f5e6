//! Rows rounded to codes of e4m3 with a scale for each, and what the codes stand for.

use plimsoll_graph::ops::LinearKind;
use plimsoll_runtime::RuntimeError;

use crate::call::{Call, type_suffix};
use crate::decode::StoredWeight;
use crate::fp8::RowsToRound;

pub(crate) fn round_rows(call: &Call) -> Result<(), RuntimeError> {
    let (x, to) = (call.input(0), StoredWeight::output(call, 0)?);
    type_suffix(x.dtype).ok_or_else(|| call.unsupported(x.dtype))?;
    let rounding = RowsToRound {
        x: x.ptr,
        dtype: x.dtype,
        stride: x.cols,
        col_scales: 0,
        codes: to.codes,
        scales: to.scales,
        rows: x.rows,
        cols: x.cols,
    };
    rounding.launch(call.device).map_err(|error| call.error(error))
}

pub(crate) fn widen_rows(call: &Call) -> Result<(), RuntimeError> {
    let out = call.output(0);
    StoredWeight::input(call, 0)?.decode(call, LinearKind::Forward, &(0..out.rows), out.ptr)
}
