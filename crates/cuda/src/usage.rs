//! How much of the card is ours, and how much is others'.

use std::ffi::CStr;

use cudarc::driver::sys;
use plimsoll_runtime::{Counted, Used};

use crate::device::MemoryInfo;
use crate::nvml::{Holder, Nvml};

/// Watches a card's memory from before our context exists.
pub(crate) struct Usage {
    nvml: Option<Nvml>,
    /// What was in use before us, and who was there.
    before_bytes: Option<u64>,
    before: Vec<u32>,
}

impl Usage {
    /// Must be called before the context is made.
    pub(crate) fn new(card: sys::CUdevice) -> Self {
        let nvml = bus_id(card).and_then(|id| Nvml::open(CStr::from_bytes_until_nul(&id).ok()?));
        let before_bytes = nvml.as_ref().and_then(Nvml::used_bytes);
        let before = nvml.as_ref().and_then(Nvml::holders).unwrap_or_default();
        Self { nvml, before_bytes, before: before.iter().map(|holder| holder.pid).collect() }
    }

    /// What this process holds; `memory` is the card's as our context sees it.
    pub(crate) fn ours(&self, memory: MemoryInfo) -> Used {
        let holders = self.nvml.as_ref().and_then(Nvml::holders).unwrap_or_default();
        let now = self.nvml.as_ref().and_then(Nvml::used_bytes);
        ours(&holders, &self.before, std::process::id(), self.before_bytes, now, memory)
    }

    /// Whoever else holds memory, the largest first.
    pub(crate) fn others(&self) -> Vec<Holder> {
        let holders = self.nvml.as_ref().and_then(Nvml::holders).unwrap_or_default();
        others(holders, &self.before, std::process::id())
    }

    pub(crate) fn driver_version(&self) -> Option<String> {
        self.nvml.as_ref().and_then(Nvml::driver_version)
    }
}

/// The best figure there is: the driver's for our process; else, because in a container the driver may not know us by
/// our number, the growth of all memory in use since before our context; else all of it.
fn ours(
    holders: &[Holder],
    before: &[u32],
    pid: u32,
    before_bytes: Option<u64>,
    now_bytes: Option<u64>,
    memory: MemoryInfo,
) -> Used {
    // A process of our number that was there before us is another one, seen from outside our container.
    let own = holders.iter().find(|holder| holder.pid == pid && !before.contains(&pid)).and_then(|h| h.bytes);
    match (own, before_bytes, now_bytes) {
        (Some(bytes), ..) => Used { bytes, counted: Counted::Process },
        (None, Some(before), Some(now)) => Used { bytes: now.saturating_sub(before), counted: Counted::SinceStart },
        _ => Used { bytes: (memory.total_bytes - memory.free_bytes) as u64, counted: Counted::Device },
    }
}

/// All but us. Where the driver knows us by another number, only those who were there before us are surely others.
fn others(mut holders: Vec<Holder>, before: &[u32], pid: u32) -> Vec<Holder> {
    if holders.iter().any(|holder| holder.pid == pid && !before.contains(&pid)) {
        holders.retain(|holder| holder.pid != pid);
    } else {
        holders.retain(|holder| before.contains(&holder.pid));
    }
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    holders
}

/// The PCI address, ending in a zero.
fn bus_id(card: sys::CUdevice) -> Option<[u8; 32]> {
    let mut id = [0u8; 32];
    // SAFETY: writes at most as many bytes as it is told, a zero among them.
    let status = unsafe { sys::cuDeviceGetPCIBusId(id.as_mut_ptr().cast(), id.len() as i32, card) };
    status.result().ok().map(|()| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: MemoryInfo = MemoryInfo { free_bytes: 40, total_bytes: 100 };

    fn holder(pid: u32, bytes: Option<u64>) -> Holder {
        Holder { pid, name: None, bytes }
    }

    #[test]
    fn the_best_figure_there_is_wins() {
        let check = |holders: &[Holder], before: &[u32], used: (Option<u64>, Option<u64>), bytes, counted| {
            let found = ours(holders, before, 7, used.0, used.1, MEMORY);
            assert_eq!(found, Used { bytes, counted }, "{holders:?} {before:?} {used:?}");
        };
        let both = (Some(20), Some(55));
        check(&[holder(3, Some(5)), holder(7, Some(33))], &[3], both, 33, Counted::Process);
        check(&[holder(3, Some(5))], &[3], both, 35, Counted::SinceStart);
        check(&[holder(7, None)], &[], both, 35, Counted::SinceStart);
        // Number seven outside is not us.
        check(&[holder(7, Some(50))], &[7], both, 35, Counted::SinceStart);
        check(&[], &[], (Some(60), Some(55)), 0, Counted::SinceStart);
        check(&[], &[], (None, None), 60, Counted::Device);
    }

    #[test]
    fn we_are_not_among_the_others() {
        let all = || vec![holder(3, Some(5)), holder(7, Some(33)), holder(9, Some(8))];
        let pids = |holders: Vec<Holder>| holders.iter().map(|holder| holder.pid).collect::<Vec<_>>();
        assert_eq!(pids(others(all(), &[3], 7)), [9, 3]);
        assert_eq!(pids(others(all(), &[3, 7], 1)), [7, 3], "one of them may be us under another number");
    }
}
