//! The one question every case asks: does each backend, under every placement, give what the
//! reference gives, and always the same bits?

use plimsoll_graph::ops::{Dest, Linear, LinearKind};
use plimsoll_graph::{Op, OpRule, Value};
use plimsoll_runtime::{Active, Backend};

use crate::harness::{Harness, Placement, placements};
use crate::reference::{self, Array};
use crate::{Data, Tensor, backends};

/// Allowed error relative to the largest entry of the result. One f32 rounding is 6e-8; sums of a
/// few hundred terms in any order, and fast exponentials good to a few units in the last place, stay
/// under a hundred of them. A wrong term, by contrast, shows at 1e-3 or more.
pub const F32_SUMS: f64 = 6e-6;

/// For results that are a handful of roundings away from the inputs, with no long sum between.
pub const F32_ELEMENTWISE: f64 = 1e-6;

/// All backends, ready to run cases.
pub struct Suite {
    harnesses: Vec<Harness>,
}

impl Default for Suite {
    fn default() -> Self {
        Self::new()
    }
}

impl Suite {
    pub fn new() -> Self {
        Self::over(backends())
    }

    pub fn over(backends: Vec<Box<dyn Backend>>) -> Self {
        assert!(!backends.is_empty(), "a suite over no backend proves nothing");
        Self { harnesses: backends.into_iter().map(Harness::new).collect() }
    }

    pub fn harnesses(&mut self) -> &mut [Harness] {
        &mut self.harnesses
    }

    /// Checks one case on every backend. Panics with the case's name, the backend and the worst entry.
    pub fn check(&mut self, name: &str, op: impl Into<Op>, inputs: &[Tensor], active: Active, tolerance: f64) {
        let op = op.into();
        let arrays: Vec<Array> = inputs.iter().map(|t| t.array(active)).collect();
        for harness in &mut self.harnesses {
            let place = format!("{name}: {} on {}", op.name(), harness.name());
            let expected = reference::evaluate(&op, &arrays.iter().collect::<Vec<_>>(), harness);
            let first = harness.run(&op, inputs, active, &Placement::default());
            assert_eq!(first.len(), expected.len(), "{place}: number of outputs");
            for (index, (got, want)) in first.iter().zip(&expected).enumerate() {
                let got = got.array(active);
                assert_eq!(got.shape, want.shape, "{place}: shape of output {index}");
                assert!(leaves_columns_open(&op) || !want.data.iter().any(|x| x.is_nan()), "{place}: NaN expected");
                if let Err(difference) = compare(&got, want, tolerance) {
                    panic!("{place}: output {index} of {op:?}: {difference}");
                }
            }
            same_bits(harness, &op, inputs, active, &first, &expected, &place);
        }
    }
}

/// The same operator again at other addresses, and in place where that is permitted.
fn same_bits(
    harness: &mut Harness,
    op: &Op,
    inputs: &[Tensor],
    active: Active,
    first: &[Tensor],
    expected: &[Array],
    place: &str,
) {
    let mut others = placements(op, inputs);
    others.extend([1, 7].map(|shift| Placement { shared: Vec::new(), shift }));
    for placement in others {
        let again = harness.run(op, inputs, active, &placement);
        for (index, (a, b)) in first.iter().zip(&again).enumerate() {
            let (a, b) = (active_bits(a, active, &expected[index]), active_bits(b, active, &expected[index]));
            let differing = a.iter().zip(&b).filter(|(x, y)| x != y).count();
            assert_eq!(differing, 0, "{place}: output {index} has other bits under {placement:?}");
        }
    }
}

/// The bits of those entries whose value is specified.
fn active_bits(tensor: &Tensor, active: Active, expected: &Array) -> Vec<u64> {
    let len = tensor.active_len(active);
    let bits: Vec<u64> = match &tensor.data {
        Data::F32(d) => d[..len].iter().map(|x| u64::from(x.to_bits())).collect(),
        Data::F64(d) => d[..len].iter().map(|x| x.to_bits()).collect(),
        Data::I32(d) => d[..len].iter().map(|&x| x as u64).collect(),
        Data::U32(d) => d[..len].iter().map(|&x| u64::from(x)).collect(),
    };
    bits.into_iter().zip(&expected.data).filter(|(_, want)| !want.is_nan()).map(|(bits, _)| bits).collect()
}

/// What a forward operator hands to its gradient, by the reference.
pub fn saved(op: impl Into<Op>, inputs: &[Tensor], active: Active) -> Vec<Tensor> {
    let op = op.into();
    let values: Vec<Value> = inputs.iter().map(Tensor::value).collect();
    let outputs = op.outputs(&values.iter().collect::<Vec<_>>()).expect("a valid operator");
    let arrays: Vec<Array> = inputs.iter().map(|t| t.array(active)).collect();
    let results = reference::evaluate(&op, &arrays.iter().collect::<Vec<_>>(), &mut reference::NoDropout);
    outputs.iter().zip(&results).map(|(value, result)| Tensor::from_array(value, result)).collect()
}

/// Only a product into some columns of a new value leaves entries without a meaning; the reference
/// marks them NaN.
fn leaves_columns_open(op: &Op) -> bool {
    matches!(op, Op::Linear(Linear { kind: LinearKind::Forward, dest: Dest::Fresh, cols: Some(_), .. }))
}

/// Largest difference over largest expected entry; entries expected to be NaN are unspecified.
pub fn compare(got: &Array, want: &Array, tolerance: f64) -> Result<(), String> {
    let pairs = || got.data.iter().zip(&want.data).enumerate().filter(|(_, (_, w))| !w.is_nan());
    let scale = pairs().map(|(_, (_, w))| w.abs()).fold(0.0, f64::max);
    let mut worst = (0.0, 0);
    for (index, (g, w)) in pairs() {
        let error = if g == w { 0.0 } else { (g - w).abs() };
        // A NaN compares false with everything, so it is asked for by name.
        if error > worst.0 || error.is_nan() {
            worst = (error, index);
        }
        if error.is_nan() {
            break;
        }
    }
    let (error, index) = worst;
    if error <= tolerance * scale {
        return Ok(());
    }
    let (row, col) = (index / want.cols().max(1), index % want.cols().max(1));
    Err(format!(
        "[{row}, {col}] of {:?} is {}, expected {} (error {error:.2e}, allowed {tolerance:.0e} of {scale:.2e})",
        want.shape, got.data[index], want.data[index],
    ))
}
