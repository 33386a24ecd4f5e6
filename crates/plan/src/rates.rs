//! What was measured of a card, as data: how fast products of a shape are, how fast each other operator moves its
//! bytes, and what the driver takes besides. The planner interpolates; measuring is the backend's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Rates of products `[rows, inner]·[inner, cols]` over every combination of three lists of sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProductGrid {
    /// Each rising.
    pub rows: Vec<usize>,
    pub cols: Vec<usize>,
    pub inner: Vec<usize>,
    /// `rows` outermost, `inner` innermost.
    pub flops_per_s: Vec<f64>,
}

impl ProductGrid {
    /// Whether there is a positive rate for every combination.
    pub fn is_whole(&self) -> bool {
        let rising = |sizes: &[usize]| !sizes.is_empty() && sizes.windows(2).all(|pair| pair[0] < pair[1]);
        let count = self.rows.len() * self.cols.len() * self.inner.len();
        [&self.rows, &self.cols, &self.inner].into_iter().all(|sizes| rising(sizes))
            && self.flops_per_s.len() == count
            && self.flops_per_s.iter().all(|rate| rate.is_finite() && *rate > 0.0)
    }

    /// The rate of a product of any size: between the measured ones on a logarithmic scale, beyond them the last one.
    pub fn rate(&self, rows: usize, cols: usize, inner: usize) -> f64 {
        let places = [place(&self.rows, rows), place(&self.cols, cols), place(&self.inner, inner)];
        let mut log_rate = 0.0;
        for corner in 0..8 {
            let [row, col, depth] = [0, 1, 2].map(|axis| places[axis].0 + (corner >> axis & 1));
            let weight: f64 = places.iter().enumerate().map(|(axis, (_, t))| side(*t, corner >> axis & 1)).product();
            if weight > 0.0 {
                let at = (row * self.cols.len() + col) * self.inner.len() + depth;
                log_rate += weight * self.flops_per_s[at].ln();
            }
        }
        log_rate.exp()
    }
}

fn side(t: f64, upper: usize) -> f64 {
    if upper == 1 { t } else { 1.0 - t }
}

/// Between which two of the sizes, and how far, a size lies.
fn place(sizes: &[usize], size: usize) -> (usize, f64) {
    let after = sizes.partition_point(|&known| known <= size);
    match after {
        0 => (0, 0.0),
        _ if after == sizes.len() => (sizes.len() - 1, 0.0),
        _ => {
            let log = |size: usize| (size as f64).ln();
            let (low, high) = (sizes[after - 1], sizes[after]);
            (after - 1, (log(size) - log(low)) / (log(high) - log(low)))
        }
    }
}

/// Keys that a block of a gradient's threads has.
const KEY_RUN: f64 = 128.0;
/// At most: 2,048 tokens of eight heads take an H200 1.45 times as long as twice as many do for each; where keys are fewer
/// still, blocks are halved, and how long others wait was not measured.
const WAITING_MAX: f64 = 1.5;

/// Attention over sequences of one length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AttentionRate {
    pub length: usize,
    pub forward_flops_per_s: f64,
    pub gradient_flops_per_s: f64,
}

/// What a card keeps of its speed when it works on and on, as in training, where its limit of power slows it down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sustained {
    /// Of products of a layer's shapes. The rates of `products16` are cut to it.
    pub products_flops_per_s: f64,
    /// The same of codes of eight bits, and of `products8`.
    #[serde(default)]
    pub products8_flops_per_s: Option<f64>,
    /// Of what short spans showed, for attention and for the operators that move bytes. Their rates contain it.
    pub attention_share: f64,
    pub moving_share: f64,
    /// Under load, each operator of the layer: FLOP/s of products and attention, bytes/s of the others.
    pub rates: BTreeMap<String, f64>,
}

impl Sustained {
    fn is_sound(&self) -> bool {
        let share = |share: f64| share > 0.0 && share <= 1.0;
        let positive = |rate: f64| rate.is_finite() && rate > 0.0;
        positive(self.products_flops_per_s)
            && self.products8_flops_per_s.is_none_or(positive)
            && share(self.attention_share)
            && share(self.moving_share)
    }
}

/// All that was measured of one card with one driver and one set of libraries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CardRates {
    pub products16: ProductGrid,
    pub products32: ProductGrid,
    /// Of codes of eight bits, where the card multiplies them.
    #[serde(default)]
    pub products8: Option<ProductGrid>,
    /// By rising length.
    pub attention: Vec<AttentionRate>,
    /// Bytes per second of the operators that move bytes rather than compute, by name. Those that are not here go
    /// at the rate of `add`.
    pub operators: BTreeMap<String, f64>,
    pub copy_bytes_per_s: f64,
    pub to_device_bytes_per_s: f64,
    pub from_device_bytes_per_s: f64,
    /// From one kernel of a recorded schedule to the next.
    pub launch_s: f64,
    /// Device memory for code that libraries load as it is first used.
    pub late_bytes: u64,
    /// Zero in files of older versions.
    #[serde(default)]
    pub multiprocessors: u32,
    /// Device memory for each kernel of a recorded schedule.
    pub recorded_bytes_per_launch: f64,
    pub sustained: Sustained,
}

impl CardRates {
    /// How many times longer attention's gradient takes where it has few keys. Half of its work goes by runs of keys, and
    /// the first of a sequence's, which all queries see, takes twice as long as one does on average: with less than two for
    /// each multiprocessor, others wait for it. Rates are measured with more.
    pub fn waiting_for_keys(&self, key_rows: usize) -> f64 {
        let longest = 2.0 * KEY_RUN * f64::from(self.multiprocessors) / key_rows.max(1) as f64;
        ((1.0 + longest.max(1.0)) / 2.0).min(WAITING_MAX)
    }

    /// Whether every figure can be reckoned with; a file may hold anything.
    pub fn is_sound(&self) -> bool {
        let positive = |rate: f64| rate.is_finite() && rate > 0.0;
        let attention = !self.attention.is_empty()
            && self.attention.windows(2).all(|pair| pair[0].length < pair[1].length)
            && self.attention.iter().all(|a| positive(a.forward_flops_per_s) && positive(a.gradient_flops_per_s));
        attention
            && self.sustained.is_sound()
            && self.products16.is_whole()
            && self.products32.is_whole()
            && self.products8.as_ref().is_none_or(ProductGrid::is_whole)
            && self.operators.contains_key("add")
            && self.operators.values().all(|rate| positive(*rate))
            && [self.copy_bytes_per_s, self.to_device_bytes_per_s, self.from_device_bytes_per_s]
                .into_iter()
                .all(positive)
            && self.launch_s.is_finite()
            && self.launch_s >= 0.0
            && self.recorded_bytes_per_launch.is_finite()
            && self.recorded_bytes_per_launch >= 0.0
    }

    pub fn attention_flops_per_s(&self, length: usize, gradient: bool) -> f64 {
        let rate = |index: usize| {
            let known = &self.attention[index];
            if gradient { known.gradient_flops_per_s } else { known.forward_flops_per_s }
        };
        let lengths: Vec<usize> = self.attention.iter().map(|known| known.length).collect();
        match place(&lengths, length) {
            (index, 0.0) => rate(index),
            (index, t) => (rate(index).ln() * (1.0 - t) + rate(index + 1).ln() * t).exp(),
        }
    }

    pub fn bytes_per_s(&self, operator: &str) -> f64 {
        self.operators.get(operator).or_else(|| self.operators.get("add")).copied().unwrap_or(1e12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> ProductGrid {
        let rate = |rows: usize, cols: usize, inner: usize| (rows * cols * inner) as f64;
        let (rows, cols, inner) = (vec![1, 4, 16], vec![2, 8], vec![3]);
        let flops_per_s = rows.iter().flat_map(|&r| cols.iter().map(move |&c| rate(r, c, 3))).collect();
        ProductGrid { rows, cols, inner, flops_per_s }
    }

    #[test]
    fn rates_lie_between_the_measured_ones() {
        let grid = grid();
        assert!(grid.is_whole());
        for (rows, cols, inner, expected) in [
            (1, 2, 3, 6.0),
            (16, 8, 3, 384.0),
            // Half of the way on a logarithmic scale.
            (2, 2, 3, 12.0),
            (8, 4, 3, 96.0),
            // Beyond the ends nothing changes.
            (64, 8, 99, 384.0),
            (1, 1, 1, 6.0),
        ] {
            let found = grid.rate(rows, cols, inner);
            assert!((found / expected - 1.0).abs() < 1e-9, "{rows} {cols} {inner}: {found}, not {expected}");
        }
    }

    #[test]
    fn a_grid_with_gaps_is_not_used() {
        let spoilt = [
            ProductGrid { rows: vec![4, 1, 16], ..grid() },
            ProductGrid { inner: Vec::new(), ..grid() },
            ProductGrid { flops_per_s: vec![1.0; 5], ..grid() },
            ProductGrid { flops_per_s: vec![f64::NAN; 6], ..grid() },
        ];
        for grid in spoilt {
            assert!(!grid.is_whole(), "{grid:?}");
        }
    }

    fn sustained() -> Sustained {
        Sustained {
            products_flops_per_s: 1e12,
            products8_flops_per_s: None,
            attention_share: 0.8,
            moving_share: 1.0,
            rates: BTreeMap::new(),
        }
    }

    #[test]
    fn attention_goes_by_length() {
        let at = |length, rate| AttentionRate { length, forward_flops_per_s: rate, gradient_flops_per_s: rate / 2.0 };
        let rates = CardRates {
            products16: grid(),
            products32: grid(),
            products8: None,
            attention: vec![at(256, 1e12), at(1024, 4e12)],
            operators: BTreeMap::from([("add".to_owned(), 3e12), ("rope".to_owned(), 1e12)]),
            copy_bytes_per_s: 1.0,
            to_device_bytes_per_s: 1.0,
            from_device_bytes_per_s: 1.0,
            launch_s: 1e-6,
            late_bytes: 0,
            multiprocessors: 132,
            recorded_bytes_per_launch: 0.0,
            sustained: sustained(),
        };
        assert!(rates.is_sound());
        for (length, gradient, expected) in
            [(64, false, 1e12), (512, false, 2e12), (512, true, 1e12), (9000, false, 4e12)]
        {
            let found = rates.attention_flops_per_s(length, gradient);
            assert!((found / expected - 1.0).abs() < 1e-9, "{length} {gradient}: {found}");
        }
        assert_eq!((rates.bytes_per_s("rope"), rates.bytes_per_s("gated")), (1e12, 3e12));
        // Eight heads of sequences with 8192, 2048 and 512 tokens in all.
        let waiting = [8192, 2048, 512].map(|tokens| rates.waiting_for_keys(8 * tokens));
        assert!(waiting[0] == 1.0 && waiting[1] > 1.4 && waiting[2] == WAITING_MAX, "{waiting:?}");
        assert!(!CardRates { sustained: Sustained { moving_share: 1.1, ..sustained() }, ..rates.clone() }.is_sound());
        assert!(!CardRates { launch_s: f64::NAN, ..rates.clone() }.is_sound());
        let holed = ProductGrid { flops_per_s: vec![1.0; 5], ..grid() };
        assert!(!CardRates { products8: Some(holed), ..rates }.is_sound());
    }
}
