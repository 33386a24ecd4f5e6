//! The panels that are no curves: planned memory by category, where an update's time goes, what the machine does.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

use unicode_width::UnicodeWidthStr;

use super::data::{Course, Planned};
use super::load::Load;
use super::text::Text;
use crate::runs::StepPoint;

/// Of every category its colour, and the letter that stands for it where there are no colours.
const LOOKS: [(&str, Color, char); 17] = [
    ("weights", Color::Blue, 'w'),
    ("adapters", Color::LightCyan, 'a'),
    ("gradients", Color::Yellow, 'g'),
    ("optimizer", Color::Magenta, 'o'),
    ("activations", Color::Green, 'A'),
    ("loss", Color::Red, 'l'),
    ("cache", Color::LightMagenta, 'c'),
    ("inputs", Color::LightYellow, 'i'),
    ("workspace", Color::Gray, 'k'),
    ("transfer", Color::LightRed, 't'),
    ("context", Color::DarkGray, 'x'),
    ("recorded", Color::LightBlue, 'r'),
    ("fragmentation", Color::DarkGray, 'f'),
    ("process", Color::DarkGray, 'p'),
    ("offload", Color::LightGreen, 'O'),
    ("pinned", Color::LightBlue, 'n'),
    ("data", Color::Cyan, 'd'),
];

fn look(category: &str) -> (Color, char) {
    LOOKS
        .iter()
        .find(|(name, ..)| *name == category)
        .map_or((Color::White, '?'), |(_, colour, letter)| (*colour, *letter))
}

/// How panels are painted.
#[derive(Clone, Copy)]
pub struct Paint {
    pub text: Text,
    pub colour: bool,
}

impl Paint {
    pub fn style(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn panel(frame: &mut Frame, area: Rect, title: String, lines: Vec<Line>) {
        let block = Block::bordered().title(title);
        let inner = block.inner(area);
        frame.render_widget(block, area);
        frame.render_widget(Paragraph::new(lines), inner);
    }

    /// A category's name, size and bar on each line, the largest first.
    pub fn categories(self, frame: &mut Frame, area: Rect, plan: Option<&Planned>) {
        /// Columns of what stands before a bar.
        const BEFORE_BAR: u16 = 30;
        let inner = Block::bordered().inner(area);
        let lines = plan.map(|plan| {
            let columns = f64::from(inner.width.saturating_sub(BEFORE_BAR));
            let largest = plan.categories.first().map_or(1, |(_, bytes)| *bytes).max(1);
            let line = |(name, bytes): &(String, u64)| {
                let (colour, letter) = look(name);
                let bar = "█".repeat((*bytes as f64 / largest as f64 * columns).ceil() as usize);
                let mark = if self.colour { '█' } else { letter };
                Line::from(vec![
                    Span::styled(format!("{mark} "), self.style(colour)),
                    Span::raw(format!("{} {:>9.3} GiB ", padded(&self.text.language.word(name), 13), gib(*bytes))),
                    Span::styled(bar, self.style(colour)),
                ])
            };
            plan.categories.iter().take(inner.height.into()).map(line).collect()
        });
        Self::panel(frame, area, self.text.by_category.to_owned(), lines.unwrap_or_default());
    }

    /// Categories upon each other over the time of a schedule, as high as the most there is at once.
    pub fn course(self, frame: &mut Frame, area: Rect, course: &Course) {
        let inner = Block::bordered().inner(area);
        let (width, height) = (usize::from(inner.width), usize::from(inner.height));
        let (moments, peak) = (course.moments(), course.peak_bytes().max(1) as f64);
        let column = |x: usize| {
            let moment = x * moments / width.max(1);
            let mut sum = 0;
            // From the ground upwards, in the order of the memory table; each row belongs to what its middle is in.
            let tops = LOOKS.iter().filter_map(|(name, colour, letter)| {
                sum += course.categories.get(*name)?.get(moment)?;
                Some((sum as f64 / peak * height as f64, *colour, *letter))
            });
            tops.collect::<Vec<_>>()
        };
        let columns: Vec<_> = (0..width).map(column).collect();
        let row = |y: usize| {
            let middle = (height - 1 - y) as f64 + 0.5;
            let cell = |tops: &Vec<(f64, Color, char)>| match tops.iter().find(|(top, ..)| *top > middle) {
                Some((_, colour, letter)) => {
                    Span::styled(if self.colour { '█' } else { *letter }.to_string(), self.style(*colour))
                }
                None => Span::raw(" "),
            };
            Line::from(columns.iter().map(cell).collect::<Vec<_>>())
        };
        let title = format!(
            "{} {} · {:.3} GiB",
            self.text.within_update,
            self.text.language.word(&course.name),
            gib(course.peak_bytes())
        );
        Self::panel(frame, area, title, (0..height).map(row).collect());
    }

    /// Where the time of the last updates went.
    pub fn time(self, frame: &mut Frame, area: Rect, steps: &[StepPoint]) {
        /// Updates over which it is taken.
        const RECENT: usize = 50;
        const BEFORE_BAR: u16 = 36;
        let recent = &steps[steps.len().saturating_sub(RECENT)..];
        let mean = |of: fn(&StepPoint) -> f64| recent.iter().map(of).sum::<f64>() / recent.len().max(1) as f64;
        let total = mean(|p| p.step_ms);
        if recent.is_empty() || total.is_nan() {
            return Self::panel(frame, area, self.text.update_time.to_owned(), Vec::new());
        }
        let columns = f64::from(Block::bordered().inner(area).width.saturating_sub(BEFORE_BAR));
        let parts = [mean(|p| p.forward_backward_ms), mean(|p| p.update_ms), mean(|p| p.data_wait_ms)];
        let rest = (total - parts.iter().sum::<f64>()).max(0.0);
        let named = [
            (self.text.forward_backward, parts[0], Color::Green),
            (self.text.optimizer, parts[1], Color::Magenta),
            (self.text.waiting, parts[2], Color::Red),
            (self.text.rest, rest, Color::DarkGray),
        ];
        let lines = named.map(|(name, ms, colour)| {
            let share = if total > 0.0 { (ms / total).clamp(0.0, 1.0) } else { 0.0 };
            let words = format!("{} {ms:>9.1} ms {:>3.0} % ", padded(name, 17), share * 100.0);
            let bar = "█".repeat((share * columns).round() as usize);
            Line::from(vec![Span::raw(words), Span::styled(bar, self.style(colour))])
        });
        let title = format!("{} · {total:.1} ms", self.text.update_time);
        Self::panel(frame, area, title, lines.into());
    }

    /// Processors, memory and cards.
    pub fn load(self, frame: &mut Frame, area: Rect, load: &Load) {
        let Text { processors, host, swap, of, .. } = self.text;
        let busy = load.cpu_percent.map_or_else(|| "–".to_owned(), |percent| format!("{percent:.0} %"));
        let mut lines = vec![
            Line::raw(format!("{} {busy:>5} {of} {:.0}", padded(processors, 12), load.cpus)),
            Line::raw(format!(
                "{} {:>5.1} {of} {:.1} GiB",
                padded(host, 12),
                gib(load.host_used_bytes),
                gib(load.host_bytes)
            )),
        ];
        if load.swapped_bytes > 0 {
            let words = format!("{} {:>5.1} GiB", padded(swap, 12), gib(load.swapped_bytes));
            lines.push(Line::styled(words, self.style(Color::Yellow)));
        }
        for (index, card) in load.cards.iter().enumerate() {
            let more =
                [card.power_w.map(|w| format!("  {w:.0} W")), card.temperature_c.map(|c| format!("  {c:.0} °C"))];
            let more: String = more.into_iter().flatten().collect();
            let memory = format!("{:.1} {of} {:.1} GiB", gib(card.used_bytes), gib(card.total_bytes));
            lines.push(Line::raw(format!("GPU {index:<8} {:>3.0} %  {memory}{more}", card.busy_percent)));
        }
        Self::panel(frame, area, self.text.machine.to_owned(), lines);
    }
}

/// A text with spaces behind it, so that it takes so many columns.
fn padded(text: &str, columns: usize) -> String {
    text.to_owned() + &" ".repeat(columns.saturating_sub(text.width()))
}

pub fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

#[cfg(test)]
mod tests {
    use plimsoll_plan::Categories;

    use super::*;

    #[test]
    fn every_category_has_a_look_of_its_own() {
        let arena = Categories::default().rows().map(|(name, _)| name);
        let all = arena.into_iter().chain(["process", "offload", "pinned", "data"]);
        assert!(all.into_iter().all(|name| LOOKS.iter().any(|(known, ..)| *known == name)));
        for (index, (name, _, letter)) in LOOKS.iter().enumerate() {
            assert!(LOOKS[..index].iter().all(|(_, _, other)| other != letter), "{name} has the letter of another");
        }
    }
}
