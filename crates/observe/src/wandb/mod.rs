//! An offline run of W&B, written without its package: `wandb sync` uploads it.

mod log;
mod message;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_train::Event;
use serde_json::{Value, json};

use crate::ObserveError;
use log::{FILE_HEAD, framed};
use message::Item;

const GIB: f64 = (1u64 << 30) as f64;

/// What the run is called there, and its configuration by dotted keys.
pub struct Description<'a> {
    pub project: &'a str,
    pub name: &'a str,
    pub config: Vec<(String, Value)>,
}

/// The file `wandb/offline-run-TIME-ID/run-ID.wandb` of a run folder. A run that goes on writes it anew from its metrics,
/// under the same id, so that each update is there once.
pub struct OfflineRun {
    path: PathBuf,
    file: File,
    bytes: u64,
    records: u64,
    /// Of training, those before the run was resumed included.
    start_s: f64,
    /// What of the newest row is known: an evaluation joins its update.
    row: Option<(u64, Row)>,
    summary: Row,
}

type Row = BTreeMap<String, Value>;

impl OfflineRun {
    pub fn create(run: &Path, description: &Description<'_>) -> Result<Self, ObserveError> {
        let metrics = run.join("metrics.jsonl");
        let trained_s: f64 = lines(&metrics).map(|line| took_s(&line)).sum();
        let now = unix_seconds();
        let (folder, id) = match earlier(&run.join("wandb")) {
            Some(earlier) => earlier,
            None => fresh(&run.join("wandb"), now),
        };
        fs::create_dir_all(folder.join("files")).map_err(|e| ObserveError::io(&folder, e))?;
        let path = folder.join(format!("run-{id}.wandb"));
        let partial = folder.join(format!("run-{id}.wandb.partial"));
        let file = File::create(&partial).map_err(|e| ObserveError::io(&partial, e))?;
        let start_s = now - trained_s;
        let (row, summary) = (None, Row::new());
        let mut offline = Self { path: partial.clone(), file, bytes: 0, records: 0, start_s, row, summary };
        offline.begin(&id, description)?;
        let mut at_s = start_s;
        for line in lines(&metrics) {
            at_s += took_s(&line);
            offline.line(&line, at_s)?;
        }
        fs::rename(&partial, &path).map_err(|e| ObserveError::io(&path, e))?;
        Ok(Self { path, ..offline })
    }

    /// Curves of an update or of an evaluation. Other events have none.
    pub fn record(&mut self, event: &Event) -> Result<(), ObserveError> {
        let line = match event {
            Event::Step(step) => json!(step),
            Event::Eval { step, eval } => json!({"step": step, "eval": eval}),
            _ => return Ok(()),
        };
        self.line(&line, unix_seconds())
    }

    /// The run has ended with this exit code.
    pub fn finish(mut self, code: u8) -> Result<(), ObserveError> {
        self.flush()?;
        let runtime_s = (unix_seconds() - self.start_s).max(0.0) as u64;
        self.write(|number| message::exit(number, code, runtime_s))?;
        self.write(message::footer)
    }

    fn begin(&mut self, id: &str, description: &Description<'_>) -> Result<(), ObserveError> {
        self.put(&FILE_HEAD)?;
        self.write(message::header)?;
        let split = |(key, value): &(String, Value)| (key.split('.').map(str::to_owned).collect(), value.clone());
        let config: Vec<Item> = description.config.iter().map(split).collect();
        let Description { project, name, .. } = *description;
        let run = message::Run { id, project, name, start: self.start_s.max(0.0) as u64, config: &config };
        self.write(|number| message::run(number, &run))
    }

    /// A line of the metrics.
    fn line(&mut self, line: &Value, at_s: f64) -> Result<(), ObserveError> {
        let Some(step) = line["step"].as_u64() else { return Ok(()) };
        if self.row.as_ref().is_some_and(|(row, _)| *row != step) {
            self.flush()?;
        }
        let runtime_s = (at_s - self.start_s).max(0.0);
        let (_, row) = self.row.get_or_insert_with(|| (step, Row::new()));
        let own = [("_step", json!(step)), ("_timestamp", json!(at_s)), ("_runtime", json!(runtime_s))];
        row.extend(own.map(|(name, value)| (name.to_owned(), value)));
        row.extend(curves(line));
        Ok(())
    }

    /// Writes the row that is being made, and what it changes of the summary.
    fn flush(&mut self) -> Result<(), ObserveError> {
        let Some((step, row)) = self.row.take() else { return Ok(()) };
        let items =
            |row: &Row| row.iter().map(|(name, value)| (vec![name.clone()], value.clone())).collect::<Vec<Item>>();
        self.write(|number| message::history(number, step, &items(&row)))?;
        let evaluated = row.keys().any(|name| name.starts_with("eval/"));
        self.summary.extend(row);
        if evaluated {
            let summary = items(&self.summary);
            self.write(|number| message::summary(number, &summary))?;
        }
        Ok(())
    }

    fn write(&mut self, record: impl FnOnce(u64) -> Vec<u8>) -> Result<(), ObserveError> {
        self.records += 1;
        let framed = framed(&record(self.records), self.bytes);
        self.put(&framed)
    }

    /// In one write, so that a reader finds a record whole.
    fn put(&mut self, bytes: &[u8]) -> Result<(), ObserveError> {
        self.file.write_all(bytes).map_err(|e| ObserveError::io(&self.path, e))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// The lines of a run's metrics, one after another: there may be many. None for a run that begins.
fn lines(metrics: &Path) -> impl Iterator<Item = Value> {
    let files = File::open(metrics).into_iter();
    files
        .flat_map(|file| BufReader::new(file).lines().map_while(Result::ok))
        .filter_map(|line| serde_json::from_str(&line).ok())
}

fn took_s(line: &Value) -> f64 {
    let ms = line["step_ms"].as_f64().or_else(|| line["eval"]["ms"].as_f64());
    ms.unwrap_or(0.0) / 1e3
}

/// The names of the curves are those that TensorBoard has.
fn curves(line: &Value) -> Row {
    let (group, values) = if line["eval"].is_object() { ("eval", &line["eval"]) } else { ("train", line) };
    let mut row = Row::new();
    for (name, value) in values.as_object().into_iter().flatten() {
        // JSON has no such numbers; W&B writes them as words.
        let shown = if value.is_null() { json!("NaN") } else { value.clone() };
        let gib = || json!(value.as_f64().unwrap_or(0.0) / GIB);
        let (name, shown) = match name.as_str() {
            "step" | "tokens" | "sequences" | "ms" | "bleu_rows" | "major_faults" => continue,
            "host_rss_bytes" => ("memory/host_gib".to_owned(), gib()),
            "gpu_used_bytes" if value.as_u64() > Some(0) => ("memory/gpu_gib".to_owned(), gib()),
            name if name.ends_with("_bytes") => continue,
            "tokens_per_s" | "step_ms" | "data_wait_ms" | "forward_backward_ms" | "update_ms" | "fill_rate" => {
                (format!("speed/{name}"), shown)
            }
            name if shown.is_number() || shown.is_string() => (format!("{group}/{name}"), shown),
            _ => continue,
        };
        row.insert(name, shown);
    }
    row
}

/// The offline run that an earlier process wrote into this folder.
fn earlier(folder: &Path) -> Option<(PathBuf, String)> {
    let found = fs::read_dir(folder).ok()?.filter_map(Result::ok).find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (_, id) = name.strip_prefix("offline-run-")?.rsplit_once('-')?;
        Some((entry.path(), id.to_owned()))
    });
    found.filter(|(_, id)| id.len() == ID_CHARS)
}

const ID_CHARS: usize = 8;

/// A folder for a new run. Its id is drawn from the time and the process.
fn fresh(folder: &Path, now: f64) -> (PathBuf, String) {
    const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut state = now.to_bits() ^ u64::from(std::process::id()).rotate_left(40);
    let mut letter = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        char::from(LETTERS[((mixed ^ mixed >> 31) % 36) as usize])
    };
    let id: String = (0..ID_CHARS).map(|_| letter()).collect();
    (folder.join(format!("offline-run-{}-{id}", stamp(now as u64))), id)
}

/// A time as `20260728_101530`, in UTC.
fn stamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March: what is left over of four hundred of them is known at every step.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (year + era * 400 + u64::from(month >= 10), if month < 10 { month + 3 } else { month - 9 });
    format!("{year:04}{month:02}{date:02}_{:02}{:02}{:02}", rest / 3_600, rest / 60 % 60, rest % 60)
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_calendar_times() {
        let check = |seconds, expected: &str| assert_eq!(stamp(seconds), expected);
        check(0, "19700101_000000");
        check(951_782_400, "20000229_000000");
        check(1_709_251_199, "20240229_235959");
        check(1_709_251_200, "20240301_000000");
        check(1_767_225_599, "20251231_235959");
    }

    #[test]
    fn curves_are_called_as_elsewhere() {
        let step = json!({"step": 3, "loss": null, "tokens_per_s": 10.5, "host_rss_bytes": 1u64 << 30, "gpu_used_bytes": 0,
            "host_swapped_bytes": 7, "accuracy": 0.5});
        let names: Vec<String> = curves(&step).into_keys().collect();
        assert_eq!(names, ["memory/host_gib", "speed/tokens_per_s", "train/accuracy", "train/loss"]);
        assert_eq!(curves(&step)["train/loss"], json!("NaN"));
        let eval = json!({"step": 3, "eval": {"loss": 1.5, "tokens": 9, "ms": 2.0, "bleu": 30.0}});
        assert_eq!(
            curves(&eval),
            Row::from([("eval/bleu".to_owned(), json!(30.0)), ("eval/loss".to_owned(), json!(1.5))])
        );
    }

    /// A run that goes on has its file anew, with the same id and the updates of before.
    #[test]
    fn a_run_that_goes_on_keeps_its_id() {
        let folder = tempfile::TempDir::new().unwrap();
        let run = folder.path();
        let files = || {
            let folder = fs::read_dir(run.join("wandb")).unwrap().next().unwrap().unwrap().path();
            let mut names: Vec<String> =
                fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        let description = || Description { project: "p", name: "n", config: vec![("a.b".to_owned(), json!(1))] };
        OfflineRun::create(run, &description()).unwrap().finish(130).unwrap();
        let before = files();
        fs::write(run.join("metrics.jsonl"), "{\"step\":1,\"loss\":0.25,\"step_ms\":2000.0}\n").unwrap();
        let offline = OfflineRun::create(run, &description()).unwrap();
        assert!(offline.start_s < unix_seconds() - 1.9, "training began before");
        offline.finish(0).unwrap();
        assert_eq!(files(), before);
        assert_eq!(fs::read_dir(run.join("wandb")).unwrap().count(), 1);
        let text =
            fs::read(run.join("wandb").read_dir().unwrap().next().unwrap().unwrap().path().join(&before[1])).unwrap();
        assert!(text.windows(10).any(|part| part == b"train/loss"), "{before:?}");
    }
}
