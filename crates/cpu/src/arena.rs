//! The one large allocation: an anonymous mapping, in huge pages where the kernel gives them,
//! touched throughout before the first step so that running can neither fail nor fault.

use plimsoll_runtime::RuntimeError;

use crate::backend::DEVICE;
use crate::workers::Workers;

const HUGE_PAGE: usize = 2 << 20;
const PAGE: usize = 4096;

pub(crate) struct Arena {
    base: *mut u8,
    bytes: usize,
    /// The mapping: whole pages.
    mapped: usize,
}

// SAFETY: plain memory; who may touch which part is decided by the borrow of the backend and by
// the kernels' division of work.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) fn new(bytes: usize, workers: &Workers) -> Result<Self, RuntimeError> {
        let mapped = bytes.max(1).next_multiple_of(PAGE);
        let refused = |reason: String| RuntimeError::OutOfMemory { device: DEVICE.to_owned(), bytes, reason };
        if let Some(available) = available_bytes()
            && mapped > available
        {
            return Err(refused(format!("the system has {available} bytes left")));
        }
        let base = map_aligned(mapped).map_err(|error| refused(error.to_string()))?;
        let arena = Self { base, bytes, mapped };
        arena.make_resident(workers);
        Ok(arena)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes to every page once, all threads together.
    fn make_resident(&self, workers: &Workers) {
        // SAFETY: advice about our own mapping; a kernel that does not know it says so and nothing changes.
        #[cfg(target_os = "linux")]
        unsafe {
            libc::madvise(self.base.cast(), self.mapped, libc::MADV_HUGEPAGE);
        }
        let base = SendPointer(self.base);
        let mapped = self.mapped;
        workers.for_each(mapped.div_ceil(HUGE_PAGE), |_, block| {
            let pages = block * HUGE_PAGE..((block + 1) * HUGE_PAGE).min(mapped);
            for at in pages.step_by(PAGE) {
                // SAFETY: inside the mapping; volatile, or the write of a zero to fresh memory would be dropped.
                unsafe { base.at(at).write_volatile(0) };
            }
        });
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.cast(), self.mapped) };
    }
}

#[derive(Clone, Copy)]
struct SendPointer(*mut u8);

// SAFETY: each thread writes pages of its own.
unsafe impl Send for SendPointer {}
// SAFETY: as above.
unsafe impl Sync for SendPointer {}

impl SendPointer {
    fn at(self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

/// Maps whole pages, beginning at a huge page's boundary where there is room for one.
fn map_aligned(bytes: usize) -> std::io::Result<*mut u8> {
    let slack = if bytes >= HUGE_PAGE { HUGE_PAGE } else { 0 };
    // SAFETY: a fresh private mapping.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes + slack,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANON,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    let head = if slack == 0 { 0 } else { (start as usize).next_multiple_of(HUGE_PAGE) - start as usize };
    // SAFETY: gives back the unused ends of what was just mapped.
    unsafe {
        if head > 0 {
            libc::munmap(start, head);
        }
        let base = start.cast::<u8>().add(head);
        if slack > head {
            libc::munmap(base.add(bytes).cast(), slack - head);
        }
        Ok(base)
    }
}

/// Memory the system could still hand out. Linux grants mappings it cannot back and ends the process
/// when they are touched, so we ask first.
fn available_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_writable() {
        let workers = Workers::new(None);
        for bytes in [1, PAGE, HUGE_PAGE - 1, 3 * HUGE_PAGE + 5] {
            let arena = Arena::new(bytes, &workers).expect("a few MiB");
            assert_eq!(arena.base() as usize % PAGE, 0);
            // SAFETY: the arena is ours alone.
            let memory = unsafe { std::slice::from_raw_parts_mut(arena.base(), arena.bytes()) };
            assert!(memory.iter().all(|&b| b == 0));
            memory.fill(7);
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        let refused = Arena::new(1 << 50, &Workers::new(None));
        assert!(matches!(refused, Err(RuntimeError::OutOfMemory { .. })));
    }
}
