//! Steps right behind one another: each finds what those before it wrote, and none writes what one before has yet to read.

use plimsoll_conformance::backends;
use plimsoll_graph::ops::Add;
use plimsoll_graph::{DType, Extent, ScheduleId};
use plimsoll_plan::{Place, Region, Step};
use plimsoll_runtime::single_step::{lay_out, value};
use plimsoll_runtime::{Active, Backend};

/// More than a card can hold at once, so that its last blocks begin late.
const LONG: usize = 1 << 21;
const SHORT: usize = 64;
const ROUNDS: usize = 60;

/// In numbers, from the beginning of the arena. The first row's last numbers are a place of their own.
const ROW: Range = Range { at: 0, len: LONG };
const TAIL: Range = Range { at: LONG - SHORT, len: SHORT };
const ONES: Range = Range { at: LONG, len: LONG };
const FEW_ONES: Range = Range { at: LONG, len: SHORT };
const ZEROS: Range = Range { at: 2 * LONG, len: SHORT };
const TOTAL: Range = Range { at: 2 * LONG + SHORT, len: SHORT };
const NUMBERS: usize = 2 * LONG + 2 * SHORT;

#[derive(Clone, Copy)]
struct Range {
    at: usize,
    len: usize,
}

impl Range {
    fn region(self) -> Region {
        let bytes = DType::F32.bytes();
        Region { place: Place::Device, offset: self.at * bytes, bytes: self.len * bytes }
    }
}

/// Each round, many blocks count the row up, few add its tail to the total, and few set the tail back.
const ROUND: [[Range; 3]; 3] = [[ROW, ONES, ROW], [TOTAL, TAIL, TOTAL], [ZEROS, FEW_ONES, TAIL]];

fn add(backend: &dyn Backend, [left, right, sum]: [Range; 3]) -> Step {
    let inputs = [left, right].map(|range| value(&[1, range.len], DType::F32, Extent::Fixed));
    let (mut step, _) = lay_out(Add.into(), &inputs, &backend.traits(), false).expect("a sum");
    step.inputs[0].region = left.region();
    step.inputs[1].region = right.region();
    step.outputs[0].region = sum.region();
    step
}

fn beginning() -> Vec<f32> {
    let mut numbers = vec![0.0; NUMBERS];
    numbers[ONES.at..][..ONES.len].fill(1.0);
    numbers
}

/// Whole numbers, so that sums are exact.
fn expected() -> Vec<f32> {
    let mut numbers = beginning();
    for _ in 0..ROUNDS {
        for [left, right, sum] in ROUND {
            for i in 0..sum.len {
                numbers[sum.at + i] = numbers[left.at + i] + numbers[right.at + i];
            }
        }
    }
    numbers
}

#[test]
fn steps_right_behind_one_another() {
    let want = expected();
    for mut backend in backends() {
        let backend = backend.as_mut();
        let arena = Range { at: 0, len: NUMBERS }.region();
        backend.allocate(arena.bytes).expect("an arena");
        let round = ROUND.map(|sum| add(backend, sum));
        let steps: Vec<Step> = std::iter::repeat_n(round, ROUNDS).flatten().collect();
        let bytes: Vec<u8> = beginning().iter().flat_map(|number| number.to_ne_bytes()).collect();
        // Where schedules are recorded: as it comes, while it is recorded, from the recording.
        for time in 0..4 {
            backend.write(arena, &bytes).expect("written");
            backend.run_schedule(Some(ScheduleId::UPDATE), &steps, Active::one(1, 1)).expect("runs");
            let mut got = vec![0; bytes.len()];
            backend.read(arena, &mut got).expect("read");
            let (words, _) = got.as_chunks();
            let wrong = words.iter().zip(&want).position(|(got, want)| f32::from_ne_bytes(*got) != *want);
            assert_eq!(wrong, None, "{}, run {time}: a number is not what the steps make of it", backend.name());
        }
    }
}
