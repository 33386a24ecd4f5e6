//! Device time between two points of a stream.

use cudarc::driver::{result, sys};

use crate::error::{CudaError, driver_error};

pub(crate) struct Timer {
    begin: sys::CUevent,
    end: sys::CUevent,
}

impl Timer {
    pub(crate) fn new() -> Result<Self, CudaError> {
        let event =
            || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(driver_error("cuEventCreate"));
        Ok(Self { begin: event()?, end: event()? })
    }

    /// Milliseconds that what `work` queues takes.
    pub(crate) fn time(
        &self,
        stream: sys::CUstream,
        work: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<f32, CudaError> {
        let record = |event| {
            // SAFETY: event and stream live.
            unsafe { result::event::record(event, stream) }.map_err(driver_error("cuEventRecord"))
        };
        record(self.begin)?;
        work()?;
        record(self.end)?;
        // SAFETY: both events were recorded.
        unsafe {
            result::event::synchronize(self.end).map_err(driver_error("a kernel failed"))?;
            result::event::elapsed(self.begin, self.end).map_err(driver_error("cuEventElapsedTime"))
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        for event in [self.begin, self.end] {
            // SAFETY: created once, destroyed once.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}
