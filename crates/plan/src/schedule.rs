//! What a plan hands to the runtime: steps over resolved addresses.

use plimsoll_graph::{DType, Extent, Op, Phase, Shape, SlotId, Storage, ValueId};

/// Which memory an address belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The arena of the device that computes. On the CPU that is host memory.
    Device,
    /// Page-locked host memory that copies go through.
    PinnedHost,
}

/// Which queue of the device a step runs on. Steps of one lane run in order; lanes run side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    Compute,
    CopyIn,
    CopyOut,
    Collective,
}

/// A run of bytes in one memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    pub place: Place,
    pub offset: usize,
    pub bytes: usize,
}

impl Region {
    pub fn end(&self) -> usize {
        self.offset + self.bytes
    }

    pub fn overlaps(&self, other: &Region) -> bool {
        self.place == other.place
            && self.bytes > 0
            && other.bytes > 0
            && self.offset < other.end()
            && other.offset < self.end()
    }
}

/// A value at its address.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Buffer {
    pub value: ValueId,
    pub slot: Option<SlotId>,
    pub region: Region,
    pub shape: Shape,
    pub storage: Storage,
    pub extent: Extent,
}

impl Buffer {
    /// The type of its elements once read.
    pub fn dtype(&self) -> DType {
        self.storage.element
    }
}

/// One operator on resolved memory.
#[derive(Debug, Clone)]
pub struct Step {
    pub op: Op,
    pub inputs: Vec<Buffer>,
    pub outputs: Vec<Buffer>,
    pub workspace: Option<Region>,
    pub lane: Lane,
    pub phase: Phase,
    pub layer: Option<u32>,
    /// Steps of other lanes that must have finished before this one starts.
    pub after: Vec<usize>,
    /// Regions that nobody reads after this step until they are written again.
    pub frees: Vec<Region>,
}

/// A list of steps that is run as a whole.
#[derive(Debug, Clone, Default)]
pub struct Schedule {
    pub steps: Vec<Step>,
    /// Whether a device may record it: it has the same shape every time.
    pub recorded: bool,
    /// The values that slots hold before the first step. Any other must be made by a step.
    pub initial: Vec<ValueId>,
    /// Values the host reads after the last step.
    pub results: Vec<Buffer>,
}
