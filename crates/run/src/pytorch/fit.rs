//! Least squares over a few runs.

/// One run: what it is said by, what was measured, and what of that is known without a fit.
#[derive(Debug, Clone)]
pub struct Observation<const N: usize> {
    pub features: [f64; N],
    pub known: f64,
    pub measured: f64,
}

/// Relative errors: the mean of their sizes, and the largest.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Spread {
    pub mean: f64,
    pub max: f64,
}

impl Spread {
    /// Of figures as parts of the true ones.
    pub fn of(ratios: impl Iterator<Item = f64>) -> Self {
        let errors: Vec<f64> = ratios.map(|ratio| (ratio - 1.0).abs()).collect();
        Self {
            mean: errors.iter().sum::<f64>() / errors.len().max(1) as f64,
            max: errors.into_iter().fold(0.0, f64::max),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit<const N: usize> {
    coefficients: [f64; N],
}

impl<const N: usize> Observation<N> {
    fn weighted(&self, relative: bool) -> ([f64; N], f64) {
        let weight = if relative { 1.0 / self.measured } else { 1.0 };
        (self.features.map(|feature| feature * weight), (self.measured - self.known) * weight)
    }
}

impl<const N: usize> Fit<N> {
    /// The coefficients whose squared errors are least, absolute ones or `relative` to what was measured.
    pub fn of(runs: &[Observation<N>], relative: bool) -> Self {
        let mut normal = [[0.0; N]; N];
        let mut right = [0.0; N];
        for (features, target) in runs.iter().map(|run| run.weighted(relative)) {
            for i in 0..N {
                right[i] += features[i] * target;
                for j in 0..N {
                    normal[i][j] += features[i] * features[j];
                }
            }
        }
        Self { coefficients: solved(normal, right) }
    }

    pub fn predict(&self, features: &[f64; N], known: f64) -> f64 {
        known + self.coefficients.iter().zip(features).map(|(c, f)| c * f).sum::<f64>()
    }
}

/// Gauss-Jordan with the largest pivot.
fn solved<const N: usize>(mut normal: [[f64; N]; N], mut right: [f64; N]) -> [f64; N] {
    for column in 0..N {
        let size = |row: &usize| normal[*row][column].abs();
        let pivot = (column..N).max_by(|a, b| size(a).total_cmp(&size(b))).unwrap_or(column);
        normal.swap(column, pivot);
        right.swap(column, pivot);
        let (above, value) = (normal[column], right[column]);
        for row in (0..N).filter(|row| *row != column) {
            let share = normal[row][column] / above[column];
            for (cell, from) in normal[row].iter_mut().zip(above) {
                *cell -= share * from;
            }
            right[row] -= share * value;
        }
    }
    std::array::from_fn(|i| right[i] / normal[i][i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found() {
        let at = |x: f64, measured: f64| Observation { features: [1.0, x], known: 10.0, measured };
        let runs: Vec<_> = [1.0, 2.0, 4.0, 7.0].map(|x| at(x, 10.0 + 3.0 + 2.0 * x)).to_vec();
        for relative in [false, true] {
            let fit = Fit::of(&runs, relative);
            assert!((fit.predict(&[1.0, 10.0], 10.0) - 33.0).abs() < 1e-9);
        }
    }

    #[test]
    fn errors_are_counted_by_their_size() {
        let spread = Spread::of([0.9, 1.0, 1.05].into_iter());
        assert!((spread.mean - 0.05).abs() < 1e-9 && (spread.max - 0.1).abs() < 1e-9, "{spread:?}");
    }
}
