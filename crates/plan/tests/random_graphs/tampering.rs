//! One thing in a sound plan is changed. Whether that matters is decided by running the plan; where
//! it does, the verifier must object.

use std::cell::RefCell;
use std::collections::BTreeMap;

use plimsoll_graph::{Alias, OpRule, ValueId};
use plimsoll_plan::recompute::recompute;
use plimsoll_plan::verify::verify;
use plimsoll_plan::{Buffer, Plan, Region, Schedule, Step, assemble};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::generator::sketches;
use crate::memory::{Freed, execute};
use crate::symbols::{Outcome, meaning};
use crate::{IDS, with_micro_step};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tampering {
    ValueOntoAnother,
    StepsSwapped,
    StepDropped,
    ArenaShrunk,
    UpdateMovedAway,
    ScratchOntoOperand,
    ScratchOntoLive,
    OutputOntoInput,
    OutputOntoOutput,
    InputRedirected,
    SlotOverwritten,
    ResultClobbered,
}

const ALL: [Tampering; 12] = [
    Tampering::ValueOntoAnother,
    Tampering::StepsSwapped,
    Tampering::StepDropped,
    Tampering::ArenaShrunk,
    Tampering::UpdateMovedAway,
    Tampering::ScratchOntoOperand,
    Tampering::ScratchOntoLive,
    Tampering::OutputOntoInput,
    Tampering::OutputOntoOutput,
    Tampering::InputRedirected,
    Tampering::SlotOverwritten,
    Tampering::ResultClobbered,
];

/// Of each kind, in every program.
const ATTEMPTS: usize = 4;
/// A kind that makes fewer wrong plans than this is not tested.
const WRONG_MIN: usize = 100;

#[test]
fn every_wrong_plan_is_found() {
    let counts: RefCell<BTreeMap<Tampering, usize>> = RefCell::default();
    let outcome = TestRunner::new(crate::config()).run(&sketches(), |sketch| {
        let program = sketch.program();
        let micro_step = recompute(program.graph(IDS[0]), &sketch.drops(program.graph(IDS[0])));
        let plan = assemble(&with_micro_step(&program, micro_step), &sketch.traits);
        prop_assert_eq!(verify(&plan), Ok(()));
        let expected = IDS.map(|id| meaning(program.graph(id), &program.slots));
        let mut dice = Dice(sketch.seed);
        for kind in ALL {
            for _ in 0..ATTEMPTS {
                // The micro-step is the longest schedule, and gets half of the attention.
                let which = [0, 0, 0, 1, 2, 3][dice.below(6)];
                let Some(tampered) = tamper(kind, &plan, which, &mut dice) else { continue };
                if means(&tampered, which, &expected[which]) {
                    continue;
                }
                *counts.borrow_mut().entry(kind).or_default() += 1;
                prop_assert!(verify(&tampered).is_err(), "{:?} in schedule {} passes", kind, which);
            }
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let counts = counts.into_inner();
    for kind in ALL {
        let count = counts.get(&kind).copied().unwrap_or(0);
        assert!(count >= WRONG_MIN, "{kind:?} made only {count} wrong plans: {counts:?}");
    }
}

/// Does the schedule still do what it is for?
fn means(plan: &Plan, which: usize, expected: &Outcome) -> bool {
    execute(plan, plan.schedule(IDS[which]), Freed::Left).is_ok_and(|outcome| outcome == *expected)
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    fn pick<T>(&mut self, from: impl IntoIterator<Item = T>) -> Option<T> {
        let mut from: Vec<T> = from.into_iter().collect();
        let index = if from.is_empty() { return None } else { self.below(from.len()) };
        Some(from.swap_remove(index))
    }
}

/// The plan with one change to one of its schedules; `None` where there is nothing of the kind to change.
fn tamper(kind: Tampering, plan: &Plan, which: usize, dice: &mut Dice) -> Option<Plan> {
    let mut plan = plan.clone();
    let (slots, arena_bytes) = (plan.slot_regions.clone(), plan.arena_bytes);
    if kind == Tampering::ArenaShrunk {
        let used = plan.schedule(IDS[which]).steps.iter().flat_map(touched).map(|r| r.end()).max()?;
        plan.arena_bytes = used - 1 - dice.below(used.min(64));
        return Some(plan);
    }
    let schedule = plan.schedules.get_mut(&IDS[which]).expect("one of them");
    let index = dice.below(schedule.steps.len());
    // Near a target, so that whole and partial overlaps both occur.
    let near = |region: Region, bytes: usize, dice: &mut Dice| {
        let shift = [0, 0, 1, 4, 256][dice.below(5)];
        let start = if dice.below(2) == 0 { region.offset + shift } else { region.offset.saturating_sub(shift) };
        start.min(arena_bytes.saturating_sub(bytes))
    };
    match kind {
        Tampering::ArenaShrunk => unreachable!("done above"),
        Tampering::ValueOntoAnother => {
            let moved = dice.pick(planned(&schedule.steps[index]))?;
            let last = schedule.steps.iter().rposition(|s| s.inputs.iter().any(|b| b.value == moved.value))?;
            let target = dice.pick(schedule.steps[index..=last.max(index)].iter().flat_map(touched))?;
            move_value(schedule, moved.value, near(target, moved.region.bytes, dice));
        }
        Tampering::StepsSwapped => {
            let later = dice.pick(readers(schedule, index))?;
            schedule.steps.swap(index, later);
        }
        Tampering::StepDropped => {
            dice.pick(readers(schedule, index))?;
            schedule.steps.remove(index);
        }
        Tampering::UpdateMovedAway => {
            let updates = |s: &Step| s.op.aliases().into_iter().filter_map(must).map(|(output, _)| output).collect();
            let all: Vec<(usize, usize)> = schedule
                .steps
                .iter()
                .enumerate()
                .flat_map(|(i, s)| Vec::<usize>::into_iter(updates(s)).map(move |o| (i, o)))
                .collect();
            let (index, output) = dice.pick(all)?;
            let target = dice.pick(schedule.steps.iter().flat_map(touched))?;
            let region = &mut schedule.steps[index].outputs[output].region;
            region.offset = near(target, region.bytes, dice);
        }
        Tampering::ScratchOntoOperand | Tampering::ScratchOntoLive => {
            let with_scratch = schedule.steps.iter().enumerate().filter(|(_, s)| s.workspace.is_some());
            let index = dice.pick(with_scratch.map(|(i, _)| i))?;
            let target = if kind == Tampering::ScratchOntoOperand {
                let step = &schedule.steps[index];
                dice.pick(step.inputs.iter().chain(&step.outputs).map(|b| b.region))?
            } else {
                dice.pick(live_across(schedule, index))?
            };
            let scratch = schedule.steps[index].workspace.as_mut()?;
            scratch.offset = near(target, scratch.bytes, dice);
        }
        Tampering::OutputOntoInput => {
            let moved = dice.pick(planned(&schedule.steps[index]))?;
            let target = dice.pick(schedule.steps[index].inputs.iter().map(|b| b.region))?;
            move_value(schedule, moved.value, near(target, moved.region.bytes, dice));
        }
        Tampering::OutputOntoOutput => {
            let several = schedule.steps.iter().enumerate().filter(|(_, s)| s.outputs.len() > 1);
            let index = dice.pick(several.map(|(i, _)| i))?;
            let moved = dice.pick(planned(&schedule.steps[index]))?;
            let others = schedule.steps[index].outputs.iter().filter(|b| b.value != moved.value);
            let target = dice.pick(others.map(|b| b.region))?;
            move_value(schedule, moved.value, near(target, moved.region.bytes, dice));
        }
        Tampering::InputRedirected => {
            let target = dice.pick(schedule.steps.iter().flat_map(touched))?;
            let input = dice.below(schedule.steps[index].inputs.len());
            let region = &mut schedule.steps[index].inputs[input].region;
            region.offset = near(target, region.bytes, dice);
        }
        Tampering::SlotOverwritten => {
            let moved = dice.pick(planned(&schedule.steps[index]))?;
            let target = dice.pick(slots)?;
            move_value(schedule, moved.value, near(target, moved.region.bytes, dice));
        }
        Tampering::ResultClobbered => {
            let result = dice.pick(schedule.results.iter().copied())?;
            let made = schedule.steps.iter().position(|s| s.outputs.iter().any(|b| b.value == result.value))?;
            let later = schedule.steps[made..].iter().flat_map(planned);
            let moved = dice.pick(later.filter(|b| b.value != result.value))?;
            move_value(schedule, moved.value, near(result.region, moved.region.bytes, dice));
        }
    }
    Some(plan)
}

fn must(alias: Alias) -> Option<(usize, usize)> {
    match alias {
        Alias::Must { output, input } => Some((output, input)),
        Alias::May { .. } => None,
    }
}

/// Outputs the planner chose an address for.
fn planned(step: &Step) -> Vec<Buffer> {
    step.outputs.iter().copied().filter(|b| b.slot.is_none()).collect()
}

fn touched(step: &Step) -> Vec<Region> {
    step.inputs.iter().chain(&step.outputs).map(|b| b.region).chain(step.workspace).collect()
}

/// Steps that read what a step makes.
fn readers(schedule: &Schedule, index: usize) -> Vec<usize> {
    let made: Vec<ValueId> = schedule.steps[index].outputs.iter().map(|b| b.value).collect();
    let reads = |s: &Step| s.inputs.iter().any(|b| made.contains(&b.value));
    (index + 1..schedule.steps.len()).filter(|&later| reads(&schedule.steps[later])).collect()
}

/// What is made before a step and read after it.
fn live_across(schedule: &Schedule, index: usize) -> Vec<Region> {
    let before: Vec<ValueId> = schedule.steps[..index].iter().flat_map(|s| &s.outputs).map(|b| b.value).collect();
    let after = schedule.steps[index + 1..].iter().flat_map(|s| &s.inputs);
    after.filter(|b| before.contains(&b.value)).map(|b| b.region).collect()
}

/// Moves a value for everyone who makes or reads it.
fn move_value(schedule: &mut Schedule, value: ValueId, offset: usize) {
    let Schedule { steps, results, .. } = schedule;
    let operands = steps.iter_mut().flat_map(|s| s.inputs.iter_mut().chain(&mut s.outputs));
    for buffer in operands.chain(results).filter(|b| b.value == value) {
        buffer.region.offset = offset;
    }
}
