use std::collections::BTreeMap;

use crate::storage::Storage;
use crate::stream::Streams;
use crate::{DType, Extent, Graph, GraphError, Role, Shape, Value};

/// What a micro-batch can hold of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamShape {
    /// Token slots.
    pub tokens: usize,
    /// Places for sequences, those that fill an unused rest up included.
    pub sequences: usize,
    /// Longest sequence, which bounds attention's cost and the rotary table.
    pub max_length: usize,
}

/// What a micro-batch can hold at most. The graph is built for exactly this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchShape {
    pub streams: Streams<StreamShape>,
}

/// Into how many chunks the rows of a micro-batch are divided where all at once would take too much memory. Beside the
/// micro-batch itself, these are what shows in the bits of a result: they decide in which order sums are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Chunks {
    /// Of the main stream's tokens, for logits.
    pub loss: usize,
    /// Of the main stream's tokens, for what lies inside an MLP. Other streams are divided into chunks of as many rows.
    pub mlp: usize,
}

/// Chunks begin at multiples of so many rows.
const CHUNK_ROWS: usize = 16;

impl Chunks {
    /// Of the loss alone.
    pub const fn loss(loss: usize) -> Self {
        Self { loss, mlp: 1 }
    }

    /// Rows of one chunk of an MLP.
    pub fn mlp_rows(&self, batch: BatchShape) -> usize {
        let tokens = batch.tokens();
        if self.mlp <= 1 { tokens } else { tokens.div_ceil(self.mlp).next_multiple_of(CHUNK_ROWS).min(tokens) }
    }
}

impl BatchShape {
    /// Of a model with one stream.
    pub fn one(main: StreamShape) -> Self {
        Self { streams: Streams::one(main) }
    }

    /// Token slots for `own` sequences of an update, and places for the sequences that fill an unused rest up. Sequences
    /// of one number belong together in all streams, so each stream has as many places as the one that needs most.
    pub fn with_filling(tokens: Streams<usize>, max_length: Streams<usize>, own: usize, group: usize) -> Self {
        let longest = tokens.as_slice().iter().copied().max().unwrap_or(0);
        let sequences = own.min(longest / group * group) + filling(tokens, max_length, group);
        let shapes: Vec<StreamShape> = tokens
            .iter()
            .map(|(stream, tokens)| StreamShape { tokens, sequences, max_length: max_length[stream] })
            .collect();
        Self { streams: Streams::new(&shapes) }
    }

    /// Sequences of an update that it takes, in groups of which none is divided.
    pub fn own_sequences(&self, group: usize) -> usize {
        let filling = filling(self.streams.map(|s| s.tokens), self.streams.map(|s| s.max_length), group);
        self.main().sequences.saturating_sub(filling).max(group)
    }

    pub fn main(&self) -> StreamShape {
        self.streams.main()
    }

    /// Token slots of the main stream.
    pub fn tokens(&self) -> usize {
        self.main().tokens
    }
}

/// Places for the sequences that fill up a rest of any length.
fn filling(tokens: Streams<usize>, max_length: Streams<usize>, group: usize) -> usize {
    let of_stream = |(stream, tokens): (_, usize)| group * tokens.div_ceil(max_length[stream]);
    tokens.iter().map(of_stream).max().unwrap_or(0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// Memory with a fixed address for the whole run, shared by all schedules.
#[derive(Debug, Clone)]
pub struct Slot {
    pub name: String,
    pub shape: Shape,
    pub storage: Storage,
    pub role: Role,
    pub extent: Extent,
    pub layer: Option<u32>,
}

impl Slot {
    /// The type of its elements once read.
    pub fn dtype(&self) -> DType {
        self.storage.element
    }

    pub fn bytes(&self) -> usize {
        self.storage.bytes(&self.shape).expect("checked when the slot was added")
    }
}

#[derive(Debug, Clone, Default)]
pub struct SlotTable {
    slots: Vec<Slot>,
}

impl SlotTable {
    /// Fails where no memory could hold the slot.
    pub fn add(&mut self, slot: Slot) -> Result<SlotId, GraphError> {
        debug_assert!(self.find(&slot.name).is_none(), "slot {} exists twice", slot.name);
        slot.storage.bytes(&slot.shape)?;
        if self.slots.len() >= crate::VALUES_MAX {
            return Err(GraphError::TooMany { what: "slots", max: crate::VALUES_MAX });
        }
        self.slots.push(slot);
        Ok(SlotId(self.slots.len() as u32 - 1))
    }

    pub fn get(&self, id: SlotId) -> &Slot {
        &self.slots[id.0 as usize]
    }

    pub fn find(&self, name: &str) -> Option<SlotId> {
        self.slots.iter().position(|s| s.name == name).map(|i| SlotId(i as u32))
    }

    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        self.slots.iter().enumerate().map(|(i, s)| (SlotId(i as u32), s))
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The slot's content as a graph sees it at the start of a schedule.
    pub fn value(&self, id: SlotId) -> Value {
        let slot = self.get(id);
        Value {
            name: slot.name.clone(),
            shape: slot.shape,
            storage: slot.storage,
            role: slot.role,
            extent: slot.extent,
            layer: slot.layer,
            class: crate::Class::NONE,
            slot: Some(id),
        }
    }
}

/// A schedule by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScheduleId(pub &'static str);

impl ScheduleId {
    /// Forward and backward of one micro-batch; gradients accumulate.
    pub const MICRO_STEP: Self = Self("micro-step");
    /// Once per update: norm, clip, optimizer; leaves the gradients zeroed.
    pub const UPDATE: Self = Self("update");
    /// Forward and loss only.
    pub const EVALUATE: Self = Self("evaluation");
    /// Forward, then how likely each sequence's answer is: of programs whose loss compares with the model before training
    /// and in which nothing of that is left later.
    pub const REFERENCE: Self = Self("reference");
    /// Forward over tokens of prompts: fills the cache and leaves the logits of each sequence's last token. Where
    /// prompts are read by an encoder, over whole ones and the first token of each text. Programs that make no text
    /// have none.
    pub const PREFILL: Self = Self("prefill");
    /// The same over one new token of each sequence.
    pub const DECODE: Self = Self("decode");
}

/// How often a schedule runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cadence {
    /// For every micro-batch of an update.
    MicroBatch,
    /// Once for every update.
    Update,
    /// Beside training.
    Aside,
}

/// One schedule before it has addresses.
#[derive(Debug, Clone)]
pub struct ScheduleGraph {
    pub graph: Graph,
    pub cadence: Cadence,
    /// Whether a device may record it: it has the same shape every time.
    pub recorded: bool,
}

/// Everything a run executes: graphs over one table of slots.
#[derive(Debug, Clone)]
pub struct Program {
    pub batch: BatchShape,
    pub slots: SlotTable,
    pub schedules: BTreeMap<ScheduleId, ScheduleGraph>,
}

impl AsRef<Program> for Program {
    fn as_ref(&self) -> &Program {
        self
    }
}

impl Program {
    /// # Panics
    /// If the program has no such schedule.
    pub fn graph(&self, id: ScheduleId) -> &Graph {
        &self.schedules[&id].graph
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_a_place_for_sequences_that_fill_a_micro_batch_up() {
        for (tokens, max_length, group) in [(64usize, 32, 1), (65, 32, 1), (96, 48, 2), (100, 16, 2)] {
            for own in (1..20).map(|n| n * group) {
                let shape = BatchShape::with_filling(Streams::one(tokens), Streams::one(max_length), own, group);
                let filling = group * tokens.div_ceil(max_length);
                assert_eq!(shape.main().sequences, own + filling);
                assert_eq!(shape.own_sequences(group), own);
            }
        }
        let two = BatchShape::with_filling(Streams::new(&[64, 100]), Streams::new(&[32, 10]), 8, 1);
        assert!(two.streams.as_slice().iter().all(|stream| stream.sequences == 8 + 10));
        assert_eq!(two.own_sequences(1), 8);
    }
}
