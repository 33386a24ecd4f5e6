//! Page-locked host memory through which bytes go to the card: while one half is on its way the other is filled, and
//! what is small lies one behind another, so that nobody waits for a copy that still has room behind it.

use std::io;

use cudarc::driver::{result, sys};
use plimsoll_plan::GPU_STAGING_BYTES;
use plimsoll_runtime::Fill;

use crate::error::{CudaError, driver_error};
use crate::timer::Timer;

const HALF_BYTES: usize = GPU_STAGING_BYTES / 2;
/// Pieces begin at multiples of it.
const ALIGNMENT: usize = 64;

pub(crate) struct Staging {
    base: *mut u8,
    halves: [Half; 2],
    /// The half that is being filled, and how much of it is taken.
    current: usize,
    taken: usize,
}

struct Half {
    /// Passed once everything that was copied from this half has arrived.
    empty: sys::CUevent,
    on_its_way: bool,
}

impl Staging {
    pub(crate) fn new() -> Result<Self, CudaError> {
        let half = || {
            let empty = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
                .map_err(driver_error("cuEventCreate"))?;
            Ok(Half { empty, on_its_way: false })
        };
        let halves = [half()?, half()?];
        // Not write-combined memory: whoever fills a piece may read it too, which would crawl.
        // SAFETY: freed by `drop` alone; bytes are written before they are copied.
        let base = unsafe { result::malloc_host(GPU_STAGING_BYTES, 0) }
            .map_err(driver_error(format!("{GPU_STAGING_BYTES} bytes of page-locked host memory")))?;
        Ok(Self { base: base.cast(), halves, current: 0, taken: 0 })
    }

    /// Has `fill` write the bytes, piece by piece, and queues their copies.
    pub(crate) fn send(
        &mut self,
        dst: u64,
        bytes: usize,
        stream: sys::CUstream,
        fill: &mut Fill,
    ) -> Result<io::Result<()>, CudaError> {
        let mut done = 0;
        while done < bytes {
            let count = (bytes - done).min(HALF_BYTES);
            let piece = self.reserve(count, stream)?;
            if let Err(error) = fill(done, piece) {
                return Ok(Err(error));
            }
            // SAFETY: the caller checked the place; the piece is not touched before its half's event has passed.
            unsafe { result::memcpy_htod_async(dst + done as u64, piece, stream) }
                .map_err(driver_error("cuMemcpyHtoDAsync"))?;
            done += count;
        }
        Ok(Ok(()))
    }

    /// Bytes per second to and from the card at `address`, with no copy under way.
    pub(crate) fn rates(&self, address: u64, stream: sys::CUstream, timer: &Timer) -> Result<[f64; 2], CudaError> {
        // SAFETY: inside the allocation, which nobody else uses now; the timer waits for the copies.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.base, HALF_BYTES) };
        let mut rates = [0.0; 2];
        for (index, rate) in rates.iter_mut().enumerate() {
            let mut copy = || {
                // SAFETY: the arena has as many bytes at the address as a half of this.
                let copied = unsafe {
                    match index {
                        0 => result::memcpy_htod_async(address, bytes, stream),
                        _ => result::memcpy_dtoh_async(bytes, address, stream),
                    }
                };
                copied.map_err(driver_error("a copy between host and card"))
            };
            timer.time(stream, &mut copy)?;
            let ms = timer.time(stream, &mut copy)?;
            *rate = HALF_BYTES as f64 / f64::from(ms).max(1e-6) * 1e3;
        }
        Ok(rates)
    }

    /// Memory that no copy reads any more.
    fn reserve(&mut self, bytes: usize, stream: sys::CUstream) -> Result<&mut [u8], CudaError> {
        if self.taken + bytes > HALF_BYTES {
            let left = &mut self.halves[self.current];
            // SAFETY: event and stream live.
            unsafe { result::event::record(left.empty, stream) }.map_err(driver_error("cuEventRecord"))?;
            left.on_its_way = true;
            self.current = 1 - self.current;
            self.taken = 0;
            let entered = &mut self.halves[self.current];
            if entered.on_its_way {
                // SAFETY: the event was recorded.
                unsafe { result::event::synchronize(entered.empty) }
                    .map_err(driver_error("a kernel or copy failed"))?;
                entered.on_its_way = false;
            }
        }
        let start = self.current * HALF_BYTES + self.taken;
        self.taken = (self.taken + bytes).next_multiple_of(ALIGNMENT);
        // SAFETY: inside the allocation; earlier copies from this part have arrived, as waited for above.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.base.add(start), bytes) })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: each made once and given back once; the device waits for its queues before it lets go.
        unsafe {
            let _ = result::free_host(self.base.cast());
            for half in &self.halves {
                let _ = result::event::destroy(half.empty);
            }
        }
    }
}
