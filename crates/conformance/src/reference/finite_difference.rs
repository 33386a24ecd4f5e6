//! Slopes from values alone, so that a gradient's definition cannot share a mistake with its kernel.

use super::Array;

/// The truncation error of a central difference falls with the square of this, the rounding error
/// grows with its inverse: near 1e-10 both, for functions of order one.
const STEP: f64 = 1e-5;

/// The gradient of `f` by central differences.
pub fn finite_difference(at: &Array, mut f: impl FnMut(&Array) -> f64) -> Array {
    let mut point = at.clone();
    let mut gradient = Array::zeros_like(at);
    for i in 0..at.data.len() {
        point.data[i] = at.data[i] + STEP;
        let above = f(&point);
        point.data[i] = at.data[i] - STEP;
        let below = f(&point);
        point.data[i] = at.data[i];
        gradient.data[i] = (above - below) / (2.0 * STEP);
    }
    gradient
}

#[cfg(test)]
pub(crate) mod testing {
    use plimsoll_graph::{Op, OpRule};

    use super::*;
    use crate::Random;
    use crate::check::compare;
    use crate::reference::{MaskSource, evaluate};
    use plimsoll_graph::ops::InnerDropout;

    /// A mask of no special beauty that depends on everything it should.
    pub(crate) struct AnyMask;

    impl MaskSource for AnyMask {
        fn keep(&mut self, dropout: InnerDropout, row_ids: &Array, key: &Array, cols: usize) -> Vec<bool> {
            let seed = dropout.site as u64 + key.data[0] as u64;
            let entry = |id: f64, col: usize| Random::new(seed ^ ((id as u64) << 20) ^ ((col as u64) << 40)).unit();
            let limit = 2.0 * f64::from(dropout.p) - 1.0;
            row_ids.data.iter().flat_map(|&id| (0..cols).map(move |col| entry(id, col) >= limit)).collect()
        }
    }

    pub(crate) fn array(random: &mut Random, shape: &[usize]) -> Array {
        let len = shape.iter().product();
        Array::new(shape, (0..len).map(|_| random.unit()).collect())
    }

    /// One random upstream gradient for each output. Entries without a meaning weigh nothing.
    pub(crate) fn upstream(random: &mut Random, op: &Op, inputs: &[Array]) -> Vec<Array> {
        let outputs = evaluate(op, &inputs.iter().collect::<Vec<_>>(), &mut AnyMask);
        outputs
            .iter()
            .map(|o| o.map(|x| if x.is_nan() { f64::NAN } else { 0.0 }).plus(&array(random, &o.shape)))
            .collect()
    }

    /// Compares `gradient` with the slopes of `Σ upstream·op(inputs)` in input `wrt`.
    pub(crate) fn check_gradient(op: &Op, inputs: &[Array], wrt: usize, upstream: &[Array], gradient: &Array) {
        let numeric = finite_difference(&inputs[wrt], |point| {
            let mut moved: Vec<&Array> = inputs.iter().collect();
            moved[wrt] = point;
            let outputs = evaluate(op, &moved, &mut AnyMask);
            let products = outputs.iter().zip(upstream).flat_map(|(o, u)| o.data.iter().zip(&u.data));
            products.map(|(o, u)| o * u).filter(|x| !x.is_nan()).sum()
        });
        if let Err(difference) = compare(gradient, &numeric, 1e-7) {
            panic!("{} in input {wrt}: {difference}", op.name());
        }
    }
}
