//! The learning rate of every update.

/// How the rate goes after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    Constant,
    Linear,
    Cosine,
    /// Rises to the peak over the warm-up (30 % of the steps if none is set) from a 25th of it, then falls to
    /// a ten-thousandth of where it began, both along a cosine.
    OneCycle,
    /// Constant up to the given update, then linear.
    ConstantLinear {
        decay_start: u64,
    },
}

/// A learning-rate schedule over a known number of updates.
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

impl LearningRate {
    /// The rate of update `step`, counted from 1.
    pub fn at(&self, step: u64) -> f64 {
        self.peak * self.factor(step)
    }

    fn factor(&self, step: u64) -> f64 {
        if self.decay == Decay::OneCycle {
            return self.one_cycle(step);
        }
        if step <= self.warmup {
            return step as f64 / self.warmup.max(1) as f64;
        }
        let fall = |from: u64| {
            let length = self.total.saturating_sub(from).max(1) as f64;
            (step.saturating_sub(from) as f64 / length).min(1.0)
        };
        match self.decay {
            Decay::Constant | Decay::OneCycle => 1.0,
            Decay::Linear => interpolate(1.0, self.last, fall(self.warmup)),
            Decay::Cosine => cosine(1.0, self.last, fall(self.warmup)),
            Decay::ConstantLinear { decay_start } => interpolate(1.0, self.last, fall(decay_start.max(self.warmup))),
        }
    }

    fn one_cycle(&self, step: u64) -> f64 {
        let rise = if self.warmup > 0 { self.warmup as f64 } else { ONE_CYCLE_RISE * self.total as f64 };
        let at = step as f64;
        if at <= rise {
            cosine(ONE_CYCLE_START, 1.0, at / rise.max(1.0))
        } else {
            let length = (self.total as f64 - rise).max(1.0);
            cosine(1.0, ONE_CYCLE_END, ((at - rise) / length).min(1.0))
        }
    }
}

fn interpolate(from: f64, to: f64, t: f64) -> f64 {
    from + (to - from) * t
}

fn cosine(from: f64, to: f64, t: f64) -> f64 {
    to + (from - to) * 0.5 * (1.0 + (std::f64::consts::PI * t).cos())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(decay: Decay, warmup: u64, last: f64, expected: &[(u64, f64)]) {
        let rate = LearningRate { peak: 2.0, decay, warmup, total: 100, last };
        for &(step, value) in expected {
            assert!((rate.at(step) - value).abs() < 1e-9, "{decay:?} at {step}: {} instead of {value}", rate.at(step));
        }
    }

    #[test]
    fn shapes() {
        check(Decay::Constant, 0, 0.0, &[(1, 2.0), (100, 2.0)]);
        check(Decay::Constant, 10, 0.0, &[(1, 0.2), (5, 1.0), (10, 2.0), (11, 2.0)]);
        check(Decay::Linear, 0, 0.0, &[(50, 1.0), (100, 0.0)]);
        check(Decay::Linear, 20, 0.5, &[(20, 2.0), (60, 1.5), (100, 1.0)]);
        check(Decay::Cosine, 0, 0.1, &[(50, 1.1), (100, 0.2)]);
        check(Decay::ConstantLinear { decay_start: 80 }, 0, 0.0, &[(80, 2.0), (90, 1.0), (100, 0.0)]);
        check(Decay::OneCycle, 0, 0.0, &[(30, 2.0), (100, 2.0 / 250_000.0)]);
    }
}
