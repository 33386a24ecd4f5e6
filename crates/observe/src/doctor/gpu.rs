//! One card: its memory, who holds it, and what holds it back.

use super::course::{Course, GpuCourse};
use super::problem::{Problem, Starved};
use crate::machine::{Gpu, Machine, Process, Throttle};

/// From here on a card is at work; below, it waits for something.
const BUSY_PERCENT: f64 = 85.0;
const WAITING_PERCENT: f64 = 70.0;
const IDLE_PERCENT: f64 = 2.0;
/// A process with less of a card is somebody's desktop, not training.
const TRAINING_SHARE: f64 = 0.1;
const HALF_EMPTY: f64 = 0.6;
const FULL: f64 = 0.98;
const CPUS_BUSY: f64 = 0.85;
const CPUS_WAITING: f64 = 0.15;
const ONE_THREAD: std::ops::RangeInclusive<f64> = 0.9..=1.3;
/// A card whose memory is full, that is busy, draws little power and moves much over the bus, computes in host memory.
const SPILL_BUS_BYTES_PER_S: f64 = 4e9;
const SPILL_POWER_SHARE: f64 = 0.6;
const FRAGMENTED: f64 = 1.3;
const FRAGMENTED_BYTES: u64 = 1 << 30;
/// Share of the moments that makes holding back a habit.
const OFTEN: f64 = 0.3;
const LOWERED: f64 = 0.9;

pub fn problems(machine: &Machine, gpu: &Gpu, seen: &GpuCourse, course: &Course) -> Vec<Problem> {
    let mut found = Vec::new();
    found.extend(memory(gpu, seen));
    found.extend(fragmentation(gpu));
    found.extend(held_back(gpu, seen));
    let trains = gpu.processes.iter().any(|process| is_training(process, gpu));
    if trains && seen.watched {
        found.extend(waiting(gpu, seen, course));
    }
    found.extend(others(machine, gpu, seen));
    if let (Some(width), Some(width_max)) = (gpu.pcie_width, gpu.pcie_width_max) {
        // A card at rest may let lanes sleep.
        if width < width_max && seen.busy_percent > IDLE_PERCENT {
            found.push(Problem::NarrowBus { gpu: gpu.name.clone(), width, width_max });
        }
    }
    found
}

fn is_training(process: &Process, gpu: &Gpu) -> bool {
    process.bytes as f64 >= TRAINING_SHARE * gpu.total_bytes as f64
}

fn memory(gpu: &Gpu, seen: &GpuCourse) -> Option<Problem> {
    let (used_bytes, total_bytes) = (gpu.used_bytes, gpu.total_bytes);
    let used = used_bytes as f64 / total_bytes.max(1) as f64;
    let name = gpu.name.clone();
    if used >= FULL {
        let figures = (seen.bus_bytes_per_s, seen.power_w, gpu.power_limit_w);
        if let (Some(bus_bytes_per_s), Some(power_w), Some(limit_w)) = figures {
            let draws_little = power_w < SPILL_POWER_SHARE * limit_w;
            if seen.busy_percent >= BUSY_PERCENT && draws_little && bus_bytes_per_s > SPILL_BUS_BYTES_PER_S {
                return Some(Problem::Spill { gpu: name, used_bytes, total_bytes, bus_bytes_per_s, power_w, limit_w });
            }
        }
        return Some(Problem::CardFull { gpu: name, used_bytes, total_bytes, python: python(gpu) });
    }
    let trains = gpu.processes.iter().any(|process| is_training(process, gpu));
    let busy_percent = seen.busy_percent;
    (trains && busy_percent >= BUSY_PERCENT && used < HALF_EMPTY).then_some(Problem::HalfEmpty {
        gpu: name,
        used_bytes,
        total_bytes,
        busy_percent,
    })
}

/// The largest holder, if it is a process of Python that does not tell what of its memory is in use.
fn python(gpu: &Gpu) -> Option<u32> {
    let largest = gpu.processes.iter().max_by_key(|process| process.bytes)?;
    (largest.name.starts_with("python") && largest.allocated_bytes.is_none()).then_some(largest.pid)
}

fn fragmentation(gpu: &Gpu) -> Vec<Problem> {
    let fragmented = |process: &Process| {
        let (reserved_bytes, allocated_bytes) = (process.reserved_bytes?, process.allocated_bytes?);
        let unused = reserved_bytes.saturating_sub(allocated_bytes);
        let much = reserved_bytes as f64 > FRAGMENTED * allocated_bytes as f64 && unused > FRAGMENTED_BYTES;
        let (pid, name) = (process.pid, process.name.clone());
        much.then_some(Problem::Fragmented { pid, name, reserved_bytes, allocated_bytes })
    };
    gpu.processes.iter().filter_map(fragmented).collect()
}

/// Heat, the power supply, and the card's own power limit.
fn held_back(gpu: &Gpu, seen: &GpuCourse) -> Vec<Problem> {
    let (name, clock_share) = (|| gpu.name.clone(), seen.clock_share);
    let mut found = Vec::new();
    let share = seen.throttled(Throttle::Heat);
    if share >= OFTEN {
        found.push(Problem::Hot { gpu: name(), temperature_c: seen.temperature_c, share, clock_share });
    }
    let share = seen.throttled(Throttle::Brake);
    if share >= OFTEN {
        found.push(Problem::PowerBrake { gpu: name(), share });
    }
    if let (Some(power_w), Some(limit_w)) = (seen.power_w, gpu.power_limit_w)
        && seen.throttled(Throttle::Power) >= OFTEN
    {
        found.push(Problem::PowerLimited { gpu: name(), power_w, limit_w, clock_share });
    }
    if let (Some(limit_w), Some(default_w)) = (gpu.power_limit_w, gpu.power_default_w)
        && limit_w < LOWERED * default_w
    {
        found.push(Problem::PowerLimitLowered { gpu: name(), limit_w, default_w });
    }
    found
}

/// A card that idles in between. Where the host swaps, everything waits for that, and it has its own finding; where nothing
/// on the host is at its limit, there is no evidence that data is to blame, and nothing is said.
fn waiting(gpu: &Gpu, seen: &GpuCourse, course: &Course) -> Option<Problem> {
    let swaps = course.swap_bytes_per_s > super::host::SWAPPING_BYTES_PER_S;
    let partly = seen.busy_percent > IDLE_PERCENT && seen.busy_percent < WAITING_PERCENT;
    if swaps || !partly {
        return None;
    }
    let one_thread = gpu
        .processes
        .iter()
        .find(|process| is_training(process, gpu) && process.cpus.is_some_and(|cpus| ONE_THREAD.contains(&cpus)));
    let why = if course.cpu_waiting >= CPUS_WAITING {
        Starved::Disk { waiting: course.cpu_waiting }
    } else if course.cpu_busy >= CPUS_BUSY {
        Starved::Processors { busy: course.cpu_busy }
    } else {
        Starved::OneThread { process: one_thread?.pid }
    };
    Some(Problem::Starved { gpu: gpu.name.clone(), busy_percent: seen.busy_percent, why })
}

/// Whose process it is, where that is somebody else's.
fn owner(machine: &Machine, process: &Process) -> Option<String> {
    let known = !machine.user.is_empty() && !process.user.is_empty();
    (known && process.user != machine.user).then(|| process.user.clone())
}

fn others(machine: &Machine, gpu: &Gpu, seen: &GpuCourse) -> Vec<Problem> {
    let training: Vec<&Process> = gpu.processes.iter().filter(|process| is_training(process, gpu)).collect();
    let own = |process: &Process| machine.runs.iter().any(|run| run.pid == process.pid);
    let mut found = Vec::new();
    if seen.watched && seen.busy_percent <= IDLE_PERCENT {
        for process in training.iter().filter(|process| !own(process)) {
            found.push(Problem::IdleHolder {
                gpu: gpu.name.clone(),
                pid: process.pid,
                name: process.name.clone(),
                owner: owner(machine, process),
                bytes: process.bytes,
            });
        }
    } else if training.len() > 1 {
        let describe = |p: &&Process| (p.pid, p.name.clone(), p.user.clone(), p.bytes);
        let processes = training.iter().map(describe).collect();
        found.push(Problem::Shared { gpu: gpu.name.clone(), processes });
    }
    found
}
