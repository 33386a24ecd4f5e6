//! Makes a Parquet file of questions and answers, the same for the same seed: material for measuring.
//!
//! ```text
//! cargo run --release -p plimsoll-data --example make_rows -- rows.parquet 2000000 [SEED]
//! ```

#![expect(clippy::print_stdout, reason = "it says what it made")]

use std::error::Error;
use std::fs::File;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

const ROWS_PER_GROUP: u64 = 20_000;
const WORDS: [&str; 24] = [
    "ship", "cargo", "harbour", "draught", "line", "tide", "anchor", "crane", "ballast", "mast", "hold", "pilot",
    "rope", "storm", "captain", "barrel", "keel", "lantern", "signal", "voyage", "port", "deck", "chart", "wind",
];

/// A small multiplicative generator: the same rows on every machine.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn words(&mut self, least: u64, most: u64) -> String {
        let count = least + self.below(most - least + 1);
        (0..count).map(|_| WORDS[self.below(WORDS.len() as u64) as usize]).collect::<Vec<_>>().join(" ")
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, rows, seed @ ..] = &arguments[..] else { return Err("usage: make_rows FILE ROWS [SEED]".into()) };
    let rows: u64 = rows.parse()?;
    let mut numbers = Numbers(seed.first().map_or(Ok(1), |seed| seed.parse())?);
    let schema =
        parse_message_type("message rows { required binary prompt (UTF8); required binary response (UTF8); }")?;
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = SerializedFileWriter::new(File::create(path)?, Arc::new(schema), Arc::new(properties))?;
    let mut row = 0;
    while row < rows {
        let last = rows.min(row + ROWS_PER_GROUP);
        let (mut prompts, mut responses) = (Vec::new(), Vec::new());
        for number in row..last {
            prompts.push(ByteArray::from(format!("{number}: {}?", numbers.words(3, 20)).into_bytes()));
            responses.push(ByteArray::from(numbers.words(1, 20).into_bytes()));
        }
        let mut group = writer.next_row_group()?;
        for values in [&prompts, &responses] {
            let mut column = group.next_column()?.ok_or("two columns")?;
            column.typed::<ByteArrayType>().write_batch(values, None, None)?;
            column.close()?;
        }
        group.close()?;
        row = last;
    }
    writer.close()?;
    println!("{rows} rows, {:.1} MB in {path}", std::fs::metadata(path)?.len() as f64 / 1e6);
    Ok(())
}
