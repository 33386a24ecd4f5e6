//! Drawing what is watched.

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph};

use plimsoll_speech::Language;
use unicode_width::UnicodeWidthStr;

use super::curve::{bounds, smoothed, thinned};
use super::data::Watched;
use super::panels::{Paint, gib};
use super::text::Text;
use crate::runs::{RunState, StepPoint};

/// Two columns of curves need as much.
const WIDE: u16 = 100;
/// Share of the updates that count as recent.
const RECENT: f64 = 0.2;
/// Dots of a column of Braille.
const DOTS: usize = 2;

/// Points, and how they are drawn.
type Curve<'a> = (&'a [(f64, f64)], Color, GraphType);

/// How the run is looked at.
pub struct View {
    text: Text,
    colour: bool,
    recent: bool,
    smooth: bool,
    /// Whether the planned memory is shown where there is no space for it beside the used one.
    planned: bool,
    /// Of which schedule the memory is shown.
    schedule: usize,
    /// Lines that the log is scrolled up.
    scrolled: usize,
}

impl View {
    pub fn new(colour: bool, language: Language) -> Self {
        Self {
            text: Text::of(language),
            colour,
            recent: false,
            smooth: false,
            planned: false,
            schedule: 0,
            scrolled: 0,
        }
    }

    pub fn press(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('r') => self.recent = !self.recent,
            KeyCode::Char('s') => self.smooth = !self.smooth,
            KeyCode::Char('m') => self.planned = !self.planned,
            KeyCode::Char('t') => self.schedule += 1,
            KeyCode::Up => self.scrolled += 1,
            KeyCode::PageUp => self.scrolled += 10,
            KeyCode::Down => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageDown => self.scrolled = self.scrolled.saturating_sub(10),
            _ => {}
        }
    }

    pub fn draw(&mut self, frame: &mut Frame, watched: &Watched) {
        let rows = Layout::vertical([
            Constraint::Length(1),
            Constraint::Fill(4),
            Constraint::Fill(3),
            Constraint::Length(6),
            Constraint::Fill(2),
            Constraint::Length(1),
        ]);
        let [head, curves, memory, time, log, keys] = rows.areas(frame.area());
        frame.render_widget(self.head(watched), head);
        let steps = self.shown(&watched.metrics.steps);
        let paint = Paint { text: self.text, colour: self.colour };
        let is_wide = frame.area().width >= WIDE;
        if is_wide {
            let [loss, rate] = Layout::horizontal([Constraint::Percentage(62), Constraint::Min(20)]).areas(curves);
            self.loss(frame, loss, watched, steps);
            self.curve(frame, rate, self.text.learning_rate, steps, |p| p.lr);
        } else {
            self.loss(frame, curves, watched, steps);
        }
        let columns: &[u16] = if is_wide { &[36, 34, 30] } else { &[50, 50] };
        let areas = Layout::horizontal(columns.iter().map(|percent| Constraint::Percentage(*percent))).split(memory);
        let course = watched.courses.get(self.schedule % watched.courses.len().max(1));
        match course.filter(|_| is_wide || self.planned) {
            Some(course) if is_wide => {
                self.used(frame, areas[0], watched, steps);
                paint.course(frame, areas[1], course);
            }
            Some(course) => paint.course(frame, areas[0], course),
            None if is_wide => self.used(frame, areas[0].union(areas[1]), watched, steps),
            None => self.used(frame, areas[0], watched, steps),
        }
        paint.categories(frame, areas[areas.len() - 1], watched.plan.as_ref());
        let [phases, machine] = Layout::horizontal([Constraint::Percentage(50), Constraint::Min(20)]).areas(time);
        paint.time(frame, phases, steps);
        paint.load(frame, machine, &watched.load);
        self.log(frame, log, watched);
        let width = usize::from(keys.width);
        let fits = self.text.keys.iter().find(|text| text.width() + 2 <= width);
        let shown = format!(" {} ", fits.unwrap_or(&self.text.keys[2]));
        frame.render_widget(Paragraph::new(shown).style(self.faint()), keys);
    }

    fn paint(&self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn faint(&self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn shown<'p>(&self, steps: &'p [StepPoint]) -> &'p [StepPoint] {
        let from = if self.recent { (steps.len() as f64 * (1.0 - RECENT)) as usize } else { 0 };
        &steps[from..]
    }

    fn head<'a>(&self, watched: &'a Watched) -> Paragraph<'a> {
        let status = &watched.status;
        let (state, colour) = match status.state {
            RunState::Running => (self.text.running, Color::Green),
            RunState::Stopped => (self.text.stopped, Color::Yellow),
            RunState::Finished => (self.text.finished, Color::Cyan),
            RunState::Failed => (self.text.failed, Color::Red),
        };
        let of = if status.steps > 0 { format!(" / {}", status.steps) } else { String::new() };
        let mut parts = vec![
            Span::styled(format!(" {} ", status.run.display()), Style::new().add_modifier(Modifier::BOLD)),
            Span::styled(format!(" {state} "), self.paint(colour).add_modifier(Modifier::BOLD)),
            Span::raw(format!(" {} {}{of}", self.text.step, status.step)),
        ];
        if let Some(loss) = status.loss {
            parts.push(Span::raw(format!("   {} {loss:.4}", self.text.loss.to_lowercase())));
        }
        if let Some(point) = watched.metrics.steps.last() {
            parts.push(Span::raw(format!("   {:.0} tok/s", point.tokens_per_s)));
        }
        if let Some(left) = status.left_s.filter(|_| status.state == RunState::Running) {
            parts.push(Span::raw(format!("   {} {}", duration(left), self.text.left)));
        }
        if let Some(plan) = &watched.plan {
            parts.push(Span::styled(format!("   {}", plan.device), self.faint()));
        }
        Paragraph::new(Line::from(parts))
    }

    fn loss(&self, frame: &mut Frame, area: Rect, watched: &Watched, steps: &[StepPoint]) {
        let evals: Vec<(f64, f64)> = watched
            .metrics
            .evals
            .iter()
            .filter(|eval| steps.first().is_some_and(|first| eval.step >= first.step) && eval.loss.is_finite())
            .map(|eval| (eval.step as f64, eval.loss))
            .collect();
        let points = self.points(area, steps, |p| p.loss);
        let title = match evals.last() {
            Some((_, last)) => format!("{} · {} {last:.4}", self.text.loss, self.text.evaluation),
            None => self.text.loss.to_owned(),
        };
        let curves = [(&points[..], Color::Green, GraphType::Line), (&evals[..], Color::Yellow, GraphType::Scatter)];
        self.chart(frame, area, &title, &curves, &|value| format!("{value:.3}"));
    }

    fn curve(&self, frame: &mut Frame, area: Rect, title: &str, steps: &[StepPoint], of: fn(&StepPoint) -> f64) {
        let points = self.points(area, steps, of);
        self.chart(frame, area, title, &[(&points, Color::Cyan, GraphType::Line)], &|value| format!("{value:.1e}"));
    }

    /// Memory in use over the updates, in GiB, up to the budget.
    fn used(&self, frame: &mut Frame, area: Rect, watched: &Watched, steps: &[StepPoint]) {
        let Some(plan) = &watched.plan else { return };
        let used = |p: &StepPoint| gib(if plan.on_gpu { p.gpu_used_bytes } else { p.host_rss_bytes });
        let points = thinned(&steps.iter().map(|p| (p.step as f64, used(p))).collect::<Vec<_>>(), dots(area));
        let level = |bytes: u64| {
            let ends = [points.first(), points.last()];
            ends.iter().flatten().map(|(x, _)| (*x, gib(bytes))).collect::<Vec<_>>()
        };
        let planned = level(plan.planned_bytes);
        let now = points.last().map_or(0.0, |(_, y)| *y);
        let Text { memory, used, planned: planned_word, budget, of, .. } = self.text;
        let (plan_gib, budget_gib) = (gib(plan.planned_bytes), gib(plan.budget_bytes));
        let long = format!("{memory} · {used} {now:.2} · {planned_word} {plan_gib:.2} · {budget} {budget_gib:.2} GiB");
        let fits = long.width() + 2 <= usize::from(area.width);
        let title = if fits { long } else { format!("{memory} · {now:.2} {of} {plan_gib:.2} GiB") };
        let curves = [(&points[..], Color::Magenta, GraphType::Line), (&planned[..], Color::Red, GraphType::Line)];
        self.chart(frame, area, &title, &curves, &|value| format!("{value:.2}"));
    }

    fn log(&mut self, frame: &mut Frame, area: Rect, watched: &Watched) {
        let block = Block::bordered().title(self.text.log);
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let height = usize::from(inner.height);
        self.scrolled = self.scrolled.min(watched.log.len().saturating_sub(height));
        let end = watched.log.len() - self.scrolled;
        let lines = watched.log.range(end.saturating_sub(height)..end).map(|line| Line::raw(line.as_str()));
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), inner);
    }

    fn points(&self, area: Rect, steps: &[StepPoint], of: fn(&StepPoint) -> f64) -> Vec<(f64, f64)> {
        let all: Vec<(f64, f64)> = steps.iter().map(|p| (p.step as f64, of(p))).filter(|p| p.1.is_finite()).collect();
        let all = if self.smooth { smoothed(&all) } else { all };
        thinned(&all, dots(area))
    }

    fn chart(&self, frame: &mut Frame, area: Rect, title: &str, curves: &[Curve], number: &dyn Fn(f64) -> String) {
        let block = Block::bordered().title(title.to_owned());
        if curves.iter().all(|(points, ..)| points.is_empty()) {
            return frame.render_widget(Paragraph::new(self.text.nothing_yet).style(self.faint()).block(block), area);
        }
        let all = || curves.iter().flat_map(|(points, ..)| points.iter());
        let steps = || all().map(|p| p.0);
        let (first, last) = (steps().fold(f64::INFINITY, f64::min), steps().fold(0.0, f64::max));
        // One point alone needs some width, too.
        let x = [first, last.max(first + 1.0)];
        let y = bounds(all().map(|p| p.1));
        let datasets = curves.iter().filter(|(points, ..)| !points.is_empty()).map(|(points, colour, kind)| {
            let marker = if *kind == GraphType::Scatter { Marker::Dot } else { Marker::Braille };
            Dataset::default().marker(marker).graph_type(*kind).style(self.paint(*colour)).data(points)
        });
        let x_labels = x.map(|step| format!("{step:.0}"));
        let y_labels = [y[0], (y[0] + y[1]) / 2.0, y[1]].map(number);
        let chart = Chart::new(datasets.collect())
            .block(block)
            .legend_position(None)
            .x_axis(Axis::default().bounds(x).labels(x_labels).style(self.faint()))
            .y_axis(Axis::default().bounds(y).labels(y_labels).style(self.faint()));
        frame.render_widget(chart, area);
    }
}

fn dots(area: Rect) -> usize {
    usize::from(area.width) * DOTS
}

fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    if hours > 0 { format!("{hours} h {minutes:02} min") } else { format!("{minutes} min {:02} s", seconds % 60) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    /// A folder of a run with `steps` updates.
    fn run(folder: &Path, steps: u64) {
        let line = |step: u64| {
            let loss = 2.0 + 8.0 / step as f64;
            format!(
                r#"{{"step":{step},"loss":{loss},"lr":1e-4,"step_ms":100,"data_wait_ms":25,"forward_backward_ms":60,"update_ms":10,"tokens_per_s":900,"host_rss_bytes":1073741824}}"#
            ) + "\n"
        };
        fs::write(folder.join("metrics.jsonl"), (1..=steps).map(line).collect::<String>()).expect("writable");
        let plan = r#"{"device": "CPU", "gpu": {"planned_bytes": 0}, "host": {"budget_bytes": 4294967296,
            "planned_bytes": 2147483648, "categories": {"weights": 1073741824, "activations": 536870912, "loss": 0}}}"#;
        fs::write(folder.join("plan.json"), plan).expect("writable");
        fs::write(folder.join("log.txt"), (1..=50).map(|n| format!("line {n}\n")).collect::<String>())
            .expect("writable");
    }

    fn drawn(view: &mut View, watched: &Watched, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
        terminal.draw(|frame| view.draw(frame, watched)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| row(y) + "\n").collect()
    }

    fn watched(folder: &Path) -> Watched {
        let mut watched = Watched::open(folder).expect("a run");
        watched.refresh(Vec::new()).expect("readable");
        watched
    }

    #[track_caller]
    fn shows(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }

    #[test]
    fn a_run_is_shown_with_its_curves() {
        let folder = tempfile::tempdir().expect("a folder");
        run(folder.path(), 400);
        let text = drawn(&mut View::new(true, Language::English), &watched(folder.path()), 160, 45);
        shows(
            &text,
            &["step 400", "loss 2.0200", "900 tok/s", "Learning rate", "used 1.00 · planned 2.00 · budget 4.00 GiB"],
        );
        shows(&text, &["weights", "1.000 GiB", "activations", "60.0 ms  60 %", "waiting for data       25.0 ms  25 %"]);
        shows(
            &text,
            &["line 50", "q leave (the run goes on)", "█", "the rest                5.0 ms   5 %", "processors"],
        );
        assert!(text.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "a curve");
        // A category of no bytes has no line.
        assert!(!text.lines().any(|line| line.contains("loss ") && line.contains("0.000 GiB")));
    }

    #[test]
    fn narrow_terminals_and_empty_runs_are_drawn_too() {
        let folder = tempfile::tempdir().expect("a folder");
        run(folder.path(), 0);
        let watched = watched(folder.path());
        let text = drawn(&mut View::new(false, Language::English), &watched, 60, 24);
        shows(&text, &["no update has been written yet", "weights"]);
        for (width, height) in [(1, 1), (20, 5), (200, 3), (99, 60)] {
            drawn(&mut View::new(true, Language::English), &watched, width, height);
        }
    }

    #[test]
    fn the_log_scrolls_and_stops_at_its_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        run(folder.path(), 3);
        let watched = watched(folder.path());
        let mut view = View::new(false, Language::English);
        view.press(KeyCode::PageUp);
        let text = drawn(&mut view, &watched, 120, 40);
        assert!(text.contains("line 40") && !text.contains("line 41"), "{text}");
        (0..20).for_each(|_| view.press(KeyCode::PageUp));
        assert!(drawn(&mut view, &watched, 120, 40).contains("line 1 "));
        (0..20).for_each(|_| view.press(KeyCode::PageDown));
        assert!(drawn(&mut view, &watched, 120, 40).contains("line 50"));
    }

    #[test]
    fn without_colour_nothing_is_coloured() {
        let folder = tempfile::tempdir().expect("a folder");
        run(folder.path(), 30);
        let watched = watched(folder.path());
        let coloured = |colour: bool| {
            let mut terminal = Terminal::new(TestBackend::new(140, 40)).expect("a terminal in memory");
            terminal.draw(|frame| View::new(colour, Language::English).draw(frame, &watched)).expect("drawn");
            let cells = terminal.backend().buffer().content().to_vec();
            cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
        };
        assert!(coloured(true) && !coloured(false));
    }
}
