//! The driver's own view of a card's memory, process by process, through NVML. It comes with the driver; where it
//! cannot be loaded there is less to tell, and nothing else changes.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::library::{self, Opened};

pub(crate) const NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];
pub(crate) const SUCCESS: c_int = 0;
/// What NVML says of a figure it does not know.
const NOT_AVAILABLE: u64 = u64::MAX;
/// Processes that are asked for; a card with more tells of none.
const PROCESSES_MAX: usize = 256;
const NAME_BYTES: usize = 256;

pub(crate) type Handle = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct RawMemory {
    pub(crate) total: u64,
    free: u64,
    pub(crate) used: u64,
}

/// `nvmlProcessInfo_v2_t`, which the third version of the call fills in.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct RawProcess {
    pid: c_uint,
    used_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

const _: () = assert!(size_of::<RawProcess>() == 24 && size_of::<RawMemory>() == 24);

/// A process that holds memory of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub pid: u32,
    /// Unknown where the process belongs to someone else or to another container.
    pub name: Option<String>,
    pub bytes: Option<u64>,
}

/// Asks for the processes of one kind that use a card.
pub(crate) type ProcessesCall = unsafe extern "C" fn(Handle, *mut c_uint, *mut RawProcess) -> c_int;

/// One card, as NVML knows it.
pub(crate) struct Nvml {
    pub(crate) device: Handle,
    memory: unsafe extern "C" fn(Handle, *mut RawMemory) -> c_int,
    processes: ProcessesCall,
    process_name: unsafe extern "C" fn(c_uint, *mut c_char, c_uint) -> c_int,
    driver_version: unsafe extern "C" fn(*mut c_char, c_uint) -> c_int,
}

impl Nvml {
    /// The card at a PCI address such as `0000:3b:00.0`; `None` where NVML is not there or does not know it.
    pub(crate) fn open(bus_id: &CStr) -> Option<Self> {
        let library = library::open_optional(&NAMES)?;
        // SAFETY: the signatures are those of nvml.h; the library stays open.
        unsafe {
            let init: unsafe extern "C" fn() -> c_int = library.function(c"nvmlInit_v2")?;
            let find: unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int =
                library.function(c"nvmlDeviceGetHandleByPciBusId_v2")?;
            let mut device = std::ptr::null_mut();
            if init() != SUCCESS || find(bus_id.as_ptr(), &raw mut device) != SUCCESS {
                return None;
            }
            Self::of(&library, device)
        }
    }

    /// The card of a handle; the library must be initialised.
    pub(crate) fn of(library: &Opened, device: Handle) -> Option<Self> {
        // SAFETY: the signatures are those of nvml.h; the library stays open.
        unsafe {
            Some(Self {
                device,
                memory: library.function(c"nvmlDeviceGetMemoryInfo")?,
                processes: library.function(c"nvmlDeviceGetComputeRunningProcesses_v3")?,
                process_name: library.function(c"nvmlSystemGetProcessName")?,
                driver_version: library.function(c"nvmlSystemGetDriverVersion")?,
            })
        }
    }

    /// Bytes in use by all processes and the driver itself.
    pub(crate) fn used_bytes(&self) -> Option<u64> {
        self.memory().map(|memory| memory.used)
    }

    pub(crate) fn memory(&self) -> Option<RawMemory> {
        let mut memory = RawMemory::default();
        // SAFETY: the handle is valid as long as the library is open.
        let status = unsafe { (self.memory)(self.device, &raw mut memory) };
        (status == SUCCESS).then_some(memory)
    }

    /// Processes with a context on the card.
    pub(crate) fn holders(&self) -> Option<Vec<Holder>> {
        self.holders_by(self.processes)
    }

    pub(crate) fn holders_by(&self, call: ProcessesCall) -> Option<Vec<Holder>> {
        let mut raw = vec![RawProcess::default(); PROCESSES_MAX];
        let mut count = PROCESSES_MAX as c_uint;
        // SAFETY: as many entries as the count says are there to be written.
        let status = unsafe { call(self.device, &raw mut count, raw.as_mut_ptr()) };
        let known = raw.get(..count as usize).filter(|_| status == SUCCESS)?;
        let holder = |process: &RawProcess| Holder {
            pid: process.pid,
            name: self.name(process.pid),
            bytes: Some(process.used_bytes).filter(|&bytes| bytes != NOT_AVAILABLE),
        };
        Some(known.iter().map(holder).collect())
    }

    fn name(&self, pid: u32) -> Option<String> {
        // SAFETY: writes at most as many bytes as it is told.
        let name = text(|place, len| unsafe { (self.process_name)(pid, place, len) })?;
        // The path of a program says no more than its last part.
        let last = name.rsplit('/').next().unwrap_or(&name);
        (!last.is_empty()).then(|| last.to_owned())
    }

    /// Such as `580.65.06`.
    pub(crate) fn driver_version(&self) -> Option<String> {
        // SAFETY: as above.
        text(|place, len| unsafe { (self.driver_version)(place, len) })
    }
}

/// What a call writes as a string.
pub(crate) fn text(call: impl FnOnce(*mut c_char, c_uint) -> c_int) -> Option<String> {
    let mut bytes = [0u8; NAME_BYTES];
    let status = call(bytes.as_mut_ptr().cast(), NAME_BYTES as c_uint);
    let written = CStr::from_bytes_until_nul(&bytes).ok()?;
    (status == SUCCESS).then(|| written.to_string_lossy().into_owned())
}
