//! Measures a card: every case recorded some times over and replayed, as training runs it, on numbers that look like
//! weights. Zeros would draw less power and run faster than anything ever does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_graph::{DType, Extent, GraphError, Io, Op, OpRule, Value};
use plimsoll_plan::{
    AttentionRate, CardRates, DeviceProfile, Place, ProductGrid, Region, Step, loss_bytes, loss_products_seconds,
    product_bytes,
};
use plimsoll_runtime::single_step::lay_out;
use plimsoll_runtime::{Active, Backend, Distribution, Draw, RuntimeError};

use super::cases::{self, Case};
use crate::CudaBackend;

/// Memory of the card that is used meanwhile.
pub(super) const ARENA_BYTES: usize = 512 << 20;
/// Rows, columns and depths of products.
pub(super) const PRODUCT_SIZES: [&[usize]; 3] = [&[256, 1024, 4096], &[512, 2048, 8192], &[512, 2048, 8192]];
/// Lengths of sequences.
const LENGTHS: [usize; 2] = [512, 2048];
/// Device time of one replay, so long that its ends do not matter.
const SPAN_S: f64 = 5e-3;
const WARM_UP: Duration = Duration::from_millis(250);
const REPEATS_MAX: usize = 64;
/// Training keeps a card busy without a pause, and it then slows down to its limit of power: how long that takes, and
/// how long is measured after it.
const SETTLING: Duration = Duration::from_millis(1000);
const SETTLED: Duration = Duration::from_millis(500);
/// Kernels of the recordings that show what one costs.
const LAUNCHES: usize = 2048;
/// A recorded kernel takes at least its parameters and commands, even where the driver had room for them already.
const RECORDED_BYTES_MIN: f64 = 512.0;

pub(super) fn measure(backend: &mut CudaBackend) -> Result<CardRates, RuntimeError> {
    backend.allocate(ARENA_BYTES)?;
    let used = |backend: &CudaBackend| backend.used().map_or(0, |used| used.bytes);
    let before = used(backend);
    let mut bench = Bench { backend, launch_s: 0.0 };
    bench.backend.draw(
        Region { place: Place::Device, offset: 0, bytes: ARENA_BYTES },
        DType::BF16,
        Draw { distribution: Distribution::Uniform { bound: 0.1 }, key: 1 },
    )?;
    bench.warm_up()?;
    bench.launch_s = bench.launch_seconds()?;
    let (copy_bytes_per_s, to_device_bytes_per_s, from_device_bytes_per_s) =
        bench.backend.device_mut().copy_rates(ARENA_BYTES)?;
    let mut rates = CardRates {
        products16: bench.products(PRODUCT_SIZES, DType::BF16)?,
        products32: bench.products([&[512, 4096], &[4096], &[4096]], DType::F32)?,
        attention: LENGTHS.iter().map(|&length| bench.attention(length)).collect::<Result<_, _>>()?,
        operators: bench.operators()?,
        copy_bytes_per_s,
        to_device_bytes_per_s,
        from_device_bytes_per_s,
        launch_s: bench.launch_s,
        late_bytes: used(bench.backend).saturating_sub(before),
        recorded_bytes_per_launch: RECORDED_BYTES_MIN,
    };
    let kept = bench.kept_share(&rates)?;
    throttle(&mut rates, kept);
    let loss = bench.loss_rate(&rates)?;
    rates.operators.insert("vocab_loss".to_owned(), loss);
    let before = used(bench.backend);
    let step = bench.step(&cases::tiny())?;
    let taken = {
        let _recording = bench.backend.record_repeated(&step, ACTIVE_TINY, LAUNCHES)?;
        used(bench.backend).saturating_sub(before)
    };
    rates.recorded_bytes_per_launch = (taken as f64 / LAUNCHES as f64).max(RECORDED_BYTES_MIN);
    backend.device_mut().release_arena()?;
    Ok(rates)
}

/// Rates of short spans turned into those of a card that works on and on and keeps only a share of its speed. Products
/// that use all of it are cut to what is kept; attention goes by the clock; what waits for memory, whose clock stays, loses
/// about half as much.
fn throttle(rates: &mut CardRates, kept: f64) {
    let peak = rates.products16.flops_per_s.iter().copied().fold(0.0, f64::max);
    for rate in &mut rates.products16.flops_per_s {
        *rate = rate.min(kept * peak);
    }
    for attention in &mut rates.attention {
        attention.forward_flops_per_s *= kept;
        attention.gradient_flops_per_s *= kept;
    }
    for rate in rates.operators.values_mut() {
        *rate *= kept.sqrt();
    }
}

const ACTIVE_TINY: Active = Active { tokens: 8, sequences: 1 };

struct Bench<'a> {
    backend: &'a mut CudaBackend,
    launch_s: f64,
}

/// What an operator does, and how long it takes without the way from one kernel to the next.
struct Timing {
    flops: f64,
    bytes: f64,
    seconds: f64,
}

fn refused(error: GraphError) -> RuntimeError {
    RuntimeError::Device { reason: error.to_string() }
}

impl Bench<'_> {
    fn step(&mut self, case: &Case) -> Result<Step, RuntimeError> {
        let (step, bytes) = lay_out(case.op.clone(), &case.inputs, &self.backend.target(), true).map_err(refused)?;
        if bytes > ARENA_BYTES {
            let reason = format!("measuring {} would take {bytes} bytes of {ARENA_BYTES}", case.name);
            return Err(RuntimeError::Device { reason });
        }
        for (index, numbers) in &case.contents {
            let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
            self.backend.write(step.inputs[*index].region, &bytes)?;
        }
        Ok(step)
    }

    fn time(&mut self, case: &Case) -> Result<Timing, RuntimeError> {
        let step = self.step(case)?;
        let of_tokens = case.inputs.iter().find(|input| input.extent == Extent::Tokens);
        let tokens = of_tokens.map_or(0, |input| input.shape.rows());
        let active = Active { tokens, sequences: case.sequences };
        // The first run loads the kernel.
        self.backend.run(&step, active)?;
        let once = self.backend.run_timed(&step, active)?;
        let repeats = ((SPAN_S / once.max(1e-6)) as usize).clamp(2, REPEATS_MAX);
        let recording = self.backend.record_repeated(&step, active, repeats)?;
        let each = self.backend.time_replay(&recording)? / repeats as f64;
        let inputs: Vec<&Value> = case.inputs.iter().collect();
        let outputs = case.op.outputs(&inputs).map_err(refused)?;
        let io = Io { inputs, outputs: outputs.iter().collect() };
        let cost = case.op.cost(&io);
        let bytes = match &case.op {
            Op::Linear(op) => product_bytes(op, &io),
            Op::VocabLoss(op) => loss_bytes(op, &io),
            _ => cost.bytes,
        };
        // Never less than a tenth: a figure beyond all others would be noise.
        let seconds = (each - self.launch_s).max(each / 10.0);
        Ok(Timing { flops: cost.flops, bytes, seconds })
    }

    /// A card that was idle takes a while to reach its clocks, and one that works its limit of power.
    fn warm_up(&mut self) -> Result<(), RuntimeError> {
        let [rows, cols, inner] = PRODUCT_SIZES.map(|sizes| sizes[sizes.len() - 1]);
        let began = Instant::now();
        while began.elapsed() < WARM_UP {
            self.time(&cases::product(rows, cols, inner, DType::BF16))?;
        }
        Ok(())
    }

    /// The share of its peak that the largest product keeps when it goes on and on.
    fn kept_share(&mut self, rates: &CardRates) -> Result<f64, RuntimeError> {
        let [rows, cols, inner] = PRODUCT_SIZES.map(|sizes| sizes[sizes.len() - 1]);
        let case = cases::product(rows, cols, inner, DType::BF16);
        let step = self.step(&case)?;
        let active = Active { tokens: rows, sequences: 1 };
        let once = self.backend.run_timed(&step, active)?;
        let repeats = ((SPAN_S / once.max(1e-6)) as usize).clamp(2, REPEATS_MAX);
        let recording = self.backend.record_repeated(&step, active, repeats)?;
        let began = Instant::now();
        while began.elapsed() < SETTLING {
            self.backend.time_replay(&recording)?;
        }
        let (mut seconds, mut products) = (0.0, 0);
        while began.elapsed() < SETTLING + SETTLED {
            seconds += self.backend.time_replay(&recording)?;
            products += repeats;
        }
        let flops = 2.0 * rows as f64 * cols as f64 * inner as f64;
        let settled = flops * products as f64 / seconds.max(1e-9);
        let peak = rates.products16.flops_per_s.iter().copied().fold(0.0, f64::max);
        Ok((settled / peak).min(1.0))
    }

    /// From one kernel of a recording to the next.
    fn launch_seconds(&mut self) -> Result<f64, RuntimeError> {
        let step = self.step(&cases::tiny())?;
        self.backend.run(&step, ACTIVE_TINY)?;
        let recording = self.backend.record_repeated(&step, ACTIVE_TINY, LAUNCHES)?;
        Ok(self.backend.time_replay(&recording)? / LAUNCHES as f64)
    }

    fn products(&mut self, [rows, cols, inner]: [&[usize]; 3], dtype: DType) -> Result<ProductGrid, RuntimeError> {
        let mut flops_per_s = Vec::new();
        for &row in rows {
            for &col in cols {
                for &depth in inner {
                    let timing = self.time(&cases::product(row, col, depth, dtype))?;
                    flops_per_s.push(timing.flops / timing.seconds);
                }
            }
        }
        Ok(ProductGrid { rows: rows.to_vec(), cols: cols.to_vec(), inner: inner.to_vec(), flops_per_s })
    }

    fn attention(&mut self, length: usize) -> Result<AttentionRate, RuntimeError> {
        let [forward, gradient] = cases::attention(length);
        let (forward, gradient) = (self.time(&forward)?, self.time(&gradient)?);
        Ok(AttentionRate {
            length,
            forward_flops_per_s: forward.flops / forward.seconds,
            gradient_flops_per_s: gradient.flops / gradient.seconds,
        })
    }

    fn operators(&mut self) -> Result<BTreeMap<String, f64>, RuntimeError> {
        let rate = |case: &Case| {
            let timing = self.time(case)?;
            Ok((case.name.to_owned(), timing.bytes / timing.seconds))
        };
        cases::moving().iter().map(rate).collect()
    }

    /// Of the passes over the logits: what is left of the loss's time after its products.
    fn loss_rate(&mut self, rates: &CardRates) -> Result<f64, RuntimeError> {
        let case = cases::loss();
        let timing = self.time(&case)?;
        let profile = DeviceProfile::unknown_gpu().with_measured(Arc::new(rates.clone()));
        let inputs: Vec<&Value> = case.inputs.iter().collect();
        let outputs = case.op.outputs(&inputs).map_err(refused)?;
        let io = Io { inputs, outputs: outputs.iter().collect() };
        let products = match &case.op {
            Op::VocabLoss(op) => loss_products_seconds(op, &io, &profile),
            _ => 0.0,
        };
        Ok(timing.bytes / (timing.seconds - products).max(timing.seconds / 10.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_uses_all_of_the_card_is_cut() {
        let grid = |rates: &[f64]| ProductGrid {
            rows: vec![1, 2],
            cols: vec![1],
            inner: vec![1],
            flops_per_s: rates.to_vec(),
        };
        let attention = AttentionRate { length: 512, forward_flops_per_s: 200.0, gradient_flops_per_s: 100.0 };
        let mut rates = CardRates {
            products16: grid(&[100.0, 900.0]),
            products32: grid(&[50.0, 50.0]),
            attention: vec![attention],
            operators: BTreeMap::from([("add".to_owned(), 4.0)]),
            copy_bytes_per_s: 1.0,
            to_device_bytes_per_s: 1.0,
            from_device_bytes_per_s: 1.0,
            launch_s: 1e-6,
            late_bytes: 0,
            recorded_bytes_per_launch: 0.0,
        };
        throttle(&mut rates, 0.64);
        assert_eq!(rates.products16.flops_per_s, [100.0, 576.0]);
        assert_eq!(rates.products32.flops_per_s, [50.0, 50.0]);
        assert_eq!((rates.attention[0].forward_flops_per_s, rates.attention[0].gradient_flops_per_s), (128.0, 64.0));
        assert!((rates.operators["add"] - 3.2).abs() < 1e-12);
    }
}
