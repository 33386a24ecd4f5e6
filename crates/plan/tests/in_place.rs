//! Where an operator may, must and must not write over what it reads, on plain values: no slot is
//! there to be found damaged afterwards.

use plimsoll_graph::ops::{Activation, BiasGrad, Gated, Pointwise};
use plimsoll_graph::{DType, Extent, Op, Phase, Shape, ValueId};
use plimsoll_plan::verify::verify_schedule;
use plimsoll_plan::{Buffer, Lane, Place, Region, Schedule, Step};

const ARENA_BYTES: usize = 1024;

fn buffer(value: u32, offset: usize, dims: &[usize]) -> Buffer {
    let shape = Shape::new(dims);
    let region = Region { place: Place::Device, offset, bytes: shape.elements() * 4 };
    Buffer { value: ValueId(value), slot: None, region, shape, storage: DType::F32.into(), extent: Extent::Fixed }
}

fn step(op: impl Into<Op>, inputs: &[Buffer], outputs: &[Buffer]) -> Step {
    Step {
        op: op.into(),
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
        workspace: None,
        lane: Lane::Compute,
        phase: Phase::Forward,
        layer: None,
        after: Vec::new(),
        frees: Vec::new(),
    }
}

/// Makes the inputs out of nothing, then runs the step; `None` if the verifier is content.
fn objection(step_in_question: Step) -> Option<String> {
    let mut steps: Vec<Step> =
        step_in_question.inputs.iter().map(|&b| step(Pointwise(Activation::Relu), &[], &[b])).collect();
    let results = step_in_question.outputs.clone();
    steps.push(step_in_question);
    let schedule = Schedule { steps, recorded: false, initial: Vec::new(), results };
    verify_schedule("in place", &schedule, &[], ARENA_BYTES, 0).err().map(|violation| violation.reason)
}

fn check(op: impl Into<Op>, inputs: &[Buffer], output: Buffer, expected: Option<&str>) {
    let found = objection(step(op, inputs, &[output]));
    let as_expected = match (&found, expected) {
        (None, None) => true,
        (Some(found), Some(expected)) => found.contains(expected),
        _ => false,
    };
    assert!(as_expected, "expected {expected:?}, found {found:?}");
}

#[test]
fn an_update_takes_the_place_of_what_it_updates() {
    let (dy, sum) = (buffer(1, 0, &[4, 8]), buffer(2, 256, &[8]));
    let op = || BiasGrad { cols: None };
    check(op(), &[dy, sum], buffer(3, 256, &[8]), None);
    check(op(), &[dy, sum], buffer(3, 512, &[8]), Some("must take the place of input 1"));
    check(op(), &[dy, sum], buffer(3, 260, &[8]), Some("must take the place of input 1"));
    check(op(), &[dy, sum], buffer(3, 0, &[8]), Some("output 0 overlaps input 0"));
}

#[test]
fn an_output_may_take_an_inputs_place_exactly_or_stay_clear_of_it() {
    let x = buffer(1, 256, &[4, 8]);
    let op = || Pointwise(Activation::Relu);
    check(op(), &[x], buffer(2, 256, &[4, 8]), None);
    check(op(), &[x], buffer(2, 384, &[4, 8]), None);
    check(op(), &[x], buffer(2, 128, &[4, 8]), None);
    check(op(), &[x], buffer(2, 260, &[4, 8]), Some("output 0 overlaps input 0"));
    check(op(), &[x], buffer(2, 252, &[4, 8]), Some("output 0 overlaps input 0"));
}

#[test]
fn an_output_without_permission_stays_clear_of_every_input() {
    let gate_up = buffer(1, 256, &[4, 16]);
    let op = || Gated::new(Activation::Silu);
    check(op(), &[gate_up], buffer(2, 0, &[4, 8]), None);
    check(op(), &[gate_up], buffer(2, 256, &[4, 8]), Some("output 0 overlaps input 0"));
    check(op(), &[gate_up], buffer(2, 508, &[4, 8]), Some("output 0 overlaps input 0"));
    check(op(), &[gate_up], buffer(2, 512, &[4, 8]), None);
}

#[test]
fn a_buffer_is_as_large_as_its_value() {
    let x = buffer(1, 0, &[4, 8]);
    let short = Buffer { region: Region { bytes: 64, ..buffer(2, 256, &[4, 8]).region }, ..buffer(2, 256, &[4, 8]) };
    check(Pointwise(Activation::Relu), &[x], short, Some("wrong size"));
}
