//! What the host contributes to a dropout mask; the draw itself is made in `kernels/plimsoll.cuh`.

/// Draws are 16 bits wide.
const DRAWS: u32 = 1 << 16;

/// Draws below the threshold are dropped, the others scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Keep {
    pub threshold: u32,
    pub scale: f32,
}

impl Keep {
    pub(crate) fn new(p: f32) -> Self {
        let threshold = ((f64::from(p) * f64::from(DRAWS)).round() as u32).min(DRAWS);
        // From 1 on nothing is kept: the scale is zero.
        let scale = if threshold < DRAWS { DRAWS as f32 / (DRAWS - threshold) as f32 } else { 0.0 };
        Self { threshold, scale }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_shares_of_the_whole_range() {
        assert_eq!(Keep::new(0.0), Keep { threshold: 0, scale: 1.0 });
        assert_eq!(Keep::new(0.5), Keep { threshold: 1 << 15, scale: 2.0 });
        // The scale belongs to the share that is really dropped.
        assert_eq!(Keep::new(0.1), Keep { threshold: 6554, scale: 65536.0 / 58982.0 });
        assert_eq!(Keep::new(1.0), Keep { threshold: 1 << 16, scale: 0.0 });
    }
}
