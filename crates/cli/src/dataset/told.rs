//! What a run says about its data: what the rows are, what became of them, and the first one as it will be learnt.

use plimsoll_data::{DataError, Dataset, Mode, NO_LOSS, Options, Row, Summary, shape_of};
use plimsoll_train::Outcome;

use super::{RunData, keep};
use crate::config::SourceEntry;
use crate::error::Failure;
use crate::printer::{ExampleText, Piece};

/// Rows looked at for one that shows the columns.
const ROWS_TO_SHOW: usize = 16;

/// A larger share of the time than this, spent waiting for data, is worth a word.
const WAIT_SHARE_MAX: f64 = 0.05;
/// Unless it is less than this in all.
const WAIT_SECONDS_MAX: f64 = 1.0;

/// What the rows of each source are taken for, and from which columns.
pub fn taken_for(entries: &[SourceEntry], options: &Options) -> Result<Vec<String>, DataError> {
    let sources = keep::sources(entries)?;
    let mut told = Vec::new();
    for source in sources.iter().map(|weighted| &weighted.source) {
        let shape = shape_of(source, options)?;
        let usable = |row: &Row| shape.read(row).is_ok();
        let row = source.all().take(ROWS_TO_SHOW).flatten().find(usable);
        let what = row.map_or(shape.name().to_owned(), |row| shape.explain(&row));
        told.push(format!("rows of {} are taken for {what}", source.name()));
    }
    Ok(told)
}

impl RunData {
    /// Where the data is kept, what its rows are, and what became of them.
    pub fn notes(&self) -> Vec<String> {
        let named = [("training data", Some(&self.train)), ("held-out data", self.eval.as_ref())];
        let counted = named.into_iter().filter_map(|(name, data)| Some(note(name, data?)));
        let mut notes = self.taken_for.clone();
        notes.push(self.kept.clone());
        notes.extend(counted);
        notes
    }

    /// The first example as it will be trained: one text, or the two of a pair.
    pub fn first_example(&self) -> Result<ExampleText, Failure> {
        let group = self.train.group();
        let examples = self.train.first(group)?;
        let mut texts = Vec::new();
        for (side, example) in examples.iter().enumerate() {
            // A position's target is the token behind it.
            let learnt = |position: usize| position > 0 && example.targets[position - 1] != NO_LOSS;
            let marks: Vec<bool> = (0..example.tokens.len()).map(learnt).collect();
            let count = marks.iter().filter(|&&learnt| learnt).count();
            let lead = match (group, side) {
                (1, _) => format!("first example, {} tokens, {count} of them learnt:", marks.len()),
                (_, 0) => format!("first pair, the preferred side, {} tokens:", marks.len()),
                _ => format!("the other side, {} tokens:", marks.len()),
            };
            let mut pieces = Vec::new();
            let mut start = 0;
            for run in marks.chunk_by(|a, b| a == b) {
                let tokens = &example.tokens[start..start + run.len()];
                pieces.push(Piece { text: self.tokenizer.decode(tokens, false)?, learnt: run[0] });
                start += run.len();
            }
            texts.push((lead, pieces));
        }
        Ok(ExampleText(texts))
    }

    /// Rows that a stream came by and left out; of other data the notes have told.
    pub fn met(&self) -> Option<String> {
        let met = self.train.bad_rows_met();
        let told = self.train.summary().bad;
        (met > told).then(|| format!("training data: {met} rows were left out on the way because they cannot be read"))
    }

    /// Whether training had to wait for its data, and what helps.
    pub fn verdict(&self, outcome: &Outcome) -> Option<String> {
        let seconds = outcome.steps as f64 * outcome.step_ms / 1e3;
        verdict(self.mode, outcome.data_wait_share, seconds)
    }
}

/// `seconds` is what the updates took.
fn verdict(mode: Mode, share: f64, seconds: f64) -> Option<String> {
    if share <= WAIT_SHARE_MAX || share * seconds < WAIT_SECONDS_MAX {
        return None;
    }
    let way_out = match mode {
        Mode::Streamed => "tokenise once with data.mode: cached, or give more threads with data.workers",
        Mode::Cached => "put data.cache on a faster disk, or hold the data with data.mode: memory",
        Mode::Memory => "leave a core to the thread that fills micro-batches, or make them larger",
    };
    Some(format!("training waited for data {:.0} % of the time\nhint: {way_out}", 100.0 * share))
}

fn note(name: &str, data: &Dataset) -> String {
    let summary = data.summary();
    let (Some(sequences), Some(tokens), Some(learnt)) = (data.sequences(), data.total_tokens(), data.loss_tokens())
    else {
        return format!("{name}: {} of a stream that is not counted", summary.shape.name());
    };
    let learnt = if data.group() > 1 { String::new() } else { format!(", {learnt} of them learnt") };
    let first: String = summary.bad_first.iter().map(|line| format!("\n  {line}")).collect();
    format!("{name}: {sequences} sequences, {tokens} tokens{learnt}{}{first}", left_out(summary))
}

fn left_out(summary: &Summary) -> String {
    let told: Vec<String> = [
        (summary.truncated, "shortened"),
        (summary.skipped, "left out because they are too long or have no answer"),
        (summary.identical, "left out because both answers are the same"),
        (summary.bad, "left out because they cannot be read"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    if told.is_empty() { String::new() } else { format!("; of {} rows, {}", summary.rows, told.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_told_with_a_way_out() {
        let told = verdict(Mode::Streamed, 0.25, 100.0).expect("a quarter of the time");
        assert!(told.contains("25 %") && told.contains("data.mode: cached") && told.contains("data.workers"), "{told}");
        assert!(verdict(Mode::Cached, 0.06, 100.0).expect("too long").contains("data.cache"));
        assert_eq!(verdict(Mode::Streamed, 0.05, 1e6), None);
        assert_eq!(verdict(Mode::Streamed, 0.5, 1.0), None, "half a second is not worth a word");
    }
}
