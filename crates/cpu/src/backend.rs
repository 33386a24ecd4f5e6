use plimsoll_graph::{BackendTraits, DType};
use plimsoll_plan::{Place, Region, Step};
use plimsoll_runtime::{Active, Backend, Draw, RuntimeError};

use crate::arena::Arena;
use crate::args::Call;
use crate::dispatch;
use crate::workers::Workers;

/// What error messages call this device.
pub(crate) const DEVICE: &str = "cpu";

/// Runs steps on the host's cores.
pub struct CpuBackend {
    workers: Workers,
    arena: Option<Arena>,
}

impl CpuBackend {
    /// With `threads`, a pool of its own; without, rayon's global one.
    pub fn new(threads: Option<usize>) -> Self {
        Self { workers: Workers::new(threads), arena: None }
    }

    pub fn threads(&self) -> usize {
        self.workers.count()
    }

    /// The address of a region, after checking that it lies in the arena.
    fn locate(&self, region: Region) -> Result<*mut u8, RuntimeError> {
        let arena = self.arena.as_ref().ok_or_else(|| device_error("the arena has not been allocated".to_owned()))?;
        locate(arena, region)
    }
}

pub(crate) fn device_error(reason: String) -> RuntimeError {
    RuntimeError::Device { reason }
}

pub(crate) fn locate(arena: &Arena, region: Region) -> Result<*mut u8, RuntimeError> {
    if region.place != Place::Device {
        return Err(device_error(format!("{DEVICE} has one memory, but a region lies in {:?}", region.place)));
    }
    let end = region.offset.checked_add(region.bytes);
    if end.is_none_or(|end| end > arena.bytes()) {
        return Err(device_error(format!(
            "a region of {} bytes at {} lies outside the arena of {} bytes",
            region.bytes,
            region.offset,
            arena.bytes()
        )));
    }
    // SAFETY: the offset lies within the mapping, as just checked.
    Ok(unsafe { arena.base().add(region.offset) })
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        DEVICE
    }

    fn traits(&self) -> BackendTraits {
        BackendTraits::cpu(self.workers.count())
    }

    fn allocate(&mut self, bytes: usize) -> Result<(), RuntimeError> {
        self.workers.start()?;
        self.arena = None;
        self.arena = Some(Arena::new(bytes, &self.workers)?);
        Ok(())
    }

    fn run(&mut self, step: &Step, active: Active) -> Result<(), RuntimeError> {
        let arena = self.arena.as_ref().ok_or_else(|| device_error("the arena has not been allocated".to_owned()))?;
        dispatch::run(&Call { step, active, arena, workers: &self.workers })
    }

    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), RuntimeError> {
        if bytes.len() > region.bytes {
            return Err(device_error(format!("{} bytes do not fit a region of {}", bytes.len(), region.bytes)));
        }
        let to = self.locate(region)?;
        // SAFETY: `to` has room for the bytes, and the arena is not borrowed elsewhere while `self` is.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn draw(&mut self, region: Region, dtype: DType, draw: Draw) -> Result<(), RuntimeError> {
        let blocks = Blocks { base: self.locate(region)?, bytes: region.bytes };
        self.workers.for_each(region.bytes.div_ceil(DRAW_BYTES), |_, block| {
            let start = block * DRAW_BYTES;
            // SAFETY: the region was checked, and this part of it is this task's alone.
            draw.fill(dtype, (start / dtype.bytes()) as u64, unsafe { blocks.part(start) });
        });
        Ok(())
    }

    fn read(&self, region: Region, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        if bytes.len() > region.bytes {
            return Err(device_error(format!("a region of {} bytes has no {} to read", region.bytes, bytes.len())));
        }
        let from = self.locate(region)?;
        // SAFETY: `from` holds at least that many bytes; the caller's slice lies outside the arena.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn host_bytes(&mut self, region: Region) -> Option<&mut [u8]> {
        let at = self.locate(region).ok()?;
        // SAFETY: the region lies in the arena, and the borrow of `self` keeps everyone else out.
        Some(unsafe { std::slice::from_raw_parts_mut(at, region.bytes) })
    }
}

/// Bytes that one thread draws at a time, whole elements of any type.
const DRAW_BYTES: usize = 64 << 10;

/// A region that several threads fill, each its own parts.
struct Blocks {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory; `part` leaves it to the caller that no two threads have the same.
unsafe impl Sync for Blocks {}

impl Blocks {
    /// # Safety
    /// No two callers may hold the same part, and the memory must be there.
    #[expect(clippy::mut_from_ref, reason = "parts do not overlap")]
    unsafe fn part(&self, start: usize) -> &mut [u8] {
        let len = DRAW_BYTES.min(self.bytes - start);
        // SAFETY: the caller vouches for it.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_plan::DeviceProfile;
    use plimsoll_runtime::Distribution;

    use super::*;

    /// A plan made from the table must leave as much scratch as the kernels will ask for.
    #[test]
    fn planner_and_backend_agree_about_scratch() {
        for threads in [1, 2, 5] {
            let profile = DeviceProfile::cpu(threads, 1 << 30, 1e11, 1e11, 1e10);
            assert_eq!(CpuBackend::new(Some(threads)).traits(), profile.traits);
        }
    }

    #[test]
    fn draws_do_not_depend_on_the_number_of_threads() {
        let draw = Draw { distribution: Distribution::Normal { std: 0.02 }, key: 5 };
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let bytes = 3 * DRAW_BYTES + 12 * dtype.bytes();
            let region = Region { place: Place::Device, offset: 64, bytes };
            let mut expected = vec![0; bytes];
            draw.fill(dtype, 0, &mut expected);
            for threads in [1, 3] {
                let mut backend = CpuBackend::new(Some(threads));
                backend.allocate(bytes + 128).expect("a little memory");
                backend.draw(region, dtype, draw).expect("inside the arena");
                assert!(backend.host_bytes(region).expect("on the host") == expected.as_slice(), "{threads} {dtype:?}");
                let behind = Region { offset: 64 + bytes, bytes: 64, ..region };
                assert_eq!(backend.host_bytes(behind).expect("on the host"), [0; 64], "nothing is written beyond");
            }
        }
    }
}
