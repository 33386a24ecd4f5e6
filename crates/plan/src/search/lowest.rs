//! The smallest plan there is.

use super::{Candidate, LAYOUT_STEPS, Search, Variant};
use plimsoll_graph::Program;

use crate::PlanError;

impl<B: AsRef<Program>, E: From<PlanError>> Search<'_, B, E> {
    /// The smallest plan there is: one group of sequences at a time, or a micro-batch whose backward pass may update
    /// parameters itself; the chunks that take least (small ones save logits, but each is launched and so recorded), the
    /// best position of the dial.
    pub(super) fn lowest(&self) -> Result<Candidate, E> {
        let bytes = |candidate: &Candidate| candidate.arena_bytes + self.recorded(candidate);
        let mut best: Option<Candidate> = None;
        for batch in self.batches()? {
            for &update_in_backward in self.ways(batch) {
                if !update_in_backward && batch != self.smallest()?.batch {
                    continue;
                }
                let chunks = self.chunks(batch)?;
                let variants = self.keeps().iter().flat_map(|&keep_fp8| {
                    chunks.iter().map(move |&chunks| Variant { batch, chunks, update_in_backward, keep_fp8 })
                });
                for variant in variants {
                    let candidate = self.lowest_of(variant)?;
                    if best.as_ref().is_none_or(|best| bytes(&candidate) < bytes(best)) {
                        best = Some(candidate);
                    }
                }
            }
        }
        Ok(best.expect("there is a way to update"))
    }

    fn lowest_of(&self, variant: Variant) -> Result<Candidate, E> {
        let bytes = |candidate: &Candidate| candidate.arena_bytes + self.recorded(candidate);
        let mut best: Option<Candidate> = None;
        for level in self.class_marks() {
            let candidate = self.evaluate(variant, level)?;
            if best.as_ref().is_none_or(|b| bytes(&candidate) < bytes(b)) {
                best = Some(candidate);
            }
        }
        let mut best = best.expect("the dial has a position");
        // What is dropped in the last layers is needed again at once; taking that back often costs nothing.
        while best.level > 0 {
            let candidate = self.evaluate(variant, best.level - 1)?;
            if bytes(&candidate) > bytes(&best) {
                break;
            }
            best = candidate;
        }
        Ok(best)
    }

    /// That plan, or one of those next to it if its addresses happen to fit more closely.
    pub(super) fn lowest_laid_out(&self) -> Result<Candidate, E> {
        let mut best = self.lowest()?;
        let mut best_bytes = self.laid_bytes(&best)? + self.recorded(&best);
        for level in best.level + 1..=(best.level + LAYOUT_STEPS).min(self.dial.len() - 1) {
            let candidate = self.evaluate(best.variant, level)?;
            let recorded = self.recorded(&candidate);
            if candidate.arena_bytes + recorded >= best_bytes {
                continue;
            }
            let bytes = self.laid_bytes(&candidate)? + recorded;
            if bytes < best_bytes {
                (best, best_bytes) = (candidate, bytes);
            }
        }
        Ok(best)
    }

    /// Where a class has just been dropped in all its layers, and half way there: rebuilding may itself take the most
    /// memory at one time, and then a class is best dropped in some of its layers.
    fn class_marks(&self) -> Vec<usize> {
        let ends = self.class_ends();
        let halves: Vec<usize> = ends.windows(2).map(|pair| pair[0].midpoint(pair[1])).collect();
        let mut marks = [ends, halves].concat();
        marks.sort_unstable();
        marks.dedup();
        marks
    }
}
