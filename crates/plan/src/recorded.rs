//! What recorded schedules take of a device besides the arena.

use plimsoll_graph::{Graph, OpRule};

use crate::DeviceProfile;

/// The driver hands memory out in pages of this size.
const PAGE_BYTES: u64 = 2 << 20;

/// Memory for these graphs once they are recorded.
pub(crate) fn recorded_bytes<'a>(graphs: impl Iterator<Item = &'a Graph>, device: &DeviceProfile) -> u64 {
    let launches = |graph: &Graph| graph.nodes.iter().map(|node| node.op.launches(&graph.io(node))).sum::<usize>();
    let launches: usize = graphs.map(launches).sum();
    let bytes = (launches as f64 * device.recorded_bytes_per_launch).ceil() as u64;
    bytes.next_multiple_of(PAGE_BYTES)
}
