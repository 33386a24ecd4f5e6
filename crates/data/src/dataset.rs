//! From rows to stored examples: the task decides what an example is and where the loss lies.

use std::path::Path;

use rayon::prelude::*;
use serde_json::Value;

use crate::NO_LOSS;
use crate::encode::{EncodedRow, Encoder};
use crate::error::{DataError, Place};
use crate::mask::Masked;
use crate::pairs::{self, Cut};
use crate::read::{Row, Source};
use crate::shape::{Format, Shape};
use crate::store::{Example, ExampleRef, Store};
use crate::tokenizer::Tokenizer;

/// Rows handed to the worker threads at a time: enough to keep them busy, little enough to hold.
const ROWS_AT_ONCE: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Texts in one stream, cut into sequences; every token bears loss.
    Pretrain,
    /// One example per row; answers bear loss.
    Sft,
    /// Two sequences per row, the preferred one first; no token bears loss of its own.
    Reward,
}

impl Task {
    /// Sequences that only mean something together.
    fn group(self) -> usize {
        if self == Task::Reward { 2 } else { 1 }
    }
}

/// What to do with a row that has more tokens than `max_length` (not with `Task::Pretrain`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverLong {
    #[default]
    Error,
    /// Keep its beginning; where no answer is left in it, leave the row out. Pairs keep their answers instead, and lose
    /// the beginning of the prompt; where the answers alone are too long, leave the row out.
    Truncate,
    Skip,
}

#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub task: Task,
    pub format: Format,
    pub max_length: usize,
    pub over_long: OverLong,
}

impl Options {
    pub fn new(task: Task, max_length: usize) -> Self {
        Self { task, format: Format::Auto, max_length, over_long: OverLong::default() }
    }
}

/// What became of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// What the rows were taken for.
    pub shape: Shape,
    pub rows: u64,
    pub truncated: u64,
    pub skipped: u64,
    /// Pairs left out because their two sides are the same (`Task::Reward`).
    pub identical: u64,
    /// Tokens behind the last full sequence, left out (`Task::Pretrain`).
    pub tail_tokens: usize,
}

/// Tokenised examples, all in memory.
#[derive(Debug)]
pub struct Dataset {
    store: Store,
    summary: Summary,
    group: usize,
}

impl Dataset {
    pub fn from_files<P: AsRef<Path>>(
        files: &[P],
        tokenizer: &Tokenizer,
        options: &Options,
    ) -> Result<Self, DataError> {
        let names: Vec<String> = files.iter().map(|file| file.as_ref().display().to_string()).collect();
        let source = Source::open(&names)?;
        Self::from_rows(source.all(), &source.name(), tokenizer, options)
    }

    /// `origin` names the rows' source in messages.
    pub fn from_rows(
        rows: impl IntoIterator<Item = Result<Row, DataError>>,
        origin: &str,
        tokenizer: &Tokenizer,
        options: &Options,
    ) -> Result<Self, DataError> {
        let max_length = options.max_length;
        if max_length < 2 {
            return Err(DataError::MaxLength { max_length });
        }
        let mut rows = rows.into_iter();
        let first = rows.next().ok_or_else(|| DataError::Empty { files: origin.to_owned() })??;
        let shape = resolve_shape(options, &first)?;
        let mut rows = std::iter::once(Ok(first)).chain(rows);
        let encoder = Encoder::new(tokenizer, shape)?;
        let mut builder = Builder::new(options, shape, tokenizer.bos_id());
        loop {
            let chunk = rows.by_ref().take(ROWS_AT_ONCE).collect::<Result<Vec<Row>, _>>()?;
            if chunk.is_empty() {
                break;
            }
            // `collect` keeps the rows' order whatever the number of threads, and the first bad row is the one reported.
            let encoded: Vec<Result<EncodedRow, DataError>> = chunk.par_iter().map(|row| encoder.encode(row)).collect();
            for (row, encoded) in chunk.iter().zip(encoded) {
                builder.add(&row.at, encoded?)?;
            }
        }
        builder.finish()
    }

    /// Sequences; a pair has two.
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Never true: building an empty dataset is an error.
    pub fn is_empty(&self) -> bool {
        self.store.len() == 0
    }

    pub fn get(&self, index: usize) -> ExampleRef<'_> {
        self.store.get(index)
    }

    /// Sequences that only mean something together: 1, or 2 for pairs.
    pub fn group(&self) -> usize {
        self.group
    }

    /// How many groups there are: what an order puts in order.
    pub fn groups(&self) -> usize {
        self.len() / self.group
    }

    pub fn get_group(&self, index: usize) -> impl Iterator<Item = ExampleRef<'_>> {
        (index * self.group..(index + 1) * self.group).map(|i| self.get(i))
    }

    pub fn total_tokens(&self) -> usize {
        self.store.total_tokens()
    }

    pub fn loss_tokens(&self) -> usize {
        self.store.loss_tokens()
    }

    /// The number of tokens of the longest example.
    pub fn longest(&self) -> usize {
        self.store.longest()
    }

    pub fn resident_bytes(&self) -> usize {
        self.store.resident_bytes()
    }

    pub fn summary(&self) -> &Summary {
        &self.summary
    }
}

fn resolve_shape(options: &Options, first: &Row) -> Result<Shape, DataError> {
    // Tables of pairs often carry a conversation for other tasks beside them.
    if options.task == Task::Reward && options.format == Format::Auto && pairs::detects(first) {
        return Ok(Shape::Pairs);
    }
    let shape = options.format.resolve(first)?;
    let has_text = first.columns.get("text").is_some_and(Value::is_string);
    match (options.task, shape) {
        (Task::Reward, Shape::Pairs) => Ok(shape),
        (Task::Reward, other) => {
            Err(DataError::NotPairs { at: first.at.clone(), found: other.name(), accepted: pairs::ACCEPTS })
        }
        (_, Shape::Pairs) => Err(DataError::OnlyPairs { at: first.at.clone() }),
        (Task::Sft, shape) | (Task::Pretrain, shape @ Shape::Text) => Ok(shape),
        // `auto` prefers the richer shape, but here only the text is of use.
        (Task::Pretrain, _) if options.format == Format::Auto && has_text => Ok(Shape::Text),
        (Task::Pretrain, other) => Err(DataError::NotText { at: first.at.clone(), found: other.name() }),
    }
}

/// Collects encoded rows in order.
struct Builder {
    task: Task,
    max_length: usize,
    over_long: OverLong,
    /// Kept when a prompt is cut.
    bos: Option<u32>,
    store: Store,
    summary: Summary,
    /// `Task::Pretrain`: tokens not yet cut off into a sequence; never more than one sequence and one row.
    stream: Vec<u32>,
}

impl Builder {
    fn new(options: &Options, shape: Shape, bos: Option<u32>) -> Self {
        Self {
            task: options.task,
            max_length: options.max_length,
            over_long: options.over_long,
            bos,
            store: Store::default(),
            summary: Summary { shape, rows: 0, truncated: 0, skipped: 0, identical: 0, tail_tokens: 0 },
            stream: Vec::new(),
        }
    }

    fn add(&mut self, at: &Place, row: EncodedRow) -> Result<(), DataError> {
        self.summary.rows += 1;
        match row {
            EncodedRow::Pair(pair) => self.add_pair(at, pair),
            EncodedRow::One(masked) if self.task == Task::Pretrain => {
                self.stream.extend_from_slice(&masked.tokens);
                self.cut();
                Ok(())
            }
            EncodedRow::One(masked) => self.add_whole(at, masked),
        }
    }

    fn add_pair(&mut self, at: &Place, mut pair: [Masked; 2]) -> Result<(), DataError> {
        let max_length = self.max_length;
        let length = pair.iter().map(|side| side.tokens.len()).max().unwrap_or(0);
        if pair[0].tokens == pair[1].tokens {
            self.summary.identical += 1;
            return Ok(());
        }
        let cut = match self.over_long {
            OverLong::Truncate => pairs::cut(&mut pair, max_length, self.bos),
            _ if length <= max_length => Cut::Fits,
            OverLong::Error => return Err(DataError::TooLong { at: at.clone(), length, max_length }),
            OverLong::Skip => Cut::TooLong,
        };
        if cut == Cut::TooLong || pair.iter().any(|side| side.tokens.is_empty()) {
            self.summary.skipped += 1;
            return Ok(());
        }
        self.summary.truncated += u64::from(cut == Cut::Shortened);
        for side in &pair {
            let targets = vec![NO_LOSS; side.tokens.len()];
            self.store.push(ExampleRef { tokens: &side.tokens, targets: &targets });
        }
        Ok(())
    }

    fn add_whole(&mut self, at: &Place, mut masked: Masked) -> Result<(), DataError> {
        let (length, max_length) = (masked.tokens.len(), self.max_length);
        if length > max_length {
            match self.over_long {
                OverLong::Error => {
                    return Err(DataError::TooLong { at: at.clone(), length, max_length });
                }
                OverLong::Skip => {
                    self.summary.skipped += 1;
                    return Ok(());
                }
                OverLong::Truncate => {
                    masked.tokens.truncate(max_length);
                    masked.learn.truncate(max_length);
                }
            }
        }
        let example = with_targets(masked);
        if example.view().loss_tokens() == 0 {
            self.summary.skipped += 1;
        } else {
            self.summary.truncated += u64::from(length > max_length);
            self.store.push(example.view());
        }
        Ok(())
    }

    /// Cuts full sequences off the stream. One token beyond is needed: it is the last position's target.
    fn cut(&mut self) {
        let mut start = 0;
        while self.stream.len() - start > self.max_length {
            let tokens = &self.stream[start..start + self.max_length];
            let targets: Vec<i32> =
                self.stream[start + 1..=start + self.max_length].iter().map(|&token| token.cast_signed()).collect();
            self.store.push(ExampleRef { tokens, targets: &targets });
            start += self.max_length;
        }
        self.stream.drain(..start);
    }

    /// What is left of the stream becomes a sequence if it is full or the only one.
    fn close_stream(&mut self) {
        if self.stream.len() == self.max_length || (self.store.len() == 0 && self.stream.len() > 1) {
            let tokens = std::mem::take(&mut self.stream);
            let learn = vec![true; tokens.len()];
            self.store.push(with_targets(Masked { tokens, learn }).view());
        }
        self.summary.tail_tokens = self.stream.len();
    }

    fn finish(mut self) -> Result<Dataset, DataError> {
        self.close_stream();
        let Summary { rows, identical, .. } = self.summary;
        let max_length = self.max_length;
        match (self.store.len(), self.task) {
            (0, Task::Reward) => return Err(DataError::NoPairsLeft { rows, identical, max_length }),
            (0, _) => return Err(DataError::NothingLeft { rows, max_length }),
            _ => {}
        }
        self.store.finish();
        Ok(Dataset { store: self.store, summary: self.summary, group: self.task.group() })
    }
}

/// Position `i` is to predict token `i + 1`, if that one is to be learnt.
fn with_targets(masked: Masked) -> Example {
    let Masked { tokens, learn } = masked;
    let next = tokens.iter().zip(&learn).skip(1);
    let mut targets: Vec<i32> =
        next.map(|(&token, &learn)| if learn { token.cast_signed() } else { NO_LOSS }).collect();
    targets.push(NO_LOSS);
    Example { tokens, targets }
}
