//! Measures a card: every case recorded some times over and replayed, as training runs it, on numbers that look like
//! weights. Zeros would draw less power and run faster than anything ever does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_graph::{Cost, DType, Extent, GraphError, Op, OpRule, Work};
use plimsoll_plan::{
    AttentionRate, Buffer, CardRates, DeviceProfile, Place, ProductGrid, Region, Step, Sustained, step_cost,
    work_seconds,
};
use plimsoll_runtime::single_step::lay_out;
use plimsoll_runtime::{Active, Backend, Distribution, Draw, RuntimeError, mix};

use super::cases::{self, Case};
use super::sustained::{self, Lap, Places};
use crate::CudaBackend;
use crate::fp8::RowsToRound;
use crate::timer::Laps;

/// Memory of the card that is used meanwhile.
pub(super) const ARENA_BYTES: usize = 576 << 20;
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
const SETTLING: Duration = Duration::from_millis(2000);
const SETTLED: Duration = Duration::from_millis(1000);
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
        Draw { distribution: Distribution::Normal { std: 0.1 }, key: 1 },
    )?;
    bench.warm_up()?;
    bench.launch_s = bench.launch_seconds()?;
    let (copy_bytes_per_s, to_device_bytes_per_s, from_device_bytes_per_s) =
        bench.backend.device_mut().copy_rates(ARENA_BYTES)?;
    let mut rates = CardRates {
        products16: bench.products(PRODUCT_SIZES, DType::BF16)?,
        products32: bench.products([&[512, 4096], &[4096], &[4096]], DType::F32)?,
        products8: None,
        attention: LENGTHS.iter().map(|&length| bench.attention(length)).collect::<Result<_, _>>()?,
        operators: bench.operators()?,
        copy_bytes_per_s,
        to_device_bytes_per_s,
        from_device_bytes_per_s,
        launch_s: bench.launch_s,
        late_bytes: 0,
        multiprocessors: bench.backend.sm_count(),
        recorded_bytes_per_launch: RECORDED_BYTES_MIN,
        sustained: unthrottled(),
    };
    let loss = bench.loss_rate(&rates)?;
    rates.operators.insert("vocab_loss".to_owned(), loss);
    rates.products8 = bench.products_of_codes(&rates)?;
    let sustained = bench.sustained(&rates)?;
    sustained::throttle(&mut rates, sustained);
    rates.late_bytes = used(bench.backend).saturating_sub(before);
    let before = used(bench.backend);
    let step = bench.step(&cases::tiny())?;
    let taken = {
        let _recording = bench.backend.record_repeated(&step, active_tiny(), LAUNCHES)?;
        used(bench.backend).saturating_sub(before)
    };
    rates.recorded_bytes_per_launch = (taken as f64 / LAUNCHES as f64).max(RECORDED_BYTES_MIN);
    backend.device_mut().release_arena()?;
    Ok(rates)
}

/// Of a card that keeps all of its speed.
pub(super) fn unthrottled() -> Sustained {
    Sustained {
        products_flops_per_s: f64::MAX,
        products8_flops_per_s: None,
        attention_share: 1.0,
        moving_share: 1.0,
        rates: BTreeMap::new(),
    }
}

fn active_tiny() -> Active {
    Active::one(8, 1)
}

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

/// What passes over memory beside a product take, by the rates that are known; nothing of operators without a product.
fn passes_seconds(case: &Case, profile: &DeviceProfile) -> Result<f64, RuntimeError> {
    let work = case.work().map_err(refused)?;
    let products = work.iter().any(|work| matches!(work, Work::Product(_)));
    let passes = work.iter().filter(|work| products && matches!(work, Work::Memory { .. }));
    Ok(passes.map(|work| work_seconds(work, case.op.name(), profile).1).sum())
}

fn refused(error: GraphError) -> RuntimeError {
    RuntimeError::Device { reason: error.to_string() }
}

impl Bench<'_> {
    fn step(&mut self, case: &Case) -> Result<Step, RuntimeError> {
        let (step, bytes) = lay_out(case.op.clone(), &case.inputs, &self.backend.traits(), true).map_err(refused)?;
        if bytes > ARENA_BYTES {
            let reason = format!("measuring {} would take {bytes} bytes of {ARENA_BYTES}", case.name);
            return Err(RuntimeError::Device { reason });
        }
        for (index, numbers) in &case.contents {
            self.write_numbers(step.inputs[*index].region, numbers)?;
        }
        if let Some(coded) = step.inputs.iter().find(|input| input.storage.blocks.is_some()) {
            // What was measured before may have left anything there, and one large number makes zeros of all others.
            let whole = |input: &&Buffer| input.storage == DType::BF16.into();
            for input in step.inputs.iter().filter(whole) {
                let draw = Draw { distribution: Distribution::Normal { std: 1.0 }, key: 1 };
                self.backend.draw(input.region, DType::BF16, draw)?;
            }
            // A state's codes are among the case's contents.
            if matches!(case.op, Op::Linear(_)) {
                self.fill_codes(coded, step.inputs[0].region)?;
            }
        }
        Ok(step)
    }

    fn write_numbers(&mut self, region: Region, numbers: &[i32]) -> Result<(), RuntimeError> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
        self.backend.write(region, &bytes)
    }

    /// A weight's codes and scales, of the numbers in sixteen bits that lie in `from`, over and over.
    fn fill_codes(&mut self, weight: &Buffer, from: Region) -> Result<(), RuntimeError> {
        let (rows, cols) = (weight.shape.rows(), weight.shape.cols());
        let there = from.bytes / (DType::BF16.bytes() * cols);
        let scales_at = weight.storage.blocks.and_then(|format| format.scales_at(rows * cols));
        let (Some(scales_at), 1..) = (scales_at, there) else {
            return Err(RuntimeError::Device { reason: format!("a weight of {} has no codes", weight.shape) });
        };
        let device = self.backend.device();
        let (x, codes) = (device.address(from), device.address(weight.region));
        for first in (0..rows).step_by(there) {
            let rounding = RowsToRound {
                x,
                dtype: DType::BF16,
                stride: cols,
                col_scales: 0,
                codes: codes + (first * cols) as u64,
                scales: codes + (scales_at + first * DType::F32.bytes()) as u64,
                rows: there.min(rows - first),
                cols,
            };
            rounding.launch(device)?;
        }
        Ok(())
    }

    fn time(&mut self, case: &Case) -> Result<Timing, RuntimeError> {
        let step = self.step(case)?;
        let of_tokens = case.inputs.iter().find(|input| input.extent == Extent::TOKENS);
        let tokens = of_tokens.map_or(0, |input| input.shape.rows());
        let active = Active::one(tokens, case.sequences);
        // The first run loads the kernel.
        self.backend.run(&step, active)?;
        let once = self.backend.run_timed(&step, active)?;
        let repeats = ((SPAN_S / once.max(1e-6)) as usize).clamp(2, REPEATS_MAX);
        let recording = self.backend.record_repeated(&step, active, repeats)?;
        let each = self.backend.time_replay(&recording)? / repeats as f64;
        let Cost { flops, bytes } = Cost::of(&case.work().map_err(refused)?);
        // Never less than a tenth: a figure beyond all others would be noise.
        let seconds = (each - self.launch_s).max(each / 10.0);
        Ok(Timing { flops, bytes, seconds })
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

    /// What is left of these rates while a layer's operators go on and on.
    fn sustained(&mut self, rates: &CardRates) -> Result<Sustained, RuntimeError> {
        let mut sustained = sustained::sustained(&self.laps(rates, false)?);
        if rates.products8.is_some() {
            let of_codes = sustained::sustained(&self.laps(rates, true)?);
            sustained.products8_flops_per_s = Some(of_codes.products_flops_per_s);
            sustained.rates.extend(of_codes.rates.into_iter().filter(|(name, _)| name.contains(sustained::OF_CODES)));
        }
        Ok(sustained)
    }

    /// The operators of two layers, in the row that training has them in. With `codes`, products are of codes of eight bits.
    fn laps(&mut self, rates: &CardRates, codes: bool) -> Result<Vec<Lap>, RuntimeError> {
        let places = if codes { &sustained::CODES } else { &sustained::SIXTEEN_BITS };
        for (index, (part, distribution)) in places.spread().into_iter().enumerate() {
            let region = Region { place: Place::Device, offset: part.start, bytes: part.len() };
            let key = mix(index as u64);
            self.backend.draw(region, DType::BF16, Draw { distribution, key })?;
        }
        let cases: Vec<Case> = [cases::layer(codes), cases::layer(codes)].into_iter().flatten().collect();
        let row = sustained::lay_out_row(&cases, &self.backend.traits(), places).map_err(refused)?;
        for (region, numbers) in &row.numbers {
            self.write_numbers(*region, numbers)?;
        }
        self.fill_all_codes(&row.steps, places)?;
        let active = Active::one(cases::TOKENS, cases::TOKENS / cases::LAYER_LENGTH);
        let timers = Laps::new(row.steps.len())?;
        let began = Instant::now();
        while began.elapsed() < SETTLING {
            self.backend.time_row(&timers, &row.steps, active)?;
        }
        let (mut seconds, mut rounds) = (vec![0.0; row.steps.len()], 0);
        // A slow card may need all of that time for one round.
        while rounds == 0 || began.elapsed() < SETTLING + SETTLED {
            let times = self.backend.time_row(&timers, &row.steps, active)?;
            seconds.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
            rounds += 1;
        }
        let profile = DeviceProfile::unknown_gpu().with_measured(Arc::new(rates.clone()));
        let lap = |((step, case), seconds): ((&Step, &Case), f64)| {
            let (cost, expected_s) = step_cost(step, &profile);
            let (name, kind) = sustained::kind(step);
            let passes_s = passes_seconds(case, &profile)?;
            let seconds = (seconds / f64::from(rounds) - self.launch_s - passes_s).max(1e-9);
            let expected_s = expected_s - self.launch_s - passes_s;
            Ok(Lap { name, kind, flops: cost.flops, bytes: cost.bytes, expected_s, seconds })
        };
        row.steps.iter().zip(&cases).zip(seconds).map(lap).collect()
    }

    /// Weights lie over one another, so scales are written once all codes are there: one that as codes is of numbers, too.
    fn fill_all_codes(&mut self, steps: &[Step], places: &Places) -> Result<(), RuntimeError> {
        const SCALE: f32 = 0.007_812_5;
        let weights = || steps.iter().flat_map(|step| &step.inputs).filter(|input| input.storage.blocks.is_some());
        let from = places.activations.clone();
        let from = Region { place: Place::Device, offset: from.start, bytes: from.len() };
        for weight in weights() {
            self.fill_codes(weight, from)?;
        }
        for weight in weights() {
            let scales = vec![SCALE.to_bits().cast_signed(); weight.shape.rows()];
            let bytes = size_of_val(scales.as_slice());
            let offset = weight.region.end() - bytes;
            self.write_numbers(Region { offset, bytes, ..weight.region }, &scales)?;
        }
        Ok(())
    }

    /// From one kernel of a recording to the next.
    fn launch_seconds(&mut self) -> Result<f64, RuntimeError> {
        let step = self.step(&cases::tiny())?;
        self.backend.run(&step, active_tiny())?;
        let recording = self.backend.record_repeated(&step, active_tiny(), LAUNCHES)?;
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

    /// Where the card multiplies codes: their rates without the passes over the rows, which are rounded first.
    fn products_of_codes(&mut self, rates: &CardRates) -> Result<Option<ProductGrid>, RuntimeError> {
        if !self.backend.traits().multiplies_codes {
            return Ok(None);
        }
        let profile = DeviceProfile::unknown_gpu().with_measured(Arc::new(rates.clone()));
        let [rows, cols, inner] = PRODUCT_SIZES;
        let mut flops_per_s = Vec::new();
        for &row in rows {
            for &col in cols {
                for &depth in inner {
                    let case = cases::product_of_codes(row, col, depth);
                    let timing = self.time(&case)?;
                    let product_s = timing.seconds - passes_seconds(&case, &profile)?;
                    flops_per_s.push(timing.flops / product_s.max(timing.seconds / 10.0));
                }
            }
        }
        Ok(Some(ProductGrid { rows: rows.to_vec(), cols: cols.to_vec(), inner: inner.to_vec(), flops_per_s }))
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
        let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        for case in cases::moving() {
            let timing = self.time(&case)?;
            let (bytes, seconds) = sums.entry(case.name.to_owned()).or_default();
            *bytes += timing.bytes;
            *seconds += timing.seconds;
        }
        Ok(sums.into_iter().map(|(name, (bytes, seconds))| (name, bytes / seconds)).collect())
    }

    /// Of the passes over the logits: what is left of the loss's time after its products.
    fn loss_rate(&mut self, rates: &CardRates) -> Result<f64, RuntimeError> {
        let case = cases::loss();
        let timing = self.time(&case)?;
        let profile = DeviceProfile::unknown_gpu().with_measured(Arc::new(rates.clone()));
        let work = case.work().map_err(refused)?;
        let products = work.iter().filter(|work| matches!(work, Work::Product(_)));
        let products: f64 = products.map(|work| work_seconds(work, case.name, &profile).1).sum();
        Ok(timing.bytes / (timing.seconds - products).max(timing.seconds / 10.0))
    }
}
