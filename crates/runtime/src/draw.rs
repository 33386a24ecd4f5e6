//! Numbers drawn from a key and their place alone: the same bits on every device and for any number of threads.
//! Only operations that IEEE 754 rounds exactly are used, one by one, so that a kernel that does the same
//! gets the same; library functions for logarithm and sine differ from one device to the next.

use half::{bf16, f16};
use plimsoll_graph::DType;

/// How the numbers are spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    Constant(f32),
    /// Between `-bound` and `bound`.
    Uniform {
        bound: f32,
    },
    /// Around zero.
    Normal {
        std: f32,
    },
}

/// What fills a region.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    pub distribution: Distribution,
    /// Tells this region's numbers from every other's. Keys should be hashes: see [`mix`].
    pub key: u64,
}

/// The finaliser of splitmix64 after one step of its sequence.
pub fn mix(x: u64) -> u64 {
    let mut x = x.wrapping_add(GOLDEN);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Draw {
    /// The element of that index.
    #[inline]
    pub fn at(&self, index: u64) -> f32 {
        // The n-th number of the splitmix64 sequence that starts at the key.
        let bits = || mix(self.key.wrapping_add(index.wrapping_mul(GOLDEN)));
        match self.distribution {
            Distribution::Constant(value) => value,
            Distribution::Uniform { bound } => bound * signed_unit(bits() as u32),
            Distribution::Normal { std } => std * normal(bits()),
        }
    }

    /// Fills `bytes` with elements of a type, the first of which has the index `first`. Types without a
    /// fraction hold no draws: they are left as they are.
    pub fn fill(&self, dtype: DType, first: u64, bytes: &mut [u8]) {
        match dtype {
            DType::BF16 => self.fill_as(first, bytes, |x| bf16::from_f32(x).to_le_bytes()),
            DType::F16 => self.fill_as(first, bytes, |x| f16::from_f32(x).to_le_bytes()),
            DType::F32 => self.fill_as(first, bytes, f32::to_le_bytes),
            DType::F64 | DType::I32 | DType::U32 | DType::U8 | DType::E4m3 => {}
        }
    }

    fn fill_as<const N: usize>(&self, first: u64, bytes: &mut [u8], stored: impl Fn(f32) -> [u8; N]) {
        let (places, _) = bytes.as_chunks_mut::<N>();
        places.iter_mut().zip(first..).for_each(|(place, index)| *place = stored(self.at(index)));
    }
}

/// A multiple of 2⁻²³ in [-1, 1) from the upper 24 bits.
#[inline]
fn signed_unit(bits: u32) -> f32 {
    (bits.cast_signed() >> 8) as f32 * (1.0 / 8_388_608.0)
}

/// Box and Muller's: √(-2·ln u) times the sine of an angle, u in (0, 1]. The sine of a quarter turn times a
/// number in [-1, 1) is spread as the sine of any angle is.
#[inline]
fn normal(bits: u64) -> f32 {
    let u = ((bits >> 40) as u32 + 1) as f32 * (1.0 / 16_777_216.0);
    (-2.0 * ln(u)).sqrt() * quarter_sine(signed_unit(bits as u32))
}

/// The logarithm of a normal number: that of its mantissa, brought to [√½, √2), by the series of the inverse
/// hyperbolic tangent, and its exponent's.
#[inline]
fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    // Mantissas above √2 count with the next exponent.
    let exponent = ((bits.wrapping_sub(0x3f35_04f3)).cast_signed()) >> 23;
    let mantissa = f32::from_bits(bits.wrapping_sub((exponent << 23).cast_unsigned()));
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut series = square * LN_SERIES[0];
    for &term in &LN_SERIES[1..] {
        series = (series + term) * square;
    }
    let twice = s + s;
    exponent as f32 * std::f32::consts::LN_2 + (twice + twice * series)
}

/// 1/9, 1/7, 1/5, 1/3.
const LN_SERIES: [f32; 4] = [0.111_111_11, 0.142_857_15, 0.2, 0.333_333_34];

/// sin(x·π/2) for x in [-1, 1], by its Taylor series.
#[inline]
fn quarter_sine(x: f32) -> f32 {
    let square = x * x;
    let mut series = SINE_SERIES[0];
    for &term in &SINE_SERIES[1..] {
        series = series * square + term;
    }
    x * series
}

/// ∓(π/2)ⁿ / n! for n = 11, 9, 7, 5, 3, 1.
const SINE_SERIES: [f32; 6] =
    [-3.598_843_2e-6, 1.604_411_8e-4, -4.681_754e-3, 7.969_262_6e-2, -0.645_964_1, 1.570_796_4];

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u64 = 1 << 20;

    fn moments(distribution: Distribution, power: i32) -> f64 {
        let draw = Draw { distribution, key: mix(7) };
        (0..COUNT).map(|i| f64::from(draw.at(i)).powi(power)).sum::<f64>() / COUNT as f64
    }

    /// Each within five standard errors of what the distribution says.
    #[test]
    fn moments_are_those_of_the_distribution() {
        let root = (COUNT as f64).sqrt();
        let check = |name: &str, found: f64, expected: f64, variance: f64| {
            assert!((found - expected).abs() < 5.0 * variance.sqrt() / root, "{name}: {found}, not {expected}");
        };
        let normal = Distribution::Normal { std: 2.0 };
        check("normal mean", moments(normal, 1), 0.0, 4.0);
        check("normal variance", moments(normal, 2), 4.0, 2.0 * 16.0);
        check("normal skew", moments(normal, 3), 0.0, 15.0 * 64.0);
        check("normal fourth", moments(normal, 4), 48.0, 96.0 * 256.0);
        let uniform = Distribution::Uniform { bound: 3.0 };
        check("uniform mean", moments(uniform, 1), 0.0, 3.0);
        check("uniform variance", moments(uniform, 2), 3.0, 81.0 * (1.0 / 5.0 - 1.0 / 9.0));
    }

    /// The share of draws below each of eight points, so that not only the moments are right.
    #[test]
    fn normal_draws_follow_the_curve() {
        let draw = Draw { distribution: Distribution::Normal { std: 1.0 }, key: mix(11) };
        let drawn: Vec<f64> = (0..COUNT).map(|i| f64::from(draw.at(i))).collect();
        for (quantile, share) in [(-3.0, 0.001_349_9), (-2.0, 0.022_750_1), (-1.0, 0.158_655_3), (-0.5, 0.308_537_5)] {
            for (quantile, share) in [(quantile, share), (-quantile, 1.0 - share)] {
                let found = drawn.iter().filter(|&&x| x < quantile).count() as f64 / COUNT as f64;
                let error = (share * (1.0 - share) / COUNT as f64).sqrt();
                assert!((found - share).abs() < 5.0 * error, "{found} below {quantile}, not {share}");
            }
        }
        let largest = drawn.iter().fold(0f64, |most, x| most.max(x.abs()));
        assert!((4.5..5.9).contains(&largest), "{largest}");
    }

    #[test]
    fn elementary_functions_are_right_to_float_precision() {
        for step in 1..=10_000u32 {
            let u = step as f32 / 10_000.0;
            let (found, exact) = (f64::from(ln(u)), f64::from(u).ln());
            assert!((found - exact).abs() <= 2e-7 * exact.abs().max(1.0), "ln {u}: {found}, not {exact}");
            for x in [u, -u] {
                let (found, exact) = (f64::from(quarter_sine(x)), (f64::from(x) * std::f64::consts::FRAC_PI_2).sin());
                assert!((found - exact).abs() <= 3e-7, "sin {x}: {found}, not {exact}");
            }
        }
        assert_eq!(ln(1.0), 0.0);
        assert!(ln(1.0 / 16_777_216.0).is_finite());
    }

    #[test]
    fn neighbours_and_keys_have_nothing_in_common() {
        let unit = Distribution::Uniform { bound: 1.0 };
        let (a, b) = (Draw { distribution: unit, key: mix(1) }, Draw { distribution: unit, key: mix(2) });
        let mean = |f: &dyn Fn(u64) -> f64| (0..COUNT).map(f).sum::<f64>() / COUNT as f64;
        let next = mean(&|i| f64::from(a.at(i)) * f64::from(a.at(i + 1)));
        let other = mean(&|i| f64::from(a.at(i)) * f64::from(b.at(i)));
        // A ninth is the variance of the product of two independent ones.
        let limit = 5.0 / 3.0 / (COUNT as f64).sqrt();
        assert!(next.abs() < limit && other.abs() < limit, "{next} {other}");
    }

    #[test]
    fn a_region_filled_in_parts_is_the_same() {
        let draw = Draw { distribution: Distribution::Normal { std: 0.02 }, key: 3 };
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let size = dtype.bytes();
            let mut whole = vec![0; 1000 * size];
            draw.fill(dtype, 0, &mut whole);
            let mut parts = vec![0; 1000 * size];
            for (part, bytes) in parts.chunks_mut(37 * size).enumerate() {
                draw.fill(dtype, part as u64 * 37, bytes);
            }
            assert_eq!(whole, parts);
        }
    }
}
