//! Scores of candidates inside a sequence, and losses over the order in which they put them, with the gradients.

use std::ops::Range;

use plimsoll_graph::ops::{LIST_STATS, ListLoss, Ranking};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix, Rows};
use crate::score::{Found, add_scaled, dot, logistic_loss, scaled};

/// Columns of the weight's gradient that one task adds up.
const GRAD_COLUMNS: usize = 512;

pub(crate) fn list_loss(op: &ListLoss, call: &Call) -> Result<(), RuntimeError> {
    let (hidden, weight): (Matrix, Matrix) = (call.input(0)?, call.input(1)?);
    let lists = Lists::new(op, call)?;
    let dim = hidden.cols;
    // SAFETY: the scale is not written while the step runs.
    let scale = unsafe { *call.input::<f32>(4)?.ptr() };
    call.workers.for_each(lists.sequences(), |_, sequence| {
        // SAFETY: a sequence's part of the workspace is the task's alone, and both rows have `dim` elements.
        unsafe {
            let count = lists.find(sequence);
            for at in lists.candidates(sequence, count) {
                let token = *lists.places.row(at) as usize;
                *lists.scores.row(at) = dot(dim, hidden.row(token), weight.ptr());
            }
            lists.order(sequence, count, scale);
        }
    });
    let mut found = Found::<LIST_STATS>::NOTHING;
    for sequence in 0..lists.sequences() {
        // SAFETY: every sequence has its row of totals by now.
        let totals = unsafe { std::slice::from_raw_parts(lists.totals.row(sequence), LIST_STATS) };
        found.stats.iter_mut().zip(totals).for_each(|(stat, more)| *stat += more);
    }
    found.loss = found.stats[LIST_STATS - 1];
    found.add_from(5, call, scale)?;
    if let Some(before) = op.weight_grad_input() {
        let dw: Matrix = call.output(3)?;
        call.carry_over(call.input(before)?, dw);
        call.workers.for_each(dim.div_ceil(GRAD_COLUMNS), |_, task| {
            let start = task * GRAD_COLUMNS;
            let len = GRAD_COLUMNS.min(dim - start);
            for at in (0..lists.sequences()).flat_map(|sequence| lists.counted(sequence)) {
                // SAFETY: these columns are this task's alone.
                unsafe {
                    let token = *lists.places.row(at) as usize;
                    add_scaled(len, *lists.gradients.row(at), hidden.row(token).add(start), dw.ptr().add(start));
                }
            }
        });
    }
    if op.grad.is_some() {
        // Last, because it may be written over `hidden`.
        let d_hidden: Matrix = call.output(2)?;
        call.workers.rows(d_hidden.rows, dim, |rows| {
            // SAFETY: the rows are this task's alone, and nothing reads `hidden` any more. Zero is all zero bits.
            unsafe { d_hidden.row(rows.start).write_bytes(0, rows.len() * dim) };
        });
        for at in (0..lists.sequences()).flat_map(|sequence| lists.counted(sequence)) {
            // SAFETY: a candidate's token has a row.
            unsafe {
                let token = *lists.places.row(at) as usize;
                scaled(dim, *lists.gradients.row(at), weight.ptr(), d_hidden.row(token));
            }
        }
    }
    Ok(())
}

/// The marked tokens of every sequence. In the workspace, what is known of a sequence's candidates lies one behind another
/// from where the sequence begins.
struct Lists<'a> {
    ranking: Ranking,
    top: usize,
    marks: &'a [f32],
    boundaries: &'a [i32],
    /// Of a list by likelihood, the logarithm of the sum of exponentials of the scores from each candidate on; else what
    /// each candidate adds to the loss.
    sums: Rows<f64>,
    /// Of each list; see [`LIST_STATS`].
    totals: Rows<f64>,
    counts: Rows<i32>,
    scores: Rows<f32>,
    gradients: Rows<f32>,
    ranks: Rows<i32>,
    /// The candidates' tokens.
    places: Rows<i32>,
}

impl<'a> Lists<'a> {
    fn new(op: &ListLoss, call: &Call<'a>) -> Result<Self, RuntimeError> {
        // SAFETY: nobody writes to marks and boundaries while a step runs.
        let (marks, boundaries) = unsafe { (call.input::<f32>(2)?.slice(), call.input::<i32>(3)?.slice()) };
        let end = boundaries[boundaries.len() - 1];
        if !boundaries.is_sorted() || boundaries[0] < 0 || end as usize > marks.len() {
            return Err(call.error(format!("the sequences end at {end} of {} tokens", marks.len())));
        }
        let (tokens, sequences) = (marks.len(), boundaries.len() - 1);
        // Doubles first, so that all of them are aligned.
        let mut parts = call.workspace_parts();
        Ok(Self {
            ranking: op.ranking,
            top: op.top.map_or(usize::MAX, |top| top as usize),
            marks,
            boundaries,
            sums: parts.take(tokens, 1)?,
            totals: parts.take(sequences, LIST_STATS)?,
            counts: parts.take(sequences, 1)?,
            scores: parts.take(tokens, 1)?,
            gradients: parts.take(tokens, 1)?,
            ranks: parts.take(tokens, 1)?,
            places: parts.take(tokens, 1)?,
        })
    }

    fn sequences(&self) -> usize {
        self.boundaries.len() - 1
    }

    fn candidates(&self, sequence: usize, count: usize) -> Range<usize> {
        let start = self.boundaries[sequence] as usize;
        start..start + count
    }

    /// Those of a list that counts, once it has been found.
    fn counted(&self, sequence: usize) -> Range<usize> {
        // SAFETY: every sequence has its place.
        let count = unsafe { *self.counts.row(sequence) };
        self.candidates(sequence, count as usize)
    }

    /// Puts down where the candidates are, and how many; none if they are fewer than two.
    ///
    /// # Safety
    /// The sequence must be the caller's alone, here and below.
    unsafe fn find(&self, sequence: usize) -> usize {
        let tokens = self.boundaries[sequence] as usize..self.boundaries[sequence + 1] as usize;
        let start = tokens.start;
        let mut count = 0;
        for token in tokens.filter(|&token| self.marks[token] >= 0.0) {
            // SAFETY: there are no more candidates than tokens.
            unsafe { *self.places.row(start + count) = token as i32 };
            count += 1;
        }
        let count = if count < 2 { 0 } else { count };
        // SAFETY: every sequence has its place.
        unsafe { *self.counts.row(sequence) = count as i32 };
        count
    }

    /// Statistics, loss and the scores' gradients of a list.
    unsafe fn order(&self, sequence: usize, count: usize, scale: f32) {
        let all = self.candidates(sequence, count);
        // SAFETY: the caller vouches for the sequence.
        let (scores, places, ranks, gradients, sums, totals) = unsafe {
            (
                std::slice::from_raw_parts(self.scores.row(all.start), count),
                std::slice::from_raw_parts(self.places.row(all.start), count),
                std::slice::from_raw_parts_mut(self.ranks.row(all.start), count),
                std::slice::from_raw_parts_mut(self.gradients.row(all.start), count),
                std::slice::from_raw_parts_mut(self.sums.row(all.start), count),
                std::slice::from_raw_parts_mut(self.totals.row(sequence), LIST_STATS),
            )
        };
        totals.fill(0.0);
        if count == 0 {
            return;
        }
        let score = |i: usize| f64::from(scores[i]);
        let relevance = |i: usize| f64::from(self.marks[places[i] as usize]);
        for (i, rank) in ranks.iter_mut().enumerate() {
            *rank = (0..count).filter(|&j| before(relevance(j), relevance(i), j, i)).count() as i32;
        }
        totals[..4].copy_from_slice(&self.measures(count, &score, &relevance, ranks));
        let largest = (0..count).map(score).fold(f64::NEG_INFINITY, f64::max);
        let scale = f64::from(scale);
        match self.ranking {
            Ranking::ListMle => {
                for i in 0..count {
                    let rest = || (0..count).filter(|&j| ranks[j] >= ranks[i]).map(score);
                    let top = rest().fold(f64::NEG_INFINITY, f64::max);
                    sums[i] = top + rest().map(|s| (s - top).exp()).sum::<f64>().ln();
                    totals[4] += sums[i] - score(i);
                }
                for k in 0..count {
                    let drawn = (0..count).filter(|&i| ranks[i] <= ranks[k]).map(|i| (score(k) - sums[i]).exp());
                    gradients[k] = (scale * (drawn.sum::<f64>() - 1.0)) as f32;
                }
            }
            Ranking::ListNet => {
                let best = (0..count).map(relevance).fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = (0..count).map(|i| (score(i) - largest).exp()).sum();
                let wanted: f64 = (0..count).map(|i| (relevance(i) - best).exp()).sum();
                for i in 0..count {
                    let share = (relevance(i) - best).exp() / wanted;
                    totals[4] += share * (total.ln() + largest - score(i));
                    gradients[i] = (scale * ((score(i) - largest).exp() / total - share)) as f32;
                }
            }
            Ranking::Pairwise => {
                let ordered = |i: usize| (0..count).filter(move |&j| relevance(i) > relevance(j));
                let pairs = (0..count).map(|i| ordered(i).count()).sum::<usize>().max(1) as f64;
                for i in 0..count {
                    let (mut loss, mut slope) = (0.0, 0.0);
                    for j in ordered(i) {
                        let (of_pair, doubt) = logistic_loss(score(i) - score(j));
                        loss += of_pair;
                        slope -= doubt;
                    }
                    for j in (0..count).filter(|&j| relevance(j) > relevance(i)) {
                        slope += logistic_loss(score(j) - score(i)).1;
                    }
                    totals[4] += loss / pairs;
                    gradients[i] = (scale * slope / pairs) as f32;
                }
            }
        }
    }

    /// The list itself, its NDCG, reciprocal rank and precision of the first.
    fn measures(
        &self,
        count: usize,
        score: &impl Fn(usize) -> f64,
        relevance: &impl Fn(usize) -> f64,
        best_ranks: &[i32],
    ) -> [f64; 4] {
        let (mut gain, mut best_gain, mut first_relevant, mut first) = (0.0, 0.0, usize::MAX, 0.0);
        let discounted =
            |i: usize, rank: usize| if rank < self.top { relevance(i) / (rank as f64 + 2.0).log2() } else { 0.0 };
        for i in 0..count {
            let rank = (0..count).filter(|&j| before(score(j), score(i), j, i)).count();
            gain += discounted(i, rank);
            best_gain += discounted(i, best_ranks[i] as usize);
            if relevance(i) > 0.0 {
                first_relevant = first_relevant.min(rank);
                first += f64::from(u8::from(rank == 0));
            }
        }
        let ndcg = if best_gain > 0.0 { gain / best_gain } else { 0.0 };
        let reciprocal = if first_relevant == usize::MAX { 0.0 } else { 1.0 / (first_relevant as f64 + 1.0) };
        [1.0, ndcg, reciprocal, first]
    }
}

/// Whether candidate `j` with the value `a` stands before candidate `i` with the value `b`.
fn before(a: f64, b: f64, j: usize, i: usize) -> bool {
    a > b || (a == b && j < i)
}
