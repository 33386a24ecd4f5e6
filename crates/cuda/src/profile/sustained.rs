//! What a card keeps of its speed when it works on and on. Training never pauses, so the card slows down to its limit of
//! power, and how far depends on what it does: on the numbers, on where they lie, on what runs between the products. So
//! the operators of a layer are run in their order on numbers like a model's, each at other places than the one before.

use std::collections::BTreeMap;
use std::ops::Range;

use plimsoll_graph::{BackendTraits, Extent, GraphError, Op};
use plimsoll_plan::{Buffer, CardRates, Place, Region, Step, Sustained};
use plimsoll_runtime::Distribution;
use plimsoll_runtime::single_step::lay_out;

use super::cases::Case;

const MIB: usize = 1 << 20;

/// The arena by what lies there. Each part is larger than what a card's cache holds, numbers and scratch apart.
pub(super) struct Places {
    pub(super) weights: Range<usize>,
    pub(super) activations: Range<usize>,
    results: Range<usize>,
    numbers: Range<usize>,
    workspace: Range<usize>,
}

pub(super) const SIXTEEN_BITS: Places = Places {
    weights: 0..144 * MIB,
    activations: 144 * MIB..336 * MIB,
    results: 336 * MIB..472 * MIB,
    numbers: 472 * MIB..473 * MIB,
    workspace: 473 * MIB..512 * MIB,
};

/// Of products of codes: weights take half as much, rounded rows and transposed codes need room.
pub(super) const CODES: Places = Places {
    weights: 0..80 * MIB,
    activations: 80 * MIB..272 * MIB,
    results: 272 * MIB..408 * MIB,
    numbers: 408 * MIB..409 * MIB,
    workspace: 409 * MIB..576 * MIB,
};

impl Places {
    /// How floats are spread in a part, as in a model before and while it learns.
    pub(super) fn spread(&self) -> [(Range<usize>, Distribution); 3] {
        [
            (self.weights.clone(), Distribution::Normal { std: 0.02 }),
            (self.activations.clone(), Distribution::Normal { std: 1.0 }),
            (self.results.clone(), Distribution::Normal { std: 1.0 }),
        ]
    }
}

/// Addresses are multiples of it.
const ALIGNMENT: usize = 512;

/// Hands out places of a part one behind another, and from its beginning again when it is through.
struct Part {
    range: Range<usize>,
    next: usize,
}

impl Part {
    fn new(range: Range<usize>) -> Self {
        Self { next: range.start, range }
    }

    fn take(&mut self, bytes: usize) -> Result<Region, GraphError> {
        if self.next + bytes > self.range.end {
            self.next = self.range.start;
        }
        if self.next + bytes > self.range.end {
            let reason = format!("{bytes} bytes do not fit into {:?}", self.range);
            return Err(GraphError::Invalid { op: "measuring", reason });
        }
        let region = Region { place: Place::Device, offset: self.next, bytes };
        self.next = (self.next + bytes).next_multiple_of(ALIGNMENT);
        Ok(region)
    }
}

/// Steps in a row, and the numbers that are no floats with their places.
pub(super) struct Row {
    pub(super) steps: Vec<Step>,
    pub(super) numbers: Vec<(Region, Vec<i32>)>,
}

/// Places the cases' operands in the parts of the arena. Nothing that is read is ever written, but what products are
/// added onto and what is turned in place. That cannot grow beyond bounds: within a layer, all results are overwritten.
pub(super) fn lay_out_row(cases: &[Case], traits: &BackendTraits, places: &Places) -> Result<Row, GraphError> {
    let parts = [&places.weights, &places.activations, &places.results, &places.numbers];
    let [mut weights, mut activations, mut results, mut numbers] = parts.map(|part| Part::new(part.clone()));
    let mut row = Row { steps: Vec::new(), numbers: Vec::new() };
    for case in cases {
        let in_place = is_in_place(&case.op);
        let (mut step, _) = lay_out(case.op.clone(), &case.inputs, traits, in_place)?;
        for output in &mut step.outputs {
            let before = output.region;
            output.region = results.take(before.bytes)?;
            // What shares its memory goes with it.
            step.inputs
                .iter_mut()
                .filter(|input| input.region == before)
                .for_each(|input| input.region = output.region);
        }
        let kept_back: Vec<Region> = step.outputs.iter().map(|output| output.region).collect();
        for (index, input) in step.inputs.iter_mut().enumerate() {
            let content = case.contents.iter().find(|(at, _)| *at == index);
            if kept_back.contains(&input.region) {
                continue;
            }
            let part = match (content, input.extent) {
                (Some(_), _) => &mut numbers,
                (None, Extent::Fixed) => &mut weights,
                (None, _) => &mut activations,
            };
            input.region = part.take(input.region.bytes)?;
            row.numbers.extend(content.map(|(_, content)| (input.region, content.clone())));
        }
        if let Some(workspace) = &mut step.workspace {
            *workspace = Part::new(places.workspace.clone()).take(workspace.bytes)?;
        }
        row.steps.push(step);
    }
    Ok(row)
}

/// Whether an operator would have to copy where it does not work in place.
fn is_in_place(op: &Op) -> bool {
    matches!(op, Op::Rope(_)) || matches!(op, Op::Linear(op) if op.dest_input().is_some())
}

/// What an operator of the row does, how long it should take by what short spans showed, and how long it took.
#[derive(Debug, Clone)]
pub(super) struct Lap {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) flops: f64,
    pub(super) bytes: f64,
    pub(super) expected_s: f64,
    pub(super) seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Product,
    Attention,
    Moving,
}

/// What tells the names of products of codes from others.
pub(super) const OF_CODES: &str = " fp8 ";

/// Under which name a step's rate is shown, and by what it is limited.
pub(super) fn kind(step: &Step) -> (String, Kind) {
    let name = plimsoll_graph::OpRule::name(&step.op);
    match &step.op {
        Op::Linear(op) => {
            let of = if op.fp8 { OF_CODES } else { " " };
            let cols = |buffer: &Buffer| buffer.shape.cols();
            let (tokens, out) = (step.inputs[0].shape.rows(), cols(&step.outputs[0]));
            (format!("{name}{of}{tokens}x{out}x{}", cols(&step.inputs[0])), Kind::Product)
        }
        Op::Attention(_) | Op::AttentionGrad(_) => (name.to_owned(), Kind::Attention),
        _ => (name.to_owned(), Kind::Moving),
    }
}

/// The sustained rates, by what operators are limited by.
pub(super) fn sustained(laps: &[Lap]) -> Sustained {
    let sum = |kind, of: fn(&Lap) -> f64| laps.iter().filter(|lap| lap.kind == kind).map(of).sum::<f64>();
    // A figure beyond what short spans showed would be noise.
    let share = |kind| (sum(kind, |lap| lap.expected_s) / sum(kind, |lap| lap.seconds).max(1e-9)).clamp(0.1, 1.0);
    let mut work: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for lap in laps {
        let (done, seconds) = work.entry(lap.name.clone()).or_default();
        *done += if lap.kind == Kind::Moving { lap.bytes } else { lap.flops };
        *seconds += lap.seconds;
    }
    Sustained {
        products_flops_per_s: sum(Kind::Product, |lap| lap.flops) / sum(Kind::Product, |lap| lap.seconds).max(1e-9),
        products8_flops_per_s: None,
        attention_share: share(Kind::Attention),
        moving_share: share(Kind::Moving),
        rates: work.into_iter().map(|(name, (done, seconds))| (name, done / seconds.max(1e-9))).collect(),
    }
}

/// Turns rates of short spans into those of a card that works on and on. Products that use all of it are cut to what is
/// kept; smaller ones, which do not reach its limit, stay.
pub(super) fn throttle(rates: &mut CardRates, sustained: Sustained) {
    let of_codes = rates.products8.iter_mut().map(|grid| (grid, sustained.products8_flops_per_s.unwrap_or(f64::MAX)));
    for (grid, kept) in of_codes.chain([(&mut rates.products16, sustained.products_flops_per_s)]) {
        grid.flops_per_s.iter_mut().for_each(|rate| *rate = rate.min(kept));
    }
    for attention in &mut rates.attention {
        attention.forward_flops_per_s *= sustained.attention_share;
        attention.gradient_flops_per_s *= sustained.attention_share;
    }
    for rate in rates.operators.values_mut() {
        *rate *= sustained.moving_share;
    }
    rates.sustained = sustained;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use plimsoll_plan::{AttentionRate, ProductGrid};

    use super::super::cases::layer;
    use super::super::measure::{ARENA_BYTES, unthrottled};
    use super::*;

    fn overlap(a: Region, b: Region) -> bool {
        a.offset < b.end() && b.offset < a.end()
    }

    /// A layer lies in the arena, and what a step writes is nothing that this step or any other reads, but sums.
    #[test]
    fn a_layer_has_its_places() {
        check_places(&SIXTEEN_BITS, false);
        check_places(&CODES, true);
    }

    fn check_places(places: &Places, codes: bool) {
        let traits = BackendTraits::gpu();
        let cases: Vec<Case> = [layer(codes), layer(codes)].into_iter().flatten().collect();
        let row = lay_out_row(&cases, &traits, places).expect("room for all");
        assert_eq!(row.steps.len(), cases.len());
        for (step, case) in row.steps.iter().zip(&cases) {
            let written: Vec<Region> = step.outputs.iter().map(|b| b.region).chain(step.workspace).collect();
            for (index, &one) in written.iter().enumerate() {
                assert!(one.end() <= ARENA_BYTES, "{}: {one:?}", case.name);
                assert!(written[..index].iter().all(|&other| !overlap(one, other)), "{}: {written:?}", case.name);
            }
            let sums = step.inputs.iter().filter(|input| written.contains(&input.region)).count();
            assert_eq!(sums > 0, is_in_place(&case.op), "{}", case.name);
            for input in step.inputs.iter().filter(|input| !written.contains(&input.region)) {
                assert!(
                    input.region.end() <= places.results.start || places.numbers.contains(&input.region.offset),
                    "{}",
                    case.name
                );
            }
        }
        for (region, numbers) in &row.numbers {
            assert_eq!(region.bytes, 4 * numbers.len());
        }
        let products = row.steps.iter().filter(|step| kind(step).1 == Kind::Product);
        let places: BTreeSet<usize> = products.map(|step| step.inputs[1].region.offset).collect();
        assert!(places.len() >= 5, "weights at several places: {places:?}");
    }

    #[test]
    fn what_is_kept_goes_by_what_limits() {
        let lap = |name: &str, kind, flops, bytes, expected_s, seconds| Lap {
            name: name.to_owned(),
            kind,
            flops,
            bytes,
            expected_s,
            seconds,
        };
        let laps = [
            lap("linear 1", Kind::Product, 600.0, 1.0, 0.5, 1.0),
            lap("linear 2", Kind::Product, 100.0, 1.0, 0.5, 0.4),
            lap("linear 2", Kind::Product, 140.0, 1.0, 0.1, 0.1),
            lap("attention", Kind::Attention, 30.0, 1.0, 0.75, 1.0),
            lap("gated", Kind::Moving, 0.0, 8.0, 2.0, 1.0),
            lap("add", Kind::Moving, 0.0, 8.0, 1.0, 3.0),
        ];
        let sustained = sustained(&laps);
        assert_eq!(
            (sustained.products_flops_per_s, sustained.attention_share, sustained.moving_share),
            (560.0, 0.75, 0.75)
        );
        let rate = |name: &str| sustained.rates[name];
        assert_eq!((rate("linear 1"), rate("linear 2"), rate("attention"), rate("gated")), (600.0, 480.0, 30.0, 8.0));
    }

    #[test]
    fn only_what_uses_all_of_the_card_is_cut() {
        let grid = |rates: &[f64]| ProductGrid {
            rows: vec![1, 2],
            cols: vec![1],
            inner: vec![1],
            flops_per_s: rates.to_vec(),
        };
        let attention = AttentionRate { length: 512, forward_flops_per_s: 200.0, gradient_flops_per_s: 100.0 };
        let mut rates = CardRates {
            products16: grid(&[100.0, 900.0]),
            products32: grid(&[50.0, 50.0]),
            products8: Some(grid(&[200.0, 1500.0])),
            attention: vec![attention],
            operators: BTreeMap::from([("add".to_owned(), 4.0)]),
            copy_bytes_per_s: 1.0,
            to_device_bytes_per_s: 1.0,
            from_device_bytes_per_s: 1.0,
            launch_s: 1e-6,
            late_bytes: 0,
            multiprocessors: 132,
            recorded_bytes_per_launch: 0.0,
            sustained: unthrottled(),
        };
        let shares = Sustained {
            products_flops_per_s: 576.0,
            products8_flops_per_s: Some(1100.0),
            attention_share: 0.64,
            moving_share: 0.8,
            ..unthrottled()
        };
        throttle(&mut rates, shares.clone());
        assert_eq!(rates.products16.flops_per_s, [100.0, 576.0]);
        assert_eq!(rates.products32.flops_per_s, [50.0, 50.0]);
        assert_eq!(rates.products8.map(|grid| grid.flops_per_s), Some(vec![200.0, 1100.0]));
        assert_eq!((rates.attention[0].forward_flops_per_s, rates.attention[0].gradient_flops_per_s), (128.0, 64.0));
        assert!((rates.operators["add"] - 3.2).abs() < 1e-12);
        assert_eq!(rates.sustained, shares);
    }
}
