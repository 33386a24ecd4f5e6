//! How likely whole sequences are, and losses that prefer one of a pair to the other by that.

use plimsoll_graph::ops::{LOG_PROB_MAX, PAIR_STATS, Preference, PreferenceLoss, SequenceLogProb, SequenceLogProbGrad};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix};
use crate::score::{Found, Pairs, logistic_loss};

pub(crate) fn sequence_log_prob(op: &SequenceLogProb, call: &Call) -> Result<(), RuntimeError> {
    let (nll, out): (Matrix, Matrix) = (call.input(0)?, call.output(0)?);
    let sequences = Sequences::new(call)?;
    call.workers.for_each(out.rows, |_, sequence| {
        let (mut sum, mut count) = (0.0, 0u32);
        for token in sequences.learnt(sequence) {
            // SAFETY: the sequences end within the tokens.
            sum -= f64::from(unsafe { *nll.row(token) });
            count += 1;
        }
        let divisor = if op.mean { f64::from(count.max(1)) } else { 1.0 };
        // SAFETY: this place is the task's alone.
        unsafe { *out.row(sequence) = (sum / divisor) as f32 };
    });
    Ok(())
}

pub(crate) fn sequence_log_prob_grad(op: &SequenceLogProbGrad, call: &Call) -> Result<(), RuntimeError> {
    let (dy, d_nll): (Matrix, Matrix) = (call.input(0)?, call.output(0)?);
    let sequences = Sequences::new(call)?;
    // SAFETY: the output has a number for each token, and zero is all zero bits.
    unsafe { d_nll.ptr().write_bytes(0, d_nll.len()) };
    call.workers.for_each(dy.rows, |_, sequence| {
        let count = if op.mean { sequences.learnt(sequence).count().max(1) } else { 1 };
        for token in sequences.learnt(sequence) {
            // SAFETY: a sequence's tokens are the task's alone.
            unsafe { *d_nll.row(token) = -*dy.row(sequence) / count as f32 };
        }
    });
    Ok(())
}

/// Which tokens of which sequence have a target, from the second and the third input.
struct Sequences<'a> {
    targets: &'a [i32],
    boundaries: &'a [i32],
}

impl<'a> Sequences<'a> {
    fn new(call: &Call<'a>) -> Result<Self, RuntimeError> {
        // SAFETY: nobody writes to targets and boundaries while a step runs.
        let (targets, boundaries) = unsafe { (call.input::<i32>(1)?.slice(), call.input::<i32>(2)?.slice()) };
        let end = boundaries[boundaries.len() - 1];
        if !boundaries.is_sorted() || boundaries[0] < 0 || end as usize > targets.len() {
            return Err(call.error(format!("the sequences end at {end} of {} tokens", targets.len())));
        }
        Ok(Self { targets, boundaries })
    }

    fn learnt(&self, sequence: usize) -> impl Iterator<Item = usize> {
        let tokens = self.boundaries[sequence] as usize..self.boundaries[sequence + 1] as usize;
        tokens.filter(|&token| self.targets[token] >= 0)
    }
}

pub(crate) fn preference_loss(op: &PreferenceLoss, call: &Call) -> Result<(), RuntimeError> {
    let log_probs: Matrix = call.input(0)?;
    let pairs = Pairs::new(call, 1)?;
    // SAFETY: the scale is not written while the step runs.
    let scale = unsafe { *call.input::<f32>(2)?.ptr() };
    let reference: Option<Matrix> = if op.preference.has_reference() { Some(call.input(5)?) } else { None };
    let gradient: Option<Matrix> = if op.grad { Some(call.output(2)?) } else { None };
    let mut found = Found::<PAIR_STATS>::NOTHING;
    for chosen in (0..pairs.sequences()).step_by(2) {
        let mut slopes = [0.0; 2];
        if pairs.counts(chosen) {
            // SAFETY: there is a number for every sequence.
            let both = |of: Matrix| unsafe { [f64::from(*of.row(chosen)), f64::from(*of.row(chosen + 1))] };
            let compared = compare(op.preference, both(log_probs), reference.map_or([0.0; 2], both));
            found.loss += compared.loss;
            found.count_pair(compared.rewards[0], compared.rewards[1]);
            slopes = compared.slopes;
        }
        for (side, slope) in slopes.into_iter().enumerate() {
            if let Some(gradient) = gradient {
                // SAFETY: as above.
                unsafe { *gradient.row(chosen + side) = (f64::from(scale) * slope) as f32 };
            }
        }
    }
    found.add_from(3, call, scale)
}

/// The loss of a pair, its slopes over the log-probabilities, and the rewards; the chosen sequence's first.
struct Compared {
    loss: f64,
    slopes: [f64; 2],
    rewards: [f64; 2],
}

fn compare(preference: Preference, log_probs: [f64; 2], reference: [f64; 2]) -> Compared {
    match preference {
        Preference::Dpo { beta, label_smoothing } => {
            let (beta, wrong) = (f64::from(beta), f64::from(label_smoothing));
            let rewards = [0, 1].map(|side| beta * (log_probs[side] - reference[side]));
            let (loss, doubt) = logistic_loss(rewards[0] - rewards[1]);
            let (loss_turned, doubt_turned) = logistic_loss(rewards[1] - rewards[0]);
            let slope = beta * (wrong * doubt_turned - (1.0 - wrong) * doubt);
            Compared { loss: (1.0 - wrong) * loss + wrong * loss_turned, slopes: [slope, -slope], rewards }
        }
        Preference::Orpo { lambda } => {
            let lambda = f64::from(lambda);
            let capped = log_probs.map(|log_prob| log_prob.min(LOG_PROB_MAX));
            let log_rest = capped.map(|log_prob| (-log_prob.exp_m1()).ln());
            let (odds, doubt) = logistic_loss((capped[0] - log_rest[0]) - (capped[1] - log_rest[1]));
            // The slope of the log odds is one over how likely the sequence is not.
            let steep = [0, 1].map(|side| lambda * doubt / -capped[side].exp_m1());
            Compared {
                loss: lambda * odds - log_probs[0],
                slopes: [-1.0 - steep[0], steep[1]],
                rewards: log_probs.map(|log_prob| lambda * log_prob),
            }
        }
    }
}
