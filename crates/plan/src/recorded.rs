//! What recorded schedules take of a device besides the arena.

use plimsoll_graph::{Graph, OpRule};

use crate::DeviceProfile;

/// The driver hands memory out in pages of this size.
const PAGE_BYTES: u64 = 2 << 20;

/// Kernels and copies of a graph at most.
pub(crate) fn launches(graph: &Graph) -> usize {
    graph.nodes.iter().map(|node| node.op.launches(&graph.io(node))).sum()
}

/// Memory for graphs of so many launches once they are recorded.
pub(crate) fn recorded_bytes(launches: usize, device: &DeviceProfile) -> u64 {
    let bytes = (launches as f64 * device.recorded_bytes_per_launch).ceil() as u64;
    bytes.next_multiple_of(PAGE_BYTES)
}
