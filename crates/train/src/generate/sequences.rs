//! Sequences that grow side by side: prompts are taken in some tokens at a time, then every sequence gets a token in each
//! step. A sequence that ends leaves its place to the next prompt.

use std::ops::ControlFlow;
use std::time::Instant;

use plimsoll_graph::ScheduleId;
use plimsoll_models::{CacheInputs, StreamInputs};
use plimsoll_plan::{Buffer, Region};

use super::rows::StepRows;
use crate::generate::Sampling;
use crate::{Session, TrainError};

/// Where a text ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Any of these tokens is the last one.
    pub stop: Vec<u32>,
    /// New tokens at most.
    pub max_new: usize,
}

/// What was generated after one prompt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Generated {
    /// The stop token included, if it came.
    pub tokens: Vec<u32>,
    /// From the prompt's first token to the last new one.
    pub seconds: f64,
    /// Of these, until the first new one: the prompt was taken in.
    pub first_s: f64,
}

impl Generated {
    /// Behind the first new token, which is the prompt's.
    pub fn tokens_per_s(&self) -> Option<f64> {
        let (later, seconds) = (self.tokens.len().saturating_sub(1), self.seconds - self.first_s);
        (later > 0 && seconds > 0.0).then(|| later as f64 / seconds)
    }
}

/// A sequence at its place.
struct Growing {
    prompt: usize,
    /// What it is conditioned on; empty for models without an encoder.
    source: Vec<u32>,
    /// What it begins with, and new tokens.
    tokens: Vec<u32>,
    /// Tokens it began with.
    given: usize,
    /// Tokens whose keys and values are kept.
    cached: usize,
    began: Instant,
    first_s: f64,
}

impl Growing {
    /// With an encoder, a prompt is read there and the sequence itself begins with `start`.
    fn new(prompt: usize, tokens: &[u32], start: Option<u32>) -> Self {
        let (source, tokens) = match start {
            Some(start) => (tokens.to_vec(), vec![start]),
            None => (Vec::new(), tokens.to_vec()),
        };
        Self { prompt, source, given: tokens.len(), tokens, cached: 0, began: Instant::now(), first_s: 0.0 }
    }
}

/// One call of [`Session::generate`].
struct Generation<'a> {
    session: &'a mut Session,
    streams: Vec<StreamInputs>,
    cache: CacheInputs,
    logits_at: Buffer,
    sampling: &'a Sampling,
    ending: &'a Ending,
    heard: &'a mut dyn FnMut(usize, u32) -> ControlFlow<()>,
    places: Vec<Option<Growing>>,
    finished: Vec<Generated>,
    rows: StepRows,
    /// Of one sequence: those of all would be large beside small models.
    logits: Vec<f32>,
}

impl Session {
    /// Continues each prompt, or says what a model with an encoder makes of it; `heard` gets every new token as it
    /// comes, with its prompt's number, and may end it all.
    pub fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        sampling: &Sampling,
        ending: &Ending,
        heard: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, TrainError> {
        let cache = self.inputs().cache.clone().ok_or(TrainError::NoText)?;
        let &logits_at = self.executor().results(ScheduleId::DECODE).first().ok_or(TrainError::NoText)?;
        let mut generation = Generation {
            places: (0..cache.count).map(|_| None).collect(),
            finished: vec![Generated::default(); prompts.len()],
            rows: StepRows::default(),
            logits: vec![0.0; logits_at.shape.cols()],
            streams: self.inputs().streams.clone(),
            session: self,
            cache,
            logits_at,
            sampling,
            ending,
            heard,
        };
        generation.run(prompts)?;
        Ok(generation.finished)
    }
}

impl Generation<'_> {
    fn run(&mut self, prompts: &[Vec<u32>]) -> Result<(), TrainError> {
        let start = self.session.model.config.decoder_start.filter(|_| self.cache.source.is_some());
        let shapes = self.session.shapes();
        let longest = shapes.as_slice().last().expect("there is a stream").max_length;
        if let Some(prompt) = prompts.iter().find(|prompt| prompt.len() > longest) {
            return Err(TrainError::LongPrompt { tokens: prompt.len(), longest });
        }
        // Nothing can come after nothing.
        let mut waiting = prompts.iter().enumerate().filter(|(_, p)| !p.is_empty() && self.ending.max_new > 0);
        let mut next = || {
            let (prompt, tokens) = waiting.next()?;
            Some(Growing::new(prompt, tokens, start))
        };
        loop {
            for place in self.places.iter_mut().filter(|place| place.is_none()) {
                *place = next();
            }
            if self.places.iter().all(Option::is_none) {
                return Ok(());
            }
            let schedule = self.choose_rows();
            self.execute(schedule)?;
            if self.take_tokens()?.is_break() {
                self.places.iter_mut().filter_map(Option::take).for_each(|growing| finish(&mut self.finished, growing));
                return Ok(());
            }
        }
    }

    /// What is not taken in yet of the prompts, as much as a micro-batch holds; else the newest token of each sequence.
    /// Every token of a source is seen by all others, so sources come whole.
    fn choose_rows(&mut self) -> ScheduleId {
        let Self { rows, places, session, cache, .. } = self;
        rows.clear();
        let places = || places.iter().enumerate().filter_map(|(place, growing)| Some((place, growing.as_ref()?)));
        let shapes = session.shapes();
        let mut room = shapes.as_slice().last().expect("there is a stream").tokens;
        for (place, growing) in places().filter(|(_, growing)| growing.cached < growing.given) {
            let Growing { source, tokens, cached, .. } = growing;
            let count = if cache.source.is_some() { source.len() } else { (tokens.len() - cached).min(room) };
            if count > room || count == 0 {
                break;
            }
            room -= count;
            if cache.source.is_some() {
                rows.add_source(place, source);
                rows.add(place, 0, tokens, source.len());
            } else {
                rows.add(place, *cached, &tokens[*cached..cached + count], 0);
            }
        }
        if !rows.sequences.is_empty() {
            return ScheduleId::PREFILL;
        }
        for (place, Growing { source, tokens, cached, .. }) in places() {
            rows.add(place, *cached, &tokens[*cached..=*cached], source.len());
        }
        ScheduleId::DECODE
    }

    fn execute(&mut self, schedule: ScheduleId) -> Result<(), TrainError> {
        let Self { session, streams, cache, rows, .. } = self;
        // A schedule that is recorded has one shape.
        if schedule == ScheduleId::DECODE && session.executor().backend().fixed_shape() {
            rows.fill_up(cache.count);
        }
        let executor = session.executor();
        let active = rows.write(executor, streams, cache)?;
        executor.run(schedule, active)?;
        self.logits_at = executor.results(schedule)[0];
        Ok(())
    }

    /// Reads the logits of one of the sequences that had rows.
    fn read_logits(&mut self, index: usize) -> Result<(), TrainError> {
        let Self { session, logits_at, logits, .. } = self;
        let region = Region { offset: logits_at.region.offset + index * size_of_val(&logits[..]), ..logits_at.region };
        Ok(session.executor().read_result(&Buffer { region, ..*logits_at }, logits)?)
    }

    /// Gives each sequence that was taken in whole its next token.
    fn take_tokens(&mut self) -> Result<ControlFlow<()>, TrainError> {
        let longest = self.session.max_length();
        for index in 0..self.rows.sequences.len() {
            let place = self.rows.sequences[index];
            let growing = self.places[place].as_mut().expect("it had rows");
            growing.cached += self.rows.of_sequence(index);
            if growing.cached < growing.tokens.len() {
                continue;
            }
            self.read_logits(index)?;
            let growing = self.places[place].as_mut().expect("it had rows");
            let new = growing.tokens.len() - growing.given;
            let token = self.sampling.choose(&mut self.logits, &growing.tokens, growing.prompt as u64, new as u64);
            let token = token.ok_or(TrainError::LogitsNotANumber { position: growing.cached - 1 })?;
            if new == 0 {
                growing.first_s = growing.began.elapsed().as_secs_f64();
            }
            growing.tokens.push(token);
            let is_last = new + 1 >= self.ending.max_new || growing.cached >= longest;
            let ends = is_last || self.ending.stop.contains(&token);
            let flow = (self.heard)(growing.prompt, token);
            if ends {
                self.places[place].take().into_iter().for_each(|growing| finish(&mut self.finished, growing));
            }
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

fn finish(finished: &mut [Generated], mut growing: Growing) {
    let tokens = growing.tokens.split_off(growing.given);
    let seconds = growing.began.elapsed().as_secs_f64();
    finished[growing.prompt] = Generated { tokens, seconds, first_s: growing.first_s };
}
