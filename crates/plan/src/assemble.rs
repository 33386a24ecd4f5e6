//! A program with addresses.

use std::collections::BTreeMap;

use plimsoll_graph::{BackendTraits, BatchShape, Graph, Program, ScheduleId, SlotId, SlotTable, ValueId};

use crate::layout::layout;
use crate::lifetimes::{Lifetime, Lifetimes, aligned, lifetimes};
use crate::report::Categories;
use crate::{Buffer, Lane, Place, Region, Schedule, Step};

/// Everything the runtime needs: one arena, an address for every slot, and the schedules.
#[derive(Debug, Clone)]
pub struct Plan {
    pub batch: BatchShape,
    pub slots: SlotTable,
    pub slot_regions: Vec<Region>,
    pub schedules: BTreeMap<ScheduleId, Schedule>,
    pub arena_bytes: usize,
    /// No layout of these schedules can be smaller.
    pub lower_bound_bytes: usize,
    /// The arena by what it holds at its fullest.
    pub categories: Categories,
}

impl Plan {
    pub fn slot(&self, id: SlotId) -> Region {
        self.slot_regions[id.0 as usize]
    }

    /// # Panics
    /// If the plan has no such schedule.
    pub fn schedule(&self, id: ScheduleId) -> &Schedule {
        &self.schedules[&id]
    }
}

/// Lays out every graph of the program over the same arena: slots at the bottom, the rest above them.
pub fn assemble(program: &Program, traits: &BackendTraits) -> Plan {
    let mut slot_regions = Vec::with_capacity(program.slots.len());
    let mut base = 0;
    for (_, slot) in program.slots.iter() {
        slot_regions.push(Region { place: Place::Device, offset: base, bytes: slot.bytes() });
        base += aligned(slot.bytes());
    }
    let laid: Vec<Laid> = program.schedules.values().map(|schedule| Laid::new(&schedule.graph, traits)).collect();
    let arena_bytes = base + laid.iter().map(|l| l.bytes).max().unwrap_or(0);
    let lower_bound_bytes = base + laid.iter().map(|l| l.lower_bound).max().unwrap_or(0);
    let fullest = laid.iter().max_by_key(|l| l.bytes).expect("there are schedules");
    let categories = categories(&program.slots, fullest, arena_bytes);
    let resolved = program.schedules.iter().zip(&laid).map(|((&id, schedule), laid)| {
        let resolved = laid.resolve(&schedule.graph, base, &slot_regions);
        (id, Schedule { recorded: schedule.recorded, ..resolved })
    });
    Plan {
        batch: program.batch,
        slots: program.slots.clone(),
        schedules: resolved.collect(),
        slot_regions,
        arena_bytes,
        lower_bound_bytes,
        categories,
    }
}

/// One graph's buffers with their offsets above the slots.
struct Laid {
    lifetimes: Lifetimes,
    offsets: Vec<usize>,
    bytes: usize,
    lower_bound: usize,
    /// Node during which most bytes are alive.
    peak: usize,
}

impl Laid {
    fn new(graph: &Graph, traits: &BackendTraits) -> Self {
        let lifetimes = lifetimes(graph, traits);
        let profile = lifetimes.profile(graph.nodes.len());
        let lower_bound = profile.iter().copied().max().unwrap_or(0);
        let peak = profile.iter().position(|&b| b == lower_bound).unwrap_or(0);
        let layout = layout(&lifetimes.buffers, lower_bound);
        Self { lifetimes, offsets: layout.offsets, bytes: layout.bytes, lower_bound, peak }
    }

    fn region(&self, buffer: usize, bytes: usize, base: usize) -> Region {
        Region { place: Place::Device, offset: base + self.offsets[buffer], bytes }
    }

    fn resolve(&self, graph: &Graph, base: usize, slot_regions: &[Region]) -> Schedule {
        let buffer = |id: ValueId| {
            let value = graph.value(id);
            let region = match value.slot {
                Some(slot) => slot_regions[slot.0 as usize],
                None => self.region(self.lifetimes.of_value[id.index()].expect("made by a node"), value.bytes(), base),
            };
            Buffer {
                value: id,
                slot: value.slot,
                region,
                shape: value.shape,
                storage: value.storage,
                extent: value.extent,
            }
        };
        let mut frees: Vec<Vec<Region>> = vec![Vec::new(); graph.nodes.len()];
        let results: Vec<usize> = graph.results.iter().filter_map(|v| self.lifetimes.of_value[v.index()]).collect();
        for (index, b) in self.lifetimes.buffers.iter().enumerate().filter(|(index, _)| !results.contains(index)) {
            frees[b.last].push(self.region(index, b.bytes, base));
        }
        let steps = graph.nodes.iter().enumerate().zip(frees).map(|((index, node), frees)| Step {
            op: node.op.clone(),
            inputs: node.inputs.iter().map(|&v| buffer(v)).collect(),
            outputs: node.outputs.iter().map(|&v| buffer(v)).collect(),
            workspace: self.lifetimes.of_node[index].map(|b| self.region(b, self.lifetimes.buffers[b].bytes, base)),
            lane: Lane::Compute,
            phase: node.phase,
            layer: node.layer,
            after: Vec::new(),
            frees,
        });
        let unmade = graph.producers().into_iter().enumerate().filter(|(_, producer)| producer.is_none());
        Schedule {
            steps: steps.collect(),
            recorded: false,
            initial: unmade.map(|(value, _)| ValueId(value as u32)).collect(),
            results: graph.results.iter().map(|&v| buffer(v)).collect(),
        }
    }
}

fn categories(slots: &SlotTable, fullest: &Laid, arena_bytes: usize) -> Categories {
    let mut categories = Categories::default();
    for (_, slot) in slots.iter() {
        categories.add(slot.role, aligned(slot.bytes()) as u64);
    }
    let alive = |b: &&Lifetime| b.first <= fullest.peak && fullest.peak <= b.last;
    for buffer in fullest.lifetimes.buffers.iter().filter(alive) {
        categories.add(buffer.role, buffer.bytes as u64);
    }
    categories.fragmentation = arena_bytes as u64 - categories.total();
    categories
}
