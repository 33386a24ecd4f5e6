//! What the pictures say.

use plimsoll_speech::Language;
use serde::Serialize;

use super::COLOURS;

/// Every word of the page and of the drawing, in one language. The page finds them by these names.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Text {
    pub language: &'static str,
    pub title: &'static str,
    pub peak: &'static str,
    pub budget: &'static str,
    pub arena: &'static str,
    pub planned: &'static str,
    pub speed: &'static str,
    pub batch: &'static str,
    pub recompute: &'static str,
    pub recomputed: &'static str,
    pub nothing: &'static str,
    pub layers: &'static str,
    pub fits: &'static str,
    pub does_not_fit: &'static str,
    pub schedule: &'static str,
    pub axis: &'static str,
    pub axis_steps: &'static str,
    pub axis_time: &'static str,
    pub reset: &'static str,
    pub to_peak: &'static str,
    pub usage: &'static str,
    pub largest: &'static str,
    pub buffer: &'static str,
    pub category: &'static str,
    pub layer: &'static str,
    pub size: &'static str,
    pub address: &'static str,
    pub steps: &'static str,
    pub content: &'static str,
    pub at_peak: &'static str,
    pub yes: &'static str,
    pub whole_run: &'static str,
    pub budget_above: &'static str,
    pub outside: &'static str,
    pub live: &'static str,
    pub total: &'static str,
    pub difference: &'static str,
    pub search: &'static str,
    pub phases: [(&'static str, &'static str); 4],
    pub schedules: [(&'static str, &'static str); 5],
    /// Of every category of memory its name.
    pub categories: [(&'static str, &'static str); COLOURS.len()],
}

impl Text {
    pub fn of(language: Language) -> Self {
        let say = |text| language.label(text);
        Self {
            language: language.tag(),
            title: say("Memory plan"),
            peak: say("peak"),
            budget: say("budget"),
            arena: say("arena"),
            planned: say("planned"),
            speed: say("predicted speed"),
            batch: say("update"),
            recompute: say("recompute"),
            recomputed: say("recomputed"),
            nothing: say("nothing"),
            layers: say("layers"),
            fits: say("fits"),
            does_not_fit: say("does not fit"),
            schedule: say("Schedule"),
            axis: say("Time axis"),
            axis_steps: say("operators"),
            axis_time: say("predicted time"),
            reset: say("Show all"),
            to_peak: say("Go to the peak"),
            usage: say(
                "Drag to move, scroll or pinch to zoom, double-click to show all, click a buffer to keep it selected. Keys: arrows, + and −, 0.",
            ),
            largest: say("Largest buffers"),
            buffer: say("Buffer"),
            category: say("Category"),
            layer: say("Layer"),
            size: say("Size"),
            address: say("Address"),
            steps: say("Operators"),
            content: say("Content"),
            at_peak: say("At peak"),
            yes: say("yes"),
            whole_run: say("whole run"),
            budget_above: say("budget above"),
            outside: say("outside the arena"),
            live: say("In use"),
            total: say("Total"),
            difference: say("Difference"),
            search: say("Filter by name"),
            phases: [
                ("forward", say("forward")),
                ("recompute", say("recompute")),
                ("backward", say("backward")),
                ("update", say("update")),
            ],
            schedules: [
                ("micro-step", say("micro-step")),
                ("update", say("update")),
                ("evaluation", say("evaluation")),
                ("prefill", say("prefill")),
                ("decode", say("decode")),
            ],
            categories: COLOURS.map(|(name, ..)| (name, say(name))),
        }
    }
}
