//! The table of rotary angles, computed once on the host.

/// How rotary frequencies are stretched beyond the length a model was pretrained on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    None,
    Linear { factor: f64 },
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_max_position: f64 },
}

/// Rotary positions of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary {
    /// Columns of each head that are rotated.
    pub dims: usize,
    pub theta: f64,
    pub scaling: RopeScaling,
    /// Whether angles are negative.
    pub reversed: bool,
}

/// Row `p`: the cosines of every frequency at position `p`, then the sines.
pub fn rotary_table(rotary: &Rotary, positions: usize) -> Vec<f32> {
    let frequencies = frequencies(rotary);
    let mut table = Vec::with_capacity(positions * rotary.dims);
    for position in 0..positions {
        // Angles in single precision, as the reference implementation has them.
        let angles = frequencies.iter().map(|f| f64::from(position as f32 * f));
        table.extend(angles.clone().map(|a| a.cos() as f32));
        table.extend(angles.map(|a| if rotary.reversed { -a.sin() as f32 } else { a.sin() as f32 }));
    }
    table
}

/// What each frequency is divided by to be stretched: all ones without scaling.
pub fn frequency_divisors(rotary: &Rotary) -> Vec<f32> {
    let plain = Rotary { scaling: RopeScaling::None, ..*rotary };
    let unscaled = exact_frequencies(&plain);
    unscaled.zip(exact_frequencies(rotary)).map(|(frequency, scaled)| (frequency / scaled) as f32).collect()
}

fn frequencies(rotary: &Rotary) -> Vec<f32> {
    exact_frequencies(rotary).map(|frequency| frequency as f32).collect()
}

fn exact_frequencies(rotary: &Rotary) -> impl Iterator<Item = f64> {
    let Rotary { dims, theta, scaling, .. } = *rotary;
    let frequency = move |i: usize| theta.powf(-(2.0 * i as f64) / dims as f64);
    (0..dims / 2).map(move |i| scaled(frequency(i), scaling))
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
