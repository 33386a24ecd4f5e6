//! Plans of programs that train nothing: there is nothing to recompute, so the only decision is the micro-batch.

use std::collections::BTreeMap;

use plimsoll_graph::{BatchShape, Chunks, Program, ScheduleGraph};

use crate::assemble::{Ground, assemble};
use crate::lifetimes::lifetimes;
use crate::recompute::Drops;
use crate::recorded::{launches, recorded_bytes};
use crate::report::{DeviceReport, EffectiveBatch, HostReport, LayoutReport, Modes, Predicted, Report, SaveMode};
use crate::search::summary::{does_not_fit, memories};
use crate::verify::verify;
use crate::{Backing, Budgets, Chosen, DeviceProfile, Fixed, PlanError};

pub struct ForwardRequest<'a, B, E> {
    pub build: &'a dyn Fn(BatchShape) -> Result<B, E>,
    /// From the best to the smallest.
    pub batches: &'a [BatchShape],
    pub device: &'a DeviceProfile,
    pub budgets: Budgets,
    pub fixed: Fixed,
}

/// Lays out and verifies the first micro-batch that fits. Nothing is predicted yet.
pub fn plan_forward<B, E>(request: &ForwardRequest<B, E>) -> Result<Chosen<B>, E>
where
    B: AsRef<Program>,
    E: From<PlanError>,
{
    let &ForwardRequest { device, budgets, fixed, .. } = request;
    let (_, host) = memories(device, fixed, None);
    if device.backing == Backing::Gpu && host.total() > budgets.host_bytes {
        let (memory, budget_bytes, needed_bytes) = ("host", budgets.host_bytes, host.total());
        let (largest, alternatives) = (host.rows(), Vec::new());
        return Err(PlanError::DoesNotFit { memory, budget_bytes, needed_bytes, largest, alternatives }.into());
    }
    let mut smallest = None;
    for &batch in request.batches {
        let built = (request.build)(batch)?;
        let program = built.as_ref();
        let recorded = program.schedules.values().filter(|schedule| schedule.recorded);
        let recorded = recorded_bytes(recorded.map(|schedule| launches(&schedule.graph)).sum(), device);
        let ground = Ground::new(&program.slots);
        let ends = program
            .schedules
            .values()
            .map(|ScheduleGraph { graph, .. }| ground.below(graph) + lifetimes(graph, &device.traits).lower_bound());
        let bound = ground.arena_bytes(ends) as u64;
        let is_last = Some(&batch) == request.batches.last();
        if !is_last
            && needed(device, fixed, bound + if device.records { recorded } else { 0 }) > budget(device, budgets)
        {
            continue;
        }
        let plan = assemble(program, &device.traits);
        let mut categories = plan.categories;
        categories.recorded = if device.records { recorded } else { 0 };
        let (gpu, host) = memories(device, fixed, Some(categories));
        let total = if device.backing == Backing::Gpu { gpu.total() } else { host.total() };
        if total > budget(device, budgets) {
            smallest = Some((gpu, host));
            continue;
        }
        verify(&plan).map_err(PlanError::from)?;
        let main = batch.main();
        let modes = (device.backing == Backing::Gpu).then(|| Modes {
            compiled_bytes: gpu.total() - gpu.recorded + recorded,
            eager_bytes: gpu.total() - gpu.recorded,
        });
        let report = Report {
            fits: true,
            device: device.name.clone(),
            gpu: DeviceReport::new(budgets.gpu_bytes, gpu),
            host: HostReport::new(budgets.host_bytes, host),
            effective_batch: EffectiveBatch { sequences: main.sequences, tokens_max: main.tokens, in_tokens: false },
            micro_batch_tokens: main.tokens,
            accumulation: 1,
            recompute: BTreeMap::new(),
            offload: BTreeMap::new(),
            loss_chunks: 1,
            mlp_chunks: 1,
            update_in_backward: false,
            keep: BTreeMap::new(),
            save: SaveMode::Between,
            layout: LayoutReport {
                arena_bytes: plan.arena_bytes as u64,
                lower_bound_bytes: plan.lower_bound_bytes as u64,
            },
            modes,
            predicted: Predicted { step_ms: 0.0, tokens_per_s: 0.0, bound_by: "nothing", limits: BTreeMap::new() },
            alternatives: Vec::new(),
            next_gib: Vec::new(),
        };
        let drops = Drops::default();
        return Ok(Chosen { built, plan, batch, chunks: Chunks::loss(1), update_in_backward: false, drops, report });
    }
    let needed = smallest.ok_or_else(|| PlanError::Batch("there is no micro-batch to plan for".to_owned()))?;
    Err(does_not_fit(device, budgets, needed, Vec::new()).into())
}

fn budget(device: &DeviceProfile, budgets: Budgets) -> u64 {
    if device.backing == Backing::Gpu { budgets.gpu_bytes } else { budgets.host_bytes }
}

/// What an arena of this size takes of the memory it lies in, with all else that is there.
fn needed(device: &DeviceProfile, fixed: Fixed, arena_bytes: u64) -> u64 {
    let (gpu, host) = memories(device, fixed, None);
    arena_bytes + if device.backing == Backing::Gpu { gpu.total() } else { host.total() }
}
