//! How far a result may be from the reference, from what is known about the roundings on its way.

use std::ops::Range;

use plimsoll_graph::ops::QkvLayout;
use plimsoll_graph::{DType, Op};

use crate::backends::card_asked_for;
use crate::reference::Array;

/// The sixteen-bit formats that values are stored in.
pub const SIXTEEN: [DType; 2] = [DType::BF16, DType::F16];

/// The largest relative error of one rounding to the nearest: half the distance between neighbours. bf16 has eight
/// significant bits, f16 eleven.
pub fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 1.0 / 256.0,
        DType::F16 => 1.0 / 2048.0,
        _ => 0.0,
    }
}

/// The largest error of one rounding among the smallest numbers of a format, which lie evenly.
fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / f64::from(1 << 25),
        _ => 0.0,
    }
}

/// The error a result may have. Inputs are rounded before anybody sees them, so this counts what happens afterwards.
#[derive(Debug, Clone, Copy)]
pub struct Rounding {
    /// Sums in float32, relative to the largest entry.
    pub sums: f64,
    /// Times an entry is rounded to the sixteen bits it is stored in, relative to itself: once for most operators. Two
    /// stand for one rounding stochastically, which may go to the farther neighbour.
    pub stores: f64,
    /// Roundings to sixteen bits of what results are summed up from, such as the chances of attention before they meet
    /// the values, relative to the largest entry.
    pub within: f64,
    /// Outputs that `within` does not reach.
    pub apart: &'static [usize],
}

impl Rounding {
    /// One rounding into the result, nothing else but float32.
    pub const fn once(sums: f64) -> Self {
        Self { sums, stores: 1.0, within: 0.0, apart: &[] }
    }

    /// No result is in sixteen bits, or all of them are exact.
    pub const fn none(sums: f64) -> Self {
        Self { stores: 0.0, ..Self::once(sums) }
    }

    pub const fn stores(self, stores: f64) -> Self {
        Self { stores, ..self }
    }

    pub const fn within(self, within: f64) -> Self {
        Self { within, ..self }
    }

    pub const fn apart(self, apart: &'static [usize]) -> Self {
        Self { apart, ..self }
    }

    /// The error one output may have: `format` is what values are stored in, `dtype` what this output is.
    pub(crate) fn allowed(&self, output: usize, format: DType, dtype: DType) -> Allowed {
        let within = if self.apart.contains(&output) { 0.0 } else { self.within * unit(format) };
        Allowed {
            of_largest: self.sums + within,
            of_entry: self.stores * unit(dtype),
            least: self.stores * smallest(dtype),
        }
    }
}

/// What float32 sums of so many products may be off by, relative to the largest result. Products of sixteen-bit numbers
/// are exact in float32. Tensor cores cut off what they add: a part in 2²³ for every sixteen terms, in the same direction
/// each time, while the sum itself grows with the root of their number.
pub fn sums_of(terms: usize) -> f64 {
    6e-6 * (1.0 + terms as f64 / 16.0).sqrt()
}

/// What sums of so many products of codes of e4m3 may be off by. On a CPU they are float32 sums. Tensor cores line products
/// up before they add them and keep fourteen bits of the largest; what is cut off lies on one side of it. A row rounded
/// otherwise than it should be is off by more: by up to a sixteenth of every term.
pub fn fp8_sums_of(terms: usize) -> f64 {
    if card_asked_for() { 2f64.powi(-12) * (1.0 + terms as f64 / 32.0).sqrt() } else { sums_of(terms) }
}

/// The error an entry may have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Allowed {
    pub of_largest: f64,
    pub of_entry: f64,
    pub least: f64,
}

/// Parts of a row that are judged by their own largest entry. The gradients of queries and keys are small beside those
/// of the values in the same row, and should not hide behind them where roundings are large.
pub(crate) fn parts(op: &Op, output: usize, format: DType, cols: usize) -> Vec<Range<usize>> {
    let ends = match op {
        Op::AttentionGrad(op) if format != DType::F32 => {
            let (queries, keys) = (op.0.heads.query_cols(), op.0.heads.kv_cols());
            match (op.0.layout, output) {
                (QkvLayout::Fused, 0) => vec![queries, queries + keys, cols],
                (QkvLayout::FusedKeyValue, 1) => vec![keys, cols],
                _ => vec![cols],
            }
        }
        _ => vec![cols],
    };
    std::iter::once(0).chain(ends.iter().copied()).zip(&ends).map(|(start, &end)| start..end).collect()
}

/// Parts count as no smaller than this beside the whole.
const SMALLEST_PART: f64 = 1.0 / 16.0;

/// What an operator's results count at least as large as, beside their own largest entry. Gradients of queries and keys
/// may cancel to nothing; what they are made of is as large as the values' gradient, in whichever output that stands.
pub(crate) fn least_size(op: &Op, format: DType, expected: &[Array]) -> f64 {
    let Op::AttentionGrad(op) = op else { return 0.0 };
    let operands = expected[..op.0.operands()].iter().flat_map(|gradient| &gradient.data);
    let largest = operands.map(|x| x.abs()).fold(0.0, f64::max);
    if format == DType::F32 { largest } else { largest * SMALLEST_PART }
}

/// Compares the entries of some columns, which count as no smaller than `least_size`; those expected to be NaN are
/// unspecified.
pub(crate) fn compare_columns(
    got: &Array,
    want: &Array,
    columns: Range<usize>,
    allowed: Allowed,
    least_size: f64,
) -> Result<(), String> {
    let cols = want.cols().max(1);
    let entries = || {
        let inside = |index: &usize| columns.contains(&(index % cols)) && !want.data[*index].is_nan();
        (0..want.data.len()).filter(inside).map(|index| (index, got.data[index], want.data[index]))
    };
    let whole = want.data.iter().filter(|want| !want.is_nan()).map(|want| want.abs()).fold(0.0, f64::max);
    // A part in which everything cancels has no size of its own.
    let largest = entries().map(|(_, _, want)| want.abs()).fold(least_size.max(whole * SMALLEST_PART), f64::max);
    let limit = |want: f64| allowed.of_largest * largest + allowed.of_entry * want.abs() + allowed.least;
    let excess = |got: f64, want: f64| if got == want { 0.0 } else { (got - want).abs() / limit(want) };
    // A NaN compares false with everything, so it is asked for by name.
    let wrong = entries().filter(|&(_, got, want)| excess(got, want) > 1.0 || excess(got, want).is_nan());
    let worst = wrong.max_by(|a, b| excess(a.1, a.2).total_cmp(&excess(b.1, b.2)));
    let Some((index, got, want_entry)) = worst else { return Ok(()) };
    Err(format!(
        "[{}, {}] of {:?} is {got}, expected {want_entry} (error {:.2e}, allowed {:.2e}, largest {largest:.2e})",
        index / cols,
        index % cols,
        want.shape,
        (got - want_entry).abs(),
        limit(want_entry),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(got: &[f64], want: &[f64], allowed: Allowed) -> Result<(), String> {
        let array = |data: &[f64]| Array::new(&[1, data.len()], data.to_vec());
        compare_columns(&array(got), &array(want), 0..want.len(), allowed, 0.0)
    }

    #[test]
    fn roundings_are_allowed_and_no_more() {
        for dtype in SIXTEEN {
            let allowed = Rounding::once(1e-7).allowed(0, dtype, dtype);
            let nearest = |x: f64| match dtype {
                DType::BF16 => half::bf16::from_f64(x).to_f64(),
                _ => half::f16::from_f64(x).to_f64(),
            };
            for number in [1.0, 1.003, -0.7001, 1e-3, 3e-6, 511.3] {
                assert_eq!(compare(&[nearest(number)], &[number], allowed), Ok(()), "{number} as {}", dtype.name());
            }
            // A rounding is judged by its own entry, not by the largest.
            let off = 4.0 * unit(dtype);
            assert!(compare(&[100.0, 1.0 + off], &[100.0, 1.0], allowed).is_err(), "{}", dtype.name());
            let summed = Rounding::once(1e-7).within(1.0).allowed(0, dtype, dtype);
            assert_eq!(compare(&[100.0, 1.0 + off], &[100.0, 1.0], summed), Ok(()));
            let apart = Rounding::once(1e-7).within(1.0).apart(&[0]).allowed(0, dtype, DType::F32);
            assert!(compare(&[100.0, 1.0 + off], &[100.0, 1.0], apart).is_err());
        }
    }

    #[test]
    fn what_is_not_a_number_is_never_right_unless_nothing_is_expected() {
        let all = Allowed { of_largest: 1e9, ..Allowed::default() };
        assert!(compare(&[f64::NAN, 1.0], &[1.0, 1.0], all).is_err_and(|says| says.contains("is NaN")));
        assert!(compare(&[f64::INFINITY, 1.0], &[1.0, 1.0], all).is_err());
        assert_eq!(compare(&[f64::NAN, 1.0], &[f64::NAN, 1.0], all), Ok(()));
        assert_eq!(compare(&[0.0], &[0.0], Allowed::default()), Ok(()));
        assert!(compare(&[1e-30], &[0.0], Allowed::default()).is_err());
    }
}
