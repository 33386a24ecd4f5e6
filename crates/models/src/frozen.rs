//! The weights that a recipe stores in few bits.

use plimsoll_graph::{BatchShape, SlotTable, Storage, StreamShape, Streams};

use crate::registry::Registry;
use crate::{Architecture, Head, ModelError, Parameter, Recipe};

/// Frozen projections in the recipe's format, each with its storage. Those whose blocks would not divide evenly are none of
/// them, nor is anything where the recipe trains everything or names no format.
pub fn weights_in_few_bits(
    model: &Architecture,
    head: &dyn Head,
    recipe: &Recipe,
) -> Result<Vec<(Parameter, Storage)>, ModelError> {
    // What weights there are does not depend on the batch.
    let smallest = StreamShape { tokens: 1, sequences: 1, max_length: 1 };
    let batch = BatchShape { streams: Streams::new(&vec![smallest; model.streams()]) };
    let mut slots = SlotTable::default();
    let registry = Registry::new(model, head, recipe, batch, &mut slots)?;
    let stored = registry.into_parameters().into_iter().map(|parameter| {
        let storage = slots.get(parameter.slot).storage;
        (parameter, storage)
    });
    Ok(stored.filter(|(_, storage)| storage.blocks.is_some()).collect())
}
