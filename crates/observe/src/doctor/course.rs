//! What happened between the first moment and the last.

use crate::machine::{GpuMoment, Machine, Throttle};

/// Rates and means over the time that was watched. All 0 if nothing was.
#[derive(Debug, Clone, Default)]
pub struct Course {
    pub swap_bytes_per_s: f64,
    pub faults_per_s: f64,
    /// Shares of all processors.
    pub cpu_busy: f64,
    pub cpu_waiting: f64,
    gpus: Vec<GpuCourse>,
}

#[derive(Debug, Clone, Default)]
pub struct GpuCourse {
    /// Whether it was seen at all.
    pub watched: bool,
    pub busy_percent: f64,
    pub power_w: Option<f64>,
    pub temperature_c: Option<f64>,
    /// Of the highest clock there is.
    pub clock_share: Option<f64>,
    pub bus_bytes_per_s: Option<f64>,
    moments: Vec<Vec<Throttle>>,
}

impl Course {
    pub fn of(machine: &Machine) -> Self {
        let (Some(first), Some(last)) = (machine.moments.first(), machine.moments.last()) else {
            return Self::default();
        };
        let seconds = last.at_s - first.at_s;
        let mut course = Self::default();
        if seconds > 0.0 {
            let swapped = |m: &crate::machine::Moment| (m.swapped_in_bytes + m.swapped_out_bytes) as f64;
            let cpu_seconds = seconds * machine.host.cpus.max(1.0);
            course.swap_bytes_per_s = (swapped(last) - swapped(first)).max(0.0) / seconds;
            course.faults_per_s = last.major_faults.saturating_sub(first.major_faults) as f64 / seconds;
            course.cpu_busy = ((last.cpu_busy_s - first.cpu_busy_s) / cpu_seconds).clamp(0.0, 1.0);
            course.cpu_waiting = ((last.cpu_waiting_s - first.cpu_waiting_s) / cpu_seconds).clamp(0.0, 1.0);
        }
        let of_gpu = |index| machine.moments.iter().filter_map(|moment| moment.gpus.get(index)).collect::<Vec<_>>();
        course.gpus = (0..machine.gpus.len()).map(|index| GpuCourse::of(&of_gpu(index))).collect();
        course
    }

    pub fn gpu(&self, index: usize) -> GpuCourse {
        self.gpus.get(index).cloned().unwrap_or_default()
    }

    /// The busiest card's share of time with work.
    pub fn gpu_busy_percent(&self) -> Option<f64> {
        self.gpus.iter().filter(|gpu| gpu.watched).map(|gpu| gpu.busy_percent).max_by(f64::total_cmp)
    }
}

impl GpuCourse {
    fn of(moments: &[&GpuMoment]) -> Self {
        let mean = |figure: &dyn Fn(&GpuMoment) -> Option<f64>| {
            let known: Vec<f64> = moments.iter().filter_map(|moment| figure(moment)).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        Self {
            watched: !moments.is_empty(),
            busy_percent: mean(&|m| Some(m.busy_percent)).unwrap_or(0.0),
            power_w: mean(&|m| m.power_w),
            temperature_c: mean(&|m| m.temperature_c),
            clock_share: mean(&|m| Some(m.clock_mhz? / m.clock_max_mhz.filter(|max| *max > 0.0)?)),
            bus_bytes_per_s: mean(&|m| m.bus_bytes_per_s),
            moments: moments.iter().map(|m| m.throttled.clone()).collect(),
        }
    }

    /// Share of the moments in which it was held back for this reason.
    pub fn throttled(&self, reason: Throttle) -> f64 {
        let held_back = self.moments.iter().filter(|reasons| reasons.contains(&reason)).count();
        held_back as f64 / self.moments.len().max(1) as f64
    }
}
