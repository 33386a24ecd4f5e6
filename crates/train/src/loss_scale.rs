//! Dynamic loss scaling, for sixteen-bit floats whose range is too small for gradients as they are.
//!
//! The loss is multiplied by a scale, and the update divides the gradients by it again. Scales are powers of two, so where
//! nothing leaves the range they do not show in a single bit.

use serde::{Deserialize, Serialize};

/// How the scale follows what it meets: the rule of PyTorch's `GradScaler`, and its numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaling {
    pub initial: f64,
    /// After so many updates in a row whose gradients were finite, the scale doubles.
    pub growth_interval: u64,
    /// A scale is halved where gradients overflow, but never to less than this.
    pub floor: f64,
    /// It never doubles beyond this.
    pub ceiling: f64,
}

impl Default for LossScaling {
    fn default() -> Self {
        Self { initial: 65_536.0, growth_interval: 2000, floor: 1.0, ceiling: (1u128 << 100) as f64 }
    }
}

/// Where a run's scale stands. Part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct LossScale {
    pub scale: f64,
    /// Updates in a row whose gradients were finite, since the scale last changed.
    clean: u64,
    /// Updates whose gradients overflowed, so far.
    pub skipped: u64,
}

impl LossScale {
    pub fn new(rule: &LossScaling) -> Self {
        Self { scale: rule.initial, clean: 0, skipped: 0 }
    }

    /// An update was applied.
    pub fn applied(&mut self, rule: &LossScaling) {
        self.clean += 1;
        if self.clean == rule.growth_interval {
            self.clean = 0;
            if self.scale < rule.ceiling {
                self.scale *= 2.0;
            }
        }
    }

    /// An update's gradients were not finite. Whether a smaller scale may help: at the floor, it is not the scale's fault.
    pub fn overflowed(&mut self, rule: &LossScaling) -> bool {
        self.clean = 0;
        if self.scale <= rule.floor {
            return false;
        }
        self.scale = (self.scale / 2.0).max(rule.floor);
        self.skipped += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Overflows by update, and the scale of `torch.amp.GradScaler` behind each: made by `fixtures/make_scales.py`.
    const TORCH: &str = include_str!("../../../fixtures/grad_scaler.json");

    #[derive(Deserialize)]
    struct Course {
        initial: f64,
        growth_interval: u64,
        overflows: Vec<bool>,
        scales: Vec<f64>,
    }

    #[test]
    fn scales_follow_grad_scaler() {
        let courses: Vec<Course> = serde_json::from_str(TORCH).expect("valid JSON");
        assert!(courses.len() > 1);
        for Course { initial, growth_interval, overflows, scales } in courses {
            let rule = LossScaling { initial, growth_interval, floor: 0.0, ceiling: f64::INFINITY };
            let mut state = LossScale::new(&rule);
            let course = overflows.iter().map(|&overflow| {
                if overflow {
                    assert!(state.overflowed(&rule));
                } else {
                    state.applied(&rule);
                }
                state.scale
            });
            assert_eq!(course.collect::<Vec<_>>(), scales);
            assert_eq!(state.skipped, overflows.iter().filter(|&&overflow| overflow).count() as u64);
        }
    }

    #[test]
    fn the_scale_stays_between_its_bounds() {
        let rule = LossScaling { initial: 4.0, growth_interval: 1, floor: 1.0, ceiling: 32.0 };
        let mut state = LossScale::new(&rule);
        let fell: Vec<(bool, f64)> = (0..4).map(|_| (state.overflowed(&rule), state.scale)).collect();
        assert_eq!(fell, [(true, 2.0), (true, 1.0), (false, 1.0), (false, 1.0)]);
        assert_eq!(state.skipped, 2, "at the floor it is the guard's");
        (0..9).for_each(|_| state.applied(&rule));
        assert_eq!(state.scale, 32.0);
    }
}
