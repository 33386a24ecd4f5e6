//! Datasets of every mode, and what a feed makes of them.

use std::path::Path;
use std::sync::Arc;

use plimsoll_data::{
    Amount, Capacity, Content, Cursor, DataError, Dataset, Example, Feed, FeedOptions, IntoSources, MicroBatch,
    Options, PerStream, StreamCapacity, TokenStream, UpdateHead, Weighted,
};
use serde_json::{Value, json};

use crate::fixtures::{self, Folder, plain_tokenizer};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Memory,
    Cached,
    /// With a buffer of so many bytes.
    Streamed(u64),
}

pub const MODES: [Mode; 3] = [Mode::Memory, Mode::Cached, Mode::Streamed(10_000)];
pub const MAX_LENGTH: usize = 16;

/// Rows that tell their number, with answers of different lengths.
pub fn numbered(from: usize, count: usize) -> Vec<Value> {
    (from..from + count).map(|i| json!({"prompt": format!("{i}?"), "response": "x".repeat(1 + i % 7)})).collect()
}

/// Rows in several files, `per_file` in each.
pub fn write_files(folder: &Folder, name: &str, rows: &[Value], per_file: usize) -> Vec<String> {
    let write = |(index, rows): (usize, &[Value])| {
        let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
        let path = folder.write(&format!("{name}-{index:03}.jsonl"), lines.join("\n"));
        path.to_str().expect("UTF-8").to_owned()
    };
    rows.chunks(per_file).enumerate().map(write).collect()
}

pub fn source(files: &[impl AsRef<Path>]) -> Weighted {
    Weighted::alone(fixtures::open(files).expect("opens"))
}

pub fn make(mode: Mode, sources: impl IntoSources, cache: &Path, options: &Options) -> Result<Dataset, DataError> {
    let tokenizer = plain_tokenizer();
    match mode {
        Mode::Memory => Dataset::in_memory(sources, &tokenizer, options, &mut |_| {}),
        Mode::Cached => Dataset::cached(sources, &tokenizer, options, cache, &mut |_| {}),
        Mode::Streamed(buffer) => Dataset::streamed(sources, Arc::new(tokenizer), options, buffer),
    }
}

/// The most tokens of a source; not that of the main stream.
pub const SOURCE_LENGTH: usize = 24;

/// Sources that tell their number and targets, or texts with a class.
pub fn rows_of(content: Content, count: usize) -> Vec<Value> {
    match content {
        Content::Text => (0..count).map(|i| json!({"text": format!("{i} ").repeat(1 + i % 23)})).collect(),
        Content::Answers => numbered(0, count),
        Content::Pairs => {
            (0..count).map(|i| json!({"prompt": format!("{i}"), "chosen": "yes", "rejected": "no"})).collect()
        }
        Content::Labelled => {
            (0..count).map(|i| json!({"text": format!("{i} {}", "x".repeat(i % 9)), "label": i % 5})).collect()
        }
        Content::SourceTarget { .. } => (0..count)
            .map(|i| json!({"prompt": format!("{i} {}", "s".repeat(i % 17)), "response": "t".repeat(i % 13)}))
            .collect(),
    }
}

/// Every kind of content.
pub const CONTENTS: [Content; 5] =
    [Content::Text, Content::Answers, Content::Pairs, Content::Labelled, Content::SourceTarget { decoder_start: 7 }];

pub fn options_for(content: Content) -> Options {
    Options { max_source_length: SOURCE_LENGTH, ..Options::new(content, MAX_LENGTH) }
}

/// As `feed_options`, for data with any number of streams.
pub fn feed_options_for(content: Content, amount: Amount, seed: u64) -> FeedOptions {
    if content.streams() == 1 {
        return feed_options(amount, seed);
    }
    let stream = |tokens| StreamCapacity { tokens, sequences: 6 };
    let capacity = PerStream::with_source(stream(48), stream(60));
    FeedOptions::new(capacity, PerStream::with_source(MAX_LENGTH, SOURCE_LENGTH), amount, seed)
}

pub fn feed_options(amount: Amount, seed: u64) -> FeedOptions {
    FeedOptions::new(Capacity::one(48, 6), MAX_LENGTH, amount, seed)
}

/// A sequence's number in its update, and its tokens; behind them its source and its class, if it has any.
pub type Numbered = (usize, Vec<i32>);

/// Stand before a source and before a class.
const SOURCE_MARK: i32 = -7;
const LABEL_MARK: i32 = -8;

/// An example in the same form.
pub fn flat(example: &Example) -> Vec<i32> {
    let mut tokens: Vec<i32> = example.tokens.iter().map(|&t| t as i32).collect();
    if !example.source.is_empty() {
        tokens.push(SOURCE_MARK);
        tokens.extend(example.source.iter().map(|&t| t as i32));
    }
    tokens.extend(example.label.into_iter().flat_map(|label| [LABEL_MARK, label]));
    tokens
}

/// The sequences of a micro-batch, each with its number in the update. Checks that they are whole and in place.
pub fn unpacked(batch: &MicroBatch, max_length: usize) -> Vec<Numbered> {
    let mut sequences = sequences_of(batch.main(), max_length);
    assert_eq!(batch.targets.len(), batch.len());
    for stream in &batch.streams[1..] {
        let sources = sequences_of(stream, SOURCE_LENGTH);
        assert_eq!(sources.len(), sequences.len());
        for ((number, tokens), (source_number, source)) in sequences.iter_mut().zip(sources) {
            assert_eq!(*number, source_number);
            tokens.push(SOURCE_MARK);
            tokens.extend(source);
        }
    }
    assert!(batch.labels.is_empty() || batch.labels.len() == sequences.len());
    for ((_, tokens), label) in sequences.iter_mut().zip(&batch.labels) {
        tokens.extend([LABEL_MARK, *label]);
    }
    sequences
}

fn sequences_of(stream: &TokenStream, max_length: usize) -> Vec<Numbered> {
    let bounds = stream.cu_seqlens.windows(2).map(|ends| ends[0] as usize..ends[1] as usize);
    let sequence = |range: std::ops::Range<usize>| {
        let number = stream.row_ids[range.start] as usize / max_length;
        for (position, slot) in range.clone().enumerate() {
            assert_eq!(stream.positions[slot] as usize, position);
            assert_eq!(stream.row_ids[slot] as usize, number * max_length + position);
        }
        (number, stream.tokens[range].to_vec())
    };
    bounds.map(sequence).collect()
}

/// One update: its head, and its sequences by number. Checks the head against what comes.
pub fn next_update(feed: &mut Feed, capacity: Capacity) -> Result<(UpdateHead, Vec<Numbered>), DataError> {
    let head = feed.next_update()?;
    let (mut sequences, mut tokens, mut batches) = (Vec::new(), 0, 0);
    while let Some(batch) = feed.next_batch()? {
        assert_eq!(batch.streams.len(), capacity.len());
        for (stream, capacity) in batch.streams.iter().zip(capacity.iter()) {
            assert!(stream.len() <= capacity.tokens && stream.sequences() <= capacity.sequences);
        }
        tokens += batch.len() as u64;
        batches += 1;
        sequences.extend(unpacked(&batch, MAX_LENGTH));
    }
    assert_eq!((head.micro_batches, head.own_tokens, head.own_sequences), (batches, tokens, sequences.len() as u64));
    let slots = (batches as usize * capacity.main().tokens) as f64;
    assert!(batches == 0 || (head.fill_rate - tokens as f64 / slots).abs() < 1e-9);
    sequences.sort();
    Ok((head, sequences))
}

/// So many updates over all ranks: the sequences in the order of training, and the cursor behind them.
pub fn take(data: &Dataset, options: &FeedOptions, ranks: usize, updates: usize) -> (Vec<Vec<i32>>, Option<Cursor>) {
    let start = |rank| Feed::start(data, &FeedOptions { rank, ranks, ..options.clone() }).expect("starts");
    let mut feeds: Vec<Feed> = (0..ranks).map(start).collect();
    let mut seen = Vec::new();
    let mut cursor = options.cursor.clone();
    for _ in 0..updates {
        let (mut update, mut total) = (Vec::new(), 0);
        for feed in &mut feeds {
            let (head, own) = next_update(feed, options.capacity).expect("feeds");
            assert_eq!(feed.cursor(), &head.cursor);
            update.extend(own);
            total = head.sequences;
            cursor = Some(head.cursor);
        }
        update.sort();
        // Together the ranks have each sequence of the update once.
        assert!(update.iter().map(|(number, _)| *number as u64).eq(0..total));
        seen.extend(update.into_iter().map(|(_, tokens)| tokens));
    }
    (seen, cursor)
}
