//! Schedules recorded once as CUDA graphs and replayed: one launch instead of thousands.

use std::collections::HashMap;

use cudarc::driver::{result, sys};
use plimsoll_graph::ScheduleId;
use plimsoll_runtime::Active;

use crate::error::{CudaError, driver_error};

/// A graph ready to be launched.
pub(crate) struct Recording(sys::CUgraphExec);

// SAFETY: the driver lets any thread launch a graph whose context is current, which every way in makes sure of.
unsafe impl Send for Recording {}

impl Drop for Recording {
    fn drop(&mut self) {
        // SAFETY: instantiated once, destroyed once. At exit the context may be gone already.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

impl Recording {
    /// Records what `queue` puts on the stream, which runs nothing meanwhile.
    pub(crate) fn new<E: From<CudaError>>(
        stream: sys::CUstream,
        queue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self, E> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives; capturing ends below on every path.
        unsafe { result::stream::begin_capture(stream, mode) }.map_err(driver_error("cuStreamBeginCapture"))?;
        let queued = queue();
        // SAFETY: as above.
        let graph = unsafe { result::stream::end_capture(stream) };
        queued?;
        let graph = graph.map_err(driver_error("cuStreamEndCapture"))?;
        // SAFETY: the graph was just made; the instance does not need it afterwards.
        let instance = unsafe {
            let instance = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            instance
        };
        Ok(Self(instance.map_err(driver_error("cuGraphInstantiate"))?))
    }

    pub(crate) fn launch(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        // SAFETY: the graph and the stream live as long as the device.
        unsafe { result::graph::launch(self.0, stream) }.map_err(driver_error("cuGraphLaunch"))
    }
}

/// What has been recorded so far, by schedule and by how full its micro-batch was.
#[derive(Default)]
pub(crate) struct Recordings {
    /// `None`: run once step by step, to be recorded the next time.
    known: HashMap<(ScheduleId, Active), Option<Recording>>,
}

/// What to do with a schedule.
pub(crate) enum Progress {
    /// Everything it uses is not loaded yet: run it step by step.
    Plain,
    Record,
    Replayed,
}

impl Recordings {
    /// Replays the schedule if it was recorded.
    pub(crate) fn replay(
        &mut self,
        which: ScheduleId,
        active: Active,
        stream: sys::CUstream,
    ) -> Result<Progress, CudaError> {
        match self.known.get(&(which, active)) {
            Some(Some(recording)) => {
                recording.launch(stream)?;
                Ok(Progress::Replayed)
            }
            Some(None) => Ok(Progress::Record),
            None => {
                self.known.insert((which, active), None);
                Ok(Progress::Plain)
            }
        }
    }

    /// Records what `queue` puts on the stream.
    pub(crate) fn record<E: From<CudaError>>(
        &mut self,
        which: ScheduleId,
        active: Active,
        stream: sys::CUstream,
        queue: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let recording = Recording::new(stream, queue)?;
        self.known.insert((which, active), Some(recording));
        Ok(())
    }
}
