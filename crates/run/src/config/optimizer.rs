//! `optimizer` and `schedule`.

use super::kind::Range;
use super::reader::Reader;
use super::schema::{OPTIMIZER_NAMES, count, number, numbers, span, word, word_of};
use super::section::section;
use super::size::Span;
use super::words::{ScheduleName, StateStorage};
use crate::failure::Failure;

section! {
    pub struct OptimizerConfig {
        /// The update rule.
        name: String = word_of(&OPTIMIZER_NAMES), default "adamw", also ["type"];
        /// The highest learning rate.
        lr: f64 = number(Range::ABOVE_ZERO), default "2e-5", also ["learning_rate"];
        /// Decoupled weight decay.
        weight_decay: f64 = number(Range::FROM_ZERO), default "0.01";
        /// AdamW's decay rates of the first and second moment.
        betas: [f64; 2] = numbers(2, Range::BELOW_ONE), default "[0.9, 0.999]",
            also ["adam_beta1", "adam_beta2", "beta1", "beta2"];
        /// Added to the denominator of AdamW.
        eps: f64 = number(Range::ABOVE_ZERO), default "1e-8", also ["adam_epsilon"];
        /// Momentum of SGD.
        momentum: Option<f64> = number(Range::BELOW_ONE);
        /// How the optimizer's state is stored.
        state: StateStorage = word::<StateStorage>(), default "fp32";
    }
    then Self::checked;
}

section! {
    pub struct ScheduleConfig {
        /// The shape of the learning rate over time.
        name: ScheduleName = word::<ScheduleName>(), default "cosine", also ["type"];
        /// Warm-up: a fraction of the run (below 1) or a number of updates.
        warmup: Span = span(), default "0", also ["warmup_ratio", "warmup_steps"];
        /// Passes over the training data.
        epochs: Option<f64> = number(Range::ABOVE_ZERO), default "1", also ["num_train_epochs"];
        /// Updates of the run, instead of `schedule.epochs`.
        steps: Option<u64> = count(), also ["max_steps"];
        /// The last learning rate as a fraction of the highest.
        last as "final": f64 = number(Range::FRACTION), default "0.0", also ["min_lr_ratio"];
        /// Where `constant-linear` begins to decay: a fraction of the run or a number of updates; 0.8 if unset.
        decay_start: Option<Span> = span();
        /// The power of what is left of the run that `polynomial` follows; 1 if unset.
        power: Option<f64> = number(Range::ABOVE_ZERO);
        /// Updates behind the warm-up after which `inverse-sqrt` is at 0.71; as many as the warm-up has, or 10,000, if unset.
        timescale: Option<u64> = count();
    }
    one_of &[&["epochs", "steps"]];
    then Self::checked;
}

/// How long to train.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    Epochs(f64),
    Steps(u64),
}

impl OptimizerConfig {
    fn checked(self, section: &Reader<'_>) -> Result<Self, Failure> {
        match (self.name.as_str(), section.node("momentum")) {
            ("sgd", _) | (_, None) => Ok(self),
            (_, Some(node)) => Err(Failure::config_at(
                "optimizer.momentum",
                &node.origin,
                format!("`optimizer.momentum` applies to `sgd`, but the optimizer is `{}`", self.name),
            )
            .hint("use the first of `optimizer.betas` instead")),
        }
    }
}

impl ScheduleConfig {
    pub fn length(&self) -> Length {
        match (self.steps, self.epochs) {
            (Some(steps), _) => Length::Steps(steps),
            // One of the two is always set: `epochs` has a default.
            (None, epochs) => Length::Epochs(epochs.unwrap_or(1.0)),
        }
    }

    fn checked(self, section: &Reader<'_>) -> Result<Self, Failure> {
        for (key, suits) in [
            ("decay_start", ScheduleName::ConstantLinear),
            ("power", ScheduleName::Polynomial),
            ("timescale", ScheduleName::InverseSqrt),
        ] {
            if let (Some(node), true) = (section.node(key), self.name != suits) {
                let path = format!("schedule.{key}");
                let message = format!("`{path}` applies to `{suits}`, but the schedule is `{}`", self.name);
                return Err(Failure::config_at(&path, &node.origin, message)
                    .hint(format!("remove it, or set `schedule.name` to `{suits}`")));
            }
        }
        Ok(self)
    }
}
