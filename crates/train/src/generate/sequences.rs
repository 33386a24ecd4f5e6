//! Sequences that grow side by side: prompts are taken in some tokens at a time, then every sequence gets a token in each
//! step. A sequence that ends leaves its place to the next prompt.

use std::ops::ControlFlow;
use std::time::Instant;

use plimsoll_graph::{ScheduleId, Streams};
use plimsoll_models::CacheInputs;
use plimsoll_plan::Buffer;
use plimsoll_runtime::{Active, ActiveStream};

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
}

/// The place of a row that belongs to no sequence.
const NOWHERE: i32 = -1;

/// A sequence at its place.
struct Growing {
    prompt: usize,
    /// Prompt and new tokens.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Tokens whose keys and values are kept.
    cached: usize,
    began: Instant,
}

/// The rows of one step, as the device takes them.
#[derive(Default)]
struct StepRows {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    places: Vec<i32>,
    boundaries: Vec<i32>,
    /// The places whose sequences have rows, in their order.
    sequences: Vec<usize>,
}

impl StepRows {
    fn clear(&mut self) {
        let Self { tokens, positions, places, boundaries, sequences } = self;
        [tokens, positions, places, &mut *boundaries].into_iter().for_each(Vec::clear);
        boundaries.push(0);
        sequences.clear();
    }

    fn row(&mut self, token: u32, position: usize, place: i32) {
        self.tokens.push(token.cast_signed());
        self.positions.push(position as i32);
        self.places.push(place);
    }

    /// The next `count` tokens of a sequence.
    fn add(&mut self, place: usize, growing: &Growing, count: usize) {
        for position in growing.cached..growing.cached + count {
            self.row(growing.tokens[position], position, place as i32);
        }
        self.boundaries.push(self.tokens.len() as i32);
        self.sequences.push(place);
    }

    /// Rows of no sequence, until there are so many.
    fn fill_up(&mut self, rows: usize) {
        while self.tokens.len() < rows {
            self.row(0, 0, NOWHERE);
            self.boundaries.push(self.tokens.len() as i32);
        }
    }
}

/// One call of [`Session::generate`].
struct Generation<'a> {
    session: &'a mut Session,
    cache: CacheInputs,
    logits_at: Buffer,
    sampling: &'a Sampling,
    ending: &'a Ending,
    heard: &'a mut dyn FnMut(usize, u32) -> ControlFlow<()>,
    places: Vec<Option<Growing>>,
    finished: Vec<Generated>,
    rows: StepRows,
    logits: Vec<f32>,
}

impl Session {
    /// Continues each prompt; `heard` gets every new token as it comes, with its prompt's number, and may end it all.
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
            logits: vec![0.0; logits_at.shape.elements()],
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
        let longest = self.session.max_length();
        if let Some(prompt) = prompts.iter().find(|prompt| prompt.len() > longest) {
            return Err(TrainError::LongPrompt { tokens: prompt.len(), longest });
        }
        // Nothing can come after nothing.
        let mut waiting = prompts.iter().enumerate().filter(|(_, p)| !p.is_empty() && self.ending.max_new > 0);
        let mut next = || {
            let (prompt, tokens) = waiting.next()?;
            let (tokens, prompt_tokens) = (tokens.clone(), tokens.len());
            Some(Growing { prompt, tokens, prompt_tokens, cached: 0, began: Instant::now() })
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
    fn choose_rows(&mut self) -> ScheduleId {
        self.rows.clear();
        let places = || self.places.iter().enumerate().filter_map(|(place, growing)| Some((place, growing.as_ref()?)));
        let left = |growing: &Growing| growing.tokens.len() - growing.cached;
        let new = |growing: &Growing| growing.cached < growing.prompt_tokens;
        let mut room = self.session.shapes().main().tokens;
        for (place, growing) in places().filter(|(_, growing)| new(growing)) {
            let count = left(growing).min(room);
            if count > 0 {
                self.rows.add(place, growing, count);
            }
            room -= count;
        }
        if !self.rows.sequences.is_empty() {
            return ScheduleId::PREFILL;
        }
        for (place, growing) in places() {
            self.rows.add(place, growing, 1);
        }
        ScheduleId::DECODE
    }

    fn execute(&mut self, schedule: ScheduleId) -> Result<(), TrainError> {
        let Self { session, cache, rows, .. } = self;
        // A schedule that is recorded has one shape.
        if schedule == ScheduleId::DECODE && session.executor().backend().fixed_shape() {
            rows.fill_up(cache.count);
        }
        let slots = session.inputs().main();
        let executor = session.executor();
        executor.write_slot(slots.tokens, &rows.tokens)?;
        executor.write_slot(slots.positions, &rows.positions)?;
        executor.write_slot(cache.places, &rows.places)?;
        executor.write_slot(slots.boundaries, &rows.boundaries)?;
        let active = ActiveStream { tokens: rows.tokens.len(), sequences: rows.boundaries.len() - 1 };
        executor.run(schedule, Active { streams: Streams::one(active) })?;
        let results = executor.results(schedule)[0];
        let read = rows.sequences.len() * self.logits_at.shape.cols();
        Ok(executor.read_result(&results, &mut self.logits[..read])?)
    }

    /// Gives each sequence that was taken in whole its next token.
    fn take_tokens(&mut self) -> Result<ControlFlow<()>, TrainError> {
        let longest = self.session.max_length();
        let vocab = self.logits_at.shape.cols();
        for (index, &place) in self.rows.sequences.iter().enumerate() {
            let growing = self.places[place].as_mut().expect("it had rows");
            let rows = self.rows.boundaries[index + 1] - self.rows.boundaries[index];
            growing.cached += rows as usize;
            if growing.cached < growing.tokens.len() {
                continue;
            }
            let new = growing.tokens.len() - growing.prompt_tokens;
            let logits = &mut self.logits[index * vocab..][..vocab];
            let token = self.sampling.choose(logits, &growing.tokens, growing.prompt as u64, new as u64);
            let token = token.ok_or(TrainError::LogitsNotANumber { position: growing.cached - 1 })?;
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
    let tokens = growing.tokens.split_off(growing.prompt_tokens);
    finished[growing.prompt] = Generated { tokens, seconds: growing.began.elapsed().as_secs_f64() };
}
