//! The one question every case asks: does each backend, under every placement, give what the
//! reference gives, and always the same bits?

use plimsoll_graph::ops::{AdapterShare, Dest, Linear, LinearKind};
use plimsoll_graph::{DType, Op, OpRule, Value};
use plimsoll_runtime::{Active, Backend};

use crate::backends::{backends, card_asked_for};
use crate::harness::{Harness, Placement, placements};
use crate::reference::{self, Array};
use crate::rounding::{Allowed, Rounding, SIXTEEN, compare_columns, least_size, parts};
use crate::stand_in::StandIn;
use crate::{Data, Tensor};

/// Allowed error relative to the largest entry of the result. One f32 rounding is 6e-8; sums of a
/// few hundred terms in any order, and fast exponentials good to a few units in the last place, stay
/// under a hundred of them. A wrong term, by contrast, shows at 1e-3 or more.
pub const F32_SUMS: f64 = 6e-6;

/// For results that are a handful of roundings away from the inputs, with no long sum between.
pub const F32_ELEMENTWISE: f64 = 1e-6;

/// All backends, ready to run cases.
pub struct Suite {
    harnesses: Vec<Harness>,
    /// Runs the sixteen-bit cases where no card was asked for.
    stand_in: Option<Harness>,
}

impl Default for Suite {
    fn default() -> Self {
        Self::new()
    }
}

impl Suite {
    /// Over every backend. Where a card was asked for, it must take sixteen bits: what it trains in is not to be
    /// skipped in silence.
    pub fn new() -> Self {
        let mut suite = Self::over(backends());
        if card_asked_for() {
            let [checked, _] = suite.coverage();
            assert!(!checked.is_empty(), "the card that was asked for stores no sixteen-bit numbers");
        } else {
            suite.stand_in = Some(Harness::new(Box::new(StandIn::new())));
        }
        suite
    }

    pub fn over(backends: Vec<Box<dyn Backend>>) -> Self {
        assert!(!backends.is_empty(), "a suite over no backend proves nothing");
        Self { harnesses: backends.into_iter().map(Harness::new).collect(), stand_in: None }
    }

    pub fn harnesses(&mut self) -> &mut [Harness] {
        &mut self.harnesses
    }

    /// The backends, and the stand-in if there is one.
    pub fn all_harnesses(&mut self) -> impl Iterator<Item = &mut Harness> {
        self.harnesses.iter_mut().chain(&mut self.stand_in)
    }

    /// The names of those that sixteen-bit cases run on, and of those that have float32 only and are skipped.
    pub fn coverage(&self) -> [Vec<String>; 2] {
        let all = || self.harnesses.iter().chain(&self.stand_in);
        [true, false].map(|stores| all().filter(|h| h.stores_sixteen() == stores).map(Harness::name).collect())
    }

    /// Checks one case on every backend. Panics with the case's name, the backend and the worst entry.
    pub fn check(&mut self, name: &str, op: impl Into<Op>, inputs: &[Tensor], active: Active, tolerance: f64) {
        self.check_stored(name, op, inputs, active, Rounding::none(tolerance));
    }

    /// The same case in each sixteen-bit format, with the inputs at these places stored in it.
    pub fn check_sixteen(
        &mut self,
        name: &str,
        op: impl Into<Op>,
        inputs: &[Tensor],
        stored: &[usize],
        active: Active,
        rounding: Rounding,
    ) {
        let op = op.into();
        for format in SIXTEEN {
            let store = |(index, input): (usize, &Tensor)| match stored.contains(&index) {
                true => input.stored(format),
                false => input.clone(),
            };
            let inputs: Vec<Tensor> = inputs.iter().enumerate().map(store).collect();
            self.check_stored(name, op.clone(), &inputs, active, rounding);
        }
    }

    /// Checks a case whose inputs are stored as they are to be, on every backend that has their type.
    pub fn check_stored(
        &mut self,
        name: &str,
        op: impl Into<Op>,
        inputs: &[Tensor],
        active: Active,
        rounding: Rounding,
    ) {
        let case = Case { op: op.into(), inputs, active, rounding, format: format_of(inputs) };
        let mut reference: Option<Vec<Array>> = None;
        let mut checked = 0;
        let sixteen = case.sixteen();
        let able = self.harnesses.iter_mut().filter(|harness| !sixteen || harness.stores_sixteen());
        // In float32 the stand-in is the CPU backend, which is there already.
        for harness in able.chain(self.stand_in.as_mut().filter(|_| sixteen)) {
            checked += 1;
            // Only masks differ from backend to backend.
            let expected = match reference.take() {
                Some(expected) if !drops(&case.op) => expected,
                _ => case.expected(harness),
            };
            case.check(name, harness, &expected);
            reference = Some(expected);
        }
        assert!(checked > 0, "{name}: {} ran on no backend, which proves nothing", case.op.name());
    }
}

/// The type of values that are not float32, if there are any: what roundings on the way are made to.
fn format_of(inputs: &[Tensor]) -> DType {
    inputs.iter().map(Tensor::dtype).find(|dtype| SIXTEEN.contains(dtype)).unwrap_or(DType::F32)
}

fn drops(op: &Op) -> bool {
    let drops = |share: AdapterShare| share.dropout.is_some();
    matches!(op, Op::Dropout(_) | Op::Linear(Linear { dropout: Some(_), .. }))
        || matches!(op, Op::GatedGrad(op) if op.last_share.is_some_and(drops))
}

struct Case<'a> {
    op: Op,
    inputs: &'a [Tensor],
    active: Active,
    rounding: Rounding,
    format: DType,
}

impl Case<'_> {
    /// Whether any value, a result included, is in sixteen bits.
    fn sixteen(&self) -> bool {
        self.format != DType::F32 || matches!(&self.op, Op::Embed(embed) if embed.dtype.bytes() == 2)
    }

    fn expected(&self, harness: &mut Harness) -> Vec<Array> {
        let arrays: Vec<Array> = self.inputs.iter().map(|t| t.array(self.active)).collect();
        reference::evaluate(&self.op, &arrays.iter().collect::<Vec<_>>(), harness)
    }

    fn check(&self, name: &str, harness: &mut Harness, expected: &[Array]) {
        let Self { op, inputs, active, .. } = self;
        let place = format!("{name}: {} in {} on {}", op.name(), self.format.name(), harness.name());
        let first = harness.run(op, inputs, *active, &Placement::default());
        assert_eq!(first.len(), expected.len(), "{place}: number of outputs");
        let least = least_size(op, self.format, expected);
        for (index, (output, want)) in first.iter().zip(expected).enumerate() {
            let got = output.array(*active);
            assert_eq!(got.shape, want.shape, "{place}: shape of output {index}");
            assert!(leaves_columns_open(op) || !want.data.iter().any(|x| x.is_nan()), "{place}: NaN expected");
            let allowed = self.rounding.allowed(index, self.format, output.dtype());
            for columns in parts(op, index, self.format, want.cols()) {
                if let Err(difference) = compare_columns(&got, want, columns, allowed, least) {
                    panic!("{place}: output {index} of {op:?}: {difference}");
                }
            }
        }
        same_bits(harness, op, inputs, *active, &first, expected, &place);
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
            assert_eq!(differing, 0, "{place}: output {index} of {op:?} has other bits under {placement:?}");
        }
    }
}

/// The bits of those entries whose value is specified.
fn active_bits(tensor: &Tensor, active: Active, expected: &Array) -> Vec<u64> {
    let len = tensor.active_len(active);
    let bits: Vec<u64> = match &tensor.data {
        Data::F32(d) => d[..len].iter().map(|x| u64::from(x.to_bits())).collect(),
        Data::F64(d) => d[..len].iter().map(|x| x.to_bits()).collect(),
        Data::BF16(d) => d[..len].iter().map(|x| u64::from(x.to_bits())).collect(),
        Data::F16(d) => d[..len].iter().map(|x| u64::from(x.to_bits())).collect(),
        Data::I32(d) => d[..len].iter().map(|&x| x as u64).collect(),
        Data::U32(d) => d[..len].iter().map(|&x| u64::from(x)).collect(),
        Data::Blocks(_) => tensor.array(active).data.iter().map(|x| x.to_bits()).collect(),
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
    compare_columns(got, want, 0..want.cols().max(1), Allowed { of_largest: tolerance, ..Allowed::default() }, 0.0)
}
