//! Products of codes of e4m3: which rows are rounded, with which scales, and that nothing else is.

use plimsoll_graph::ops::{Dest, Linear, LinearKind};

use super::Array;

/// Of the numbers of e4m3, the largest.
const LARGEST: f64 = 448.0;

/// The nearest number of e4m3, of two the one whose code is even.
fn nearest(number: f64) -> f64 {
    let size = number.abs().min(LARGEST);
    let mut exponent = -6;
    while size >= 2f64.powi(exponent + 1) {
        exponent += 1;
    }
    let step = 2f64.powi(exponent - 3);
    ((size / step).round_ties_even() * step).copysign(number)
}

/// A row's numbers, which are float32, and its scale.
pub(super) fn rounded(row: &[f32]) -> (Vec<f64>, f64) {
    let largest = row.iter().fold(0f32, |most, x| most.max(x.abs()));
    let scale = largest / LARGEST as f32;
    let share = |&x: &f32| if scale == 0.0 { 0.0 } else { nearest(f64::from(x / scale)) };
    (row.iter().map(share).collect(), f64::from(scale))
}

/// `Linear` with `fp8`: a forward product or the gradient of its input.
pub fn linear_fp8(op: &Linear, inputs: &[&Array]) -> Array {
    let (x, weight) = (inputs[0], inputs[1]);
    let codes = weight.coded.as_ref().expect("a weight of codes");
    let (out, features, start) = (weight.rows(), weight.cols(), op.cols.map_or(0, |cols| cols.start));
    let number = |row: usize, col: usize| codes.numbers[row * features + col];
    let forward = op.kind == LinearKind::Forward;
    let (cols, at) = if forward { (op.cols.map_or(out, |cols| cols.total), start) } else { (features, 0) };
    let old = op.dest_input().map(|at| inputs[at]);
    let mut result = old.cloned().unwrap_or_else(|| Array::filled(&[x.rows(), cols], f64::NAN));
    for token in 0..x.rows() {
        // In the gradient, the scales of the weight's rows are in what is rounded.
        let row: Vec<f32> = match op.kind {
            LinearKind::Forward => x.row(token).iter().map(|&x| x as f32).collect(),
            _ => (0..out).map(|row| (x.row(token)[start + row] * codes.scales[row]) as f32).collect(),
        };
        let (row, scale) = rounded(&row);
        for to in 0..if forward { out } else { features } {
            let terms = row.iter().enumerate();
            let (sum, factor, bias): (f64, f64, f64) = match forward {
                true => {
                    let bias = if op.bias { inputs[2].data[to] } else { 0.0 };
                    (terms.map(|(col, x)| x * number(to, col)).sum(), codes.scales[to], bias)
                }
                false => (terms.map(|(row, x)| x * number(row, to)).sum(), 1.0, 0.0),
            };
            let entry = &mut result.row_mut(token)[at + to];
            let product = f64::from(op.alpha) * scale * factor * sum + bias;
            *entry = if op.dest == Dest::Accumulate { *entry + product } else { product };
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Code;

    use super::*;

    /// By looking through all of them.
    #[test]
    fn nearest_is_the_nearest() {
        let mut numbers: Vec<f64> = (0..127).map(|code: usize| f64::from(Code::E4m3.numbers()[code])).collect();
        numbers.sort_by(f64::total_cmp);
        for step in 0..200_000 {
            let number = 460.0 * (f64::from(step) / 200_000.0).powi(3);
            let best = numbers.iter().map(|other| (other - number.min(LARGEST)).abs()).fold(f64::INFINITY, f64::min);
            assert_eq!((nearest(number) - number.min(LARGEST)).abs(), best, "{number}");
            assert!(numbers.contains(&nearest(number)) && nearest(-number) == -nearest(number));
        }
        for (code, pair) in numbers.windows(2).enumerate() {
            let even = if code.is_multiple_of(2) { pair[0] } else { pair[1] };
            assert_eq!(nearest(0.5 * (pair[0] + pair[1])), even);
        }
    }
}
