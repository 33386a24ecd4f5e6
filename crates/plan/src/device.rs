//! What the planner knows about a device.

use std::sync::Arc;

use plimsoll_graph::{BackendTraits, DType};

use crate::rates::CardRates;

/// Which budget a device's arena is taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    Gpu,
    /// The device computes in host memory.
    Host,
}

/// Rates that can be sustained in practice, not the ones on the box.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceProfile {
    pub name: String,
    pub backing: Backing,
    pub memory_bytes: u64,
    /// Matrix products of sixteen-bit and of float32 operands.
    pub matmul16_flops_per_s: f64,
    pub matmul32_flops_per_s: f64,
    /// Of codes of eight bits. Only counts where `traits` say that products take them.
    pub matmul8_flops_per_s: f64,
    pub attention_flops_per_s: f64,
    pub memory_bytes_per_s: f64,
    /// Host to device, each way.
    pub bus_bytes_per_s: f64,
    /// Fixed cost of one operator.
    pub launch_s: f64,
    /// Tokens at which a product reaches half of its rate.
    pub half_rate_tokens: f64,
    /// Taken by the driver and its libraries before anything is planned.
    pub context_bytes: u64,
    /// The same on the host's side.
    pub host_process_bytes: u64,
    /// Page-locked host memory through which bytes go to the device.
    pub staging_bytes: u64,
    pub traits: BackendTraits,
    /// Sixteen-bit type the device computes in.
    pub native16: DType,
    /// Whether schedules are recorded, and what each kernel of one then takes.
    pub records: bool,
    pub recorded_bytes_per_launch: f64,
    /// What was measured of this very card, if it is here. It goes before the rates above.
    pub measured: Option<Arc<CardRates>>,
}

/// What a GPU's kernels for attention of every kind reach of the rate of those for plain causal attention. (Measured: a
/// third on an H200 with 256 tokens, biased and crossed, before whole tiles were spared the mask.)
const GENERAL_ATTENTION_SHARE: f64 = 0.4;

impl DeviceProfile {
    /// Of a product of `[rows, cols, inner]`; `tokens` is the side of it that grows with the micro-batch.
    pub(crate) fn product_rate(&self, dtype: DType, tokens: usize, [rows, cols, inner]: [usize; 3]) -> f64 {
        if let Some(rates) = &self.measured {
            let grid = match dtype.bytes() {
                // A card whose products of codes were not measured does not gain by them.
                1 => rates.products8.as_ref().unwrap_or(&rates.products16),
                2 => &rates.products16,
                _ => &rates.products32,
            };
            return grid.rate(rows, cols, inner);
        }
        let peak = match dtype.bytes() {
            1 => self.matmul8_flops_per_s,
            2 => self.matmul16_flops_per_s,
            _ => self.matmul32_flops_per_s,
        };
        let tokens = tokens as f64;
        peak * tokens / (tokens + self.half_rate_tokens)
    }

    /// Of plain causal attention, or of any other.
    pub(crate) fn attention_rate(&self, length: usize, gradient: bool, plain: bool) -> f64 {
        let measured = self.measured.as_ref().map(|rates| rates.attention_flops_per_s(length, gradient));
        let share = if plain || self.backing == Backing::Host { 1.0 } else { GENERAL_ATTENTION_SHARE };
        measured.unwrap_or(self.attention_flops_per_s) * share
    }

    pub(crate) fn operator_bytes_per_s(&self, operator: &str) -> f64 {
        self.measured.as_ref().map_or(self.memory_bytes_per_s, |rates| rates.bytes_per_s(operator))
    }

    /// This profile with a card's own figures in place of the table's.
    pub fn with_measured(mut self, rates: Arc<CardRates>) -> Self {
        self.memory_bytes_per_s = rates.bytes_per_s("add");
        self.bus_bytes_per_s = rates.to_device_bytes_per_s.min(rates.from_device_bytes_per_s);
        self.launch_s = rates.launch_s;
        self.recorded_bytes_per_launch = rates.recorded_bytes_per_launch;
        self.measured = Some(rates);
        self
    }

    /// A CPU with the given measured rates.
    pub fn cpu(threads: usize, memory_bytes: u64, matmul: f64, attention: f64, memory_bytes_per_s: f64) -> Self {
        Self {
            name: "cpu".into(),
            backing: Backing::Host,
            memory_bytes,
            matmul16_flops_per_s: matmul,
            matmul32_flops_per_s: matmul,
            matmul8_flops_per_s: matmul,
            attention_flops_per_s: attention,
            memory_bytes_per_s,
            bus_bytes_per_s: memory_bytes_per_s,
            launch_s: 5e-6,
            half_rate_tokens: 16.0,
            context_bytes: 0,
            host_process_bytes: CPU_PROCESS_BYTES,
            staging_bytes: 0,
            traits: BackendTraits::cpu(threads),
            native16: DType::BF16,
            records: false,
            recorded_bytes_per_launch: 0.0,
            measured: None,
        }
    }
}

/// The process itself without arena and data; what a run measures at its start replaces this.
const CPU_PROCESS_BYTES: u64 = 32 << 20;

/// Two pieces that are large enough to keep the bus busy: one is on its way while the other is filled.
pub const GPU_STAGING_BYTES: usize = 32 << 20;
