//! What recorded schedules take of a device besides the arena.

use plimsoll_graph::{Graph, Op};

use crate::DeviceProfile;

/// The driver hands memory out in pages of this size.
const PAGE_BYTES: u64 = 2 << 20;

/// Memory for these graphs once they are recorded.
pub(crate) fn recorded_bytes(graphs: &[&Graph], device: &DeviceProfile) -> u64 {
    let launches: usize = graphs.iter().flat_map(|graph| &graph.nodes).map(|node| launches(&node.op)).sum();
    let bytes = (launches as f64 * device.recorded_bytes_per_launch).ceil() as u64;
    bytes.next_multiple_of(PAGE_BYTES)
}

/// Kernels and copies of an operator at most. Most are one, with a second where partial sums meet or a copy is made.
fn launches(op: &Op) -> usize {
    match op {
        Op::VocabLoss(op) => 1 + 8 * op.chunks.max(1),
        Op::AttentionGrad(_) | Op::EmbedGrad(_) | Op::GlobalNorm(_) | Op::PairLoss(_) => 4,
        Op::AdamW(_) | Op::Sgd(_) => 1,
        _ => 2,
    }
}
