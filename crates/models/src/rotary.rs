//! The table of rotary angles, computed once on the host.

use crate::{DecoderConfig, RopeScaling};

/// Row `p`: the cosines of every frequency at position `p`, then the sines.
pub fn rotary_table(config: &DecoderConfig, positions: usize) -> Vec<f32> {
    let frequencies = frequencies(config);
    let mut table = Vec::with_capacity(positions * config.heads.head_dim);
    for position in 0..positions {
        // Angles in single precision, as the reference implementation has them.
        let angles = frequencies.iter().map(|f| f64::from(position as f32 * f));
        table.extend(angles.clone().map(|a| a.cos() as f32));
        table.extend(angles.map(|a| a.sin() as f32));
    }
    table
}

fn frequencies(config: &DecoderConfig) -> Vec<f32> {
    let half = config.heads.head_dim / 2;
    (0..half)
        .map(|i| config.rope_theta.powf(-(2.0 * i as f64) / config.heads.head_dim as f64))
        .map(|frequency| scaled(frequency, config.rope_scaling) as f32)
        .collect()
}

fn scaled(frequency: f64, scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            if wavelength < original_max_position / high_freq_factor {
                frequency
            } else if wavelength > original_max_position / low_freq_factor {
                frequency / factor
            } else {
                let smooth =
                    (original_max_position / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - smooth) * frequency / factor + smooth * frequency
            }
        }
    }
}
