//! Whether what only adapters' gradients need is kept rounded.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_graph::{Cadence, Class, Phase, Program};

use super::Search;
use crate::PlanError;

/// In which precision the forward pass keeps what only adapters' gradients need of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KeepPin {
    /// As it was computed.
    #[default]
    Exact,
    /// Rounded to eight bits where that makes a plan clearly faster, or fit.
    RoundedIfBetter,
    /// Rounded to eight bits.
    Rounded,
}

impl<B: AsRef<Program>, E: From<PlanError>> Search<'_, B, E> {
    /// The ways to consider, the one that rounds nothing first.
    pub(super) fn keeps(&self) -> &'static [bool] {
        match self.request.pins.keep {
            KeepPin::Exact => &[false],
            KeepPin::RoundedIfBetter => &[false, true],
            KeepPin::Rounded => &[true],
        }
    }
}

/// Of each class, the layers in which adapters' gradients are made from rounded values, kept or rebuilt. What has no class
/// goes by its own name.
pub(super) fn rounded_classes(program: &Program) -> BTreeMap<String, usize> {
    let trained = program.schedules.values().find(|schedule| schedule.cadence == Cadence::MicroBatch);
    let graph = &trained.expect("a program trains micro-batches").graph;
    let forward = graph.nodes.iter().filter(|node| node.phase == Phase::Forward);
    let made = forward.flat_map(|node| &node.outputs).map(|&output| graph.value(output));
    let mut layers: BTreeMap<String, BTreeSet<Option<u32>>> = BTreeMap::new();
    for value in made.filter(|value| value.storage.blocks.is_some()) {
        let name = if value.class == Class::NONE { &value.name } else { value.class.0 };
        layers.entry(name.to_owned()).or_default().insert(value.layer);
    }
    layers.into_iter().map(|(class, layers)| (class, layers.len())).collect()
}
