//! How many updates a run has, and the learning rate of each.

use plimsoll_data::{Amount, Dataset};
use plimsoll_train::{Decay, LearningRate};

use crate::config::{Length, RunConfig, ScheduleName};

/// Updates of the run. How much one epoch has is always known where epochs are asked for.
pub fn total_updates(run: &RunConfig, train: &Dataset, amount: Amount) -> u64 {
    match run.schedule.length() {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => {
            let groups = train.groups().unwrap_or(0) as f64;
            let group_tokens = train.total_tokens().unwrap_or(0) as f64 / groups.max(1.0);
            let longest = train.group() as f64 * train.longest().unwrap_or(0) as f64;
            let per_update = match amount {
                Amount::Sequences(sequences) => sequences as f64 / train.group() as f64,
                Amount::Tokens(tokens) => groups_that_fit(tokens as f64, group_tokens, longest),
            };
            ((epochs * groups / per_update).ceil() as u64).max(1)
        }
    }
}

/// Groups of an update of so many tokens: exact where all are of one length, else what is to be expected. The group that
/// no longer fits would on average have been cut in the middle.
fn groups_that_fit(tokens: f64, mean: f64, longest: f64) -> f64 {
    if mean >= longest {
        return (tokens / mean.max(1.0)).floor().max(1.0);
    }
    (tokens / mean.max(1.0) - 0.5).max(1.0)
}

pub fn learning_rate(run: &RunConfig, total: u64) -> LearningRate {
    let schedule = &run.schedule;
    let decay = match schedule.name {
        ScheduleName::Constant => Decay::Constant,
        ScheduleName::Linear => Decay::Linear,
        ScheduleName::Cosine => Decay::Cosine,
        ScheduleName::Polynomial => Decay::Polynomial { power: schedule.power.unwrap_or(1.0) },
        ScheduleName::InverseSqrt => Decay::InverseSqrt { timescale: schedule.timescale },
        ScheduleName::OneCycle => Decay::OneCycle,
        ScheduleName::ConstantLinear => {
            let start = schedule.decay_start.map_or((total as f64 * 0.8) as u64, |span| span.steps(total));
            Decay::ConstantLinear { decay_start: start }
        }
    };
    LearningRate { peak: run.optimizer.lr, decay, warmup: schedule.warmup.steps(total), total, last: schedule.last }
}
