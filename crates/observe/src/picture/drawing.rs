//! The picture for documents as shapes on a sheet, for whoever puts them on paper.

use plimsoll_plan::{Band, Timeline, TimelineBuffer};

use super::COLOURS;
use super::scene::{PlanPicture, category_index};
use super::text::Text;

pub const WIDTH: f64 = 1200.0;
pub const HEIGHT: f64 = 720.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 20.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = HEIGHT - 70.0;
/// What is narrower and lower than this cannot be seen and is left out.
const INVISIBLE: f64 = 0.25;
/// The budget's line is part of the drawing as long as that leaves most of it to the arena.
const BUDGET_SHOWN: f64 = 1.5;

const WHITE: &str = "#ffffff";
const INK: &str = "#1d2229";
const FAINT: &str = "#68717d";
const LINE: &str = "#dfe3e8";
const LIMIT: &str = "#b3261e";

/// Colours are `#rrggbb`; y grows downwards.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    Area {
        x: f64,
        y: f64,
        width: f64,
        height: f64,
        fill: &'static str,
        opacity: f64,
    },
    /// Slanting stripes over an area.
    Stripes {
        x: f64,
        y: f64,
        width: f64,
        height: f64,
    },
    /// Upright or level.
    Line {
        from: (f64, f64),
        to: (f64, f64),
        stroke: &'static str,
        width: f64,
        dashed: bool,
    },
    /// `y` is the line that letters stand on.
    Words {
        x: f64,
        y: f64,
        text: String,
        fill: &'static str,
        size: f64,
        anchor: Anchor,
        bold: bool,
    },
}

/// Which part of the text is at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

pub struct Sheet {
    pub title: String,
    pub shapes: Vec<Shape>,
}

/// The schedule that trains, over the operators it runs.
pub fn sheet(plan: &PlanPicture, text: &Text) -> Sheet {
    let mut drawing = Drawing::new(plan, text);
    drawing.head();
    drawing.axis();
    drawing.bands();
    drawing.buffers();
    drawing.phases();
    drawing.marks();
    drawing.legend();
    Sheet { title: drawing.title(), shapes: drawing.shapes }
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
    shapes: Vec<Shape>,
}

impl<'a> Drawing<'a> {
    fn new(plan: &'a PlanPicture<'a>, text: &'a Text) -> Self {
        let arena = plan.picture.arena_bytes as f64;
        let budget = plan.arena_budget_bytes() as f64;
        let highest = if budget < arena * BUDGET_SHOWN { arena.max(budget) } else { arena };
        Self { plan, text, timeline: &plan.picture.timelines[0], ceiling: highest * 1.05, shapes: Vec::new() }
    }

    fn x(&self, step: usize) -> f64 {
        LEFT + step as f64 / self.timeline.steps.len().max(1) as f64 * (RIGHT - LEFT)
    }

    fn y(&self, bytes: u64) -> f64 {
        BOTTOM - bytes as f64 / self.ceiling * (BOTTOM - TOP)
    }

    fn title(&self) -> String {
        format!("{} · {}", self.text.title, self.plan.name)
    }

    fn area(&mut self, [x, y, width, height]: [f64; 4], fill: &'static str, opacity: f64) {
        self.shapes.push(Shape::Area { x, y, width, height, fill, opacity });
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &'static str) {
        self.shapes.push(Shape::Line { from, to, stroke, width: 1.0, dashed: false });
    }

    fn words(&mut self, (x, y): (f64, f64), text: impl Into<String>, fill: &'static str, anchor: Anchor) {
        self.shapes.push(Shape::Words { x, y, text: text.into(), fill, size: 12.0, anchor, bold: false });
    }

    fn headline(&mut self, (x, y): (f64, f64), text: String, fill: &'static str, anchor: Anchor, size: f64) {
        self.shapes.push(Shape::Words { x, y, text, fill, size, anchor, bold: true });
    }

    fn head(&mut self) {
        let report = self.plan.report;
        let line = format!(
            "{} · {} {} / {} · {} × {} tok · {:.0} tok/s",
            report.device,
            self.text.planned,
            size(self.plan.planned_bytes()),
            size(self.plan.budget_bytes()),
            report.accumulation,
            report.micro_batch_tokens,
            report.predicted.tokens_per_s
        );
        self.area([0.0, 0.0, WIDTH, HEIGHT], WHITE, 1.0);
        self.headline((LEFT, 34.0), self.title(), INK, Anchor::Start, 20.0);
        self.words((LEFT, 56.0), line, FAINT, Anchor::Start);
    }

    fn axis(&mut self) {
        let ceiling = self.ceiling;
        let step = 2f64.powf((ceiling / 10.0).log2().ceil()) as u64;
        for bytes in (0..).map(|n| n * step).take_while(|&bytes| bytes as f64 <= ceiling) {
            let y = self.y(bytes);
            let label = if bytes == 0 { "0".to_owned() } else { size(bytes) };
            self.line((LEFT, y), (RIGHT, y), LINE);
            self.words((LEFT - 8.0, y + 4.0), label, FAINT, Anchor::End);
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
        let opacity = if block.layer.is_some_and(|layer| layer % 2 == 0) { 0.78 } else { 1.0 };
        self.area([x, y, width, height], colour(block.category), opacity);
        if block.recomputed && width > 1.0 && height > 1.0 {
            self.shapes.push(Shape::Stripes { x, y, width, height });
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
        // Names where there is space for them.
        for b in &self.timeline.buffers {
            let (top, bottom) = (self.y(b.offset + b.bytes), self.y(b.offset));
            let letters = ((self.x(b.last + 1) - self.x(b.first) - 8.0) / 6.5).max(0.0) as usize;
            if bottom - top > 13.0 && b.name.chars().count() <= letters {
                let (x, y, text) = (self.x(b.first) + 4.0, (top + bottom) / 2.0 + 4.0, b.name.clone());
                let anchor = Anchor::Start;
                self.shapes.push(Shape::Words { x, y, text, fill: WHITE, size: 11.0, anchor, bold: false });
            }
        }
    }

    /// Runs of steps of one phase, under the time axis.
    fn phases(&mut self) {
        let steps = &self.timeline.steps;
        let mut first = 0;
        for run in steps.chunk_by(|a, b| a.phase == b.phase) {
            let (from, to) = (self.x(first), self.x(first + run.len()));
            first += run.len();
            let shade = match run[0].phase {
                "forward" => "#e4e8ee",
                "recompute" => "#7c8794",
                "backward" => "#c3cad3",
                _ => "#d5dae1",
            };
            self.area([from, BOTTOM + 5.0, (to - from).max(INVISIBLE), 16.0], shade, 1.0);
            let known = self.text.phases.iter().find(|(key, _)| *key == run[0].phase);
            let label = known.map_or(run[0].phase, |(_, text)| text);
            if to - from > 7.0 * label.len() as f64 {
                self.words(((from + to) / 2.0, BOTTOM + 17.5), label, INK, Anchor::Middle);
            }
        }
    }

    fn marks(&mut self) {
        let timeline = self.timeline;
        let x = (self.x(timeline.peak_step) + self.x(timeline.peak_step + 1)) / 2.0;
        let y = self.y(timeline.peak_bytes);
        // Away from the nearer edge.
        let (anchor, shift) = if x > (LEFT + RIGHT) / 2.0 { (Anchor::End, -6.0) } else { (Anchor::Start, 6.0) };
        self.shapes.push(Shape::Line { from: (x, TOP), to: (x, BOTTOM), stroke: INK, width: 1.5, dashed: false });
        let peak = format!("{} {}", self.text.peak, size(timeline.peak_bytes));
        self.headline((x + shift, y - 6.0), peak, INK, anchor, 12.0);
        let budget = self.plan.arena_budget_bytes();
        let words = format!("{} {}", self.text.budget, size(self.plan.budget_bytes()));
        if budget as f64 <= self.ceiling {
            let y = self.y(budget);
            self.shapes.push(Shape::Line { from: (LEFT, y), to: (RIGHT, y), stroke: LIMIT, width: 1.5, dashed: true });
            self.headline((LEFT, y - 5.0), words, LIMIT, Anchor::Start, 12.0);
        } else {
            self.headline((RIGHT, TOP - 6.0), format!("↑ {words}"), LIMIT, Anchor::End, 12.0);
        }
    }

    fn legend(&mut self) {
        let (mut x, y) = (LEFT, HEIGHT - 32.0);
        let shown = |category: &str| {
            self.plan.picture.bands.iter().any(|b| b.category == category)
                || self.timeline.buffers.iter().any(|b| b.category == category)
        };
        let entries: Vec<&str> = COLOURS.iter().map(|(name, ..)| *name).filter(|name| shown(name)).collect();
        for name in entries {
            self.area([x, y, 12.0, 12.0], colour(name), 1.0);
            let said = self.text.categories[category_index(name) as usize].1;
            self.words((x + 17.0, y + 10.0), said, INK, Anchor::Start);
            // Characters of three bytes are as wide as two of one.
            x += 34.0 + 7.0 * said.len() as f64;
        }
        if self.timeline.buffers.iter().any(|b| b.recomputed) {
            self.area([x, y, 12.0, 12.0], colour("activations"), 1.0);
            self.shapes.push(Shape::Stripes { x, y, width: 12.0, height: 12.0 });
            self.words((x + 17.0, y + 10.0), self.text.recomputed, INK, Anchor::Start);
        }
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
