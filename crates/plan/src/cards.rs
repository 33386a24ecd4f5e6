//! GPUs by name: what plans count on where no card is there to be measured.

use plimsoll_graph::{BackendTraits, DType};

use crate::device::{Backing, DeviceProfile, GPU_STAGING_BYTES};

const GIB: f64 = (1u64 << 30) as f64;

/// What a recorded kernel takes where it was not measured: a few KiB of parameters and commands.
const RECORDED_BYTES_PER_LAUNCH: f64 = 4096.0;

/// What large products keep of the peak rate, by what limits the card.
#[derive(Clone, Copy)]
enum Limit {
    /// Tensor cores that are throttled to half their rate when they sum in float32: products come close to that.
    /// (Measured: 47.0 of 47.4 TFLOP/s on an RTX 5060 Ti.)
    TensorCores,
    /// Power, at full tensor rate. (Measured: 790 of 989 TFLOP/s on an H200, about 270 of 312 on A100s.)
    Power,
    /// Boards of at most 150 W with the tensor cores of one twice as hungry.
    LowPower,
}

impl Limit {
    fn share(self) -> f64 {
        match self {
            Limit::TensorCores => 0.92,
            Limit::Power => 0.80,
            Limit::LowPower => 0.55,
        }
    }
}

/// A row of the table: memory on the board in GB and as the driver reports it in GiB, peak TFLOP/s of sixteen-bit products
/// summed in float32 without sparsity and of float32 products, memory GB/s, bus GB/s each way.
struct Card {
    name: &'static str,
    board_gb: u32,
    usable_gib: f64,
    tflops16: f64,
    tflops32: f64,
    memory_gb_per_s: f64,
    bus_gb_per_s: f64,
    limit: Limit,
    /// Whether products take codes of eight bits with a scale for each row.
    fp8: bool,
}

type Rates = [f64; 4];

const fn card(name: &'static str, board_gb: u32, usable_gib: f64, rates: Rates, limit: Limit) -> Card {
    let [tflops16, tflops32, memory_gb_per_s, bus_gb_per_s] = rates;
    Card { name, board_gb, usable_gib, tflops16, tflops32, memory_gb_per_s, bus_gb_per_s, limit, fp8: false }
}

const fn with_fp8(card: Card) -> Card {
    Card { fp8: true, ..card }
}

use Limit::{LowPower, Power, TensorCores};

/// Every one has a compute capability that kernels are compiled for.
const CARDS: [Card; 45] = [
    card("RTX 3050 8GB", 8, 7.65, [18.2, 9.1, 224.0, 12.0], TensorCores),
    card("RTX 3060 12GB", 12, 11.75, [25.5, 12.7, 360.0, 24.0], TensorCores),
    card("RTX 3060 Ti", 8, 7.65, [32.4, 16.2, 448.0, 24.0], TensorCores),
    card("RTX 3070", 8, 7.65, [40.6, 20.3, 448.0, 24.0], TensorCores),
    card("RTX 3070 Ti", 8, 7.65, [43.5, 21.7, 608.0, 24.0], TensorCores),
    card("RTX 3080 10GB", 10, 9.65, [59.5, 29.8, 760.0, 24.0], TensorCores),
    card("RTX 3080 12GB", 12, 11.65, [61.3, 30.6, 912.0, 24.0], TensorCores),
    card("RTX 3080 Ti", 12, 11.65, [68.2, 34.1, 912.0, 24.0], TensorCores),
    card("RTX 3090", 24, 23.7, [71.0, 35.6, 936.0, 24.0], TensorCores),
    card("RTX 3090 Ti", 24, 23.7, [80.0, 40.0, 1008.0, 24.0], TensorCores),
    card("RTX 4060", 8, 7.65, [30.2, 15.1, 272.0, 12.0], TensorCores),
    card("RTX 4060 Ti 8GB", 8, 7.65, [44.1, 22.1, 288.0, 12.0], TensorCores),
    card("RTX 4060 Ti 16GB", 16, 15.7, [44.1, 22.1, 288.0, 12.0], TensorCores),
    card("RTX 4070", 12, 11.65, [58.3, 29.1, 504.0, 24.0], TensorCores),
    card("RTX 4070 Super", 12, 11.65, [71.0, 35.5, 504.0, 24.0], TensorCores),
    card("RTX 4070 Ti", 12, 11.65, [80.2, 40.1, 504.0, 24.0], TensorCores),
    card("RTX 4070 Ti Super", 16, 15.6, [88.2, 44.1, 672.0, 24.0], TensorCores),
    card("RTX 4080", 16, 15.6, [97.5, 48.7, 717.0, 24.0], TensorCores),
    card("RTX 4080 Super", 16, 15.6, [104.4, 52.2, 736.0, 24.0], TensorCores),
    card("RTX 4090", 24, 23.6, [165.2, 82.6, 1008.0, 25.0], TensorCores),
    card("RTX 5060", 8, 7.65, [38.4, 19.2, 448.0, 25.0], TensorCores),
    card("RTX 5060 Ti 8GB", 8, 7.65, [47.4, 23.7, 448.0, 25.0], TensorCores),
    card("RTX 5060 Ti 16GB", 16, 15.9, [47.4, 23.7, 448.0, 25.0], TensorCores),
    card("RTX 5070", 12, 11.65, [61.7, 30.9, 672.0, 50.0], TensorCores),
    card("RTX 5070 Ti", 16, 15.6, [87.9, 43.9, 896.0, 50.0], TensorCores),
    card("RTX 5080", 16, 15.6, [112.6, 56.3, 960.0, 50.0], TensorCores),
    card("RTX 5090", 32, 31.4, [209.5, 104.8, 1792.0, 50.0], TensorCores),
    card("RTX A4000", 16, 15.7, [76.7, 19.2, 448.0, 24.0], LowPower),
    card("RTX A5000", 24, 23.6, [111.1, 27.8, 768.0, 24.0], Power),
    card("RTX A6000", 48, 47.4, [154.8, 38.7, 768.0, 24.0], Power),
    card("RTX 6000 Ada", 48, 47.4, [364.2, 91.1, 960.0, 24.0], Power),
    card("RTX PRO 6000", 96, 94.9, [503.8, 126.0, 1792.0, 50.0], Power),
    card("L4", 24, 22.5, [121.0, 30.3, 300.0, 24.0], LowPower),
    card("L40", 48, 44.5, [181.0, 90.5, 864.0, 24.0], TensorCores),
    card("L40S", 48, 44.5, [362.0, 91.6, 864.0, 24.0], Power),
    card("A10", 24, 22.5, [125.0, 31.2, 600.0, 24.0], LowPower),
    card("A30", 24, 23.5, [165.0, 10.3, 933.0, 24.0], Power),
    card("A40", 48, 44.5, [149.7, 37.4, 696.0, 24.0], Power),
    card("A100 40GB", 40, 39.4, [312.0, 19.5, 1555.0, 24.0], Power),
    card("A100 80GB", 80, 79.2, [312.0, 19.5, 2039.0, 24.0], Power),
    with_fp8(card("H100 NVL", 94, 93.1, [835.0, 60.0, 3938.0, 52.0], Power)),
    with_fp8(card("H100", 80, 79.6, [989.0, 67.0, 3350.0, 52.0], Power)),
    with_fp8(card("H200", 141, 139.8, [989.0, 67.0, 4800.0, 55.0], Power)),
    card("B200", 180, 178.4, [2250.0, 80.0, 8000.0, 55.0], Power),
    card("GB10", 128, 119.0, [125.0, 31.0, 273.0, 100.0], Power),
];

impl Card {
    fn profile(&self) -> DeviceProfile {
        let product = self.tflops16 * self.limit.share() * 1e12;
        gpu_profile(&Figures {
            name: format!("NVIDIA {}", self.name),
            memory_bytes: (self.usable_gib * GIB) as u64,
            product_flops_per_s: product,
            product32_flops_per_s: self.tflops32 * 0.76e12,
            product8_flops_per_s: self.fp8.then_some(product * FP8_GAIN),
            memory_bytes_per_s: self.memory_gb_per_s * COPY_SHARE * 1e9,
            bus_bytes_per_s: self.bus_gb_per_s * 1e9,
        })
    }

    /// Whether people mean this card: its name, with or without its memory.
    fn is_called(&self, words: &[String]) -> bool {
        let own = words_of(self.name);
        let memory = [self.board_gb.to_string(), "gb".to_owned()];
        words == own || [&base(&own), &memory[..]].concat() == words
    }
}

/// A name without its memory.
fn base(words: &[String]) -> Vec<String> {
    match words {
        [first @ .., number, unit] if unit == "gb" && number.parse::<u32>().is_ok() => first.to_vec(),
        _ => words.to_vec(),
    }
}

/// What copies and passes over memory keep of its peak rate.
const COPY_SHARE: f64 = 0.88;

/// What products of codes of eight bits gain over those of sixteen. (Measured: 1,260 against 790 TFLOP/s on an H200, which
/// its power limits in both; tensor cores would do twice as many.)
const FP8_GAIN: f64 = 1.6;

/// What a plan must know of a GPU; everything else follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    pub name: String,
    pub memory_bytes: u64,
    /// Sixteen-bit products of the shapes of a layer.
    pub product_flops_per_s: f64,
    pub product32_flops_per_s: f64,
    /// Of codes of eight bits, where the card multiplies them.
    pub product8_flops_per_s: Option<f64>,
    pub memory_bytes_per_s: f64,
    pub bus_bytes_per_s: f64,
}

/// A GPU that is in no table.
pub fn gpu_profile(figures: &Figures) -> DeviceProfile {
    let product = figures.product_flops_per_s;
    DeviceProfile {
        name: figures.name.clone(),
        backing: Backing::Gpu,
        memory_bytes: figures.memory_bytes,
        matmul16_flops_per_s: product,
        matmul32_flops_per_s: figures.product32_flops_per_s,
        matmul8_flops_per_s: figures.product8_flops_per_s.unwrap_or(product),
        attention_flops_per_s: product * 0.45,
        memory_bytes_per_s: figures.memory_bytes_per_s,
        bus_bytes_per_s: figures.bus_bytes_per_s,
        launch_s: 3e-6,
        // The faster the card, the more rows it takes to fill it.
        half_rate_tokens: (product / 3.2e12).clamp(16.0, 256.0),
        // An H200 takes 273 to 300 MiB; others were not measured.
        context_bytes: 320 << 20,
        host_process_bytes: 512 << 20,
        staging_bytes: GPU_STAGING_BYTES as u64,
        traits: BackendTraits { multiplies_codes: figures.product8_flops_per_s.is_some(), ..BackendTraits::gpu() },
        native16: DType::BF16,
        records: true,
        recorded_bytes_per_launch: RECORDED_BYTES_PER_LAUNCH,
        measured: None,
    }
}

impl DeviceProfile {
    /// A card that is not in the table: rates of a modest one, so that no plan counts on more.
    pub fn unknown_gpu() -> Self {
        gpu_profile(&Figures {
            name: "GPU".into(),
            memory_bytes: 8 << 30,
            product_flops_per_s: 30e12,
            product32_flops_per_s: 15e12,
            product8_flops_per_s: None,
            memory_bytes_per_s: 350e9,
            bus_bytes_per_s: 12e9,
        })
    }
}

pub fn device_names() -> Vec<&'static str> {
    CARDS.iter().map(|c| c.name).chain(["cpu"]).collect()
}

/// Finds a card by its name: case, spaces and dashes do not matter, nor do the words that drivers and shops add. Its
/// memory may be left out where there is only one such card.
pub fn known_device(name: &str) -> Option<DeviceProfile> {
    let words = words_of(name);
    if words == ["cpu"] {
        // A desktop of two cores, as a stand-in where nothing was measured.
        return Some(DeviceProfile::cpu(2, 16 << 30, 150e9, 60e9, 20e9));
    }
    let exact = CARDS.iter().find(|card| card.is_called(&words));
    let mut called = CARDS.iter().filter(|card| base(&words_of(card.name)) == words);
    let only = || called.next().filter(|_| called.next().is_none());
    exact.or_else(only).map(Card::profile)
}

/// The card that a driver calls so and that has so much memory; names do not always tell cards apart.
pub fn present_device(name: &str, memory_bytes: u64) -> Option<DeviceProfile> {
    let words = words_of(name);
    let distance = |card: &&Card| (card.usable_gib * GIB - memory_bytes as f64).abs() as u64;
    let called = CARDS.iter().filter(|card| card.is_called(&words) || base(&words_of(card.name)) == base(&words));
    called.min_by_key(distance).map(Card::profile)
}

/// Whether a card of this name lacks what the kernels need (compute capability 8.0).
pub fn is_too_old(name: &str) -> bool {
    let words = words_of(name);
    let [series, number, ..] = words.as_slice() else { return false };
    match series.as_str() {
        "gtx" => true,
        "rtx" => {
            matches!(number.as_str(), "2060" | "2070" | "2080" | "4000" | "5000" | "6000" | "8000") && words.len() == 2
        }
        "t" | "p" | "k" | "m" => number.parse::<u32>().is_ok(),
        "v" => number == "100",
        _ => false,
    }
}

/// Cards whose names share the most words with this one, best first.
pub fn similar_devices(name: &str) -> Vec<&'static str> {
    let words = words_of(name);
    let alike = |card: &Card| {
        let shared = words_of(card.name).iter().filter(|word| words.contains(word) && *word != "rtx").count();
        let begins = simple(card.name).starts_with(&simple(name)) || simple(name).starts_with(&simple(card.name));
        2 * shared + usize::from(begins && !words.is_empty())
    };
    let mut found: Vec<(usize, &Card)> = CARDS.iter().map(|card| (alike(card), card)).filter(|(n, _)| *n > 0).collect();
    found.sort_by_key(|(alike, _)| std::cmp::Reverse(*alike));
    let best = found.first().map_or(0, |(alike, _)| *alike);
    found.into_iter().filter(|(alike, _)| *alike == best).map(|(_, card)| card.name).collect()
}

/// What is in names besides what tells cards apart.
const NOISE: [&str; 14] = [
    "nvidia",
    "geforce",
    "gpu",
    "sxm",
    "sxm4",
    "sxm5",
    "pcie",
    "hbm2e",
    "hbm3",
    "hbm3e",
    "generation",
    "blackwell",
    "tesla",
    "quadro",
];

/// A name's words, digits apart from letters: `rtx4060ti` is `rtx 4060 ti`.
fn words_of(name: &str) -> Vec<String> {
    let lower = name.to_ascii_lowercase();
    let mut words: Vec<String> = Vec::new();
    for part in
        lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty() && !NOISE.contains(part))
    {
        let mut previous = None;
        for c in part.chars() {
            if previous == Some(c.is_ascii_digit()) {
                words.last_mut().expect("begun").push(c);
            } else {
                words.push(c.to_string());
            }
            previous = Some(c.is_ascii_digit());
        }
    }
    words
}

fn simple(name: &str) -> String {
    words_of(name).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_by_the_names_people_use() {
        let check = |asked: &str, expected: Option<&str>| {
            assert_eq!(known_device(asked).map(|d| d.name).as_deref(), expected, "{asked}");
        };
        check("NVIDIA H200", Some("NVIDIA H200"));
        check("rtx-3060 12gb", Some("NVIDIA RTX 3060 12GB"));
        check("RTX 3060", Some("NVIDIA RTX 3060 12GB"));
        check("RTX 4060", Some("NVIDIA RTX 4060"));
        check("rtx4060ti 16 GB", Some("NVIDIA RTX 4060 Ti 16GB"));
        check("geforce rtx 4090", Some("NVIDIA RTX 4090"));
        check("RTX 4090 24GB", Some("NVIDIA RTX 4090"));
        check("a100-80gb", Some("NVIDIA A100 80GB"));
        check("H100 80GB HBM3", Some("NVIDIA H100"));
        // Which of them is meant cannot be told, or there is no such card.
        for unknown in ["RTX 4060 Ti", "A100", "RTX 4090 48GB", "RTX 40", "voodoo2", "T4", "4090 laptop", ""] {
            check(unknown, None);
        }
    }

    #[test]
    fn near_names_are_listed() {
        assert_eq!(similar_devices("RTX 4060 Ti"), ["RTX 4060 Ti 8GB", "RTX 4060 Ti 16GB"]);
        assert_eq!(similar_devices("A100"), ["A100 40GB", "A100 80GB"]);
        assert!(similar_devices("4090").contains(&"RTX 4090"));
        assert!(similar_devices("voodoo").is_empty());
        assert!(["Tesla T4", "V100", "GTX 1080 Ti", "RTX 2080", "Quadro RTX 8000"].into_iter().all(is_too_old));
        assert!(!CARDS.iter().any(|card| is_too_old(card.name)));
    }

    /// Drivers call cards of different memory the same.
    #[test]
    fn a_present_card_is_told_by_its_memory() {
        let named = |name: &str, gib: u64| present_device(name, gib << 30).map(|device| device.name);
        assert_eq!(named("NVIDIA GeForce RTX 4060 Ti", 16).as_deref(), Some("NVIDIA RTX 4060 Ti 16GB"));
        assert_eq!(named("NVIDIA GeForce RTX 4060 Ti", 8).as_deref(), Some("NVIDIA RTX 4060 Ti 8GB"));
        assert_eq!(named("NVIDIA A100-SXM4-80GB", 79).as_deref(), Some("NVIDIA A100 80GB"));
        assert_eq!(named("NVIDIA H100 80GB HBM3", 79).as_deref(), Some("NVIDIA H100"));
        assert_eq!(named("NVIDIA GeForce GTX 1080", 8), None);
    }

    #[test]
    fn codes_of_eight_bits_are_multiplied_where_rows_may_have_scales() {
        for (name, multiplies) in [("H200", true), ("H100 NVL", true), ("A100 80GB", false), ("RTX 3060", false)] {
            let card = known_device(name).expect("in the table");
            assert_eq!(card.traits.multiplies_codes, multiplies, "{name}");
            assert_eq!(card.matmul8_flops_per_s > card.matmul16_flops_per_s, multiplies, "{name}");
        }
    }

    #[test]
    fn every_card_is_found_by_its_own_name_and_its_figures_make_sense() {
        for card in &CARDS {
            let profile = known_device(card.name).unwrap_or_else(|| panic!("{}", card.name));
            assert_eq!(profile.name, format!("NVIDIA {}", card.name));
            assert!(card.usable_gib < f64::from(card.board_gb) && card.usable_gib > 0.9 * f64::from(card.board_gb));
            assert!(card.tflops16 > card.tflops32);
        }
    }
}
