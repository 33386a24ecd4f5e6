use crate::{DType, Extent, Graph, Role, Shape, Value};

/// What a micro-batch can hold at most. The graph is built for exactly this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchShape {
    /// Token slots of one micro-batch.
    pub tokens: usize,
    /// Sequences of one micro-batch.
    pub sequences: usize,
    /// Longest sequence, which bounds attention's cost and the rotary table.
    pub max_length: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// Memory with a fixed address for the whole run, shared by all schedules.
#[derive(Debug, Clone)]
pub struct Slot {
    pub name: String,
    pub shape: Shape,
    pub dtype: DType,
    pub role: Role,
    pub extent: Extent,
    pub layer: Option<u32>,
}

impl Slot {
    pub fn bytes(&self) -> usize {
        self.shape.elements() * self.dtype.bytes()
    }
}

#[derive(Debug, Clone, Default)]
pub struct SlotTable {
    slots: Vec<Slot>,
}

impl SlotTable {
    pub fn add(&mut self, slot: Slot) -> SlotId {
        debug_assert!(self.find(&slot.name).is_none(), "slot {} exists twice", slot.name);
        self.slots.push(slot);
        SlotId(self.slots.len() as u32 - 1)
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
            dtype: slot.dtype,
            role: slot.role,
            extent: slot.extent,
            layer: slot.layer,
            class: crate::Class::NONE,
            slot: Some(id),
        }
    }
}

/// Everything a run executes: graphs over one table of slots.
#[derive(Debug, Clone)]
pub struct Program {
    pub batch: BatchShape,
    pub slots: SlotTable,
    /// Forward and backward of one micro-batch; gradients accumulate.
    pub micro_step: Graph,
    /// Once per update: norm, clip, optimizer; leaves the gradients zeroed.
    pub update: Graph,
    /// Forward and loss only.
    pub evaluate: Graph,
    /// Forward, then the logits of each sequence's last token; without a node where the model makes no text.
    pub sample: Graph,
}
