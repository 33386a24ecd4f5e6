//! Elementary functions without branches or calls, so that loops over them become SIMD code. Fitted
//! by weighted least squares towards equal ripples; the tests hold them against double precision.

/// Adding it to a float of moderate size leaves the nearest integer in the low bits.
const ROUNDER: f32 = 12_582_912.0;
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// eˣ within two units in the last place. Results below the smallest normal number are zero.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut p = 1.381_446_5e-3_f32;
    p = p.mul_add(r, 8.368_781e-3);
    p = p.mul_add(r, 4.166_839_4e-2);
    p = p.mul_add(r, 1.666_652e-1);
    p = p.mul_add(r, 4.999_999_3e-1);
    p = (r * r).mul_add(p, r) + 1.0;
    // 2ⁿ is added to the exponent's bits.
    let scaled = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    let floored = if x < -87.336_54 { 0.0 } else { scaled };
    if x > 88.722_83 { f32::INFINITY } else { floored }
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// A polynomial near zero, where the formula with exponentials would lose digits.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let size = x.abs();
    let u = x * x;
    let mut p = -5.717_036_5e-3_f32;
    p = p.mul_add(u, 2.065_057_9e-2);
    p = p.mul_add(u, -5.374_349_5e-2);
    p = p.mul_add(u, 1.333_149_1e-1);
    p = p.mul_add(u, -3.333_328_4e-1);
    let near = (x * u).mul_add(p, x);
    let far = (1.0 - 2.0 / (1.0 + exp(2.0 * size))).copysign(x);
    if size < 0.625 { near } else { far }
}

/// The normal distribution at x: (Φ(x), φ(x)), the chance of a smaller value and the density.
/// Small chances keep their relative precision.
#[inline(always)]
pub(crate) fn normal(x: f32) -> (f32, f32) {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let decay = exp(-z * z);
    // erfc(z)·exp(z²) as t times a polynomial in t = 1 / (1 + 0.3·z).
    let t = 1.0 / z.mul_add(0.3, 1.0);
    let mut p = -1.295_551_2e-1_f32;
    p = p.mul_add(t, 4.857_322e-1);
    p = p.mul_add(t, -5.126_580_4e-1);
    p = p.mul_add(t, 5.481_976e-1);
    p = p.mul_add(t, -9.501_719e-2);
    p = p.mul_add(t, 2.151_015_7e-1);
    p = p.mul_add(t, 1.482_880_1e-1);
    p = p.mul_add(t, 1.707_235_1e-1);
    p = p.mul_add(t, 1.691_874_4e-1);
    let tail = 0.5 * decay * t * p;
    let density = decay * 0.398_942_3;
    (if x < 0.0 { tail } else { 1.0 - tail }, density)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evenly spaced points, ends included.
    fn points(from: f32, to: f32) -> impl Iterator<Item = f32> {
        (0..=200_000).map(move |i| from + (to - from) * (i as f32 / 200_000.0))
    }

    fn check_relative(name: &str, from: f32, to: f32, limit: f64, got: impl Fn(f32) -> f32, want: impl Fn(f64) -> f64) {
        for x in points(from, to) {
            let (got, want) = (f64::from(got(x)), want(f64::from(x)));
            let error = (got - want).abs() / want.abs().max(1e-300);
            assert!(error <= limit || got == want, "{name}({x}) = {got}, not {want}: off by {error:e}");
        }
    }

    #[test]
    fn exp_is_within_two_ulps() {
        check_relative("exp", -87.3, 88.7, 1.3e-7, exp, f64::exp);
        check_relative("exp", -1.0, 1.0, 1.3e-7, exp, f64::exp);
    }

    #[test]
    fn exp_at_the_ends() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1000.0), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(100.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_and_sigmoid() {
        check_relative("tanh", -12.0, 12.0, 3e-7, tanh, f64::tanh);
        check_relative("tanh", -0.7, 0.7, 3e-7, tanh, f64::tanh);
        check_relative("sigmoid", -80.0, 80.0, 3e-7, sigmoid, |x| 1.0 / (1.0 + (-x).exp()));
        assert_eq!(tanh(f32::INFINITY), 1.0);
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
        assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
    }

    /// erfc by its continued fraction or its series, whichever converges.
    fn reference_cdf(x: f64) -> f64 {
        let z = x.abs() / std::f64::consts::SQRT_2;
        let upper = if z < 2.0 {
            let (mut term, mut sum, mut n) = (z, z, 0.0);
            while term.abs() > 1e-18 {
                n += 1.0;
                term *= -z * z / n;
                sum += term / (2.0 * n + 1.0);
            }
            0.5 - sum / std::f64::consts::PI.sqrt()
        } else {
            let tail = (1..200).rev().fold(z, |below, k| z + f64::from(k) / 2.0 / below);
            0.5 * (-z * z).exp() / tail / std::f64::consts::PI.sqrt()
        };
        if x < 0.0 { upper } else { 1.0 - upper }
    }

    #[test]
    fn normal_distribution() {
        check_relative("cdf", -3.0, 10.0, 1.5e-6, |x| normal(x).0, reference_cdf);
        check_relative("cdf", -9.0, -3.0, 1e-5, |x| normal(x).0, reference_cdf);
        let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        check_relative("density", -9.0, 9.0, 1e-5, |x| normal(x).1, density);
    }
}
