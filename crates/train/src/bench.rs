//! A few updates on synthetic tokens: measured against planned.

use std::time::Instant;

use plimsoll_data::{Example, ExampleRef};
use serde::Serialize;

use crate::memory::peak_resident_bytes;
use crate::{Prepared, TrainError};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    pub planned_bytes: u64,
    pub used_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchReport {
    pub device: String,
    pub steps: u64,
    pub tokens_per_s: f64,
    /// Median of the timed updates.
    pub step_ms: f64,
    /// From the start of the program to the end of the first update.
    pub first_step_s: f64,
    pub gpu: Memory,
    pub host: Memory,
    pub predicted_step_ms: f64,
    pub loss_first: f64,
    pub loss_last: f64,
    pub micro_batch_tokens: usize,
    pub accumulation: usize,
}

/// Updates before the clock counts.
const WARMUP: u64 = 2;

/// Runs `steps` timed updates after a warm-up. `tick` is told after every update, warm-up included.
pub fn bench(
    prepared: &mut Prepared,
    sequences: usize,
    steps: u64,
    lr: f64,
    began: Instant,
    tick: &mut dyn FnMut(u64, u64),
) -> Result<BenchReport, TrainError> {
    let Prepared { session, chosen } = prepared;
    let max_length = chosen.batch.max_length;
    let vocab = session.model.config.vocab_size;
    let examples: Vec<Example> = (0..sequences).map(|i| synthetic(i as u64, max_length, vocab)).collect();
    let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
    let batches = session.pack(&views)?;
    let (mut durations, mut losses) = (Vec::new(), Vec::new());
    let mut first_step_s = 0.0;
    for step in 1..=WARMUP + steps {
        let start = Instant::now();
        let result = session.update(&batches, step, lr)?;
        if step == 1 {
            first_step_s = began.elapsed().as_secs_f64();
        }
        if step > WARMUP {
            durations.push(start.elapsed().as_secs_f64() * 1e3);
        }
        losses.push(result.loss);
        tick(step, WARMUP + steps);
    }
    durations.sort_by(f64::total_cmp);
    let step_ms = durations[durations.len() / 2];
    let report = &chosen.report;
    Ok(BenchReport {
        device: report.device.clone(),
        steps,
        tokens_per_s: (sequences * max_length) as f64 / step_ms * 1e3,
        step_ms,
        first_step_s,
        gpu: Memory { planned_bytes: report.gpu.planned_bytes, used_bytes: 0 },
        host: Memory { planned_bytes: report.host.planned_bytes, used_bytes: peak_resident_bytes() },
        predicted_step_ms: report.predicted.step_ms,
        loss_first: losses[0],
        loss_last: losses[losses.len() - 1],
        micro_batch_tokens: chosen.batch.tokens,
        accumulation: report.accumulation,
    })
}

/// A sequence of exactly the given length, every token bearing loss.
fn synthetic(index: u64, length: usize, vocab: usize) -> Example {
    // A small multiplicative generator: the same tokens on every machine.
    let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as usize % vocab) as u32
    };
    let tokens: Vec<u32> = (0..=length).map(|_| next()).collect();
    let targets = tokens[1..].iter().map(|t| t.cast_signed()).collect();
    Example { tokens: tokens[..length].to_vec(), targets }
}
