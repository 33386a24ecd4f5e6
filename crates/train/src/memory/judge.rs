//! What samples mean: that the process outgrew its plan, or that its machine runs short.

use std::fmt;

use plimsoll_plan::{DeviceReport, HostReport};

use super::kernel::{Resident, Sample};

/// What was found in the samples so far.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Finding {
    /// The run cannot go on: what it was planned as is not true.
    Overgrown(Box<Overgrowth>),
    Warning(MemoryWarning),
}

/// The process takes more than was planned for it, beyond what the plan allows.
#[derive(Debug, Clone, PartialEq)]
pub struct Overgrowth {
    /// `host` or `GPU`.
    pub memory: &'static str,
    /// The update that was done when it was first seen.
    pub since: u64,
    pub used_bytes: u64,
    pub planned_bytes: u64,
    pub allowance_bytes: u64,
    /// By category, without those that are empty.
    pub planned: Vec<(&'static str, u64)>,
    /// Of the host's memory.
    pub resident: Option<Resident>,
}

/// Something about the machine's memory that whoever started the run should know. The run goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MemoryWarning {
    /// Others take what there is; the kernel may end processes.
    Short { available_bytes: u64, total_bytes: u64 },
    /// Processes wait for memory.
    Stalled { percent: f64 },
    /// Others are swapped in and out.
    Swapping { bytes_per_s: f64 },
    /// Pages of this very process were moved out.
    OwnSwap { bytes: u64 },
    /// Code or files of this process are pushed out and read again.
    Faults { per_s: f64 },
    /// More of the GPU is in use than planned, by whomever: the driver does not tell by process.
    Gpu { used_bytes: u64, planned_bytes: u64 },
}

/// A state that lasts: it begins once it was seen some times in a row, and is over once it was not seen for a while.
#[derive(Debug, Clone, Copy, Default)]
struct Episode {
    seen: u32,
    unseen: u32,
    is_on: bool,
    /// The update at which it was first seen.
    since: u64,
}

/// Samples in a row that make an episode: what is gone after a second or two is nobody's concern.
const BEGINS: u32 = 3;
/// Samples in a row without it that end one.
const ENDS: u32 = 30;

impl Episode {
    /// Whether it has just begun.
    fn see(&mut self, is_seen: bool, step: u64) -> bool {
        if !is_seen {
            self.seen = 0;
            self.unseen += 1;
            self.is_on &= self.unseen < ENDS;
            return false;
        }
        if self.seen == 0 && !self.is_on {
            self.since = step;
        }
        self.unseen = 0;
        self.seen += 1;
        let begins = !self.is_on && self.seen >= BEGINS;
        self.is_on |= begins;
        begins
    }
}

/// Less than this part of the memory is little,
const SHORT_PART: u64 = 40;
/// unless there was hardly more when the run began: then it was planned so.
const SHORT_OF_FIRST: u64 = 2;
/// Of ten seconds, in percent. Some waiting is ordinary while files are read and written.
const STALLED_PERCENT: f64 = 20.0;
/// Slower swapping than this is the kernel tidying up.
const SWAPPING_BYTES_PER_S: f64 = 1048576.0;
/// Of the process's own pages, beyond what was out when watching began.
const OWN_SWAP_BYTES: u64 = 1 << 20;
/// Times a second that the process waits for a page.
const FAULTS_PER_S: f64 = 100.0;

/// Looks at one sample after another.
#[derive(Debug)]
pub(super) struct Judge {
    planned: HostReport,
    gpu: DeviceReport,
    first: Option<Sample>,
    last: Option<Sample>,
    growth: Episode,
    gpu_growth: Episode,
    short: Episode,
    stalled: Episode,
    swapping: Episode,
    own_swap: Episode,
    faults: Episode,
}

impl Judge {
    pub fn new(planned: HostReport, gpu: DeviceReport) -> Self {
        let none = Episode::default;
        Self {
            planned,
            gpu,
            first: None,
            last: None,
            growth: none(),
            gpu_growth: none(),
            short: none(),
            stalled: none(),
            swapping: none(),
            own_swap: none(),
            faults: none(),
        }
    }

    /// What a sample of the host shows that was not known before.
    pub fn host(&mut self, sample: Sample) -> Vec<Finding> {
        let first = *self.first.get_or_insert(sample);
        let last = self.last.replace(sample).unwrap_or(sample);
        let seconds = sample.at_s - last.at_s;
        let rate = |now: u64, before: u64| match seconds > 0.0 {
            true => now.saturating_sub(before) as f64 / seconds,
            false => 0.0,
        };
        let Sample { resident, step, available_bytes, total_bytes, .. } = sample;
        let mut found = Vec::new();
        // What was moved out is still the process's.
        let used_bytes = resident.total_bytes + resident.swapped_bytes;
        let is_over = used_bytes > self.planned.planned_bytes + self.planned.allowance_bytes;
        if self.growth.see(is_over, step) {
            found.push(Finding::Overgrown(Box::new(self.outgrown(used_bytes, resident))));
        }
        let mut warn = |episode: &mut Episode, is_so: bool, warning: MemoryWarning| {
            if episode.see(is_so, step) {
                found.push(Finding::Warning(warning));
            }
        };
        let own = resident.swapped_bytes.saturating_sub(first.resident.swapped_bytes);
        let is_own = own > OWN_SWAP_BYTES;
        warn(&mut self.own_swap, is_own, MemoryWarning::OwnSwap { bytes: resident.swapped_bytes });
        let faults = rate(sample.major_faults, last.major_faults);
        // Pages that come back from swap are faults too, and are told as such.
        let (is_faulting, per_s) = (faults > FAULTS_PER_S && !is_own, faults);
        warn(&mut self.faults, is_faulting, MemoryWarning::Faults { per_s });
        // What the process takes itself beyond its plan is no pressure from others.
        let little = (total_bytes / SHORT_PART).min(first.available_bytes / SHORT_OF_FIRST);
        let is_short = available_bytes < little && !is_over;
        warn(&mut self.short, is_short, MemoryWarning::Short { available_bytes, total_bytes });
        let percent = sample.stalled_percent;
        warn(&mut self.stalled, percent > STALLED_PERCENT && !is_over, MemoryWarning::Stalled { percent });
        let bytes_per_s = rate(sample.swap_traffic_bytes, last.swap_traffic_bytes);
        let is_swapping = bytes_per_s > SWAPPING_BYTES_PER_S && !is_own;
        warn(&mut self.swapping, is_swapping, MemoryWarning::Swapping { bytes_per_s });
        found
    }

    fn outgrown(&self, used_bytes: u64, resident: Resident) -> Overgrowth {
        let HostReport { planned_bytes, allowance_bytes, categories, .. } = &self.planned;
        Overgrowth {
            memory: "host",
            since: self.growth.since,
            used_bytes,
            planned_bytes: *planned_bytes,
            allowance_bytes: *allowance_bytes,
            planned: categories.rows().into_iter().filter(|(_, bytes)| *bytes > 0).collect(),
            resident: Some(resident),
        }
    }

    /// The same of what the driver says. `is_own`: it counts this process alone.
    pub fn gpu(&mut self, used_bytes: u64, is_own: bool, step: u64) -> Option<Finding> {
        let DeviceReport { planned_bytes, allowance_bytes, categories, .. } = self.gpu;
        let is_over = planned_bytes > 0 && used_bytes > planned_bytes + allowance_bytes;
        if !self.gpu_growth.see(is_over, step) {
            return None;
        }
        if !is_own {
            return Some(Finding::Warning(MemoryWarning::Gpu { used_bytes, planned_bytes }));
        }
        Some(Finding::Overgrown(Box::new(Overgrowth {
            memory: "GPU",
            since: self.gpu_growth.since,
            used_bytes,
            planned_bytes,
            allowance_bytes,
            planned: categories.rows().into_iter().filter(|(_, bytes)| *bytes > 0).collect(),
            resident: None,
        })))
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1u64 << 20) as f64)
}

impl fmt::Display for Overgrowth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory, since, used_bytes, planned_bytes, allowance_bytes, planned, resident } = self;
        let by_category: Vec<String> = planned.iter().map(|(name, bytes)| format!("{name} {}", mib(*bytes))).collect();
        write!(
            f,
            "the process takes {} of {memory} memory since update {since}, but {} were planned ({}), with an allowance of {}",
            mib(*used_bytes),
            mib(*planned_bytes),
            by_category.join(", "),
            mib(*allowance_bytes),
        )?;
        match resident {
            Some(Resident { anonymous_bytes, file_bytes, shared_bytes, swapped_bytes, .. }) => write!(
                f,
                "; measured: {} of data, {} of files, {} shared, {} in swap",
                mib(*anonymous_bytes),
                mib(*file_bytes),
                mib(*shared_bytes),
                mib(*swapped_bytes),
            ),
            None => Ok(()),
        }
    }
}

impl fmt::Display for MemoryWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { available_bytes, total_bytes } => write!(
                f,
                "only {} of {} of host memory are available: others take more than when the run was planned, and the \
                 kernel may end processes",
                mib(*available_bytes),
                mib(*total_bytes)
            ),
            Self::Stalled { percent } => {
                write!(f, "processes of this machine wait for memory {percent:.0} % of the time, which slows the run")
            }
            Self::Swapping { bytes_per_s } => write!(
                f,
                "this machine swaps {} a second in and out for other processes, which slows the run",
                mib(*bytes_per_s as u64)
            ),
            Self::OwnSwap { bytes } => write!(
                f,
                "{} of this process were moved to swap space, which slows the run: free some host memory, or lower --host",
                mib(*bytes)
            ),
            Self::Faults { per_s } => {
                write!(f, "this process waits for a page from the disk {per_s:.0} times a second: host memory is short")
            }
            Self::Gpu { used_bytes, planned_bytes } => write!(
                f,
                "{} of GPU memory are in use, {} were planned; the driver does not tell by which process",
                mib(*used_bytes),
                mib(*planned_bytes)
            ),
        }
    }
}

#[cfg(test)]
mod tests;
