//! A card with its context, its streams, its loaded kernels and the one arena.

use std::cell::{Cell, RefCell};
use std::io;

use cudarc::driver::{result, sys};
use plimsoll_plan::{Place, Region};
use plimsoll_runtime::RuntimeError;

use crate::blas::Blas;
use crate::call::Args;
use crate::compile::architecture;
use crate::context::{Context, driver_version, find_card};
use crate::error::{CudaError, driver_error, reason};
use crate::launch::{Blocks, Placing};
use crate::library::{self, Library};
use crate::modules::Kernels;
use crate::staging::Staging;
use crate::timer::Timer;
use crate::usage::Usage;

const CAPABILITY_MIN: (u32, u32) = (8, 0);

/// Memory of a card as the driver counts it, other processes included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    pub free_bytes: usize,
    pub total_bytes: usize,
}

pub(crate) struct Device {
    name: String,
    capability: (u32, u32),
    sm_count: u32,
    placing: Placing,
    /// Of the kernel that was launched last, unless the library's were queued behind it.
    last_blocks: Cell<Option<usize>>,
    streams: Streams,
    arena: Option<Arena>,
    /// Taken with the arena.
    staging: Option<Staging>,
    kernels: RefCell<Kernels>,
    blas: Blas,
    usage: Usage,
    footprint: Vec<(&'static str, u64)>,
    // Last, because everything above lives in it.
    context: Context,
}

// SAFETY: handles of the driver may be used from any thread in which the context is current, and
// `bind` makes it so; the cells are only reached through the one thread that holds the device.
unsafe impl Send for Device {}

impl Device {
    /// Takes a card: its context, its streams, and every kernel, so that whatever the driver needs
    /// for itself is taken before the arena is.
    pub(crate) fn new(ordinal: usize) -> Result<Self, CudaError> {
        library::require(&[Library::Driver, Library::Nvrtc, Library::BlasLt])?;
        let card = find_card(ordinal)?;
        let usage = Usage::new(card);
        let context = Context::new(card).map_err(|error| crowded(error, &usage))?;
        let name = result::device::get_name(context.device).map_err(driver_error("cuDeviceGetName"))?;
        let capability = (
            context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if capability < CAPABILITY_MIN {
            return Err(CudaError::CardTooOld { name, capability });
        }
        let sm_count = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let mut footprint = Vec::new();
        let mut note = |what| -> Result<(), CudaError> {
            footprint.push((what, usage.ours(memory_of_card()?).bytes));
            Ok(())
        };
        note("context")?;
        let kernels = Kernels::load(&architecture(capability))?;
        note("kernels")?;
        let (streams, blas) = (Streams::new()?, Blas::new()?);
        note("products")?;
        Ok(Self {
            name,
            capability,
            sm_count,
            placing: Placing::of(capability, driver_version()),
            last_blocks: Cell::new(None),
            streams,
            arena: None,
            staging: None,
            kernels: RefCell::new(kernels),
            blas,
            usage,
            footprint,
            context,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn sm_count(&self) -> u32 {
        self.sm_count
    }

    pub(crate) fn compute_capability(&self) -> (u32, u32) {
        self.capability
    }

    /// Whether products take codes of eight bits as they are.
    pub(crate) fn multiplies_codes(&self) -> bool {
        Blas::multiplies_codes(self.capability)
    }

    /// To queue a product, whose kernels are not ours: what is launched behind it is placed accordingly.
    pub(crate) fn blas(&self) -> &Blas {
        self.last_blocks.set(None);
        &self.blas
    }

    pub(crate) fn compute_stream(&self) -> sys::CUstream {
        self.streams.compute
    }

    /// Makes the card current in this thread; every way in from outside begins with it.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        self.context.bind()
    }

    pub(crate) fn memory(&self) -> Result<MemoryInfo, CudaError> {
        memory_of_card()
    }

    pub(crate) fn footprint(&self) -> &[(&'static str, u64)] {
        &self.footprint
    }

    /// All that rates depend on: the card, the driver, the libraries, the kernels.
    pub(crate) fn profile_key(&self) -> String {
        let driver = self.usage.driver_version().unwrap_or_else(|| driver_version().to_string());
        // SAFETY: asks for a number; the library was required when the device was made.
        let blas = unsafe { cudarc::cublaslt::sys::cublasLtGetVersion() };
        let kernels = crate::compile::sources_hash();
        let version = env!("CARGO_PKG_VERSION");
        format!("{} / driver {driver} / cuBLASLt {blas} / kernels {kernels:016x} / plimsoll {version}", self.name)
    }

    /// Bytes per second inside the card, to it and from it, over what lies in the arena and in staging memory.
    pub(crate) fn copy_rates(&mut self, bytes: usize) -> Result<(f64, f64, f64), CudaError> {
        self.synchronize()?;
        let (stream, half) = (self.streams.compute, bytes / 2);
        let (Some(arena), Some(staging)) = (&self.arena, &self.staging) else { return Ok((0.0, 0.0, 0.0)) };
        let timer = Timer::new()?;
        let rate = |bytes: usize, ms: f32| bytes as f64 / f64::from(ms).max(1e-6) * 1e3;
        let inside = || self.copy(arena.start, arena.start + half as u64, half);
        inside()?;
        let inside = rate(half, timer.time(stream, inside)?);
        let [to, from] = staging.rates(arena.start, stream, &timer)?;
        Ok((inside, to, from))
    }

    /// Gives the arena and the staging memory back, for others to be taken.
    pub(crate) fn release_arena(&mut self) -> Result<(), CudaError> {
        self.synchronize()?;
        (self.arena, self.staging) = (None, None);
        Ok(())
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Takes the arena, zeroed. The only allocation of device memory there is.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Result<(), CudaError> {
        self.arena = None;
        let memory = self.memory()?;
        let refused = |reason: String| CudaError::OutOfMemory {
            name: self.name.clone(),
            bytes,
            free: memory.free_bytes,
            total: memory.total_bytes,
            reason,
            others: self.usage.others(),
        };
        // Asked first: where the driver lends host memory as the card's, a request beyond what is free succeeds.
        if bytes > memory.free_bytes {
            return Err(refused("the plan needs more".to_owned()));
        }
        let arena = Arena::new(bytes.max(1)).map_err(|error| refused(reason(error)))?;
        self.fill(arena.start, 0, arena.bytes)?;
        self.synchronize()?;
        self.arena = Some(arena);
        if self.staging.is_none() {
            self.staging = Some(Staging::new()?);
        }
        Ok(())
    }

    /// The address of a region, after checking that it lies in the arena.
    pub(crate) fn locate(&self, region: Region) -> Result<u64, RuntimeError> {
        let refused = |reason: String| RuntimeError::Device { reason };
        let arena = self.arena.as_ref().ok_or_else(|| refused("the arena has not been allocated".to_owned()))?;
        if region.place != Place::Device {
            return Err(refused(format!("a step on {} has a region in {:?}", self.name, region.place)));
        }
        let end = region.offset.checked_add(region.bytes);
        if end.is_none_or(|end| end > arena.bytes) {
            return Err(refused(format!(
                "a region of {} bytes at {} lies outside the arena of {} bytes",
                region.bytes, region.offset, arena.bytes
            )));
        }
        Ok(arena.start + region.offset as u64)
    }

    /// The address of a region that has been checked.
    pub(crate) fn address(&self, region: Region) -> u64 {
        self.arena.as_ref().map_or(0, |arena| arena.start) + region.offset as u64
    }

    /// Starts a kernel. A launch whose arguments do not suffice for the kernel's parameters is refused; their addresses are
    /// of regions that were checked against the arena.
    pub(crate) fn launch(
        &self,
        module: &'static str,
        kernel: &str,
        grid: (u32, u32, u32),
        block: u32,
        shared_bytes: u32,
        mut args: Args,
    ) -> Result<(), CudaError> {
        if grid.0 == 0 || grid.1 == 0 || grid.2 == 0 {
            return Ok(());
        }
        let function = self.kernels.borrow_mut().function(module, kernel, shared_bytes)?;
        if function.parameters.as_ref().is_some_and(|parameters| !args.suffice(parameters)) {
            let call = format!("launch of {module}.{kernel}");
            return Err(CudaError::Driver { call, reason: "its arguments do not match its parameters".to_owned() });
        }
        let mut pointers = args.pointers();
        let blocks = Blocks { grid, threads: block, shared_bytes };
        let placing = self.placing.behind(self.last_blocks.get(), blocks.count(), self.sm_count as usize);
        self.last_blocks.set(Some(blocks.count()));
        // SAFETY: the function's module stays loaded and is for this card; arguments are there for each parameter. What a
        // kernel does with its addresses is its family file's concern, beside its name.
        unsafe { placing.launch(function.handle, blocks, self.streams.compute, &mut pointers) }
            .map_err(driver_error(format!("launch of {module}.{kernel} on {grid:?} x {block}")))
    }

    pub(crate) fn copy(&self, dst: u64, src: u64, bytes: usize) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both places come from checked regions of the arena.
        unsafe { result::memcpy_dtod_async(dst, src, bytes, self.streams.compute) }
            .map_err(driver_error("cuMemcpyDtoDAsync"))
    }

    pub(crate) fn fill(&self, dst: u64, byte: u8, bytes: usize) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the place comes from a checked region of the arena.
        unsafe { result::memset_d8_async(dst, byte, bytes, self.streams.compute) }
            .map_err(driver_error("cuMemsetD8Async"))
    }

    /// Has `fill` write bytes that are copied in behind everything queued so far. A failure of `fill` is the inner
    /// result.
    pub(crate) fn write_with(
        &mut self,
        dst: u64,
        bytes: usize,
        fill: &mut plimsoll_runtime::Fill,
    ) -> Result<io::Result<()>, CudaError> {
        match &mut self.staging {
            Some(staging) => staging.send(dst, bytes, self.streams.compute, fill),
            None => {
                Err(CudaError::Driver { call: "a copy to the card".into(), reason: "nothing was allocated".into() })
            }
        }
    }

    /// Copies out what is there once everything queued so far is done.
    pub(crate) fn read(&self, src: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        // SAFETY: the place was checked to hold the bytes, which live until the stream has been waited for.
        unsafe { result::memcpy_dtoh_async(bytes, src, self.streams.compute) }
            .map_err(driver_error("cuMemcpyDtoHAsync"))?;
        self.wait(self.streams.compute)
    }

    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        self.streams.all().into_iter().try_for_each(|stream| self.wait(stream))
    }

    fn wait(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        // SAFETY: the stream lives as long as the device.
        unsafe { result::stream::synchronize(stream) }.map_err(driver_error("a kernel or copy failed"))
    }
}

/// One queue for kernels, one for copies in each direction.
struct Streams {
    compute: sys::CUstream,
    copy_in: sys::CUstream,
    copy_out: sys::CUstream,
}

impl Streams {
    fn new() -> Result<Self, CudaError> {
        let stream =
            || result::stream::create(result::stream::StreamKind::NonBlocking).map_err(driver_error("cuStreamCreate"));
        Ok(Self { compute: stream()?, copy_in: stream()?, copy_out: stream()? })
    }

    fn all(&self) -> [sys::CUstream; 3] {
        [self.compute, self.copy_in, self.copy_out]
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for stream in self.all() {
            // SAFETY: created once, destroyed once.
            let _ = unsafe { result::stream::destroy(stream) };
        }
    }
}

/// The one allocation.
struct Arena {
    start: u64,
    bytes: usize,
}

impl Arena {
    fn new(bytes: usize) -> Result<Self, cudarc::driver::DriverError> {
        // SAFETY: given back by `drop` alone.
        let start = unsafe { result::malloc_sync(bytes) }?;
        Ok(Self { start, bytes })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; the device waits for its queues before it lets go.
        let _ = unsafe { result::free_sync(self.start) };
    }
}

/// Of the card whose context is current.
fn memory_of_card() -> Result<MemoryInfo, CudaError> {
    let (free_bytes, total_bytes) = result::mem_get_info().map_err(driver_error("cuMemGetInfo"))?;
    Ok(MemoryInfo { free_bytes, total_bytes })
}

/// A context that cannot be made for want of memory says who has it.
fn crowded(error: CudaError, usage: &Usage) -> CudaError {
    match error {
        CudaError::Driver { call, reason } if reason.contains("OUT_OF_MEMORY") => {
            CudaError::Crowded { call, others: usage.others() }
        }
        other => other,
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Whatever still runs uses the arena. Errors have nobody left to go to.
        let _ = self.bind();
        let _ = self.synchronize();
    }
}
