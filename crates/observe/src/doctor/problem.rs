//! What can be wrong, with the evidence. The words stand in `text`.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Info,
    Warning,
    Error,
}

/// Why a card waits for its data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Starved {
    /// All processors are at work.
    Processors { busy: f64 },
    /// They wait for disks.
    Disk { waiting: f64 },
    /// One thread of the process is at its limit and the others idle.
    OneThread { process: u32 },
}

#[derive(Debug, Clone, PartialEq)]
pub enum Problem {
    Swapping {
        bytes_per_s: f64,
        used_bytes: u64,
        gpu_busy_percent: Option<f64>,
    },
    SwapInUse {
        used_bytes: u64,
    },
    HostFull {
        available_bytes: u64,
        limit_bytes: u64,
    },
    GroupNearLimit {
        used_bytes: u64,
        limit_bytes: u64,
        version: u32,
    },
    GroupKilled {
        kills: u64,
        limit_bytes: u64,
    },
    Overloaded {
        load: f64,
        cpus: f64,
    },
    DiskFull {
        path: String,
        available_bytes: u64,
        total_bytes: u64,
    },
    SharedMemorySmall {
        total_bytes: u64,
    },
    NoCard,
    NoDriver {
        cards: u32,
    },
    OldDriver {
        version: String,
    },
    MissingLibrary {
        name: String,
        install: String,
    },
    Starved {
        gpu: String,
        busy_percent: f64,
        why: Starved,
    },
    /// `owner` is the user, where that is somebody else.
    IdleHolder {
        gpu: String,
        pid: u32,
        name: String,
        owner: Option<String>,
        bytes: u64,
    },
    HalfEmpty {
        gpu: String,
        used_bytes: u64,
        total_bytes: u64,
        busy_percent: f64,
    },
    /// `python` is the process of Python that holds most of it, whose allocator keeps what it has freed.
    CardFull {
        gpu: String,
        used_bytes: u64,
        total_bytes: u64,
        python: Option<u32>,
    },
    Spill {
        gpu: String,
        used_bytes: u64,
        total_bytes: u64,
        bus_bytes_per_s: f64,
        power_w: f64,
        limit_w: f64,
    },
    Fragmented {
        pid: u32,
        name: String,
        reserved_bytes: u64,
        allocated_bytes: u64,
    },
    Hot {
        gpu: String,
        temperature_c: Option<f64>,
        share: f64,
        clock_share: Option<f64>,
    },
    PowerBrake {
        gpu: String,
        share: f64,
    },
    PowerLimited {
        gpu: String,
        power_w: f64,
        limit_w: f64,
        clock_share: Option<f64>,
    },
    PowerLimitLowered {
        gpu: String,
        limit_w: f64,
        default_w: f64,
    },
    NarrowBus {
        gpu: String,
        width: u32,
        width_max: u32,
    },
    Shared {
        gpu: String,
        processes: Vec<(u32, String, String, u64)>,
    },
    StaleRun {
        folder: String,
        pid: u32,
        bytes: u64,
        silent_s: f64,
    },
}

impl Problem {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Swapping { .. } => "swapping",
            Self::SwapInUse { .. } => "swap-in-use",
            Self::HostFull { .. } => "host-nearly-full",
            Self::GroupNearLimit { .. } => "cgroup-near-limit",
            Self::GroupKilled { .. } => "cgroup-killed",
            Self::Overloaded { .. } => "cpu-overloaded",
            Self::DiskFull { .. } => "disk-nearly-full",
            Self::SharedMemorySmall { .. } => "shm-small",
            Self::NoCard => "no-gpu",
            Self::NoDriver { .. } => "no-driver",
            Self::OldDriver { .. } => "driver-old",
            Self::MissingLibrary { .. } => "library-missing",
            Self::Starved { .. } => "gpu-waits-for-data",
            Self::IdleHolder { .. } => "gpu-memory-held-idle",
            Self::HalfEmpty { .. } => "gpu-memory-unused",
            Self::CardFull { .. } => "gpu-memory-full",
            Self::Spill { .. } => "gpu-spill",
            Self::Fragmented { .. } => "fragmentation",
            Self::Hot { .. } => "thermal-throttling",
            Self::PowerBrake { .. } => "power-brake",
            Self::PowerLimited { .. } => "power-limited",
            Self::PowerLimitLowered { .. } => "power-limit-lowered",
            Self::NarrowBus { .. } => "pcie-narrow",
            Self::Shared { .. } => "gpu-shared",
            Self::StaleRun { .. } => "stale-run",
        }
    }

    pub fn severity(&self) -> Severity {
        match self {
            Self::Swapping { .. }
            | Self::NoDriver { .. }
            | Self::OldDriver { .. }
            | Self::MissingLibrary { .. }
            | Self::Spill { .. } => Severity::Error,
            Self::SwapInUse { .. }
            | Self::NoCard
            | Self::HalfEmpty { .. }
            | Self::PowerLimited { .. }
            | Self::PowerLimitLowered { .. } => Severity::Info,
            Self::HostFull { available_bytes, limit_bytes } => nearly_none(*available_bytes, *limit_bytes),
            Self::GroupNearLimit { used_bytes, limit_bytes, .. } => {
                nearly_none(limit_bytes.saturating_sub(*used_bytes), *limit_bytes)
            }
            Self::DiskFull { available_bytes, .. } if *available_bytes < DISK_BYTES_MIN => Severity::Error,
            _ => Severity::Warning,
        }
    }
}

/// A checkpoint of a small model would not find a place.
const DISK_BYTES_MIN: u64 = 1 << 30;

/// Below this share the kernel starts to end processes.
const NEARLY_NONE: f64 = 0.03;

fn nearly_none(available_bytes: u64, limit_bytes: u64) -> Severity {
    if (available_bytes as f64) < NEARLY_NONE * limit_bytes as f64 { Severity::Error } else { Severity::Warning }
}
