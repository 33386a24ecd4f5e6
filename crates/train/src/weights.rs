//! Weights into the arena: from files, or drawn from the seed.

use std::path::Path;

use plimsoll_graph::{DType, SlotId};
use plimsoll_models::{Init, Parameter, ParameterKind, SCORE_WEIGHT};
use plimsoll_plan::Region;
use plimsoll_runtime::weights::Checkpoint;
use rayon::prelude::*;

use crate::{Model, Session, TrainError};

/// Opens the model's weight files, if it has any, and checks that every tensor the model needs is there.
pub(crate) fn open(model: &Model, parameters: &[Parameter]) -> Result<Option<Checkpoint>, TrainError> {
    let Some(folder) = model.weights_folder() else { return Ok(None) };
    let checkpoint = Checkpoint::open(folder, "model")?;
    for part in parameters.iter().filter(|p| p.kind == ParameterKind::Base).flat_map(|p| &p.parts) {
        checkpoint.check(&part.name, &part.shape)?;
    }
    // Most models are trained to speak, not to judge; without a score head in their files they get a new one.
    for part in parameters.iter().filter(|p| p.kind == ParameterKind::Score).flat_map(|p| &p.parts) {
        if checkpoint.contains(&part.name) {
            checkpoint.check(&part.name, &part.shape)?;
        }
    }
    Ok(Some(checkpoint))
}

/// Whether the files provide this parameter.
fn provides(checkpoint: &Checkpoint, parameter: &Parameter) -> bool {
    match parameter.kind {
        ParameterKind::Base => true,
        ParameterKind::Adapter => false,
        ParameterKind::Score => checkpoint.contains(SCORE_WEIGHT),
    }
}

/// Whether a score head is wanted that the files do not have.
pub(crate) fn lacks_score(checkpoint: &Checkpoint, parameters: &[Parameter]) -> bool {
    parameters.iter().any(|p| p.kind == ParameterKind::Score && !provides(checkpoint, p))
}

/// Fills in every parameter, and the float32 copies of those that have one.
pub(crate) fn fill(session: &mut Session, checkpoint: Option<&Checkpoint>) -> Result<(), TrainError> {
    for (index, parameter) in session.parameters().to_vec().iter().enumerate() {
        let slots = [Some(parameter.slot), session.master_of(&parameter.name)];
        for slot in slots.into_iter().flatten() {
            match checkpoint {
                Some(checkpoint) if provides(checkpoint, parameter) => load(session, checkpoint, parameter, slot, "")?,
                _ => draw(session, parameter, slot, index as u64)?,
            }
        }
    }
    Ok(())
}

/// `prefix` stands before every name in the file.
fn load(
    session: &mut Session,
    checkpoint: &Checkpoint,
    parameter: &Parameter,
    slot: SlotId,
    prefix: &str,
) -> Result<(), TrainError> {
    let dtype = session.executor().plan().slots.get(slot).dtype;
    for part in &parameter.parts {
        let region = session.part_region(slot, part.first_row, part.shape.rows());
        checkpoint.load(&format!("{prefix}{}", part.name), &part.shape, dtype, region, session.executor().backend())?;
    }
    Ok(())
}

impl Session {
    /// Replaces the adapters by those of a PEFT folder.
    pub fn load_adapters(&mut self, folder: &Path) -> Result<(), TrainError> {
        let checkpoint = Checkpoint::open(folder, "adapter_model")?;
        let adapters: Vec<Parameter> =
            self.parameters().iter().filter(|p| p.kind != ParameterKind::Base).cloned().collect();
        for parameter in &adapters {
            for slot in [Some(parameter.slot), self.master_of(&parameter.name)].into_iter().flatten() {
                load(self, &checkpoint, parameter, slot, adapter_prefix(parameter))?;
            }
        }
        Ok(())
    }
}

/// What PEFT puts before the name of a part of the model that it saves whole. Adapters carry it already.
pub(crate) fn adapter_prefix(parameter: &Parameter) -> &'static str {
    if parameter.kind == ParameterKind::Score { "base_model.model." } else { "" }
}

/// Elements that are drawn before they are written to a device, and by one thread at a time.
const PIECE: usize = 1 << 22;
const BLOCK: usize = 1 << 14;

/// Draws a parameter. Every element depends on the seed, the parameter and its own place, and on nothing else.
fn draw(session: &mut Session, parameter: &Parameter, slot: SlotId, stream: u64) -> Result<(), TrainError> {
    let region = session.executor().plan().slot(slot);
    let dtype = session.executor().plan().slots.get(slot).dtype;
    let key = mix(session.seed() ^ mix(stream.wrapping_add(0x5eed)));
    let fill = |first: usize, bytes: &mut [u8]| {
        bytes.par_chunks_mut(BLOCK * dtype.bytes()).enumerate().for_each(|(block, bytes)| {
            for (index, element) in bytes.chunks_exact_mut(dtype.bytes()).enumerate() {
                let counter = (first + block * BLOCK + index) as u64;
                store(drawn(parameter.init, key, counter), dtype, element);
            }
        });
    };
    if let Some(place) = session.executor().backend().host_bytes(region) {
        fill(0, place);
        return Ok(());
    }
    let elements = parameter.shape.elements();
    let mut piece = vec![0u8; PIECE.min(elements) * dtype.bytes()];
    for first in (0..elements).step_by(PIECE) {
        let bytes = &mut piece[..PIECE.min(elements - first) * dtype.bytes()];
        fill(first, bytes);
        let offset = region.offset + first * dtype.bytes();
        session.executor().backend().write(Region { offset, bytes: bytes.len(), ..region }, bytes)?;
    }
    Ok(())
}

fn store(x: f32, dtype: DType, place: &mut [u8]) {
    match dtype {
        DType::BF16 => place.copy_from_slice(&half::bf16::from_f32(x).to_le_bytes()),
        DType::F16 => place.copy_from_slice(&half::f16::from_f32(x).to_le_bytes()),
        _ => place.copy_from_slice(&x.to_le_bytes()),
    }
}

fn drawn(init: Init, key: u64, counter: u64) -> f32 {
    match init {
        Init::Zeros => 0.0,
        Init::Ones => 1.0,
        Init::Uniform { bound } => bound * (2.0 * unit(mix(key ^ mix(counter))) - 1.0) as f32,
        Init::Normal { std } => {
            let bits = mix(key ^ mix(counter));
            let (u, v) = (unit(bits), unit(mix(bits)));
            std * ((-2.0 * (1.0 - u).ln()).sqrt() * (2.0 * std::f64::consts::PI * v).cos()) as f32
        }
    }
}

/// A number in [0, 1) from the upper bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// The finaliser of splitmix64.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_draws_have_the_asked_spread() {
        let values: Vec<f64> = (0..100_000).map(|i| f64::from(drawn(Init::Normal { std: 0.02 }, 7, i))).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let spread = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
        assert!(mean.abs() < 3e-4, "{mean}");
        assert!((spread - 0.02).abs() < 2e-4, "{spread}");
    }
}
