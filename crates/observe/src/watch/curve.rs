//! Points made fewer and smoother before they are drawn.

/// Means over at most `count` equal stretches of the points; those that are not finite are left out.
pub fn thinned(points: &[(f64, f64)], count: usize) -> Vec<(f64, f64)> {
    let stretch = points.len().div_ceil(count.max(1)).max(1);
    let mean = |points: &[(f64, f64)]| {
        let finite: Vec<_> = points.iter().filter(|(_, y)| y.is_finite()).collect();
        let count = finite.len() as f64;
        (!finite.is_empty()).then(|| {
            let sum = finite.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
            (sum.0 / count, sum.1 / count)
        })
    };
    points.chunks(stretch).filter_map(mean).collect()
}

/// An exponential mean whose memory is a thirtieth of the curve, without the pull of its first value.
pub fn smoothed(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let keep = 1.0 - 1.0 / (points.len() as f64 / 30.0).max(1.0);
    let (mut sum, mut weight) = (0.0, 0.0);
    let smooth = |&(x, y): &(f64, f64)| {
        sum = keep * sum + y;
        weight = keep * weight + 1.0;
        (x, sum / weight)
    };
    points.iter().map(smooth).collect()
}

/// The least interval that holds all values, a little wider than they are.
pub fn bounds(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let (low, high) = values
        .filter(|v| v.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    if low > high {
        return [0.0, 1.0];
    }
    let margin = if high > low { (high - low) * 0.05 } else { high.abs().max(1e-12) * 0.1 };
    // What was never negative has no place below zero.
    [if low >= 0.0 { (low - margin).max(0.0) } else { low - margin }, high + margin]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_points_become_few() {
        let points: Vec<(f64, f64)> = (0..1000).map(|n| (f64::from(n), 2.0 * f64::from(n))).collect();
        let few = thinned(&points, 100);
        assert_eq!(few.len(), 100);
        assert!(few.iter().all(|(x, y)| (y - 2.0 * x).abs() < 1e-9));
        assert_eq!(few[0], (4.5, 9.0));
        assert_eq!(thinned(&[(1.0, f64::NAN), (2.0, 3.0)], 1), [(2.0, 3.0)]);
        assert!(thinned(&[], 10).is_empty());
    }

    #[test]
    fn smoothing_keeps_a_level_and_calms_the_rest() {
        let level: Vec<(f64, f64)> = (0..300).map(|n| (f64::from(n), 5.0)).collect();
        assert!(smoothed(&level).iter().all(|(_, y)| (y - 5.0).abs() < 1e-9));
        let noisy: Vec<(f64, f64)> = (0..300).map(|n| (f64::from(n), f64::from(n % 2))).collect();
        assert!(smoothed(&noisy)[100..].iter().all(|(_, y)| (y - 0.5).abs() < 0.1));
    }

    #[test]
    fn bounds_are_never_empty() {
        for values in [vec![], vec![0.0], vec![3.0, 3.0], vec![f64::NAN, 1.0, 2.0]] {
            let [low, high] = bounds(values.into_iter());
            assert!(low < high);
        }
    }
}
