//! What a run reports about its data: the format of the rows, what became of them, and whether training waited.

use plimsoll_data::{Dataset, HoldOut, Sources, StorageMode, Summary};
use plimsoll_train::Outcome;

use super::RunData;
use crate::note::{DetectedFormat, Note};
use crate::units::{Things, counted};

/// Waiting for data is reported above this fraction of the time,
const WAIT_FRACTION_MAX: f64 = 0.05;
/// unless it is less than this in all.
const WAIT_SECONDS_MAX: f64 = 1.0;

/// What the rows of each source are, and in which columns.
pub fn formats(sources: &Sources) -> Vec<DetectedFormat> {
    let formats = sources.formats();
    formats.map(|(source, _, columns)| DetectedFormat { source, format: columns.to_owned() }).collect()
}

impl RunData {
    /// The format of the rows, where the data is stored, and what became of it.
    pub fn notes(&self) -> Vec<Note> {
        let named = [("training data", Some(&self.train)), ("evaluation data", self.eval.as_ref())];
        let counted = named.into_iter().filter_map(|(name, data)| Some(Note::Dataset(described(name, data?))));
        let mut notes: Vec<Note> = self.formats.iter().cloned().map(Note::Format).collect();
        notes.push(Note::Stored(self.stored.clone()));
        notes.extend(counted);
        notes
    }

    /// Unusable rows that a stream skipped during training; those of other data are in the notes.
    pub fn skipped(&self) -> Option<String> {
        let skipped = self.train.bad_rows_met();
        (skipped > self.train.summary().bad)
            .then(|| format!("training data: {skipped} unreadable rows skipped while streaming"))
    }

    /// Whether training had to wait for its data, and what helps.
    pub fn waiting(&self, outcome: &Outcome) -> Option<String> {
        let seconds = outcome.steps as f64 * outcome.step_ms / 1e3;
        waiting(self.stored.mode, outcome.data_wait_share, seconds)
    }
}

/// `seconds` is what the updates took.
fn waiting(mode: StorageMode, fraction: f64, seconds: f64) -> Option<String> {
    if fraction <= WAIT_FRACTION_MAX || fraction * seconds < WAIT_SECONDS_MAX {
        return None;
    }
    let hint = match mode {
        StorageMode::Streamed => "tokenise once with data.mode: cached, or use more threads with data.workers",
        StorageMode::Cached => "put data.cache on a faster disk, or use data.mode: memory",
        StorageMode::Memory => "leave a core to the thread that fills micro-batches, or use larger micro-batches",
    };
    Some(format!("training waited for data {:.0} % of the time\nhint: {hint}", 100.0 * fraction))
}

fn described(name: &str, data: &Dataset) -> String {
    let summary = data.summary();
    let (Some(sequences), Some(tokens), Some(with_loss)) = (data.sequences(), data.total_tokens(), data.loss_tokens())
    else {
        let side = data.hold_out().map_or_else(String::new, |side| {
            let share = 100.0 * side.share;
            if side.held {
                format!("; {share} % of the rows, held out")
            } else {
                format!("; {share} % of the rows are held out")
            }
        });
        return format!("{name}: a stream of {} rows, not counted{side}", summary.format.name());
    };
    let with_loss = if data.group() > 1 { String::new() } else { format!(", {with_loss} with loss") };
    let first: String = summary.bad_first.iter().map(|line| format!("\n  {line}")).collect();
    let rows = counted(summary.rows, Things::Rows);
    let divided = match (summary.other_side, data.hold_out()) {
        (0, _) | (_, None) => String::new(),
        (others, Some(HoldOut { held: false, .. })) => format!("; {rows}, {others} more held out"),
        (others, Some(HoldOut { held: true, .. })) => format!("; {rows} held out of {}", summary.rows + others),
    };
    let (sequences, tokens) = (counted(sequences, Things::Sequences), counted(tokens, Things::Tokens));
    format!("{name}: {sequences}, {tokens}{with_loss}{divided}{}{first}", dropped(summary))
}

fn dropped(summary: &Summary) -> String {
    let (truncated, skipped) = (summary.truncated, summary.skipped);
    let (identical, bad) = (summary.identical, summary.bad);
    let counts: Vec<String> = [
        (truncated, format!("{truncated} truncated")),
        (skipped, format!("{skipped} skipped: too long or without an answer")),
        (identical, format!("{identical} skipped: both answers are identical")),
        (bad, format!("{bad} skipped: unreadable")),
    ]
    .into_iter()
    .filter_map(|(count, text)| (count > 0).then_some(text))
    .collect();
    if counts.is_empty() { String::new() } else { format!("; of {} rows, {}", summary.rows, counts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_reported_with_a_hint() {
        let text = waiting(StorageMode::Streamed, 0.25, 100.0).expect("a quarter of the time");
        assert!(text.contains("25 %") && text.contains("data.mode: cached") && text.contains("data.workers"), "{text}");
        assert!(waiting(StorageMode::Cached, 0.06, 100.0).expect("too long").contains("data.cache"));
        assert_eq!(waiting(StorageMode::Streamed, 0.05, 1e6), None);
        assert_eq!(waiting(StorageMode::Streamed, 0.5, 1.0), None, "half a second is not reported");
    }
}
