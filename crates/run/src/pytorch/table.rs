//! Runs of transformers and PEFT that were measured, and what was fitted to them.

use plimsoll_models::{Architecture, Lora, Targets};
use plimsoll_plan::{DeviceProfile, known_device};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use super::demand::{Demand, Workload};
use super::fit::{Fit, Observation, Spread};

/// What was measured of each run, and how.
const MEASURED: &str = include_str!("measured.json");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    measured_on: String,
    software: String,
    /// How it was measured, for whoever reads the file.
    #[serde(rename = "method")]
    _method: String,
    models: Map<String, Json>,
    runs: Vec<Run>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Run {
    pub model: String,
    pub task: String,
    pub sequences: usize,
    pub length: usize,
    pub lora: Option<Adapters>,
    #[serde(default)]
    pub liger: bool,
    #[serde(default)]
    pub checkpointing: bool,
    #[serde(default)]
    pub eight_bit_states: bool,
    pub tokens_per_s: f64,
    pub allocated_gb: f64,
    pub card_gb: f64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Adapters {
    pub r: usize,
    pub dropout: f32,
}

/// AdamW's moments of one parameter: in the parameter's own type, and in eight bits with a float32 scale for every 256.
pub(super) const MOMENTS_SIXTEEN: f64 = 4.0;
pub(super) const MOMENTS_FLOAT32: f64 = 8.0;
pub(super) const MOMENTS_EIGHT: f64 = 2.0 + 2.0 * 4.0 / 256.0;

/// What was fitted to the table, and how well.
pub struct Fitted {
    pub measured_on: String,
    pub software: String,
    pub runs: usize,
    pub model: Model,
    /// Of what the allocator hands out, to which nothing is fitted.
    pub allocated_error: Spread,
    /// Of each run, predicted from all the others.
    pub memory_error: Spread,
    pub speed_error: Spread,
}

/// From what a run demands to what it takes of a card and how long it lasts.
pub struct Model {
    /// A constant, a share of the logits and one of what changes places with gradients.
    memory: Fit<3>,
    /// How often activations, and logits, are passed over.
    time: Fit<2>,
    /// The least time of a block, whatever it computes: the host launches its kernels no faster.
    launch_s: f64,
}

/// Runs that last less than this many times what their launches take say nothing of the card's speed.
const LAUNCH_BOUND: f64 = 1.25;

type Measured<'a> = (&'a Run, Demand);

impl Fitted {
    /// The table is part of the program.
    pub fn new() -> Self {
        let file = file();
        let profile = known_device(&file.measured_on).expect("the card of the table is in the table of cards");
        let runs: Vec<Measured<'_>> = file.runs.iter().map(|run| (run, run.demand(&file.models))).collect();
        let others = |left_out: usize| {
            let others: Vec<Measured<'_>> =
                runs.iter().enumerate().filter(|(i, _)| *i != left_out).map(|(_, r)| *r).collect();
            Model::of(&others, &profile)
        };
        let memory = |(i, (run, demand)): (usize, &Measured<'_>)| others(i).card_bytes(demand) / (run.card_gb * 1e9);
        let time = |(i, (run, demand)): (usize, &Measured<'_>)| others(i).seconds(demand, &profile) / run.seconds();
        Self {
            runs: runs.len(),
            model: Model::of(&runs, &profile),
            allocated_error: Spread::of(runs.iter().map(|(run, demand)| demand.allocated() / (run.allocated_gb * 1e9))),
            memory_error: Spread::of(runs.iter().enumerate().map(memory)),
            speed_error: Spread::of(runs.iter().enumerate().filter(|(_, (run, _))| run.is_timed()).map(time)),
            measured_on: file.measured_on.clone(),
            software: file.software.clone(),
        }
    }
}

impl Model {
    fn of(runs: &[Measured<'_>], profile: &DeviceProfile) -> Self {
        let memory: Vec<_> = runs.iter().map(|(run, demand)| memory_of(run, demand)).collect();
        let timed: Vec<&Measured<'_>> = runs.iter().filter(|(run, _)| run.is_timed()).collect();
        let of_block = |(run, demand): &&Measured<'_>| run.seconds() / demand.launched;
        let launch_s = timed.iter().map(of_block).fold(f64::INFINITY, f64::min);
        let computing = timed.iter().filter(|measured| of_block(measured) > LAUNCH_BOUND * launch_s);
        let time: Vec<_> = computing.map(|(run, demand)| time_of(run, demand, profile)).collect();
        Self { memory: Fit::of(&memory, false), time: Fit::of(&time, true), launch_s }
    }

    /// What the driver would say is in use.
    pub fn card_bytes(&self, demand: &Demand) -> f64 {
        self.memory.predict(&memory_features(demand), demand.allocated())
    }

    pub fn seconds(&self, demand: &Demand, profile: &DeviceProfile) -> f64 {
        let computing_s = self.time.predict(&time_features(demand, profile), known_s(demand, profile));
        computing_s.max(self.launch_s * demand.launched)
    }
}

fn file() -> File {
    serde_json::from_str(MEASURED).expect("the table is part of the program")
}

fn memory_features(demand: &Demand) -> [f64; 3] {
    [1e9, demand.logits_max, demand.exchanged]
}

fn time_features(demand: &Demand, profile: &DeviceProfile) -> [f64; 2] {
    [demand.made / profile.memory_bytes_per_s, demand.logits_made / profile.memory_bytes_per_s]
}

/// Products at their rate, and one pass of the fused optimizer.
fn known_s(demand: &Demand, profile: &DeviceProfile) -> f64 {
    demand.flops / profile.matmul16_flops_per_s + demand.stepped / profile.memory_bytes_per_s
}

fn memory_of(run: &Run, demand: &Demand) -> Observation<3> {
    Observation { features: memory_features(demand), known: demand.allocated(), measured: run.card_gb * 1e9 }
}

fn time_of(run: &Run, demand: &Demand, profile: &DeviceProfile) -> Observation<2> {
    Observation { features: time_features(demand, profile), known: known_s(demand, profile), measured: run.seconds() }
}

impl Run {
    /// Of an update.
    fn seconds(&self) -> f64 {
        let streams = if self.task == "seq2seq" { 2 } else { 1 };
        (self.sequences * self.length * streams) as f64 / self.tokens_per_s
    }

    /// Eight-bit states are stepped through by another library, at its own speed.
    fn is_timed(&self) -> bool {
        !self.eight_bit_states
    }

    fn demand(&self, models: &Map<String, Json>) -> Demand {
        let mut model = Architecture::from_value(models[&self.model].clone()).expect("a model of the table");
        // T5's file says nothing of a tie; transformers ties unless weights are stored apart.
        model.tie_as_stored(model.streams() == 1 && !model.head.tied);
        let lora = |lora: Adapters| Lora {
            r: lora.r,
            alpha: 2.0 * lora.r as f32,
            dropout: lora.dropout,
            targets: Targets::AllLinear,
            rslora: false,
        };
        Workload {
            model: &model,
            vocabulary: self.task != "reward",
            sequences: self.sequences,
            passes: 1,
            length: self.length,
            lora: self.lora.map(lora),
            state_bytes: match (self.lora.is_some(), self.eight_bit_states) {
                (_, true) => MOMENTS_EIGHT,
                (true, _) => MOMENTS_FLOAT32,
                (false, _) => MOMENTS_SIXTEEN,
            },
            liger: self.liger,
            checkpointing: self.checkpointing,
        }
        .demand()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the allocator hands out follows from the operators alone: nothing is fitted to it.
    #[test]
    fn allocated_memory_is_that_of_the_operators() {
        let File { models, runs, .. } = file();
        assert!(runs.len() >= 12);
        for run in &runs {
            let error = run.demand(&models).allocated() / (run.allocated_gb * 1e9) - 1.0;
            // T5's attention takes one of several ways, which depends on the version.
            let most = if run.model.starts_with("t5") { 0.1 } else { 0.02 };
            assert!(error.abs() < most, "{run:?}: {:.1} %", 100.0 * error);
        }
    }

    #[test]
    fn every_run_is_within_the_error_that_is_stated() {
        let fitted = Fitted::new();
        let File { models, runs, measured_on, .. } = file();
        let profile = known_device(&measured_on).expect("in the table");
        for run in &runs {
            let demand = run.demand(&models);
            let card = fitted.model.card_bytes(&demand) / (run.card_gb * 1e9) - 1.0;
            assert!(card.abs() <= fitted.memory_error.max, "{run:?}: {:.1} %", 100.0 * card);
            if run.is_timed() {
                let time = fitted.model.seconds(&demand, &profile) / run.seconds() - 1.0;
                assert!(time.abs() <= fitted.speed_error.max, "{run:?}: {:.1} %", 100.0 * time);
            }
        }
        let (memory, speed) = (fitted.memory_error, fitted.speed_error);
        assert!(memory.mean < 0.03 && memory.max < 0.1, "{memory:?}");
        assert!(speed.mean < 0.1 && speed.max < 0.2, "{speed:?}");
    }
}
