//! The picture for documents: one drawing, no script.

use std::fmt::Write;

use plimsoll_plan::{Band, Timeline, TimelineBuffer};

use super::COLOURS;
use super::html::escape;
use super::scene::{PlanPicture, category_index};
use super::text::{ENGLISH, Text};

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 720.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 20.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = HEIGHT - 70.0;
/// What is narrower and lower than this cannot be seen and is left out.
const INVISIBLE: f64 = 0.25;
/// The budget's line is part of the drawing as long as that leaves most of it to the arena.
const BUDGET_SHOWN: f64 = 1.5;

/// The schedule that trains, over the operators it runs.
pub fn svg(plan: &PlanPicture) -> String {
    Drawing::new(plan, &ENGLISH).draw()
}

/// One rectangle.
struct Block {
    category: &'static str,
    layer: Option<u32>,
    offset: u64,
    bytes: u64,
    first: usize,
    last: usize,
    recomputed: bool,
}

struct Drawing<'a> {
    plan: &'a PlanPicture<'a>,
    text: &'a Text,
    timeline: &'a Timeline,
    /// Bytes at the upper edge.
    ceiling: f64,
    out: String,
}

impl<'a> Drawing<'a> {
    fn new(plan: &'a PlanPicture<'a>, text: &'a Text) -> Self {
        let arena = plan.picture.arena_bytes as f64;
        let budget = plan.arena_budget_bytes() as f64;
        let highest = if budget < arena * BUDGET_SHOWN { arena.max(budget) } else { arena };
        Self { plan, text, timeline: &plan.picture.timelines[0], ceiling: highest * 1.05, out: String::new() }
    }

    fn x(&self, step: usize) -> f64 {
        LEFT + step as f64 / self.timeline.steps.len().max(1) as f64 * (RIGHT - LEFT)
    }

    fn y(&self, bytes: u64) -> f64 {
        BOTTOM - bytes as f64 / self.ceiling * (BOTTOM - TOP)
    }

    fn draw(mut self) -> String {
        self.head();
        self.axis();
        self.bands();
        self.buffers();
        self.phases();
        self.marks();
        self.legend();
        self.out.push_str("</svg>\n");
        self.out
    }

    fn head(&mut self) {
        let report = self.plan.report;
        let title = escape(&format!("{} · {}", self.text.title, self.plan.name));
        let line = escape(&format!(
            "{} · {} {} / {} · {} × {} tok · {:.0} tok/s",
            report.device,
            self.text.planned,
            size(self.plan.planned_bytes()),
            size(self.plan.budget_bytes()),
            report.accumulation,
            report.micro_batch_tokens,
            report.predicted.tokens_per_s
        ));
        let _ = write!(
            self.out,
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, 'Segoe UI', Roboto, 'Noto Sans', sans-serif" font-size="12">
<title>{title}</title>
<defs><pattern id="recomputed" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2" height="6" fill="#fff" fill-opacity=".6"/></pattern></defs>
<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>
<text x="{LEFT}" y="34" font-size="20" font-weight="600" fill="#1d2229">{title}</text>
<text x="{LEFT}" y="56" fill="#68717d">{line}</text>
"##
        );
    }

    fn axis(&mut self) {
        let step = 2f64.powf((self.ceiling / 10.0).log2().ceil()) as u64;
        for bytes in (0..).map(|n| n * step).take_while(|&bytes| bytes as f64 <= self.ceiling) {
            let y = self.y(bytes);
            let label = if bytes == 0 { "0".to_owned() } else { size(bytes) };
            let _ = writeln!(
                self.out,
                r##"<path d="M{LEFT} {y:.1}H{RIGHT}" stroke="#dfe3e8"/><text x="{:.1}" y="{:.1}" text-anchor="end" fill="#68717d">{label}</text>"##,
                LEFT - 8.0,
                y + 4.0
            );
        }
    }

    fn block(&mut self, block: Block) {
        let (x, y) = (self.x(block.first), self.y(block.offset + block.bytes));
        let (width, height) = (self.x(block.last + 1) - x, self.y(block.offset) - y);
        if width < INVISIBLE && height < INVISIBLE {
            return;
        }
        let gap = |length: f64| if length > 3.0 { length - 0.5 } else { length.max(INVISIBLE) };
        let (width, height) = (gap(width), gap(height));
        // Every other layer is paler, so that one sees where a layer ends.
        let opacity = if block.layer.is_some_and(|layer| layer % 2 == 0) { r#" fill-opacity=".78""# } else { "" };
        let mut rectangle = |fill: &str, opacity: &str| {
            let _ = writeln!(
                self.out,
                r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="{fill}"{opacity}/>"#
            );
        };
        rectangle(colour(block.category), opacity);
        if block.recomputed && width > 1.0 && height > 1.0 {
            rectangle("url(#recomputed)", "");
        }
    }

    fn bands(&mut self) {
        let last = self.timeline.steps.len().saturating_sub(1);
        for b in &self.plan.picture.bands {
            let Band { category, layer, offset, bytes, .. } = *b;
            self.block(Block { category, layer, offset, bytes, first: 0, last, recomputed: false });
        }
    }

    fn buffers(&mut self) {
        for b in &self.timeline.buffers {
            let TimelineBuffer { category, layer, offset, bytes, first, last, recomputed, .. } = *b;
            self.block(Block { category, layer, offset, bytes, first, last, recomputed });
        }
        // Names where there is room for them.
        let labelled = |b: &&TimelineBuffer| self.y(b.offset) - self.y(b.offset + b.bytes) > 13.0;
        let mut labels = String::new();
        for b in self.timeline.buffers.iter().filter(labelled) {
            let room = ((self.x(b.last + 1) - self.x(b.first) - 8.0) / 6.5).max(0.0) as usize;
            if b.name.chars().count() <= room {
                let middle = (self.y(b.offset) + self.y(b.offset + b.bytes)) / 2.0 + 4.0;
                let name = escape(&b.name);
                let _ = writeln!(
                    labels,
                    r##"<text x="{:.1}" y="{middle:.1}" font-size="11" fill="#fff">{name}</text>"##,
                    self.x(b.first) + 4.0
                );
            }
        }
        self.out.push_str(&labels);
    }

    /// Runs of steps of one phase, under the time axis.
    fn phases(&mut self) {
        let steps = &self.timeline.steps;
        for run in steps.chunk_by(|a, b| a.phase == b.phase) {
            // The run is a part of the steps, so its place follows from the addresses.
            let first = (run.as_ptr() as usize - steps.as_ptr() as usize) / size_of_val(&run[0]);
            let (from, to) = (self.x(first), self.x(first + run.len()));
            let shade = match run[0].phase {
                "forward" => "#e4e8ee",
                "recompute" => "#7c8794",
                "backward" => "#c3cad3",
                _ => "#d5dae1",
            };
            let _ = write!(
                self.out,
                r#"<rect x="{from:.2}" y="{:.1}" width="{:.2}" height="16" fill="{shade}"/>"#,
                BOTTOM + 5.0,
                (to - from).max(INVISIBLE)
            );
            let label =
                self.text.phases.iter().find(|(key, _)| *key == run[0].phase).map_or(run[0].phase, |(_, text)| text);
            if to - from > 7.0 * label.len() as f64 {
                let _ = write!(
                    self.out,
                    r##"<text x="{:.1}" y="{:.1}" text-anchor="middle" fill="#1d2229">{label}</text>"##,
                    (from + to) / 2.0,
                    BOTTOM + 17.5
                );
            }
        }
        self.out.push('\n');
    }

    fn marks(&mut self) {
        let timeline = self.timeline;
        let x = (self.x(timeline.peak_step) + self.x(timeline.peak_step + 1)) / 2.0;
        let y = self.y(timeline.peak_bytes);
        // Away from the nearer edge.
        let (anchor, shift) = if x > (LEFT + RIGHT) / 2.0 { ("end", -6.0) } else { ("start", 6.0) };
        let _ = writeln!(
            self.out,
            r##"<path d="M{x:.1} {TOP}V{BOTTOM}" stroke="#1d2229" stroke-width="1.5"/><text x="{:.1}" y="{:.1}" text-anchor="{anchor}" font-weight="600" fill="#1d2229">{} {}</text>"##,
            x + shift,
            y - 6.0,
            self.text.peak,
            size(timeline.peak_bytes)
        );
        let budget = self.plan.arena_budget_bytes();
        let words = format!("{} {}", self.text.budget, size(self.plan.budget_bytes()));
        if budget as f64 <= self.ceiling {
            let y = self.y(budget);
            let _ = writeln!(
                self.out,
                r##"<path d="M{LEFT} {y:.1}H{RIGHT}" stroke="#b3261e" stroke-width="1.5" stroke-dasharray="7 4"/><text x="{LEFT}" y="{:.1}" font-weight="600" fill="#b3261e">{words}</text>"##,
                y - 5.0
            );
        } else {
            let _ = writeln!(
                self.out,
                r##"<text x="{RIGHT}" y="{:.1}" text-anchor="end" font-weight="600" fill="#b3261e">↑ {words}</text>"##,
                TOP - 6.0
            );
        }
    }

    fn legend(&mut self) {
        let mut x = LEFT;
        let shown = |category: &str| {
            self.plan.picture.bands.iter().any(|b| b.category == category)
                || self.timeline.buffers.iter().any(|b| b.category == category)
        };
        let entries: Vec<&str> = COLOURS.iter().map(|(name, ..)| *name).filter(|name| shown(name)).collect();
        for name in entries {
            let _ = write!(
                self.out,
                r##"<rect x="{x:.1}" y="{:.1}" width="12" height="12" rx="3" fill="{}"/><text x="{:.1}" y="{:.1}" fill="#1d2229">{name}</text>"##,
                HEIGHT - 32.0,
                colour(name),
                x + 17.0,
                HEIGHT - 22.0
            );
            x += 34.0 + 7.0 * name.len() as f64;
        }
        if self.timeline.buffers.iter().any(|b| b.recomputed) {
            let _ = write!(
                self.out,
                r##"<rect x="{x:.1}" y="{y:.1}" width="12" height="12" rx="3" fill="#5aa63e"/><rect x="{x:.1}" y="{y:.1}" width="12" height="12" rx="3" fill="url(#recomputed)"/><text x="{:.1}" y="{:.1}" fill="#1d2229">{}</text>"##,
                x + 17.0,
                HEIGHT - 22.0,
                self.text.recomputed,
                y = HEIGHT - 32.0,
            );
        }
        self.out.push('\n');
    }
}

fn colour(category: &str) -> &'static str {
    COLOURS[category_index(category) as usize].1
}

fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b >= 1073741824.0 => format!("{:.2} GiB", b / 1073741824.0),
        b if b >= 1048576.0 => format!("{:.1} MiB", b / 1048576.0),
        b => format!("{:.1} KiB", b / 1024.0),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_plan::Categories;

    use super::*;

    #[test]
    fn every_category_has_its_colour() {
        let rows = Categories::default().rows();
        assert_eq!(COLOURS.map(|(name, ..)| name), rows.map(|(name, _)| name));
    }
}
