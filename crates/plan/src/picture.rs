//! A plan as one draws it: what lies where, from when to when. Plain data with names, so whoever draws needs no graph.

use plimsoll_graph::{Graph, OpRule, Phase, Program, Role};

use crate::lifetimes::{Content, Lifetimes, aligned, lifetimes};
use crate::search::with_drops;
use crate::{Categories, Chosen, DeviceProfile, Lane, Plan, Schedule, step_cost};

/// Addresses over time, for every schedule of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    pub arena_bytes: u64,
    pub lower_bound_bytes: u64,
    /// What keeps its address for the whole run, from address 0 upwards.
    pub bands: Vec<Band>,
    /// The schedules, the one that trains first.
    pub timelines: Vec<Timeline>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    pub name: String,
    pub category: &'static str,
    pub layer: Option<u32>,
    /// Type and shape, such as `bf16 [4096, 1024]`.
    pub detail: String,
    pub offset: u64,
    pub bytes: u64,
}

/// One schedule: its steps, and the buffers that live and die in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    pub name: &'static str,
    pub steps: Vec<TimelineStep>,
    pub buffers: Vec<TimelineBuffer>,
    /// The step during which most bytes are alive, and how many those are, bands included.
    pub peak_step: usize,
    pub peak_bytes: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TimelineStep {
    pub op: &'static str,
    pub phase: &'static str,
    pub layer: Option<u32>,
    pub lane: Lane,
    /// As predicted for a full micro-batch.
    pub seconds: f64,
}

/// Memory from the start of step `first` to the end of step `last`.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelineBuffer {
    /// What it holds; where one value takes another's place, the first and the last of them.
    pub name: String,
    pub class: &'static str,
    pub category: &'static str,
    pub layer: Option<u32>,
    pub detail: String,
    /// Holds what was dropped and made a second time.
    pub recomputed: bool,
    pub offset: u64,
    pub bytes: u64,
    pub first: usize,
    pub last: usize,
}

impl<B: AsRef<Program>> Chosen<B> {
    /// The picture of this plan, with times as they are predicted for `device`, for which it was made.
    pub fn picture(&self, device: &DeviceProfile) -> Picture {
        let plan = &self.plan;
        // Caches are memory of the schedules that use them, and lent to all others.
        let permanent = || plan.slots.iter().filter(|(_, slot)| slot.role != Role::Cache);
        let bands = permanent().map(|(id, slot)| Band {
            name: slot.name.clone(),
            category: category(slot.role),
            layer: slot.layer,
            detail: format!("{} {}", slot.dtype().name(), slot.shape),
            offset: plan.slot(id).offset as u64,
            bytes: aligned(slot.bytes()) as u64,
        });
        let bands: Vec<Band> = bands.collect();
        let mut schedules: Vec<_> = self.built.as_ref().schedules.iter().collect();
        schedules.sort_by_key(|(id, schedule)| (schedule.cadence as u8, **id));
        let base: usize = permanent().map(|(_, slot)| aligned(slot.bytes())).sum();
        let timelines = schedules.into_iter().map(|(&id, schedule)| {
            let graph = with_drops(schedule, &self.drops);
            let schedule = plan.schedule(id);
            let mut timeline = timeline(id.0, &graph, schedule, base as u64, device);
            let caches = caches(plan, schedule);
            timeline.peak_bytes += caches.iter().map(|cache| aligned(cache.bytes as usize) as u64).sum::<u64>();
            timeline.buffers.extend(caches);
            timeline
        });
        Picture {
            arena_bytes: plan.arena_bytes as u64,
            lower_bound_bytes: plan.lower_bound_bytes as u64,
            bands,
            timelines: timelines.collect(),
        }
    }
}

/// What a schedule keeps of sequences from one run to the next.
fn caches(plan: &Plan, schedule: &Schedule) -> Vec<TimelineBuffer> {
    let regions = plan.slots_of(schedule);
    let held = plan.slots.iter().zip(regions).filter(|((_, slot), at)| slot.role == Role::Cache && at.bytes > 0);
    held.map(|((_, slot), at)| TimelineBuffer {
        name: slot.name.clone(),
        class: "",
        category: category(slot.role),
        layer: slot.layer,
        detail: format!("{} {}", slot.dtype().name(), slot.shape),
        recomputed: false,
        offset: at.offset as u64,
        bytes: at.bytes as u64,
        first: 0,
        last: schedule.steps.len() - 1,
    })
    .collect()
}

fn timeline(
    name: &'static str,
    graph: &Graph,
    schedule: &Schedule,
    base_bytes: u64,
    device: &DeviceProfile,
) -> Timeline {
    let found = lifetimes(graph, &device.traits);
    let profile = found.profile();
    let peak = profile.iter().copied().max().unwrap_or(0);
    Timeline {
        name,
        steps: schedule
            .steps
            .iter()
            .map(|step| TimelineStep {
                op: step.op.name(),
                phase: phase(step.phase),
                layer: step.layer,
                lane: step.lane,
                seconds: step_cost(step, device).1,
            })
            .collect(),
        buffers: buffers(graph, schedule, &found),
        peak_step: profile.iter().position(|&bytes| bytes == peak).unwrap_or(0),
        peak_bytes: base_bytes + peak as u64,
    }
}

fn buffers(graph: &Graph, schedule: &Schedule, found: &Lifetimes) -> Vec<TimelineBuffer> {
    let mut drawn: Vec<TimelineBuffer> = found
        .buffers
        .iter()
        .map(|buffer| TimelineBuffer {
            name: String::new(),
            class: "",
            category: category(buffer.role),
            layer: None,
            detail: String::new(),
            recomputed: false,
            offset: 0,
            bytes: buffer.bytes as u64,
            first: buffer.first,
            last: buffer.last,
        })
        .collect();
    for (node, step) in graph.nodes.iter().zip(&schedule.steps) {
        for output in &step.outputs {
            let Some(index) = found.of_value[output.value.index()] else { continue };
            let value = graph.value(output.value);
            let buffer = &mut drawn[index];
            if buffer.name.is_empty() {
                buffer.name.clone_from(&value.name);
                buffer.class = value.class.0;
                buffer.layer = value.layer;
                buffer.detail = format!("{} {}", value.dtype().name(), value.shape);
                buffer.recomputed = node.phase == Phase::Recompute;
                buffer.offset = output.region.offset as u64;
            } else if buffer.name != value.name {
                let first = buffer.name.split(SUCCESSION).next().unwrap_or_default();
                buffer.name = format!("{first}{SUCCESSION}{}", value.name);
            }
        }
    }
    for (lifetime, buffer) in found.buffers.iter().zip(&mut drawn) {
        if let Content::Workspace { node } = lifetime.content {
            let step = &schedule.steps[node];
            buffer.name = format!("{} scratch", step.op.name());
            buffer.layer = step.layer;
            buffer.recomputed = step.phase == Phase::Recompute;
            buffer.offset = step.workspace.map_or(0, |region| region.offset as u64);
        }
    }
    drawn
}

/// Stands between the first and the last of the values that share a buffer.
const SUCCESSION: &str = " → ";

/// The line of the memory table on which bytes of this role appear.
fn category(role: Role) -> &'static str {
    let mut one = Categories::default();
    one.add(role, 1);
    one.rows().into_iter().find(|(_, bytes)| *bytes > 0).expect("every role has a line").0
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "forward",
        Phase::Recompute => "recompute",
        Phase::Backward => "backward",
        Phase::Update => "update",
    }
}
