//! Replays a plan and proves it sound, knowing nothing of how it was made.
//!
//! The state is who owns which bytes. A step may read a buffer only if its bytes still belong to the
//! value the step means; writing takes the bytes away from whoever had them. So "every read was
//! written", "no two live buffers overlap" and "in-place only where allowed" are all one question,
//! asked at every read. Lifetimes are not consulted.

use std::collections::{BTreeMap, HashSet};

use plimsoll_graph::{Alias, OpRule, SlotId, ValueId};
use thiserror::Error;

use crate::{Buffer, Lane, Place, Plan, Region, Schedule, Step};

#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("{schedule}, step {step} ({op}): {reason}")]
pub struct Violation {
    pub schedule: String,
    pub step: usize,
    pub op: &'static str,
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// What the slot held when the schedule began.
    Initial(SlotId),
    Value(ValueId),
    Scratch,
}

/// Owners of the bytes of one memory, as disjoint runs.
#[derive(Default)]
struct Ownership(BTreeMap<usize, (usize, Owner)>);

impl Ownership {
    /// Gives a run of bytes to a new owner.
    fn take(&mut self, region: Region, owner: Owner) {
        let touched: Vec<(usize, usize, Owner)> = self
            .0
            .range(..region.end())
            .rev()
            .take_while(|(_, (end, _))| *end > region.offset)
            .map(|(&start, &(end, owner))| (start, end, owner))
            .collect();
        for (start, end, previous) in touched {
            self.0.remove(&start);
            if start < region.offset {
                self.0.insert(start, (region.offset, previous));
            }
            if end > region.end() {
                self.0.insert(region.end(), (end, previous));
            }
        }
        if region.bytes > 0 {
            self.0.insert(region.offset, (region.end(), owner));
        }
    }

    /// Do all bytes of the region belong to this owner?
    fn holds(&self, region: Region, owner: Owner) -> bool {
        let mut at = region.offset;
        while at < region.end() {
            match self.0.range(..=at).next_back() {
                Some((_, &(end, found))) if end > at && found == owner => at = end,
                _ => return false,
            }
        }
        true
    }
}

/// Checks every schedule of a plan against its arena.
pub fn verify(plan: &Plan) -> Result<(), Violation> {
    for (id, schedule) in &plan.schedules {
        verify_schedule(id.0, schedule, &plan.slots_of(schedule), plan.arena_bytes, 0)?;
    }
    Ok(())
}

/// Checks one schedule. Slots must lie apart, and hold slots again when the schedule ends.
pub fn verify_schedule(
    name: &str,
    schedule: &Schedule,
    slots: &[Region],
    device_bytes: usize,
    pinned_bytes: usize,
) -> Result<(), Violation> {
    let mut replay = Replay::new(name, schedule, slots, device_bytes, pinned_bytes)?;
    for (index, step) in schedule.steps.iter().enumerate() {
        replay.step(index, step)?;
    }
    replay.finish(schedule, slots)
}

struct Replay<'a> {
    name: &'a str,
    owners: BTreeMap<Place, Ownership>,
    arena_bytes: BTreeMap<Place, usize>,
    /// Values that slots hold before the first step.
    initial: HashSet<ValueId>,
    slot_versions: BTreeMap<SlotId, Owner>,
    clocks: Clocks<'a>,
}

impl<'a> Replay<'a> {
    fn new(
        name: &'a str,
        schedule: &'a Schedule,
        slots: &[Region],
        device_bytes: usize,
        pinned_bytes: usize,
    ) -> Result<Self, Violation> {
        let mut replay = Self {
            name,
            owners: BTreeMap::new(),
            arena_bytes: BTreeMap::from([(Place::Device, device_bytes), (Place::PinnedHost, pinned_bytes)]),
            initial: schedule.initial.iter().copied().collect(),
            slot_versions: BTreeMap::new(),
            clocks: Clocks::new(schedule),
        };
        for (index, &region) in slots.iter().enumerate() {
            replay.in_arena(0, "slots", region)?;
            let id = SlotId(index as u32);
            replay.slot_versions.insert(id, Owner::Initial(id));
            replay.owners.entry(region.place).or_default().take(region, Owner::Initial(id));
        }
        for (index, &region) in slots.iter().enumerate() {
            if !replay.holds(region, Owner::Initial(SlotId(index as u32))) {
                return Err(replay.violation(0, "slots", format!("slot {index} shares bytes with another slot")));
            }
        }
        Ok(replay)
    }

    fn violation(&self, step: usize, op: &'static str, reason: String) -> Violation {
        Violation { schedule: self.name.to_owned(), step, op, reason }
    }

    fn holds(&self, region: Region, owner: Owner) -> bool {
        self.owners.get(&region.place).is_some_and(|o| o.holds(region, owner))
    }

    fn in_arena(&self, index: usize, op: &'static str, region: Region) -> Result<(), Violation> {
        let limit = self.arena_bytes[&region.place];
        if region.end() > limit {
            let reason = format!("bytes {}..{} lie outside the arena of {limit}", region.offset, region.end());
            return Err(self.violation(index, op, reason));
        }
        Ok(())
    }

    fn step(&mut self, index: usize, step: &Step) -> Result<(), Violation> {
        let op = step.op.name();
        for buffer in step.inputs.iter().chain(&step.outputs) {
            self.in_arena(index, op, buffer.region)?;
            if buffer.storage.bytes(&buffer.shape) != Ok(buffer.region.bytes) {
                return Err(self.violation(
                    index,
                    op,
                    format!("the buffer of value {} has the wrong size", buffer.value.0),
                ));
            }
        }
        for (position, input) in step.inputs.iter().enumerate() {
            let owner = self.expected(input);
            if !self.holds(input.region, owner) {
                let reason =
                    format!("input {position} (value {}) was never written there or is overwritten", input.value.0);
                return Err(self.violation(index, op, reason));
            }
        }
        self.check_sharing(index, step)?;
        self.clocks.check(index, step).map_err(|reason| self.violation(index, op, reason))?;
        if let Some(scratch) = step.workspace {
            self.in_arena(index, op, scratch)?;
            self.owners.entry(scratch.place).or_default().take(scratch, Owner::Scratch);
        }
        for output in &step.outputs {
            let owner = Owner::Value(output.value);
            self.owners.entry(output.region.place).or_default().take(output.region, owner);
            if let Some(slot) = output.slot {
                self.slot_versions.insert(slot, owner);
            }
        }
        Ok(())
    }

    /// Who must own a buffer's bytes for it to be readable.
    fn expected(&self, buffer: &Buffer) -> Owner {
        match buffer.slot {
            Some(slot) if self.initial.contains(&buffer.value) => Owner::Initial(slot),
            _ => Owner::Value(buffer.value),
        }
    }

    /// Outputs touch inputs only where the operator says so, and then exactly; scratch touches nothing.
    fn check_sharing(&self, index: usize, step: &Step) -> Result<(), Violation> {
        let op = step.op.name();
        let aliases = step.op.aliases();
        let fail = |reason: String| Err(self.violation(index, op, reason));
        for (o, output) in step.outputs.iter().enumerate() {
            for (i, input) in step.inputs.iter().enumerate() {
                let may = aliases.contains(&Alias::May { output: o, input: i });
                let must = aliases.contains(&Alias::Must { output: o, input: i });
                let same = output.region == input.region;
                if must && !same {
                    return fail(format!("output {o} must take the place of input {i}"));
                }
                if output.region.overlaps(&input.region) && !(same && (may || must)) {
                    return fail(format!("output {o} overlaps input {i}"));
                }
            }
            for (p, other) in step.outputs.iter().enumerate().skip(o + 1) {
                if output.region.overlaps(&other.region) {
                    return fail(format!("outputs {o} and {p} overlap"));
                }
            }
        }
        if let Some(scratch) = step.workspace
            && step.inputs.iter().chain(&step.outputs).any(|b| b.region.overlaps(&scratch))
        {
            return fail("the scratch memory overlaps an operand".into());
        }
        Ok(())
    }

    fn finish(&self, schedule: &Schedule, slots: &[Region]) -> Result<(), Violation> {
        let end = schedule.steps.len();
        for (slot, owner) in &self.slot_versions {
            if !self.holds(slots[slot.0 as usize], *owner) {
                return Err(self.violation(end, "end", format!("slot {} was overwritten", slot.0)));
            }
        }
        for result in &schedule.results {
            if !self.holds(result.region, self.expected(result)) {
                return Err(self.violation(end, "end", format!("result {} was overwritten", result.value.0)));
            }
        }
        Ok(())
    }
}

const LANES: [Lane; 4] = [Lane::Compute, Lane::CopyIn, Lane::CopyOut, Lane::Collective];

fn lane_index(lane: Lane) -> usize {
    LANES.iter().position(|&l| l == lane).expect("all lanes are listed")
}

/// For each step, how far every lane is known to have got when it starts. A step of another lane that
/// is not known to be finished is in flight, and what it touches is not free.
struct Clocks<'a> {
    schedule: &'a Schedule,
    /// Count of finished steps of each lane known at the end of each step, itself included.
    known: Vec<[usize; 4]>,
    /// Number of each step within its lane, from 1.
    ordinal: Vec<usize>,
    newest: [Option<usize>; 4],
    several_lanes: bool,
}

impl<'a> Clocks<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let mut counts = [0; 4];
        let ordinal = schedule
            .steps
            .iter()
            .map(|s| {
                counts[lane_index(s.lane)] += 1;
                counts[lane_index(s.lane)]
            })
            .collect();
        let several_lanes = counts.iter().filter(|&&c| c > 0).count() > 1;
        Self { schedule, known: Vec::new(), ordinal, newest: [None; 4], several_lanes }
    }

    fn check(&mut self, index: usize, step: &Step) -> Result<(), String> {
        let lane = lane_index(step.lane);
        let mut clock = self.newest[lane].map_or([0; 4], |previous| self.known[previous]);
        for &dependency in &step.after {
            if dependency >= index {
                return Err(format!("waits for step {dependency}, which comes later"));
            }
            for (mine, theirs) in clock.iter_mut().zip(self.known[dependency]) {
                *mine = (*mine).max(theirs);
            }
        }
        if self.several_lanes {
            self.conflicts(index, step, &clock)?;
        }
        clock[lane] = self.ordinal[index];
        self.known.push(clock);
        self.newest[lane] = Some(index);
        Ok(())
    }

    fn conflicts(&self, index: usize, step: &Step, clock: &[usize; 4]) -> Result<(), String> {
        for (earlier, other) in self.schedule.steps[..index].iter().enumerate() {
            let finished = self.ordinal[earlier] <= clock[lane_index(other.lane)];
            if other.lane == step.lane || finished {
                continue;
            }
            let writes = |s: &Step| -> Vec<Region> { s.outputs.iter().map(|b| b.region).chain(s.workspace).collect() };
            let reads = |s: &Step| -> Vec<Region> { s.inputs.iter().map(|b| b.region).collect() };
            let clash = |a: &[Region], b: &[Region]| a.iter().any(|x| b.iter().any(|y| x.overlaps(y)));
            let (my_writes, my_reads, its_writes) = (writes(step), reads(step), writes(other));
            if clash(&my_writes, &its_writes) || clash(&my_writes, &reads(other)) || clash(&my_reads, &its_writes) {
                return Err(format!("touches memory that step {earlier} on another lane may still be using"));
            }
        }
        Ok(())
    }
}
