//! Device time between points of a stream.

use cudarc::driver::{result, sys};

use crate::error::{CudaError, driver_error};

/// A point of a stream.
struct Event(sys::CUevent);

impl Event {
    fn new() -> Result<Self, CudaError> {
        result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map(Self).map_err(driver_error("cuEventCreate"))
    }

    fn record(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        // SAFETY: event and stream live.
        unsafe { result::event::record(self.0, stream) }.map_err(driver_error("cuEventRecord"))
    }

    fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(self.0) }.map_err(driver_error("a kernel failed"))
    }

    /// Milliseconds from this event to a later one; both were recorded and reached.
    fn until(&self, later: &Event) -> Result<f32, CudaError> {
        // SAFETY: both events live.
        unsafe { result::event::elapsed(self.0, later.0) }.map_err(driver_error("cuEventElapsedTime"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

pub(crate) struct Timer {
    begin: Event,
    end: Event,
}

impl Timer {
    pub(crate) fn new() -> Result<Self, CudaError> {
        Ok(Self { begin: Event::new()?, end: Event::new()? })
    }

    /// Milliseconds that what `work` queues takes.
    pub(crate) fn time(
        &self,
        stream: sys::CUstream,
        work: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<f32, CudaError> {
        self.begin.record(stream)?;
        work()?;
        self.end.record(stream)?;
        self.end.wait()?;
        self.begin.until(&self.end)
    }
}

/// Times pieces of work that follow one another without a pause.
pub(crate) struct Laps(Vec<Event>);

impl Laps {
    pub(crate) fn new(pieces: usize) -> Result<Self, CudaError> {
        (0..=pieces).map(|_| Event::new()).collect::<Result<_, _>>().map(Self)
    }

    /// Milliseconds of each piece that `queue` puts on the stream, by its number.
    pub(crate) fn time<E: From<CudaError>>(
        &self,
        stream: sys::CUstream,
        mut queue: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<Vec<f32>, E> {
        let Some((first, rest)) = self.0.split_first() else { return Ok(Vec::new()) };
        first.record(stream)?;
        for (piece, event) in rest.iter().enumerate() {
            queue(piece)?;
            event.record(stream)?;
        }
        rest.last().map_or(Ok(()), Event::wait)?;
        Ok(self.0.windows(2).map(|pair| pair[0].until(&pair[1])).collect::<Result<_, _>>()?)
    }
}
