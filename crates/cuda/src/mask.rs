//! What the host contributes to a dropout mask; the draw itself is made in `kernels/plimsoll.cuh`.

/// Draws below the threshold are dropped, the others scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Keep {
    pub threshold: u32,
    pub scale: f32,
}

impl Keep {
    pub(crate) fn new(p: f32) -> Self {
        // From 1 on nothing is kept: the scale is zero.
        let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
        Self { threshold: (f64::from(p) * 4_294_967_296.0) as u32, scale }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_shares_of_the_whole_range() {
        assert_eq!(Keep::new(0.0), Keep { threshold: 0, scale: 1.0 });
        assert_eq!(Keep::new(0.5), Keep { threshold: 1 << 31, scale: 2.0 });
        assert_eq!(Keep::new(1.0), Keep { threshold: u32::MAX, scale: 0.0 });
    }
}
