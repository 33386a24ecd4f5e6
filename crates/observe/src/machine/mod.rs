//! What a machine is and does, as plain data: read from the kernel and the driver, or from a recording.

mod host;
mod process;
mod sampling;

use serde::{Deserialize, Serialize};

pub use host::{cards_on_bus, read_host};
pub use plimsoll_train::Group;
pub use process::{read_process, read_user};
pub use sampling::{Sampler, read_moment};

/// A machine with what was seen of it over some seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    pub gpus: Vec<Gpu>,
    pub host: Host,
    pub driver: Driver,
    /// Whoever looks; empty where that is not known.
    pub user: String,
    /// Runs of ours that a folder describes.
    pub runs: Vec<KnownRun>,
    pub moments: Vec<Moment>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    pub name: String,
    pub total_bytes: u64,
    pub used_bytes: u64,
    pub power_limit_w: Option<f64>,
    pub power_default_w: Option<f64>,
    pub temperature_slowdown_c: Option<f64>,
    /// Lanes of the bus in use and how many there could be.
    pub pcie_width: Option<u32>,
    pub pcie_width_max: Option<u32>,
    pub processes: Vec<Process>,
}

/// A process that holds memory of a card.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub user: String,
    pub command: String,
    /// Of the card; 0 where the driver does not tell.
    pub bytes: u64,
    pub host_bytes: u64,
    pub swapped_bytes: u64,
    /// Processors it kept busy while it was watched.
    pub cpus: Option<f64>,
    /// What a framework's allocator holds, and what of that is in use, where the process tells.
    pub reserved_bytes: Option<u64>,
    pub allocated_bytes: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    pub total_bytes: u64,
    pub available_bytes: u64,
    /// What may be used: the total, or less in a control group.
    pub limit_bytes: u64,
    pub swap_total_bytes: u64,
    pub swap_used_bytes: u64,
    pub cpus: f64,
    pub load: f64,
    pub group: Option<Group>,
    pub shared_memory: Option<Disk>,
    pub disks: Vec<Disk>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    pub path: String,
    pub total_bytes: u64,
    pub available_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Driver {
    pub version: Option<String>,
    /// Cards on the bus, whether or not a driver serves them.
    pub cards_on_bus: u32,
    /// Libraries that training on a card needs and that were not found, with what brings them.
    pub missing: Vec<MissingLibrary>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MissingLibrary {
    pub name: String,
    pub install: String,
}

/// A run that a folder describes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KnownRun {
    pub folder: String,
    pub pid: u32,
    /// Seconds since it last wrote of a step.
    pub silent_s: f64,
}

/// Counters and readings of one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moment {
    pub at_s: f64,
    /// Since the machine started.
    pub swapped_in_bytes: u64,
    pub swapped_out_bytes: u64,
    pub major_faults: u64,
    /// Processor seconds since the machine started.
    pub cpu_busy_s: f64,
    pub cpu_waiting_s: f64,
    pub gpus: Vec<GpuMoment>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuMoment {
    /// Share of the time in which some kernel ran, in percent.
    pub busy_percent: f64,
    pub used_bytes: u64,
    pub power_w: Option<f64>,
    pub temperature_c: Option<f64>,
    pub clock_mhz: Option<f64>,
    pub clock_max_mhz: Option<f64>,
    /// Over the bus, both ways.
    pub bus_bytes_per_s: Option<f64>,
    pub throttled: Vec<Throttle>,
}

/// Why a card runs slower than it could.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Throttle {
    /// It draws as much power as it may.
    Power,
    Heat,
    /// The power supply asked for it.
    Brake,
}
