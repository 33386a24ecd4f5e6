//! What the planner knows about devices: a table of well-known cards, so that anyone can plan for any of them.

use std::sync::Arc;

use plimsoll_graph::{BackendTraits, DType};

use crate::rates::CardRates;

const GIB: u64 = 1 << 30;

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

impl DeviceProfile {
    /// Of a product of `[rows, cols, inner]`; `tokens` is the side of it that grows with the micro-batch.
    pub(crate) fn product_rate(&self, dtype: DType, tokens: usize, [rows, cols, inner]: [usize; 3]) -> f64 {
        let sixteen = dtype.bytes() == 2;
        match &self.measured {
            Some(rates) if sixteen => rates.products16.rate(rows, cols, inner),
            Some(rates) => rates.products32.rate(rows, cols, inner),
            None => {
                let tokens = tokens as f64;
                let peak = if sixteen { self.matmul16_flops_per_s } else { self.matmul32_flops_per_s };
                peak * tokens / (tokens + self.half_rate_tokens)
            }
        }
    }

    pub(crate) fn attention_rate(&self, length: usize, gradient: bool) -> f64 {
        self.measured.as_ref().map_or(self.attention_flops_per_s, |rates| rates.attention_flops_per_s(length, gradient))
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

    /// A card that is not in the table: rates of a modest one, so that no plan counts on more.
    pub fn unknown_gpu() -> Self {
        card("GPU", 8.0, 40.0, 20.0, 400.0, 12.0).profile()
    }

    /// A CPU with the given measured rates.
    pub fn cpu(threads: usize, memory_bytes: u64, matmul: f64, attention: f64, memory_bytes_per_s: f64) -> Self {
        Self {
            name: "cpu".into(),
            backing: Backing::Host,
            memory_bytes,
            matmul16_flops_per_s: matmul,
            matmul32_flops_per_s: matmul,
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

/// What a recorded kernel takes where it was not measured: a few KiB of parameters and commands.
const RECORDED_BYTES_PER_LAUNCH: f64 = 4096.0;

/// One row of the table: name, GiB, sixteen-bit and float32 TFLOP/s of products, memory GB/s, bus GB/s.
struct Card {
    name: &'static str,
    gib: f64,
    tflops16: f64,
    tflops32: f64,
    memory_gb_per_s: f64,
    bus_gb_per_s: f64,
    native16: DType,
}

const fn card(name: &'static str, gib: f64, tflops16: f64, tflops32: f64, memory: f64, bus: f64) -> Card {
    Card { name, gib, tflops16, tflops32, memory_gb_per_s: memory, bus_gb_per_s: bus, native16: DType::BF16 }
}

/// Usable memory as the driver reports it; dense rates with float32 accumulation.
const CARDS: [Card; 14] = [
    card("RTX 3060 12GB", 11.75, 25.0, 12.7, 360.0, 24.0),
    card("RTX 3090", 23.7, 71.0, 35.0, 936.0, 24.0),
    card("RTX 4060 Ti 16GB", 15.7, 44.0, 22.0, 288.0, 12.0),
    card("RTX 4090", 23.6, 165.0, 82.0, 1008.0, 25.0),
    card("RTX 5060 Ti 16GB", 15.9, 47.0, 23.0, 448.0, 25.0),
    card("RTX 5090", 31.8, 210.0, 105.0, 1792.0, 50.0),
    Card { native16: DType::F16, ..card("T4", 14.7, 65.0, 8.1, 320.0, 12.0) },
    card("L4", 22.5, 121.0, 30.0, 300.0, 24.0),
    card("A10", 22.5, 125.0, 31.0, 600.0, 24.0),
    card("A100 40GB", 39.4, 312.0, 19.5, 1555.0, 24.0),
    card("A100 80GB", 79.2, 312.0, 19.5, 2039.0, 24.0),
    card("H100", 79.6, 989.0, 67.0, 3350.0, 52.0),
    card("H200", 139.8, 989.0, 67.0, 4800.0, 55.0),
    card("B200", 178.4, 2250.0, 80.0, 8000.0, 55.0),
];

impl Card {
    fn profile(&self) -> DeviceProfile {
        // Products sustain about three quarters of the peak rate, copies about nine tenths of theirs.
        let matmul16 = self.tflops16 * 0.76e12;
        DeviceProfile {
            name: format!("NVIDIA {}", self.name),
            backing: Backing::Gpu,
            memory_bytes: (self.gib * GIB as f64) as u64,
            matmul16_flops_per_s: matmul16,
            matmul32_flops_per_s: self.tflops32 * 0.76e12,
            attention_flops_per_s: matmul16 * 0.45,
            memory_bytes_per_s: self.memory_gb_per_s * 0.88e9,
            bus_bytes_per_s: self.bus_gb_per_s * 1e9,
            launch_s: 3e-6,
            // The faster the card, the more rows it takes to fill it.
            half_rate_tokens: (self.tflops16 / 4.0).clamp(16.0, 256.0),
            context_bytes: 512 << 20,
            host_process_bytes: 512 << 20,
            staging_bytes: GPU_STAGING_BYTES as u64,
            traits: BackendTraits::gpu(),
            native16: self.native16,
            records: true,
            recorded_bytes_per_launch: RECORDED_BYTES_PER_LAUNCH,
            measured: None,
        }
    }
}

pub fn device_names() -> Vec<&'static str> {
    CARDS.iter().map(|c| c.name).chain(["cpu"]).collect()
}

/// Finds a card by name; case, spaces and dashes do not matter, nor does `NVIDIA`, `GeForce` or `GB`.
pub fn known_device(name: &str) -> Option<DeviceProfile> {
    let wanted = simplified(name);
    if wanted == "cpu" {
        // A desktop of two cores, as a stand-in where nothing was measured.
        return Some(DeviceProfile::cpu(2, 16 * GIB, 150e9, 60e9, 20e9));
    }
    let matches = |card: &&Card| simplified(card.name) == wanted;
    let begins = |card: &&Card| simplified(card.name).starts_with(&wanted) && !wanted.is_empty();
    CARDS.iter().find(matches).or_else(|| CARDS.iter().find(begins)).map(Card::profile)
}

fn simplified(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let plain: String = lower.chars().filter(char::is_ascii_alphanumeric).collect();
    let plain = plain.replace("nvidia", "").replace("geforce", "");
    plain.strip_suffix("gb").map(str::to_owned).unwrap_or(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_by_the_names_people_use() {
        for (asked, expected) in [
            ("NVIDIA H200", "NVIDIA H200"),
            ("rtx-3060", "NVIDIA RTX 3060 12GB"),
            ("RTX 4060 Ti", "NVIDIA RTX 4060 Ti 16GB"),
            ("geforce rtx 4090", "NVIDIA RTX 4090"),
            ("a100-80gb", "NVIDIA A100 80GB"),
            ("t4", "NVIDIA T4"),
        ] {
            assert_eq!(known_device(asked).map(|d| d.name).as_deref(), Some(expected), "{asked}");
        }
        assert!(known_device("voodoo2").is_none());
        assert!(known_device("").is_none());
    }
}
