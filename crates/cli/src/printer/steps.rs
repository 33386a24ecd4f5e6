//! One aligned line per update.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use plimsoll_run::{ExampleText, Note, bytes, duration};
use plimsoll_speech::Language;
use plimsoll_train::Metrics;
use unicode_width::UnicodeWidthStr;

use super::example::render;
use super::{Printer, Progress, Table, clean, joined};

/// Of a metric's column, unless its name is longer.
const METRIC_WIDTH: usize = 8;

/// A line at most this often on a terminal, where nobody says how often.
const SHOWN_EVERY: Duration = Duration::from_secs(1);

/// Columns that a narrow terminal does without, in this order.
const DISPENSABLE: [&str; 4] = ["ms/step", "memory", "grad norm", "lr"];

/// How many updates a run has, and which of their lines are shown.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub updates: u64,
    /// Every so many updates; `None`: every one, or about one a second on a terminal.
    pub every: Option<u64>,
    /// What an update is expected to take.
    pub update: Duration,
}

/// What one update did.
#[derive(Clone, Debug)]
pub struct StepLine {
    pub step: u64,
    pub loss: f64,
    pub metrics: Metrics,
    pub lr: f64,
    pub grad_norm: f64,
    pub tokens_per_s: f64,
    pub step_ms: f64,
    /// In use on the device that trains.
    pub used_bytes: u64,
}

/// What an evaluation found.
#[derive(Clone, Debug)]
pub struct EvalLine {
    pub step: u64,
    pub loss: f64,
    pub metrics: Metrics,
    /// Rows that texts were generated for.
    pub bleu_rows: Option<u64>,
    pub took: Duration,
}

/// The lines of a run, with a bar below them on a terminal. The run's log file gets every line, even when quiet.
pub struct StepLog {
    printer: Printer,
    progress: Progress,
    pace: Pace,
    /// What an update takes: as predicted, then as measured.
    update: Duration,
    /// When a line was last shown.
    shown: Option<Instant>,
    /// `None` once a line could not be written; a run does not fail for its log.
    file: Option<File>,
    step_width: usize,
    headed: bool,
}

impl StepLog {
    pub(super) fn new(printer: Printer, pace: Pace, file: File) -> Self {
        let mut log = Self {
            printer,
            file: Some(file),
            progress: printer.progress("training", pace.updates),
            pace,
            update: pace.update,
            shown: None,
            step_width: pace.updates.to_string().len().max("step".len()),
            headed: false,
        };
        log.advance(0.0);
        log
    }

    pub fn step(&mut self, line: &StepLine) {
        let recorded = columns(line, self.step_width, Language::English);
        let recorded: Vec<&Column> = recorded.iter().collect();
        let shown = columns(line, self.step_width, self.printer.language);
        let fitting = fitting(&shown, self.printer.width);
        if !self.headed {
            self.headed = true;
            self.record(&heads(&recorded));
            self.above(&heads(&fitting));
        }
        self.record(&values(&recorded));
        if self.is_shown(line.step) {
            self.above(&values(&fitting));
            self.shown = Some(Instant::now());
        }
        let measured = Duration::from_secs_f64(line.step_ms.max(0.0) / 1e3);
        // The first update is slower than the others; later ones differ in how much they have to do.
        self.update = if line.step <= 2 { measured } else { self.update.mul_f64(0.9) + measured.mul_f64(0.1) };
        self.advance(line.step as f64);
    }

    /// So much of an update is done.
    pub fn micro_batch(&mut self, step: u64, done: u64, total: u64) {
        self.advance((step.saturating_sub(1)) as f64 + done as f64 / total.max(1) as f64);
    }

    /// The bar, where so many updates are done.
    pub fn advance(&mut self, done: f64) {
        let left = self.update.mul_f64((self.pace.updates as f64 - done).max(0.0));
        self.progress.advance(done, Some(left));
    }

    pub fn eval(&mut self, line: &EvalLine) {
        let said = eval(line, self.step_width, self.printer.language);
        self.above(&said);
        self.record(&eval(line, self.step_width, Language::English));
    }

    /// Any other text, above the bar.
    pub fn note(&mut self, text: &str) {
        self.progress.above(|printer| printer.note(text));
        self.record(text);
    }

    /// A remark about the run, or a warning.
    pub fn remark(&mut self, note: &Note) {
        self.progress.above(|printer| printer.remark(note));
        self.record(&remark(note));
    }

    /// Something the user should know, even when quiet.
    pub fn warning(&mut self, text: &str) {
        self.progress.above(|printer| printer.warning(text));
        self.record(&format!("warning: {text}"));
    }

    /// Tables, above the bar.
    pub fn tables(&mut self, tables: &[Table]) {
        self.progress.above(|printer| printer.note_tables(tables));
        self.record_tables(tables);
    }

    /// An example, in colour where there is colour.
    pub fn example(&mut self, example: &ExampleText) {
        self.progress.above(|printer| {
            if !printer.quiet {
                printer.line(&render(example, printer.colour, printer.language));
            }
        });
        self.record(&render(example, false, Language::English));
    }

    /// A result: to stdout.
    pub fn data(&mut self, text: &str) {
        self.printer.data(text);
        self.record(text);
    }

    /// A result: to stdout.
    pub fn data_table(&mut self, table: Table) {
        let tables = [table];
        self.printer.tables(&tables);
        self.record_tables(&tables);
    }

    /// What was shown before there was a file.
    pub fn record_plan(&mut self, notes: &[Note], tables: &[Table]) {
        notes.iter().for_each(|note| self.record(&remark(note)));
        self.record_tables(tables);
    }

    /// Only for the file, which is in English whoever reads it.
    pub fn record(&mut self, text: &str) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = writeln!(file, "{}", clean(text)) {
            self.printer.warning(format!("cannot write log.txt any further: {error}"));
            self.file = None;
        }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        self.progress.finish();
    }

    fn record_tables(&mut self, tables: &[Table]) {
        self.record(&format!("\n{}\n", joined(tables, None, Language::English)));
    }

    /// A line in the user's language already.
    fn above(&mut self, text: &str) {
        self.progress.above(|printer| printer.remarked(text));
    }

    /// The first and the last line are always shown.
    fn is_shown(&self, step: u64) -> bool {
        if step == self.pace.updates || self.shown.is_none() {
            return true;
        }
        match self.pace.every {
            Some(every) => step.is_multiple_of(every),
            None => !self.printer.is_terminal() || self.shown.is_none_or(|shown| shown.elapsed() >= SHOWN_EVERY),
        }
    }
}

fn remark(note: &Note) -> String {
    if note.is_warning() { format!("warning: {note}") } else { note.to_string() }
}

/// One value of a line, below its head.
struct Column {
    name: String,
    head: String,
    value: String,
    width: usize,
}

impl Column {
    /// As wide as `width` and its head need.
    fn new(name: &str, width: usize, value: String, language: Language) -> Self {
        let head = language.word(name).into_owned();
        let width = head.width().max(width);
        Self { name: name.to_owned(), head, value, width }
    }
}

/// The columns of an update, the task's own metrics behind the loss.
fn columns(line: &StepLine, step_width: usize, language: Language) -> Vec<Column> {
    let column = |name: &str, width: usize, value: String| Column::new(name, width, value, language);
    let mut columns =
        vec![column("step", step_width, line.step.to_string()), column("loss", 9, format!("{:.5}", line.loss))];
    columns.extend(metrics(&line.metrics, language));
    columns.extend([
        column("lr", 9, format!("{:.3e}", line.lr)),
        column("grad norm", 9, format!("{:.4}", line.grad_norm)),
        column("tokens/s", 8, format!("{:.0}", line.tokens_per_s)),
        column("ms/step", 9, format!("{:.1}", line.step_ms)),
        column("memory", 10, bytes(line.used_bytes)),
    ]);
    columns
}

fn metrics(metrics: &Metrics, language: Language) -> impl Iterator<Item = Column> {
    metrics.iter().map(move |(name, value)| Column::new(name, METRIC_WIDTH, format!("{value:.4}"), language))
}

/// Those that fit into a terminal; elsewhere all.
fn fitting(columns: &[Column], width: Option<usize>) -> Vec<&Column> {
    let mut fitting: Vec<&Column> = columns.iter().collect();
    let Some(width) = width else { return fitting };
    for name in DISPENSABLE {
        let total: usize = fitting.iter().map(|column| column.width + 2).sum();
        if total > width + 2 {
            fitting.retain(|column| column.name != name);
        }
    }
    fitting
}

fn heads(columns: &[&Column]) -> String {
    aligned(columns, |column| &column.head)
}

fn values(columns: &[&Column]) -> String {
    aligned(columns, |column| &column.value)
}

fn aligned<'a>(columns: &[&'a Column], text: impl Fn(&'a Column) -> &'a str) -> String {
    let cell = |column: &&'a Column| {
        let text = text(column);
        " ".repeat(column.width.saturating_sub(text.width())) + text
    };
    columns.iter().map(cell).collect::<Vec<_>>().join("  ")
}

fn eval(line: &EvalLine, step_width: usize, language: Language) -> String {
    let metrics: Vec<Column> = metrics(&line.metrics, language).collect();
    let cell = |column: &Column| format!("  {:>width$}", column.value, width = column.width);
    let metrics: String = metrics.iter().map(cell).collect();
    let texts = line.bleu_rows.map_or_else(String::new, |rows| format!(", bleu over {rows} rows"));
    let took = format!("evaluation, {}{texts}", duration(line.took));
    format!("{:>step_width$}  {:>9.5}{metrics}  {}", line.step, line.loss, language.say(&took))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update() -> StepLine {
        StepLine {
            step: 12,
            loss: 8.317_766,
            metrics: Metrics::default(),
            lr: 1e-4,
            grad_norm: 1.25,
            tokens_per_s: 11_930.4,
            step_ms: 171.66,
            used_bytes: 410 << 20,
        }
    }

    /// Head, update and evaluation.
    fn lines(metrics: &Metrics, width: Option<usize>) -> String {
        let columns = columns(&StepLine { metrics: metrics.clone(), ..update() }, 4, Language::English);
        let columns = fitting(&columns, width);
        let took = Duration::from_millis(1500);
        let evaluation = EvalLine { step: 12, loss: 7.5, metrics: metrics.clone(), bleu_rows: None, took };
        [heads(&columns), values(&columns), eval(&evaluation, 4, Language::English)].join("\n")
    }

    #[test]
    fn lines_line_up() {
        assert_eq!(
            lines(&Metrics::default(), Some(80)),
            "step       loss         lr  grad norm  tokens/s    ms/step      memory\n\
             \x20 12    8.31777   1.000e-4     1.2500     11930      171.7   410.0 MiB\n\
             \x20 12    7.50000  evaluation, 1.5 s"
        );
        let metrics = Metrics::new([("accuracy", 0.6845), ("margin", -0.25), ("bits_per_byte", 1.5)]);
        assert_eq!(
            lines(&metrics, None),
            "step       loss  accuracy    margin  bits_per_byte         lr  grad norm  tokens/s    ms/step      memory\n\
             \x20 12    8.31777    0.6845   -0.2500         1.5000   1.000e-4     1.2500     11930      171.7   410.0 MiB\n\
             \x20 12    7.50000    0.6845   -0.2500         1.5000  evaluation, 1.5 s"
        );
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns() {
        let metrics = Metrics::new([("accuracy", 0.6845), ("margin", -0.25)]);
        let head = |width| lines(&metrics, Some(width)).lines().next().unwrap_or_default().to_owned();
        assert_eq!(head(80), "step       loss  accuracy    margin         lr  grad norm  tokens/s      memory");
        assert_eq!(head(60), "step       loss  accuracy    margin         lr  tokens/s");
        for width in 56..120 {
            assert!(lines(&metrics, Some(width)).lines().all(|line| line.len() <= width), "{width}");
        }
        assert!(head(10).starts_with("step       loss  accuracy"), "what matters is never left out");
    }

    fn log(pace: Pace, width: Option<usize>) -> StepLog {
        let printer =
            Printer { quiet: true, json: false, width, data_width: None, colour: false, language: Language::English };
        StepLog::new(printer, pace, tempfile::tempfile().expect("a file"))
    }

    #[test]
    fn lines_are_shown_at_a_readable_pace() {
        let shown = |every: Option<u64>, width: Option<usize>| {
            let mut log = log(Pace { updates: 10, every, update: Duration::ZERO }, width);
            let mut shown = Vec::new();
            for step in 1..=10 {
                if log.is_shown(step) {
                    shown.push(step);
                }
                log.step(&StepLine { step, ..update() });
            }
            shown
        };
        assert_eq!(shown(None, Some(80)), [1, 10], "ten updates take less than a second");
        assert_eq!(shown(None, None), (1..=10).collect::<Vec<_>>());
        assert_eq!(shown(Some(4), None), [1, 4, 8, 10]);
        assert_eq!(shown(Some(1), Some(80)), (1..=10).collect::<Vec<_>>());
    }
}
