use std::io;

use plimsoll_graph::{BackendTraits, DType, ScheduleId};
use plimsoll_plan::{Region, Step};
use plimsoll_runtime::{Active, Backend, Draw, Fill, RuntimeError, Used};

use crate::call::Call;
use crate::device::{Device, MemoryInfo};
use crate::dispatch;
use crate::draw;
use crate::error::CudaError;
use crate::nvml::Holder;
use crate::record::{Progress, Recording, Recordings};
use crate::timer::{Laps, Timer};

/// Scratch every product may use.
const MATMUL_WORKSPACE_BYTES: usize = 32 << 20;

/// Runs steps on one NVIDIA card.
pub struct CudaBackend {
    /// Dropped before the device. `None`: nothing is recorded.
    recordings: Option<Recordings>,
    device: Device,
    matmul_workspace_bytes: usize,
}

impl CudaBackend {
    /// Takes the card of that number, as the driver counts those it may see: finds the libraries,
    /// compiles the kernels or reads them from the cache, and loads them.
    pub fn new(ordinal: usize) -> Result<Self, CudaError> {
        Ok(Self {
            recordings: Some(Recordings::default()),
            device: Device::new(ordinal)?,
            matmul_workspace_bytes: MATMUL_WORKSPACE_BYTES,
        })
    }

    /// Other scratch for products than usual, for tests of small ones.
    pub fn with_matmul_workspace(self, bytes: usize) -> Self {
        Self { matmul_workspace_bytes: bytes, ..self }
    }

    /// Compute capability, such as (9, 0).
    pub fn compute_capability(&self) -> (u32, u32) {
        self.device.compute_capability()
    }

    pub fn sm_count(&self) -> u32 {
        self.device.sm_count()
    }

    /// The card's memory as the driver sees it now, other processes included.
    pub fn memory(&self) -> Result<MemoryInfo, CudaError> {
        self.device.bind()?;
        self.device.memory()
    }

    /// Other processes that hold memory of the card, as far as the driver tells, the largest first.
    pub fn others(&self) -> Vec<Holder> {
        self.device.usage().others()
    }

    /// The driver's version, such as `580.65.06`, where it tells.
    pub fn driver_version(&self) -> Option<String> {
        self.device.usage().driver_version()
    }

    /// Memory of this process after each step of taking the card: what the context, the kernels and the library of
    /// products took.
    pub fn footprint(&self) -> &[(&'static str, u64)] {
        self.device.footprint()
    }

    /// Steps run one by one instead of being recorded and replayed.
    pub fn eager(mut self) -> Self {
        self.recordings = None;
        self
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn device_mut(&mut self) -> &mut Device {
        &mut self.device
    }

    /// A step so many times over, recorded and replayed once, so that everything it needs is in place.
    pub(crate) fn record_repeated(
        &mut self,
        step: &Step,
        active: Active,
        times: usize,
    ) -> Result<Recording, RuntimeError> {
        self.device.bind()?;
        let stream = self.device.compute_stream();
        let recording = Recording::new(stream, || (0..times).try_for_each(|_| self.queue(step, active)))?;
        recording.launch(stream)?;
        self.synchronize()?;
        Ok(recording)
    }

    /// Seconds that a recording takes on the device.
    pub(crate) fn time_replay(&mut self, recording: &Recording) -> Result<f64, RuntimeError> {
        let stream = self.device.compute_stream();
        let ms = Timer::new()?.time(stream, || recording.launch(stream))?;
        Ok(f64::from(ms) / 1e3)
    }

    /// Seconds of each step of a row that is queued without a pause.
    pub(crate) fn time_row(&mut self, laps: &Laps, steps: &[Step], active: Active) -> Result<Vec<f64>, RuntimeError> {
        self.device.bind()?;
        let ms = laps.time(self.device.compute_stream(), |piece| self.queue(&steps[piece], active))?;
        Ok(ms.into_iter().map(|ms| f64::from(ms) / 1e3).collect())
    }

    fn queue(&self, step: &Step, active: Active) -> Result<(), RuntimeError> {
        dispatch::run(&Call::new(step, active, &self.device)?)
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn run_schedule(&mut self, record: Option<ScheduleId>, steps: &[Step], active: Active) -> Result<(), RuntimeError> {
        self.device.bind()?;
        let Self { device, recordings, .. } = self;
        let queue = || dispatch::run_all(steps, active, device);
        let (Some(recordings), Some(which)) = (recordings.as_mut(), record) else { return queue() };
        let stream = device.compute_stream();
        match recordings.replay(which, active, stream)? {
            Progress::Plain => queue(),
            Progress::Replayed => Ok(()),
            Progress::Record => {
                recordings.record(which, active, stream, queue)?;
                recordings.replay(which, active, stream)?;
                Ok(())
            }
        }
    }

    fn run_timed(&mut self, step: &Step, active: Active) -> Result<f64, RuntimeError> {
        self.device.bind()?;
        let timer = Timer::new()?;
        let mut outcome = Ok(());
        let ms = timer.time(self.device.compute_stream(), || {
            outcome = self.queue(step, active);
            Ok(())
        })?;
        outcome.map(|()| f64::from(ms) / 1e3)
    }

    fn loads_lazily(&self) -> bool {
        true
    }

    fn release(&mut self) -> Result<(), RuntimeError> {
        self.device.bind()?;
        self.recordings = self.recordings.is_some().then(Recordings::default);
        Ok(self.device.release_arena()?)
    }

    fn fixed_shape(&self) -> bool {
        self.recordings.is_some()
    }

    fn used(&self) -> Option<Used> {
        self.memory().ok().map(|memory| self.device.usage().ours(memory))
    }

    fn traits(&self) -> BackendTraits {
        BackendTraits {
            matmul_workspace_bytes: self.matmul_workspace_bytes,
            multiplies_codes: self.device.multiplies_codes(),
            ..BackendTraits::gpu()
        }
    }

    fn allocate(&mut self, bytes: usize) -> Result<(), RuntimeError> {
        self.device.bind()?;
        Ok(self.device.allocate(bytes)?)
    }

    fn run(&mut self, step: &Step, active: Active) -> Result<(), RuntimeError> {
        self.device.bind()?;
        self.queue(step, active)
    }

    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), RuntimeError> {
        if bytes.len() > region.bytes {
            let reason = format!("{} bytes do not fit a region of {}", bytes.len(), region.bytes);
            return Err(RuntimeError::Device { reason });
        }
        let region = Region { bytes: bytes.len(), ..region };
        let copied = self.write_with(region, &mut |done, piece| {
            piece.copy_from_slice(&bytes[done..done + piece.len()]);
            Ok(())
        })?;
        copied.map_err(|error| RuntimeError::Device { reason: error.to_string() })
    }

    fn write_with(&mut self, region: Region, fill: &mut Fill) -> Result<io::Result<()>, RuntimeError> {
        self.device.bind()?;
        let at = self.device.locate(region)?;
        Ok(self.device.write_with(at, region.bytes, fill)?)
    }

    fn draw(&mut self, region: Region, dtype: DType, draw: Draw) -> Result<(), RuntimeError> {
        self.device.bind()?;
        draw::draw(&self.device, self.device.locate(region)?, region.bytes, dtype, draw)
    }

    fn read(&self, region: Region, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        if bytes.len() > region.bytes {
            let reason = format!("a region of {} bytes has no {} to read", region.bytes, bytes.len());
            return Err(RuntimeError::Device { reason });
        }
        self.device.bind()?;
        Ok(self.device.read(self.device.locate(region)?, bytes)?)
    }

    fn host_bytes(&mut self, _region: Region) -> Option<&mut [u8]> {
        None
    }

    fn fill(&mut self, region: Region, byte: u8) -> Result<(), RuntimeError> {
        self.device.bind()?;
        Ok(self.device.fill(self.device.locate(region)?, byte, region.bytes)?)
    }

    fn synchronize(&mut self) -> Result<(), RuntimeError> {
        self.device.bind()?;
        Ok(self.device.synchronize()?)
    }
}
