//! A few updates on synthetic tokens: measured against planned.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Instant;

use plimsoll_data::{Example, ExampleRef, NO_MARK};
use plimsoll_graph::{OpRule, ScheduleId, Streams};
use plimsoll_plan::{DeviceProfile, step_cost};
use plimsoll_runtime::{Active, ActiveStream};
use serde::Serialize;

use crate::memory::peak_resident_bytes;
use crate::{Ending, PackedUpdate, Prepared, Sampling, Session, TrainError};

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
    /// Whose memory `gpu` counts: `process`, `since start` or `device`; nothing where there is no GPU.
    pub gpu_counted: Option<&'static str>,
    pub host: Memory,
    pub predicted_step_ms: f64,
    pub loss_first: f64,
    pub loss_last: f64,
    pub micro_batch_tokens: usize,
    pub accumulation: usize,
}

/// Updates before the clock counts.
const WARMUP: u64 = 2;

/// Tokens before the clock counts: a card records the schedule the second time it runs.
const UNTIMED_TOKENS: usize = 4;

/// Runs `steps` timed updates after a warm-up. `tick` is told after every update, warm-up included.
pub fn bench(
    prepared: &mut Prepared,
    sequences: usize,
    steps: u64,
    lr: f64,
    began: Instant,
    tick: &mut dyn FnMut(u64, u64),
) -> Result<BenchReport, TrainError> {
    let Prepared { session, report, .. } = prepared;
    let tokens = sequences * session.shapes().map(|shape| shape.max_length).as_slice().iter().sum::<usize>();
    let packed = synthetic_update(session, sequences)?;
    let (mut durations, mut losses) = (Vec::new(), Vec::new());
    let mut first_step_s = 0.0;
    for step in 1..=WARMUP + steps {
        let start = Instant::now();
        let result = session.update(&packed, step, lr)?;
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
    let gpu_used = session.executor().backend().used();
    Ok(BenchReport {
        device: report.device.clone(),
        steps,
        tokens_per_s: tokens as f64 / step_ms * 1e3,
        step_ms,
        first_step_s,
        gpu: Memory { planned_bytes: report.gpu.planned_bytes, used_bytes: gpu_used.map_or(0, |used| used.bytes) },
        gpu_counted: gpu_used.map(|used| used.counted.name()),
        host: Memory { planned_bytes: report.host.planned_bytes, used_bytes: peak_resident_bytes() },
        predicted_step_ms: report.predicted.step_ms,
        loss_first: losses[0],
        loss_last: losses[losses.len() - 1],
        micro_batch_tokens: report.micro_batch_tokens,
        accumulation: report.accumulation,
    })
}

/// What one text took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GenerationReport {
    pub device: String,
    pub prompt_tokens: usize,
    pub new_tokens: usize,
    /// From the prompt to the first new token.
    pub first_token_ms: f64,
    /// Of the tokens behind the first.
    pub tokens_per_s: f64,
    /// Of one of them.
    pub token_ms: f64,
    pub predicted_token_ms: f64,
    /// The model, as it is stored. Each token takes all of it but the embeddings of others.
    pub weights_bytes: u64,
    pub gpu: Memory,
    pub gpu_counted: Option<&'static str>,
    pub host: Memory,
}

/// Continues a synthetic prompt by `new_tokens` greedy ones, after a few that are not timed.
pub fn bench_generation(
    prepared: &mut Prepared,
    prompt_tokens: usize,
    new_tokens: usize,
    heard: &mut dyn FnMut(),
) -> Result<GenerationReport, TrainError> {
    let Prepared { session, report, .. } = prepared;
    let prompt = [synthetic(0, prompt_tokens, session.model.config.vocab_size).tokens];
    let mut generate = |max_new: usize, heard: &mut dyn FnMut()| {
        // No token ends it.
        let ending = Ending { stop: Vec::new(), max_new };
        session.generate(&prompt, &Sampling::GREEDY, &ending, &mut |_, _| {
            heard();
            ControlFlow::Continue(())
        })
    };
    generate(new_tokens.min(UNTIMED_TOKENS), &mut || {})?;
    let text = generate(new_tokens, heard)?.pop().unwrap_or_default();
    let tokens_per_s = text.tokens_per_s().unwrap_or_default();
    let gpu_used = session.executor().backend().used();
    Ok(GenerationReport {
        device: report.device.clone(),
        prompt_tokens,
        new_tokens: text.tokens.len(),
        first_token_ms: text.first_s * 1e3,
        tokens_per_s,
        token_ms: 1e3 / tokens_per_s,
        predicted_token_ms: report.predicted.step_ms,
        weights_bytes: report.gpu.categories.weights + report.host.categories.arena.map_or(0, |arena| arena.weights),
        gpu: Memory { planned_bytes: report.gpu.planned_bytes, used_bytes: gpu_used.map_or(0, |used| used.bytes) },
        gpu_counted: gpu_used.map(|used| used.counted.name()),
        host: Memory { planned_bytes: report.host.planned_bytes, used_bytes: peak_resident_bytes() },
    })
}

/// Where the time of one micro-step and one update, or of one token, goes, by operator.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperatorTime {
    pub operator: &'static str,
    pub count: usize,
    pub ms: f64,
    /// What the device profile says it should take.
    pub predicted_ms: f64,
    pub flops: f64,
    pub bytes: f64,
}

/// Times every operator of a full micro-step and of the update, each alone; most time first.
/// The session's state is meaningless afterwards.
pub fn profile(
    prepared: &mut Prepared,
    sequences: usize,
    device: &DeviceProfile,
) -> Result<Vec<OperatorTime>, TrainError> {
    let session = &mut prepared.session;
    let packed = synthetic_update(session, sequences)?;
    let active = session.load(&packed.batches[0])?;
    operator_times(session, &[ScheduleId::MICRO_STEP, ScheduleId::UPDATE], active, device)
}

/// Times every operator of one more token of the text that was generated last, each alone; most time first.
pub fn profile_generation(prepared: &mut Prepared, device: &DeviceProfile) -> Result<Vec<OperatorTime>, TrainError> {
    let session = &mut prepared.session;
    let token = ActiveStream { tokens: 1, sequences: 1 };
    let nothing = ActiveStream { tokens: 0, sequences: 0 };
    let streams: Vec<ActiveStream> =
        (0..session.shapes().len()).map(|s| if s == 0 { token } else { nothing }).collect();
    operator_times(session, &[ScheduleId::DECODE], Active { streams: Streams::new(&streams) }, device)
}

fn operator_times(
    session: &mut Session,
    ids: &[ScheduleId],
    active: Active,
    device: &DeviceProfile,
) -> Result<Vec<OperatorTime>, TrainError> {
    let mut by_name: BTreeMap<&'static str, OperatorTime> = BTreeMap::new();
    let schedules = session.executor().plan().schedules.keys();
    let timed: Vec<ScheduleId> = schedules.copied().filter(|id| ids.contains(id)).collect();
    for id in timed {
        // Once to warm up.
        session.executor().run_timed(id, active)?;
        let seconds = session.executor().run_timed(id, active)?;
        for (step, seconds) in session.executor().plan().schedule(id).steps.iter().zip(seconds) {
            let (cost, predicted_s) = step_cost(step, device);
            let operator = step.op.name();
            let empty = OperatorTime { operator, count: 0, ms: 0.0, predicted_ms: 0.0, flops: 0.0, bytes: 0.0 };
            let entry = by_name.entry(operator).or_insert(empty);
            entry.count += 1;
            entry.ms += seconds * 1e3;
            entry.predicted_ms += predicted_s * 1e3;
            entry.flops += cost.flops;
            entry.bytes += cost.bytes;
        }
    }
    let mut times: Vec<OperatorTime> = by_name.into_values().collect();
    times.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    Ok(times)
}

/// An update of synthetic sequences, binned as a real one is.
fn synthetic_update(session: &mut Session, sequences: usize) -> Result<PackedUpdate, TrainError> {
    let (vocab, max_length) = (session.model.config.vocab_size, session.max_length());
    let mut examples: Vec<Example> = (0..sequences).map(|i| synthetic(i as u64, max_length, vocab)).collect();
    if session.task.content().streams() > 1 {
        let length = session.shapes().as_slice()[1].max_length;
        let count = sequences as u64;
        for (index, example) in examples.iter_mut().enumerate() {
            example.source = synthetic(count + index as u64, length, vocab).tokens;
        }
    }
    if session.task.content().has_labels() {
        // Class 0 is there whatever the number of classes.
        examples.iter_mut().for_each(|example| example.label = Some(0));
    }
    if session.task.content().has_marks() {
        let mark = |position: usize| if (position + 1).is_multiple_of(8) { (position % 3) as f32 } else { NO_MARK };
        examples.iter_mut().for_each(|example| example.marks = (0..max_length).map(mark).collect());
    }
    let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
    Ok(session.pack(&views)?)
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
    Example { tokens: tokens[..length].to_vec(), targets, ..Example::default() }
}
