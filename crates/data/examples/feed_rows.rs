//! Feeds updates from a file in one of the three modes to a consumer that takes some time per micro-batch, and says how
//! fast it was and what the process held.
//!
//! ```text
//! cargo run --release -p plimsoll-data --example feed_rows -- rows.parquet auto|memory|cached|streamed \
//!     [seconds=30] [ms=10] [sequences=256] [tokens=8192] [buffer_mib=96] [workers=2] [cache=FOLDER] [busy=0]
//! ```
//!
//! With `busy=1` the consumer keeps a core at work instead of waiting, as training on the CPU does.

#![expect(clippy::print_stdout, reason = "it prints its findings")]

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_data::{
    Amount, Capacity, Content, Dataset, Feed, FeedOptions, Limits, Options, Progress, Source, Sources, StorageMode,
    Tokenizer, Weighted, choose, quickstart,
};

const MAX_LENGTH: usize = 512;

/// Of the process, in MiB.
fn resident(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

struct Settings(HashMap<String, String>);

impl Settings {
    fn number(&self, name: &str, default: u64) -> Result<u64, Box<dyn Error>> {
        Ok(self.0.get(name).map_or(Ok(default), |text| text.parse())?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, mode, rest @ ..] = &arguments[..] else {
        return Err("usage: feed_rows FILE MODE [name=value …]".into());
    };
    let pairs = rest.iter().filter_map(|pair| pair.split_once('='));
    let settings = Settings(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect());
    let data = open(file, mode, &settings)?;
    consume(&data, &settings)
}

fn open(file: &str, mode: &str, settings: &Settings) -> Result<Dataset, Box<dyn Error>> {
    // Bytes as tokens, words as what is looked up, without a template: tokenising is cheap, so reading shows.
    let [(_, tokenizer), _] = quickstart::tokenizer_files();
    let tokenizer = tokenizer.replace("\"use_regex\": false", "\"use_regex\": true");
    let tokenizer = Tokenizer::from_bytes("bytes", tokenizer.as_bytes(), Some("{\"eos_token\": \"<|end|>\"}"))?;
    let mut options = Options::new(Content::Answers, MAX_LENGTH);
    options.workers = settings.number("workers", options.workers as u64)? as usize;
    let sources = Sources::open(vec![Weighted::alone(Source::open(&[file])?)], &options)?;
    let began = Instant::now();
    let mut last = Progress::default();
    let mut observe = |progress: &Progress| last = *progress;
    let folder = settings.0.get("cache").map_or("token-cache", String::as_str);
    let (sources, mode) = match mode {
        "auto" => {
            let limits = Limits { host_bytes: 256 << 20, folder: Path::new(folder) };
            let (sources, choice) = choose(sources, &tokenizer, &options, &limits)?;
            println!("{}, because {}", choice.mode, choice.why);
            (sources, if choice.mode == StorageMode::Streamed { "streamed" } else { "cached" })
        }
        mode => (sources, mode),
    };
    let data = match mode {
        "memory" => Dataset::in_memory(sources, &tokenizer, &options, &mut observe)?,
        "cached" => Dataset::cached(sources, &tokenizer, &options, Path::new(folder), &mut observe)?,
        "streamed" => {
            let buffer = settings.number("buffer_mib", 96)? << 20;
            Dataset::streamed(sources, Arc::new(tokenizer), &options, buffer)?
        }
        other => return Err(format!("{other}: not one of auto, memory, cached, streamed").into()),
    };
    let took = began.elapsed().as_secs_f64();
    println!(
        "{mode}: opened in {took:.1} s, {} rows tokenised ({:.0} rows/s, {:.1} MB/s), RSS {:.1} MiB, peak {:.1} MiB",
        last.rows,
        last.rows as f64 / took,
        last.bytes_read as f64 / took / 1e6,
        resident("VmRSS:"),
        resident("VmHWM:")
    );
    Ok(data)
}

fn consume(data: &Dataset, settings: &Settings) -> Result<(), Box<dyn Error>> {
    let tokens = settings.number("tokens", 8192)? as usize;
    let capacity = Capacity::one(tokens, tokens / 8);
    let amount = Amount::Sequences(settings.number("sequences", 256)?);
    let mut feed = Feed::start(data, &FeedOptions::new(capacity, MAX_LENGTH, amount, 1))?;
    println!("planned: {:.1} MiB", (feed.planned_bytes() + data.footprint().resident_bytes) as f64 / (1 << 20) as f64);
    let (pause, busy) = (Duration::from_millis(settings.number("ms", 10)?), settings.number("busy", 0)? > 0);
    let seconds = settings.number("seconds", 30)?;
    let began = Instant::now();
    let (mut done, mut batches, mut updates, mut sum, mut told) = (0u64, 0u64, 0u64, 0i64, 0);
    let mut fill = 0.0;
    while began.elapsed().as_secs() < seconds {
        let head = feed.next_update()?;
        while let Some(batch) = feed.next_batch()? {
            let until = Instant::now() + pause;
            sum = sum.wrapping_add(batch.main().tokens.iter().map(|&token| i64::from(token)).sum::<i64>());
            if busy {
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            } else {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
            }
            batches += 1;
        }
        done += head.tokens;
        fill += head.fill_rate;
        updates += 1;
        let elapsed = began.elapsed();
        if elapsed.as_secs() / 5 > told {
            told = elapsed.as_secs() / 5;
            let rate = done as f64 / elapsed.as_secs_f64();
            println!(
                "{:5.1} s: {rate:.0} tokens/s, RSS {:.1} MiB, peak {:.1} MiB",
                elapsed.as_secs_f64(),
                resident("VmRSS:"),
                resident("VmHWM:")
            );
        }
    }
    let (took, waited) = (began.elapsed().as_secs_f64(), feed.waited());
    println!(
        "{:.0} tokens/s, {batches} micro-batches in {updates} updates, fill {:.3}, waited {:.3} s ({:.2} %) in {} of {} \
         requests, peak {:.1} MiB, checksum {sum}",
        done as f64 / took,
        fill / updates as f64,
        waited.total.as_secs_f64(),
        100.0 * waited.total.as_secs_f64() / took,
        waited.empty,
        waited.asked,
        resident("VmHWM:")
    );
    Ok(())
}
