//! The learning rate of every update, as transformers' schedulers and torch's `OneCycleLR` have it.

use std::f64::consts::PI;

/// How the rate goes after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    Constant,
    /// Down to `last` in a straight line.
    Linear,
    /// Down to `last` along half a cosine.
    Cosine,
    /// Down to `last` as this power of what is left of the run.
    Polynomial {
        power: f64,
    },
    /// With the square root of updates over a time scale, which is the warm-up unless it is given.
    InverseSqrt {
        timescale: Option<u64>,
    },
    /// Rises to the peak over the warm-up (30 % of the updates if none is set) from a 25th of it, then falls to a
    /// ten-thousandth of where it began, both along a cosine.
    OneCycle,
    /// Constant for so many updates, then straight down to `last`.
    ConstantLinear {
        decay_start: u64,
    },
}

/// A learning-rate schedule over a known number of updates. Decaying ones reach their end behind the last update: each
/// update trains, that of a run of one too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    pub peak: f64,
    pub decay: Decay,
    pub warmup: u64,
    pub total: u64,
    /// Fraction of the peak at the end.
    pub last: f64,
}

const ONE_CYCLE_RISE: f64 = 0.3;
const ONE_CYCLE_START: f64 = 1.0 / 25.0;
const ONE_CYCLE_END: f64 = 1.0 / 25.0 / 1e4;

/// The time scale of an inverse square root without warm-up.
const TIMESCALE: u64 = 10_000;

impl LearningRate {
    /// The rate of update `step`, counted from 1.
    pub fn at(&self, step: u64) -> f64 {
        self.peak * self.factor(step.saturating_sub(1))
    }

    /// Of the peak, once so many updates are done.
    fn factor(&self, done: u64) -> f64 {
        if self.decay == Decay::OneCycle {
            return self.one_cycle(done as f64);
        }
        if done < self.warmup {
            let risen = done as f64 / self.warmup as f64;
            // The only one of transformers' that begins at its last rate.
            return if matches!(self.decay, Decay::ConstantLinear { .. }) { self.above_last(risen) } else { risen };
        }
        let length = |from: u64| self.total.saturating_sub(from).max(1) as f64;
        let left = |from: u64| self.total.saturating_sub(done) as f64 / length(from);
        match self.decay {
            Decay::Constant | Decay::OneCycle => 1.0,
            Decay::Linear => self.above_last(left(self.warmup)),
            Decay::Cosine => {
                let fallen = ((done - self.warmup) as f64 / length(self.warmup)).min(1.0);
                self.above_last(0.5 * (1.0 + (PI * fallen).cos()))
            }
            Decay::Polynomial { power } => self.above_last(left(self.warmup).powf(power)),
            Decay::InverseSqrt { timescale } => {
                let scale = timescale.unwrap_or(if self.warmup > 0 { self.warmup } else { TIMESCALE }).max(1) as f64;
                (scale / ((done - self.warmup) as f64 + scale)).sqrt()
            }
            Decay::ConstantLinear { decay_start } => {
                let start = decay_start.max(self.warmup);
                if done < start { 1.0 } else { self.above_last(left(start)) }
            }
        }
    }

    fn above_last(&self, factor: f64) -> f64 {
        factor * (1.0 - self.last) + self.last
    }

    fn one_cycle(&self, done: f64) -> f64 {
        let rise = if self.warmup > 0 { self.warmup as f64 } else { ONE_CYCLE_RISE * self.total as f64 };
        // The first update stands at the beginning, the last one at the end.
        let (top, end) = (rise - 1.0, self.total as f64 - 1.0);
        let cosine = |from: f64, to: f64, t: f64| to + (from - to) / 2.0 * (1.0 + (PI * t).cos());
        if done < top {
            cosine(ONE_CYCLE_START, 1.0, done / top)
        } else if end > top {
            cosine(1.0, ONE_CYCLE_END, ((done - top) / (end - top)).min(1.0))
        } else {
            1.0
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value as Json;

    use super::*;

    /// The decay and the last rate of a case of `fixtures/make_schedules.py`.
    fn described(kind: &str, total: u64) -> (Decay, f64) {
        let decay_start = total * 4 / 5;
        match kind {
            "constant" => (Decay::Constant, 0.0),
            "linear" => (Decay::Linear, 0.0),
            "linear_min" => (Decay::Linear, 0.05),
            "cosine" => (Decay::Cosine, 0.0),
            "cosine_min" => (Decay::Cosine, 0.1),
            "inverse_sqrt" => (Decay::InverseSqrt { timescale: None }, 0.0),
            "inverse_sqrt_timescale" => (Decay::InverseSqrt { timescale: Some(25) }, 0.0),
            "polynomial" => (Decay::Polynomial { power: 2.0 }, 0.05),
            "constant_linear" => (Decay::ConstantLinear { decay_start }, 0.0),
            "constant_linear_min" => (Decay::ConstantLinear { decay_start }, 0.2),
            "one_cycle" => (Decay::OneCycle, 0.0),
            other => panic!("no such schedule: {other}"),
        }
    }

    #[test]
    fn every_update_has_the_reference_rate() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/schedules.json");
        let fixture: Json = serde_json::from_str(&std::fs::read_to_string(path).expect("readable")).expect("JSON");
        let peak = fixture["peak"].as_f64().expect("a number");
        let cases = fixture["cases"].as_array().expect("cases");
        assert!(cases.len() > 60);
        for case in cases {
            let (kind, count) = (case["kind"].as_str().expect("a name"), |key: &str| case[key].as_u64().expect(key));
            let (warmup, total) = (count("warmup"), count("total"));
            let (decay, last) = described(kind, total);
            let rate = LearningRate { peak, decay, warmup, total, last };
            for (done, wanted) in case["rates"].as_array().expect("rates").iter().enumerate() {
                let (found, wanted) = (rate.at(done as u64 + 1), wanted.as_f64().expect("a rate"));
                let off = (found - wanted).abs();
                assert!(off <= 1e-12 * peak, "{kind}, {warmup} of {total}, after {done}: {found} instead of {wanted}");
            }
        }
    }

    #[test]
    fn a_run_of_one_update_trains() {
        for decay in [Decay::Linear, Decay::Cosine, Decay::ConstantLinear { decay_start: 0 }, Decay::OneCycle] {
            let rate = LearningRate { peak: 1.0, decay, warmup: 0, total: 1, last: 0.0 };
            assert!(rate.at(1) > 0.0, "{decay:?}");
        }
    }
}
