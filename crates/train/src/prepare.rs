//! From what was asked to a plan on a device, with the process itself measured.

use plimsoll_data::{Amount, Capacity};
use plimsoll_graph::BatchShape;
use plimsoll_models::{Built, Head, Recipe, build};
use plimsoll_plan::{Backing, Budgets, Chosen, DeviceProfile, Fixed, Goal, Pins, PlanError, Request, plan};
use plimsoll_runtime::Backend;

use crate::memory::{peak_resident_bytes, resident_bytes, return_free_memory};
use crate::{Model, Session, TrainError};

/// Everything a plan depends on.
#[derive(Debug, Clone)]
pub struct Spec {
    pub model: Model,
    pub recipe: Recipe,
    /// Sequences of one update: exact, unless `tokens` is given.
    pub sequences: usize,
    /// The most tokens of an update that is given in tokens; `sequences` is then the fewest that fill it.
    pub tokens: Option<u64>,
    pub max_length: usize,
    pub goal: Goal,
    pub pins: Pins,
    pub seed: u64,
}

impl Spec {
    /// What an update takes of the data.
    pub fn amount(&self) -> Amount {
        self.tokens.map_or(Amount::Sequences(self.sequences as u64), Amount::Tokens)
    }
}

/// What a micro-batch of this shape takes of the data. The places behind are for sequences that fill it up.
pub(crate) fn capacity(batch: BatchShape, group: usize) -> Capacity {
    let filling = group * batch.tokens.div_ceil(batch.max_length);
    Capacity { tokens: batch.tokens, sequences: batch.sequences.saturating_sub(filling).max(group) }
}

/// A run ready to start.
pub struct Prepared {
    pub session: Session,
    pub chosen: Chosen,
}

/// What the process may still take besides arena and data once it runs: log lines, batches, a file's pieces.
const HEADROOM_BYTES: u64 = 3 << 20;

/// The same where a driver's libraries load their own code on the host as they are first used.
const GPU_HEADROOM_BYTES: u64 = 192 << 20;

fn headroom_bytes(device: &DeviceProfile) -> u64 {
    if device.backing == Backing::Gpu { GPU_HEADROOM_BYTES } else { HEADROOM_BYTES }
}

/// Plans without touching a device.
pub fn plan_only(
    spec: &Spec,
    device: &DeviceProfile,
    budgets: Budgets,
    fixed: Fixed,
) -> Result<(Chosen, Built), TrainError> {
    let make = |batch, chunks| {
        build(&spec.model.config, &spec.recipe, batch, chunks)
            .map(|built| built.program)
            .map_err(|e| PlanError::Build(e.to_string()))
    };
    // Mistakes in the recipe are the user's and get their own message, before any planning.
    let smallest = BatchShape { tokens: spec.max_length, sequences: 1, max_length: spec.max_length };
    build(&spec.model.config, &spec.recipe, smallest, 1)?;
    let mut pins = spec.pins.clone();
    if spec.recipe.head == Head::Score {
        // There are no logits to divide.
        pins.loss_chunks = Some(1);
    }
    let chosen = plan(&Request {
        build: &make,
        sequences: spec.sequences,
        tokens: spec.tokens.map(|tokens| tokens as usize),
        group: spec.recipe.head.group(),
        max_length: spec.max_length,
        device,
        budgets,
        fixed,
        goal: spec.goal,
        pins,
    })?;
    let built = build(&spec.model.config, &spec.recipe, chosen.batch, chosen.loss_chunks)?;
    Ok((chosen, built))
}

/// What the data takes in the host's memory.
pub struct DataMemory<'a> {
    /// Held already: part of what is measured, with a line of its own.
    pub resident_bytes: u64,
    /// What feeding it will take, given what a micro-batch holds.
    pub feed_bytes: &'a dyn Fn(Capacity) -> u64,
}

impl DataMemory<'_> {
    /// Of runs that make their tokens up.
    pub fn none() -> Self {
        Self { resident_bytes: 0, feed_bytes: &|_| 0 }
    }
}

/// Plans with the process measured, takes the arena, and fills in the weights.
pub fn prepare(
    spec: &Spec,
    backend: Box<dyn Backend>,
    device: &DeviceProfile,
    budgets: Budgets,
    data: &DataMemory<'_>,
    paranoid: bool,
) -> Result<Prepared, TrainError> {
    let measured = |batch: BatchShape| {
        return_free_memory();
        let capacity = capacity(batch, spec.recipe.head.group());
        Fixed {
            gpu_context_bytes: device.context_bytes,
            host_process_bytes: (resident_bytes() + headroom_bytes(device)).saturating_sub(data.resident_bytes),
            host_data_bytes: data.resident_bytes + (data.feed_bytes)(capacity),
        }
    };
    // What a micro-batch holds is not known before the plan; the least it can be stands in until then.
    let group = spec.recipe.head.group();
    let (tokens, max_length) = (group * spec.max_length, spec.max_length);
    let smallest = BatchShape { tokens, sequences: group, max_length };
    // A refusal names a budget, so it is made again with what the process takes once it has planned.
    let (mut chosen, mut built) = match plan_only(spec, device, budgets, measured(smallest)) {
        Err(TrainError::Plan(PlanError::DoesNotFit { .. })) => plan_only(spec, device, budgets, measured(smallest))?,
        planned => planned?,
    };
    // Planning itself left something behind; plan again if that no longer fits, and say the true figure either way.
    let after = measured(chosen.batch);
    let total = |f: &Fixed| f.host_process_bytes + f.host_data_bytes;
    let arena = if device.backing == Backing::Host { chosen.report.layout.arena_bytes } else { 0 };
    if arena + device.staging_bytes + total(&after) > budgets.host_bytes {
        (chosen, built) = plan_only(spec, device, budgets, after)?;
    }
    let mut true_figures = measured(chosen.batch);
    // Reading data and planning may have needed more for a moment than a small run ever will.
    let before_arena = peak_resident_bytes().saturating_sub(arena + true_figures.host_data_bytes);
    true_figures.host_process_bytes = true_figures.host_process_bytes.max(before_arena);
    chosen.restate(&true_figures);
    let session = Session::start(spec, backend, &chosen, built, paranoid)?;
    Ok(Prepared { session, chosen })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_room_to_fill_a_micro_batch_up() {
        for (tokens, max_length, group) in [(64usize, 32, 1), (65, 32, 1), (96, 48, 2), (100, 16, 2)] {
            let filling = group * tokens.div_ceil(max_length);
            for own in (1..20).map(|n| n * group) {
                let taken = capacity(BatchShape { tokens, sequences: own + filling, max_length }, group);
                assert_eq!((taken.tokens, taken.sequences), (tokens, own));
            }
        }
    }
}
