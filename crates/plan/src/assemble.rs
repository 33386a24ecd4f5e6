//! A program with addresses.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use plimsoll_graph::{BackendTraits, BatchShape, Graph, Program, Role, ScheduleId, Slot, SlotId, SlotTable, ValueId};

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

    /// The slots as a schedule finds and leaves them, in the order of the table: caches that it does not name hold nothing
    /// then, and so take no bytes.
    pub fn slots_of(&self, schedule: &Schedule) -> Vec<Region> {
        let buffers = schedule.steps.iter().flat_map(|step| step.inputs.iter().chain(&step.outputs));
        let named: BTreeSet<SlotId> = buffers.filter_map(|buffer| buffer.slot).collect();
        let uses_cache = named.iter().any(|&id| self.slots.get(id).role == Role::Cache);
        let region = |(id, slot): (SlotId, &Slot)| {
            let held = slot.role != Role::Cache || uses_cache;
            Region { bytes: if held { self.slot(id).bytes } else { 0 }, ..self.slot(id) }
        };
        self.slots.iter().map(region).collect()
    }

    /// # Panics
    /// If the plan has no such schedule.
    pub fn schedule(&self, id: ScheduleId) -> &Schedule {
        &self.schedules[&id]
    }
}

/// Lays out every graph of the program over the same arena: slots at the bottom, the rest above them. Caches lie lowest of
/// the rest, and only graphs that name one of them keep off all of them.
pub fn assemble(program: &Program, traits: &BackendTraits) -> Plan {
    let graphs = program.schedules.values().map(|schedule| &schedule.graph);
    let laid: Vec<Laid> = graphs.map(|graph| Laid::new(lifetimes(graph, traits))).collect();
    assemble_laid(program, &laid)
}

/// As [`assemble`], of graphs that are laid out already.
pub(crate) fn assemble_laid(program: &Program, laid: &[impl Borrow<Laid>]) -> Plan {
    let ground = Ground::new(&program.slots);
    let graphs = program.schedules.values().map(|schedule| &schedule.graph);
    let laid: Vec<(usize, &Laid)> =
        graphs.map(|graph| ground.below(graph)).zip(laid.iter().map(Borrow::borrow)).collect();
    let arena_bytes = ground.arena_bytes(laid.iter().map(|(base, l)| base + l.bytes));
    let lower_bound_bytes = ground.arena_bytes(laid.iter().map(|(base, l)| base + l.lower_bound));
    let fullest = laid.iter().max_by_key(|(base, l)| base + l.bytes).expect("there are schedules");
    let categories = categories(&program.slots, fullest.0 == ground.caches_end, fullest.1, arena_bytes);
    let resolved = program.schedules.iter().zip(&laid).map(|((&id, schedule), (base, laid))| {
        let resolved = laid.resolve(&schedule.graph, *base, &ground.slot_regions);
        (id, Schedule { recorded: schedule.recorded, ..resolved })
    });
    Plan {
        batch: program.batch,
        slots: program.slots.clone(),
        schedules: resolved.collect(),
        slot_regions: ground.slot_regions.clone(),
        arena_bytes,
        lower_bound_bytes,
        categories,
    }
}

/// What the buffers of all graphs lie on.
pub(crate) struct Ground {
    slot_regions: Vec<Region>,
    /// Of slots that hold something throughout.
    slots_end: usize,
    caches_end: usize,
}

impl Ground {
    pub(crate) fn new(slots: &SlotTable) -> Self {
        let mut slot_regions = vec![Region { place: Place::Device, offset: 0, bytes: 0 }; slots.len()];
        let mut end = 0;
        let mut place = |cache: bool| {
            for (id, slot) in slots.iter().filter(|(_, slot)| (slot.role == Role::Cache) == cache) {
                slot_regions[id.0 as usize] = Region { place: Place::Device, offset: end, bytes: slot.bytes() };
                end += aligned(slot.bytes());
            }
            end
        };
        let (slots_end, caches_end) = (place(false), place(true));
        Self { slot_regions, slots_end, caches_end }
    }

    /// Where the buffers of a graph begin: above all caches if it keeps anything in one.
    pub(crate) fn below(&self, graph: &Graph) -> usize {
        let uses_cache = graph.values.iter().any(|value| value.slot.is_some() && value.role == Role::Cache);
        if uses_cache { self.caches_end } else { self.slots_end }
    }

    /// The arena that holds the slots and whatever reaches so high.
    pub(crate) fn arena_bytes(&self, ends: impl Iterator<Item = usize>) -> usize {
        ends.fold(self.caches_end, usize::max)
    }
}

/// One graph's buffers with their offsets above the slots.
pub(crate) struct Laid {
    lifetimes: Lifetimes,
    offsets: Vec<usize>,
    pub bytes: usize,
    lower_bound: usize,
    /// Node during which most bytes are alive.
    peak: usize,
}

impl Laid {
    pub(crate) fn new(lifetimes: Lifetimes) -> Self {
        let profile = lifetimes.profile();
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

/// `with_cache`: the fullest schedule keeps off the caches.
fn categories(slots: &SlotTable, with_cache: bool, fullest: &Laid, arena_bytes: usize) -> Categories {
    let mut categories = Categories::default();
    for (_, slot) in slots.iter().filter(|(_, slot)| with_cache || slot.role != Role::Cache) {
        categories.add(slot.role, aligned(slot.bytes()) as u64);
    }
    let alive = |b: &&Lifetime| b.first <= fullest.peak && fullest.peak <= b.last;
    for buffer in fullest.lifetimes.buffers.iter().filter(alive) {
        categories.add(buffer.role, buffer.bytes as u64);
    }
    categories.fragmentation = arena_bytes as u64 - categories.total();
    categories
}
