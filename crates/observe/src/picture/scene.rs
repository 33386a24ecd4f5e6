//! A plan with what is said beside its picture.

use plimsoll_plan::{Band, Categories, Picture, Report, Timeline, TimelineBuffer};
use serde_json::{Value, json};

use super::columns::{Dictionary, encode};

/// Addresses are multiples of this, so the page is given them divided by it.
const UNIT_BYTES: u64 = 256;

/// One plan to be drawn, under a name.
#[derive(Debug, Clone, Copy)]
pub struct PlanPicture<'a> {
    pub name: &'a str,
    pub report: &'a Report,
    pub picture: &'a Picture,
}

impl PlanPicture<'_> {
    /// Whether the arena lies in the card's memory.
    fn on_gpu(&self) -> bool {
        self.report.gpu.planned_bytes > 0
    }

    pub fn budget_bytes(&self) -> u64 {
        if self.on_gpu() { self.report.gpu.budget_bytes } else { self.report.host.budget_bytes }
    }

    pub fn planned_bytes(&self) -> u64 {
        if self.on_gpu() { self.report.gpu.planned_bytes } else { self.report.host.planned_bytes }
    }

    /// What the budget leaves for the arena: the height of its line in the picture.
    pub fn arena_budget_bytes(&self) -> u64 {
        self.budget_bytes().saturating_sub(self.planned_bytes().saturating_sub(self.picture.arena_bytes))
    }

    /// All lines of the memory table, in order.
    fn categories(&self) -> Vec<(&'static str, u64)> {
        let rows =
            if self.on_gpu() { self.report.gpu.categories.rows().to_vec() } else { self.report.host.categories.rows() };
        rows.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// The timeline whose memory makes the arena as large as it is.
    pub fn fullest(&self) -> &Timeline {
        let timelines = self.picture.timelines.iter();
        timelines.max_by_key(|timeline| timeline.peak_bytes).expect("a plan has schedules")
    }

    /// As the script on the page reads it.
    pub fn to_json(self) -> Value {
        let report = self.report;
        let mut names = Dictionary::default();
        let bands = bands(&self.picture.bands, &mut names);
        let timelines: Vec<Value> = self.picture.timelines.iter().map(|t| timeline(t, &mut names)).collect();
        json!({
            "name": self.name,
            "device": report.device,
            "fits": report.fits,
            "budget": self.budget_bytes(),
            "planned": self.planned_bytes(),
            "arenaBudget": self.arena_budget_bytes(),
            "arena": self.picture.arena_bytes,
            "lowerBound": self.picture.lower_bound_bytes,
            "sequences": report.effective_batch.sequences,
            "microBatchTokens": report.micro_batch_tokens,
            "accumulation": report.accumulation,
            "recompute": report.recompute,
            "tokensPerS": report.predicted.tokens_per_s,
            "stepMs": report.predicted.step_ms,
            "categories": self.categories(),
            "bands": bands,
            "timelines": timelines,
            "names": names.into_texts(),
        })
    }
}

/// Names with the layer's number taken out, of which there are few.
fn stem(name: &str, layer: Option<u32>) -> String {
    let Some(layer) = layer else { return name.to_owned() };
    let number = layer.to_string();
    let parts = name.split('.').map(|part| if part == number { "#" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

fn layer_number(layer: Option<u32>) -> u64 {
    layer.map_or(0, |layer| u64::from(layer) + 1)
}

/// The place of a category in the memory table.
pub fn category_index(category: &str) -> u64 {
    let rows = Categories::default().rows();
    rows.iter().position(|(name, _)| *name == category).expect("a line of the table") as u64
}

fn bands(bands: &[Band], names: &mut Dictionary) -> Value {
    json!({
        "name": encode(bands.iter().map(|b| names.index(&stem(&b.name, b.layer)))),
        "detail": encode(bands.iter().map(|b| names.index(&b.detail))),
        "layer": encode(bands.iter().map(|b| layer_number(b.layer))),
        "category": encode(bands.iter().map(|b| category_index(b.category))),
        "offset": encode(bands.iter().map(|b| b.offset / UNIT_BYTES)),
        "bytes": encode(bands.iter().map(|b| b.bytes)),
    })
}

fn timeline(timeline: &Timeline, names: &mut Dictionary) -> Value {
    let steps = &timeline.steps;
    let mut buffers: Vec<&TimelineBuffer> = timeline.buffers.iter().collect();
    buffers.sort_by_key(|b| (b.first, b.offset));
    json!({
        "name": timeline.name,
        "peakStep": timeline.peak_step,
        "peak": timeline.peak_bytes,
        "op": encode(steps.iter().map(|s| names.index(s.op))),
        "phase": encode(steps.iter().map(|s| names.index(s.phase))),
        "stepLayer": encode(steps.iter().map(|s| layer_number(s.layer))),
        "ns": encode(steps.iter().map(|s| (s.seconds * 1e9).round() as u64)),
        "bufferName": encode(buffers.iter().map(|b| names.index(&stem(&b.name, b.layer)))),
        "class": encode(buffers.iter().map(|b| names.index(b.class))),
        "detail": encode(buffers.iter().map(|b| names.index(&b.detail))),
        "layer": encode(buffers.iter().map(|b| layer_number(b.layer))),
        "category": encode(buffers.iter().map(|b| category_index(b.category))),
        "recomputed": encode(buffers.iter().map(|b| u64::from(b.recomputed))),
        "offset": encode(buffers.iter().map(|b| b.offset / UNIT_BYTES)),
        "bytes": encode(buffers.iter().map(|b| b.bytes)),
        "first": encode(buffers.iter().map(|b| b.first as u64)),
        "length": encode(buffers.iter().map(|b| (b.last - b.first) as u64)),
    })
}
