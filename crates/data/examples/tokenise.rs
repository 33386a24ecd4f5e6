//! Times the way from a file to tokens with their loss mask: `tokenise ROWS TOKENIZER_FOLDER [THREADS]`. Prints one JSON
//! line, as `benches/peers/tokenise_hf.py` does for its peer.

use std::io::Write;
use std::time::Instant;

use plimsoll_data::{Content, EncodedRow, Encoder, Format, Options, Row, Source, Tokenizer};
use rayon::prelude::*;

/// Rows handed to the threads at a time.
const ROWS_AT_ONCE: usize = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rows, folder, rest @ ..] = &arguments[..] else {
        return Err("usage: tokenise ROWS TOKENIZER_FOLDER [THREADS]".into());
    };
    let threads: usize = rest.first().map_or(Ok(2), |text| text.parse())?;
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    let tokenizer = Tokenizer::from_folder(folder)?;
    let source = Source::open(&[rows])?;
    let first = source.all().next().ok_or("no rows")??;
    let encoder = Encoder::new(&tokenizer, Format::Auto.resolve(&first)?, &Options::new(Content::Answers, 2048))?;

    let (mut count, mut text_bytes, mut tokens, mut learnt) = (0, 0, 0, 0);
    // Of all ids but the end that is put behind every row: the same as the peer's where the tokens are.
    let mut id_sum = 0u64;
    let start = Instant::now();
    let mut all = source.all();
    loop {
        let chunk: Vec<Row> = all.by_ref().take(ROWS_AT_ONCE).collect::<Result<_, _>>()?;
        if chunk.is_empty() {
            break;
        }
        let encoded: Vec<_> = chunk.par_iter().map(|row| encoder.encode(row)).collect();
        for (row, encoded) in chunk.iter().zip(encoded) {
            if let EncodedRow::One(masked) = encoded? {
                tokens += masked.tokens.len();
                id_sum += masked.tokens.iter().rev().skip(1).map(|id| u64::from(*id)).sum::<u64>();
                learnt += masked.learn.iter().filter(|learn| **learn).count();
            }
            text_bytes += row.columns.values().filter_map(|value| value.as_str()).map(str::len).sum::<usize>();
            count += 1;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let line = serde_json::json!({
        "rows": count, "text_bytes": text_bytes, "tokens": tokens, "learnt": learnt, "id_sum": id_sum, "threads": threads,
        "seconds": (seconds * 100.0).round() / 100.0,
        "rows_per_s": (f64::from(count) / seconds).round(),
        "mb_per_s": (text_bytes as f64 / seconds / 1e4).round() / 100.0,
    });
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}
