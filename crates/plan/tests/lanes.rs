//! Copies run beside the computation: what one is reading must not be overwritten, and what one is
//! writing must not be touched, until someone has waited for it. Here any operator with one input
//! stands in for a copy.

use plimsoll_graph::ops::{Activation, Add, Pointwise};
use plimsoll_graph::{DType, Extent, Op, Phase, Shape, SlotId, ValueId};
use plimsoll_plan::verify::{Violation, verify_schedule};
use plimsoll_plan::{Buffer, Lane, Place, Region, Schedule, Step};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

const BYTES: usize = 64;
const DEVICE_BYTES: usize = 8 * BYTES;
const PINNED_BYTES: usize = 4 * BYTES;

/// The weights, which are there from the start, in the device's first place.
const WEIGHTS: ValueId = ValueId(0);

fn region(place: Place, index: usize) -> Region {
    Region { place, offset: index * BYTES, bytes: BYTES }
}

fn at(place: Place, value: u32, index: usize) -> Buffer {
    Buffer {
        value: ValueId(value),
        slot: (ValueId(value) == WEIGHTS).then_some(SlotId(0)),
        region: region(place, index),
        shape: Shape::new(&[BYTES / 4]),
        storage: DType::F32.into(),
        extent: Extent::Fixed,
    }
}

/// A value in one of the device's places.
fn device(value: u32, index: usize) -> Buffer {
    at(Place::Device, value, index)
}

/// A value in one of the places of pinned host memory.
fn pinned(value: u32, index: usize) -> Buffer {
    at(Place::PinnedHost, value, index)
}

fn weights() -> Buffer {
    device(WEIGHTS.0, 0)
}

fn step(op: impl Into<Op>, lane: Lane, inputs: &[Buffer], output: Buffer, after: &[usize]) -> Step {
    Step {
        op: op.into(),
        inputs: inputs.to_vec(),
        outputs: vec![output],
        workspace: None,
        lane,
        phase: Phase::Forward,
        layer: None,
        after: after.to_vec(),
        frees: Vec::new(),
    }
}

fn compute(inputs: [Buffer; 2], output: Buffer, after: &[usize]) -> Step {
    step(Add, Lane::Compute, &inputs, output, after)
}

fn copy(lane: Lane, from: Buffer, to: Buffer, after: &[usize]) -> Step {
    step(Pointwise(Activation::Relu), lane, &[from], to, after)
}

fn copy_out(from: Buffer, to: Buffer, after: &[usize]) -> Step {
    copy(Lane::CopyOut, from, to, after)
}

fn copy_in(from: Buffer, to: Buffer, after: &[usize]) -> Step {
    copy(Lane::CopyIn, from, to, after)
}

fn check(steps: &[Step]) -> Result<(), Violation> {
    let schedule = Schedule { steps: steps.to_vec(), recorded: false, initial: vec![WEIGHTS], results: Vec::new() };
    verify_schedule("lanes", &schedule, &[region(Place::Device, 0)], DEVICE_BYTES, PINNED_BYTES)
}

/// The schedule holds; without any one of its waits it does not, and the step that no longer waits is named.
fn check_every_wait(steps: &[Step]) {
    assert_eq!(check(steps), Ok(()));
    let waits: Vec<(usize, usize)> =
        steps.iter().enumerate().flat_map(|(i, s)| (0..s.after.len()).map(move |w| (i, w))).collect();
    assert!(!waits.is_empty(), "a schedule without waits tests nothing");
    for (index, wait) in waits {
        let mut hasty = steps.to_vec();
        let missing = hasty[index].after.remove(wait);
        let violation = check(&hasty).expect_err(&format!("step {index} does not wait for step {missing}"));
        assert!(violation.step >= index, "{violation}");
        assert!(violation.reason.contains("may still be using"), "{violation}");
    }
}

#[test]
fn a_copy_out_protects_its_source() {
    check_every_wait(&[
        compute([weights(), weights()], device(1, 1), &[]),
        copy_out(device(1, 1), pinned(2, 0), &[0]),
        compute([weights(), weights()], device(3, 1), &[1]),
    ]);
}

#[test]
fn a_source_may_be_read_while_it_is_copied() {
    let steps = [
        compute([weights(), weights()], device(1, 1), &[]),
        copy_out(device(1, 1), pinned(2, 0), &[0]),
        compute([device(1, 1), weights()], device(3, 2), &[]),
    ];
    assert_eq!(check(&steps), Ok(()));
}

#[test]
fn a_source_that_is_updated_in_place_waits_for_the_copy() {
    check_every_wait(&[
        compute([weights(), weights()], device(1, 1), &[]),
        copy_out(device(1, 1), pinned(2, 0), &[0]),
        compute([device(1, 1), weights()], device(3, 1), &[1]),
    ]);
}

#[test]
fn a_copy_in_protects_its_destination() {
    check_every_wait(&[
        compute([weights(), weights()], device(1, 1), &[]),
        copy_out(device(1, 1), pinned(2, 0), &[0]),
        copy_in(pinned(2, 0), device(3, 2), &[1]),
        compute([device(3, 2), weights()], device(4, 3), &[2]),
    ]);
}

#[test]
fn a_destination_is_free_only_when_its_last_reader_is_done() {
    check_every_wait(&[
        compute([weights(), weights()], device(1, 1), &[]),
        compute([device(1, 1), weights()], device(2, 2), &[]),
        copy_in(weights(), device(3, 1), &[1]),
    ]);
}

#[test]
fn two_lanes_do_not_write_the_same_bytes() {
    check_every_wait(&[copy_in(weights(), device(1, 1), &[]), copy(Lane::Collective, weights(), device(2, 1), &[0])]);
}

#[test]
fn scratch_waits_like_an_output() {
    let mut with_scratch = compute([weights(), weights()], device(3, 2), &[1]);
    with_scratch.workspace = Some(region(Place::Device, 1));
    check_every_wait(&[
        compute([weights(), weights()], device(1, 1), &[]),
        copy_out(device(1, 1), pinned(2, 0), &[0]),
        with_scratch,
    ]);
}

#[test]
fn a_copy_waits_for_scratch() {
    let mut with_scratch = compute([weights(), weights()], device(1, 2), &[]);
    with_scratch.workspace = Some(region(Place::Device, 1));
    check_every_wait(&[with_scratch, copy_in(weights(), device(2, 1), &[0])]);
}

#[test]
fn a_staging_place_is_used_again_after_both_copies() {
    check_every_wait(&[
        compute([weights(), weights()], device(1, 1), &[]),
        copy_out(device(1, 1), pinned(2, 0), &[0]),
        copy_in(pinned(2, 0), device(3, 2), &[1]),
        compute([weights(), weights()], device(4, 3), &[]),
        copy_out(device(4, 3), pinned(5, 0), &[2, 3]),
    ]);
}

#[test]
fn waiting_for_a_waiter_is_waiting() {
    // The last step waits for the copy in, which waited for the copy out, which waited for the first step.
    check_every_wait(&[
        compute([weights(), weights()], device(1, 1), &[]),
        copy_out(device(1, 1), pinned(2, 0), &[0]),
        copy_in(pinned(2, 0), device(3, 2), &[1]),
        compute([device(3, 2), weights()], device(4, 1), &[2]),
    ]);
}

#[test]
fn waiting_for_a_step_is_waiting_for_its_lane_so_far() {
    check_every_wait(&[
        compute([weights(), weights()], device(1, 1), &[]),
        compute([weights(), weights()], device(2, 2), &[]),
        copy_out(device(1, 1), pinned(3, 0), &[1]),
        copy_out(device(2, 2), pinned(4, 1), &[]),
        compute([weights(), weights()], device(5, 1), &[3]),
    ]);
}

#[test]
fn waiting_for_an_earlier_step_of_the_lane_is_not_enough() {
    let steps = |waits_for: usize| {
        [
            compute([weights(), weights()], device(1, 1), &[]),
            compute([weights(), weights()], device(2, 2), &[]),
            copy_out(device(2, 2), pinned(3, 0), &[1]),
            copy_out(device(1, 1), pinned(4, 1), &[]),
            compute([weights(), weights()], device(5, 1), &[waits_for]),
        ]
    };
    assert_eq!(check(&steps(3)), Ok(()));
    assert_eq!(check(&steps(2)).expect_err("step 3 is in flight").step, 4);
}

#[test]
fn what_a_lane_has_waited_for_it_need_not_wait_for_again() {
    let steps = [
        compute([weights(), weights()], device(1, 1), &[]),
        copy_out(device(1, 1), pinned(2, 0), &[0]),
        compute([weights(), weights()], device(3, 2), &[1]),
        compute([weights(), weights()], device(4, 1), &[]),
    ];
    assert_eq!(check(&steps), Ok(()));
}

#[test]
fn nobody_waits_for_what_comes_later() {
    for dependency in [0, 1] {
        let steps =
            [copy_in(weights(), device(1, 1), &[dependency]), compute([weights(), weights()], device(2, 2), &[])];
        let violation = check(&steps).expect_err("the first step has nothing to wait for");
        assert!(violation.reason.contains("comes later"), "{violation}");
    }
}

#[test]
fn the_same_address_in_two_memories_is_two_places() {
    let steps = [copy_out(weights(), pinned(1, 1), &[]), compute([weights(), weights()], device(2, 1), &[])];
    assert_eq!(check(&steps), Ok(()));
}

#[test]
fn pinned_memory_has_a_limit_of_its_own() {
    let steps = |index| [copy_out(weights(), pinned(1, index), &[])];
    assert_eq!(check(&steps(PINNED_BYTES / BYTES - 1)), Ok(()));
    let violation = check(&steps(PINNED_BYTES / BYTES)).expect_err("one place too far");
    assert!(violation.reason.contains("outside the arena"), "{violation}");
}

#[test]
fn a_copy_of_what_is_overwritten_is_found_although_everyone_waits() {
    let steps = [
        compute([weights(), weights()], device(1, 1), &[]),
        compute([weights(), weights()], device(2, 1), &[]),
        copy_out(device(1, 1), pinned(3, 0), &[1]),
    ];
    assert_eq!(check(&steps).expect_err("value 1 is gone").step, 2);
}

/// Three layers whose activations leave the device in the forward pass and come back, one layer
/// ahead, for the backward pass. Two places on the device serve all of them.
fn offloading() -> Vec<Step> {
    vec![
        compute([weights(), weights()], device(1, 1), &[]),       // 0: layer 0
        copy_out(device(1, 1), pinned(11, 0), &[0]),              // 1
        compute([device(1, 1), weights()], device(2, 2), &[]),    // 2: layer 1
        copy_out(device(2, 2), pinned(12, 1), &[2]),              // 3
        compute([device(2, 2), weights()], device(3, 1), &[1]),   // 4: layer 2, where layer 0 was
        compute([device(3, 1), weights()], device(4, 3), &[]),    // 5: loss
        copy_in(pinned(12, 1), device(22, 2), &[3, 4]),           // 6: layer 1 comes back
        compute([device(3, 1), device(4, 3)], device(5, 4), &[]), // 7: gradient of layer 2
        copy_in(pinned(11, 0), device(21, 1), &[7]),              // 8: layer 0 comes back
        compute([device(22, 2), device(5, 4)], device(6, 3), &[6]), // 9: gradient of layer 1
        compute([device(21, 1), device(6, 3)], device(7, 4), &[8]), // 10: gradient of layer 0
    ]
}

#[test]
fn offloaded_activations_wait_where_they_must_and_only_there() {
    check_every_wait(&offloading());
}

/// Must one of two steps wait for the other?
fn in_each_others_way(a: &Step, b: &Step) -> bool {
    let touches = |writer: &Step, other: &Step| {
        let written = writer.outputs[0].region;
        other.inputs.iter().chain(&other.outputs).any(|b| b.region == written)
    };
    a.lane != b.lane && (touches(a, b) || touches(b, a))
}

/// Is there a way from one step to a later one over waits and lanes?
fn ordered(steps: &[Step], from: usize, to: usize) -> bool {
    from == to
        || (from..to).any(|middle| {
            let waits = steps[to].after.contains(&middle) || steps[middle].lane == steps[to].lane;
            waits && ordered(steps, from, middle)
        })
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..Config::default() })]

    #[test]
    fn a_schedule_holds_exactly_if_everything_in_the_way_is_waited_for(
        kept: [u8; 11],
        extra in prop::collection::vec((0usize..11, 0usize..11), 0..6),
    ) {
        let mut steps = offloading();
        for (step, kept) in steps.iter_mut().zip(kept) {
            // Seven in eight waits stay.
            let mut bits = kept;
            step.after.retain(|_| {
                bits = bits.rotate_right(3);
                bits & 7 != 0
            });
        }
        for (a, b) in extra {
            if a != b {
                steps[a.max(b)].after.push(a.min(b));
            }
        }
        let pairs = || (0..steps.len()).flat_map(|late| (0..late).map(move |early| (early, late)));
        let holds = pairs().all(|(a, b)| !in_each_others_way(&steps[a], &steps[b]) || ordered(&steps, a, b));
        prop_assert_eq!(check(&steps).is_ok(), holds);
    }
}
