//! The report of the plan that was found, with the alternatives to it, and the refusal where none fits.

use std::collections::BTreeMap;

use plimsoll_graph::Program;

use super::keeping::rounded_classes;
use super::{Candidate, Request, SavePin, Search, Variant};
use crate::assemble::Plan;
use crate::report::{
    Alternative, Categories, DeviceReport, EffectiveBatch, HostCategories, HostReport, LayoutReport, Modes, Predicted,
    Report,
};
use crate::{Backing, Budgets, DeviceProfile, Fixed, PlanError};

/// The arena's categories put into the memory they are taken from, with what no plan controls.
pub(crate) fn memories(
    device: &DeviceProfile,
    fixed: Fixed,
    arena: Option<Categories>,
) -> (Categories, HostCategories) {
    let mut host = HostCategories {
        process: fixed.host_process_bytes,
        offload: 0,
        pinned: device.staging_bytes,
        data: fixed.host_data_bytes,
        snapshot: 0,
        arena: None,
    };
    match device.backing {
        Backing::Gpu => (Categories { context: fixed.gpu_context_bytes, ..arena.unwrap_or_default() }, host),
        Backing::Host => {
            host.arena = arena;
            (Categories::default(), host)
        }
    }
}

/// That the largest of what must fit into a memory is named first.
pub(crate) fn does_not_fit(
    device: &DeviceProfile,
    budgets: Budgets,
    (gpu, host): (Categories, HostCategories),
    alternatives: Vec<Alternative>,
) -> PlanError {
    let (memory, budget_bytes, needed_bytes, mut largest) = match device.backing {
        Backing::Gpu => ("GPU", budgets.gpu_bytes, gpu.total(), gpu.rows().to_vec()),
        Backing::Host => ("host", budgets.host_bytes, host.total(), host.rows()),
    };
    largest.retain(|(_, bytes)| *bytes > 0);
    largest.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    PlanError::DoesNotFit { memory, budget_bytes, needed_bytes, largest, alternatives }
}

impl<B: AsRef<Program>, E: From<PlanError>> Search<'_, B, E> {
    pub(super) fn report(&self, plan: &Plan, candidate: &Candidate) -> Result<Report, E> {
        let Request { sequences, tokens, max_length, device, budgets, .. } = *self.request;
        let (gpu, mut host) = self.memories(Some(self.with_recorded(plan, candidate)));
        // Training comes first; a snapshot takes what it leaves.
        let room = budgets.host_bytes.saturating_sub(host.total());
        if self.request.pins.save == SavePin::IfRoom && self.snapshot_bytes <= room {
            host.snapshot = self.snapshot_bytes;
        }
        let host = HostReport::new(budgets.host_bytes, host);
        let drops = &self.dial[candidate.level].classes;
        Ok(Report {
            fits: true,
            device: device.name.clone(),
            gpu: DeviceReport::new(budgets.gpu_bytes, gpu),
            save: host.saving(),
            host,
            effective_batch: EffectiveBatch {
                sequences,
                tokens_max: tokens.unwrap_or(sequences * max_length.main()),
                in_tokens: tokens.is_some(),
            },
            micro_batch_tokens: candidate.variant.batch.tokens(),
            accumulation: self.accumulation(candidate.variant.batch),
            recompute: drops.iter().filter(|(_, k)| **k > 0).map(|(c, k)| (c.0.to_owned(), *k)).collect(),
            offload: BTreeMap::new(),
            loss_chunks: candidate.variant.chunks.loss,
            mlp_chunks: candidate.variant.chunks.mlp,
            update_in_backward: candidate.variant.update_in_backward,
            keep: rounded_classes((*self.known(candidate.variant)?.built).as_ref()),
            layout: LayoutReport {
                arena_bytes: plan.arena_bytes as u64,
                lower_bound_bytes: plan.lower_bound_bytes as u64,
            },
            modes: (device.backing == Backing::Gpu).then(|| Modes {
                compiled_bytes: gpu.total() - gpu.recorded + candidate.recorded_bytes,
                eager_bytes: gpu.total() - gpu.recorded,
            }),
            predicted: Predicted {
                step_ms: candidate.step.seconds * 1e3,
                tokens_per_s: self.tokens_per_s(candidate),
                bound_by: candidate.step.bound_by(),
                limits: candidate.step.shares(),
            },
            alternatives: self.alternatives(Some(candidate))?,
            next_gib: Vec::new(),
        })
    }

    pub(super) fn tokens_per_s(&self, candidate: &Candidate) -> f64 {
        let tokens = self.request.sequences * self.request.max_length.as_slice().iter().sum::<usize>();
        tokens as f64 / candidate.step.seconds
    }

    fn with_recorded(&self, plan: &Plan, candidate: &Candidate) -> Categories {
        Categories { recorded: self.recorded(candidate), ..plan.categories }
    }

    /// See [`memories`].
    pub(super) fn memories(&self, arena: Option<Categories>) -> (Categories, HostCategories) {
        let (gpu, host) = memories(self.request.device, self.request.fixed, arena);
        (gpu, HostCategories { snapshot: self.pinned_snapshot_bytes(), ..host })
    }

    /// The way from fastest to smallest, with what each costs.
    fn alternatives(&self, chosen: Option<&Candidate>) -> Result<Vec<Alternative>, E> {
        let batches = self.batches()?;
        let largest = batches[0];
        let update_in_backward = self.ways(largest).first().copied().unwrap_or(false);
        let (chunks, keep_fp8) = (self.chunks(largest)?[0], self.keeps()[0]);
        let fastest = Variant { batch: largest, chunks, update_in_backward, keep_fp8 };
        let mut rows = vec![("fastest".to_owned(), self.evaluate(fastest, 0)?)];
        if let Some(chosen) = chosen {
            for level in self.class_ends() {
                let candidate = self.evaluate(chosen.variant, level)?;
                rows.push((self.describe(level), candidate));
            }
            rows.push((self.describe(chosen.level), chosen.clone()));
            // The other way to update, at the same position of the dial.
            for &update_in_backward in self.ways(chosen.variant.batch) {
                if update_in_backward != chosen.variant.update_in_backward {
                    let other = self.evaluate(Variant { update_in_backward, ..chosen.variant }, chosen.level)?;
                    let name =
                        if update_in_backward { "update in backward" } else { "update behind the backward pass" };
                    rows.push((name.to_owned(), other));
                }
            }
            for &keep_fp8 in self.keeps() {
                if keep_fp8 != chosen.variant.keep_fp8 {
                    let other = self.evaluate(Variant { keep_fp8, ..chosen.variant }, chosen.level)?;
                    let name = if keep_fp8 { "adapters' inputs kept in fp8" } else { "adapters' inputs kept exactly" };
                    rows.push((name.to_owned(), other));
                }
            }
        }
        rows.push(("lowest".to_owned(), self.lowest()?));
        let bytes = |candidate: &Candidate| candidate.arena_bytes + self.recorded(candidate);
        rows.sort_by(|a, b| bytes(&b.1).cmp(&bytes(&a.1)).then(a.1.step.seconds.total_cmp(&b.1.step.seconds)));
        let mut seen: Vec<(u64, u64)> = Vec::new();
        let mut table = Vec::new();
        for (name, candidate) in rows {
            let key = (candidate.arena_bytes, candidate.step.seconds.to_bits());
            if seen.contains(&key) {
                continue;
            }
            seen.push(key);
            let is_chosen = chosen.is_some_and(|c| (c.arena_bytes, c.step.seconds.to_bits()) == key);
            table.push(self.alternative(name, &candidate, is_chosen));
        }
        Ok(table)
    }

    fn alternative(&self, name: String, candidate: &Candidate, chosen: bool) -> Alternative {
        let fixed = self.request.fixed;
        let beside = self.request.device.staging_bytes + self.pinned_snapshot_bytes();
        let host_fixed = fixed.host_process_bytes + fixed.host_data_bytes + beside;
        let (gpu_bytes, host_bytes) = match self.request.device.backing {
            Backing::Gpu => (candidate.arena_bytes + self.recorded(candidate) + fixed.gpu_context_bytes, host_fixed),
            Backing::Host => (0, candidate.arena_bytes + host_fixed),
        };
        let over = (candidate.arena_bytes + self.recorded(candidate)).saturating_sub(self.arena_budget);
        let why_not = (over > 0).then(|| format!("{:.2} GiB over the budget", over as f64 / (1u64 << 30) as f64));
        Alternative {
            name,
            micro_batch_tokens: candidate.variant.batch.tokens(),
            gpu_bytes,
            host_bytes,
            tokens_per_s: self.tokens_per_s(candidate),
            fits: over == 0,
            chosen,
            why_not,
        }
    }

    /// What this position of the dial drops beyond the class before it.
    fn describe(&self, level: usize) -> String {
        if self.request.pins.recompute.is_some() {
            return "as pinned".into();
        }
        let Some(before) = level.checked_sub(1).map(|l| &self.dial[l]) else { return "keep everything".into() };
        let newest = self.dial[level].classes.iter().find(|(class, k)| before.classes.get(class) != Some(k));
        newest.map_or_else(|| "keep everything".into(), |(class, k)| format!("+ recompute {} ×{k}", class.0))
    }

    /// That even the lowest plan does not fit.
    pub(super) fn refusal(&self, lowest: &Candidate) -> Result<PlanError, E> {
        let plan = self.assembled(lowest)?;
        let memories = self.memories(Some(self.with_recorded(&plan, lowest)));
        Ok(does_not_fit(self.request.device, self.request.budgets, memories, self.alternatives(None)?))
    }
}
