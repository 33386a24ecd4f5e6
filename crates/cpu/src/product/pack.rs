//! Operands brought into the order that the kernels read them in: a panel is some lines side by side,
//! `to[depth][line]`, so that the innermost loop walks through memory.

use super::vectors::{Vector, prefetch};

/// Lines of an operand: rows of the left one, columns of the right one.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub start: *const f32,
    /// From one line to the next.
    pub line_step: usize,
    /// From one element of a line to the next.
    pub depth_step: usize,
}

impl Lines {
    pub(super) fn at(self, line: usize, depth: usize) -> Self {
        let start = self.start.wrapping_add(line * self.line_step + depth * self.depth_step);
        Self { start, ..self }
    }
}

/// Panels to pack, one behind another.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub lines: Lines,
    pub number: usize,
    /// Lines of each, at most a vector unless they are whole vectors.
    pub width: usize,
    /// Lines that are there, of each; zeros stand for the others.
    pub count: usize,
    pub depth: usize,
    pub to: *mut f32,
}

/// Where elements are copied from far apart, the processor does not see what comes next; so many
/// steps ahead we tell it.
const STEPS_AHEAD: usize = 12;

impl Panels {
    /// # Safety
    /// The processor must have the vector's instructions. The lines must be there, and room for the panels.
    #[inline(always)]
    pub(super) unsafe fn pack<V: Vector>(&self) {
        // SAFETY: the caller's promises are passed on.
        unsafe {
            if self.lines.line_step == 1 {
                self.copy::<V>();
            } else if self.lines.depth_step == 1 && self.width.is_multiple_of(V::LANES) {
                self.transpose::<V>();
            } else {
                self.gather();
            }
        }
    }

    /// Where an element of the depth begins in a panel.
    #[inline(always)]
    fn place(&self, panel: usize, index: usize) -> *mut f32 {
        self.to.wrapping_add((panel * self.depth + index) * self.width)
    }

    /// Elements of different lines lie side by side already.
    #[inline(always)]
    unsafe fn copy<V: Vector>(&self) {
        let Self { width, count, .. } = *self;
        for index in 0..self.depth {
            for panel in 0..self.number {
                let from = self.lines.at(panel * width, index).start;
                let ahead = from.wrapping_add(STEPS_AHEAD * self.lines.depth_step);
                let to = self.place(panel, index);
                for first in (0..width).step_by(V::LANES) {
                    prefetch(ahead.wrapping_add(first));
                    let there = count.saturating_sub(first).min(V::LANES);
                    // SAFETY: `count` lines are there. Where the panel is narrower than a vector, what is written
                    // behind it is its own next element, and behind the last one nothing is written.
                    unsafe {
                        let (from, to) = (from.add(first), to.add(first));
                        let lanes = if there == V::LANES { V::load(from) } else { V::load_first(from, there) };
                        if index + 1 < self.depth || first + V::LANES <= width {
                            lanes.store(to);
                        } else {
                            lanes.store_first(to, width - first);
                        }
                    }
                }
            }
        }
    }

    /// Elements of one line lie side by side: as many lines as a vector holds, as far as a vector reaches, at a time.
    #[inline(always)]
    unsafe fn transpose<V: Vector>(&self) {
        for panel in 0..self.number {
            for index in (0..self.depth).step_by(V::LANES) {
                let depth = V::LANES.min(self.depth - index);
                for first in (0..self.width).step_by(V::LANES) {
                    let there = self.count.saturating_sub(first).min(V::LANES);
                    let from = self.lines.at(panel * self.width + first, index);
                    let to = self.place(panel, index).wrapping_add(first);
                    // SAFETY: so many lines are there, and the panel is whole vectors wide.
                    unsafe { V::transpose(from.start, from.line_step, there, depth, to, self.width) };
                }
            }
        }
    }

    /// Nothing lies side by side. No operator has such operands.
    unsafe fn gather(&self) {
        for panel in 0..self.number {
            for index in 0..self.depth {
                for line in 0..self.width {
                    let from = self.lines.at(panel * self.width + line, index).start;
                    // SAFETY: only lines that are there are read, and the panel has room for all.
                    unsafe { *self.place(panel, index).add(line) = if line < self.count { *from } else { 0.0 } };
                }
            }
        }
    }
}
