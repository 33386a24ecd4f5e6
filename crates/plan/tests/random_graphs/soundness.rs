//! What the planner makes of a random program still is that program.

use std::collections::{BTreeMap, HashMap};

use plimsoll_graph::{Graph, OpRule, Phase, ScheduleId, ValueId};
use plimsoll_plan::lifetimes::aligned;
use plimsoll_plan::recompute::recompute;
use plimsoll_plan::verify::verify;
use plimsoll_plan::{Plan, assemble};
use proptest::prelude::*;

use crate::generator::sketches;
use crate::memory::{Freed, execute};
use crate::symbols::meaning;
use crate::{IDS, with_micro_step};

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn every_plan_holds_and_means_what_the_program_means(sketch in sketches()) {
        let program = sketch.program();
        let drops = sketch.drops(program.graph(ScheduleId::MICRO_STEP));
        let micro_step = recompute(program.graph(ScheduleId::MICRO_STEP), &drops);
        same_effects(program.graph(ScheduleId::MICRO_STEP), &micro_step)?;
        let plan = assemble(&with_micro_step(&program, micro_step.clone()), &sketch.traits);
        prop_assert_eq!(verify(&plan), Ok(()));
        let mut planned: Vec<&Graph> = IDS[1..].iter().map(|&id| program.graph(id)).collect();
        planned.push(&micro_step);
        enough_memory(&plan, &planned)?;
        // The program as it was written, before anything was dropped, says what must come out.
        for (id, schedule) in &plan.schedules {
            let expected = meaning(program.graph(*id), &program.slots);
            for freed in [Freed::Left, Freed::Spoilt] {
                let outcome = execute(&plan, schedule, freed).expect("inside the arena");
                prop_assert_eq!(&outcome, &expected, "{} with freed memory {:?}", id.0, freed);
            }
        }
    }
}

/// Recompute adds nodes of its own and redirects readers; everything else stays.
fn same_effects(before: &Graph, after: &Graph) -> Result<(), TestCaseError> {
    let writes = |graph: &Graph| -> Vec<(&'static str, ValueId)> {
        let slots = |v: &&ValueId| graph.value(**v).slot.is_some();
        graph.nodes.iter().flat_map(|n| n.outputs.iter().filter(slots).map(|&v| (n.op.name(), v))).collect()
    };
    prop_assert_eq!(writes(before), writes(after));
    prop_assert_eq!(&before.results, &after.results);
    let kept: Vec<_> = after.nodes.iter().filter(|n| n.phase != Phase::Recompute).map(|n| &n.outputs).collect();
    prop_assert_eq!(before.nodes.iter().map(|n| &n.outputs).collect::<Vec<_>>(), kept);
    Ok(())
}

/// The arena holds at least what the lower bound says, and that at least what must be kept from
/// before each node to after it, counted without regard to how lifetimes are found.
fn enough_memory(plan: &Plan, graphs: &[&Graph]) -> Result<(), TestCaseError> {
    prop_assert!(plan.arena_bytes >= plan.lower_bound_bytes);
    prop_assert_eq!(plan.categories.total(), plan.arena_bytes as u64);
    let slots: usize = plan.slots.iter().map(|(_, s)| aligned(s.bytes())).sum();
    for graph in graphs {
        for boundary in 0..graph.nodes.len() {
            prop_assert!(plan.lower_bound_bytes - slots >= crossing_bytes(graph, boundary));
        }
    }
    Ok(())
}

/// Bytes of values made by the first nodes and read by the others or by the host.
fn crossing_bytes(graph: &Graph, boundary: usize) -> usize {
    let (before, after) = graph.nodes.split_at(boundary);
    let made: HashMap<ValueId, usize> =
        before.iter().flat_map(|n| &n.outputs).map(|&v| (v, graph.value(v).bytes())).collect();
    let read = after.iter().flat_map(|n| &n.inputs).chain(&graph.results);
    let crossing: BTreeMap<ValueId, usize> =
        read.filter(|&&v| graph.value(v).slot.is_none()).filter_map(|v| Some((*v, *made.get(v)?))).collect();
    crossing.values().sum()
}
