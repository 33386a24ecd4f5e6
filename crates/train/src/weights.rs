//! Weights into the arena: from files, or drawn from the seed.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use plimsoll_graph::SlotId;
use plimsoll_models::{HfTensor, Init, Parameter, ParameterKind};
use plimsoll_runtime::weights::{Checkpoint, CodedPlace};
use plimsoll_runtime::{Distribution, Draw, mix};

use crate::{AdapterFolder, Model, Session, TrainError};

/// Opens the model's weight files, if it has any, and checks that every tensor the model needs is there.
pub(crate) fn open(model: &Model, parameters: &[Parameter]) -> Result<Option<Checkpoint>, TrainError> {
    let Some(folder) = model.weights_folder() else { return Ok(None) };
    let checkpoint = Checkpoint::open(folder, "model")?;
    for tensor in parameters.iter().filter(|p| p.kind == ParameterKind::Base).flat_map(|p| &p.tensors) {
        checkpoint.check(&tensor.name, &tensor.shape)?;
    }
    // Most models are trained to speak, not to judge; without the head in their files they get a new one.
    for tensor in parameters.iter().filter(|p| p.kind == ParameterKind::Head).flat_map(|p| &p.tensors) {
        if checkpoint.contains(&tensor.name) {
            checkpoint.check(&tensor.name, &tensor.shape)?;
        }
    }
    Ok(Some(checkpoint))
}

/// Whether the files provide this parameter.
fn provides(checkpoint: &Checkpoint, parameter: &Parameter) -> bool {
    match parameter.kind {
        ParameterKind::Base => true,
        ParameterKind::Adapter => false,
        ParameterKind::Head => parameter.tensors.iter().all(|tensor| checkpoint.contains(&tensor.name)),
    }
}

/// Whether a head is wanted that the files do not have.
pub(crate) fn lacks_head(checkpoint: &Checkpoint, parameters: &[Parameter]) -> bool {
    parameters.iter().any(|p| p.kind == ParameterKind::Head && !provides(checkpoint, p))
}

/// Fills in every parameter, and the float32 copies of those that have one. `tick` gets the bytes filled in and all.
pub(crate) fn fill(
    session: &mut Session,
    checkpoint: Option<&Checkpoint>,
    tick: &mut dyn FnMut(u64, u64),
) -> Result<(), TrainError> {
    let parameters = session.parameters().to_vec();
    if let Some(checkpoint) = checkpoint {
        check_formats(session, checkpoint, &parameters)?;
    }
    let places: Vec<_> = (parameters.iter().enumerate())
        .flat_map(|(index, parameter)| {
            let slots = [Some(parameter.slot), session.master_of(&parameter.name)];
            slots.into_iter().flatten().map(move |slot| (index, parameter, slot))
        })
        .collect();
    let bytes = |session: &mut Session, slot| session.executor().plan().slot(slot).bytes as u64;
    let total = places.iter().map(|(_, _, slot)| bytes(session, *slot)).sum();
    let mut done = 0;
    for (index, parameter, slot) in places {
        match checkpoint {
            Some(checkpoint) if provides(checkpoint, parameter) => load(session, checkpoint, parameter, slot, "")?,
            _ => {
                draw(session, parameter, slot, index as u64)?;
                clear_padding(session, parameter, slot)?;
            }
        }
        done += bytes(session, slot);
        tick(done, total);
    }
    Ok(())
}

/// That tensors which the files have in few bits are of the run's format, before anything is read.
fn check_formats(session: &mut Session, checkpoint: &Checkpoint, parameters: &[Parameter]) -> Result<(), TrainError> {
    for parameter in parameters.iter().filter(|parameter| provides(checkpoint, parameter)) {
        let Some(format) = session.executor().plan().slots.get(parameter.slot).storage.blocks else { continue };
        for tensor in &parameter.tensors {
            checkpoint.check_as(&tensor.name, &tensor.shape, &format)?;
        }
    }
    Ok(())
}

/// Where a tensor lies in a weight stored in few bits; `None` in others.
pub(crate) fn coded_place(session: &mut Session, slot: SlotId, tensor: &HfTensor) -> Option<CodedPlace> {
    let plan = session.executor().plan();
    let weight = plan.slots.get(slot);
    Some(CodedPlace {
        format: weight.storage.blocks?,
        region: plan.slot(slot),
        weight_elements: weight.shape.elements(),
        first: tensor.first_row * weight.shape.cols(),
        elements: tensor.shape.elements(),
    })
}

/// `prefix` stands before every name in the file.
fn load(
    session: &mut Session,
    checkpoint: &Checkpoint,
    parameter: &Parameter,
    slot: SlotId,
    prefix: &str,
) -> Result<(), TrainError> {
    let dtype = session.executor().plan().slots.get(slot).dtype();
    for tensor in &parameter.tensors {
        let name = format!("{prefix}{}", tensor.name);
        if let Some(place) = coded_place(session, slot, tensor) {
            checkpoint.load_coded(&name, &tensor.shape, &place, session.executor().backend())?;
            continue;
        }
        let region = session.rows_region(slot, tensor.first_row, tensor.shape.rows());
        checkpoint.load(&name, &tensor.shape, dtype, region, session.executor().backend())?;
    }
    Ok(())
}

impl Session {
    /// Replaces the adapters by those of a PEFT folder, which must be of the kind that this session has.
    pub fn load_adapters(&mut self, folder: &Path) -> Result<(), TrainError> {
        let adapter = AdapterFolder::open(folder)?;
        let checkpoint = Checkpoint::open(folder, "adapter_model")?;
        self.check_adapter(&adapter, &checkpoint)?;
        let adapters: Vec<Parameter> =
            self.parameters().iter().filter(|p| p.kind != ParameterKind::Base).cloned().collect();
        for parameter in &adapters {
            for slot in [Some(parameter.slot), self.master_of(&parameter.name)].into_iter().flatten() {
                load(self, &checkpoint, parameter, slot, adapter_prefix(parameter))?;
            }
        }
        Ok(())
    }

    /// What differs would be computed otherwise, and what is left over would be missing.
    fn check_adapter(&self, adapter: &AdapterFolder, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        let differs = |reason: String| TrainError::AdapterDiffers { path: adapter.path.clone(), reason };
        let Some(ours) = &self.recipe.lora else { return Err(differs("this run has no adapters".to_owned())) };
        let theirs = &adapter.lora;
        if theirs.r != ours.r {
            return Err(differs(format!("its `r` is {}, that of this run {}", theirs.r, ours.r)));
        }
        if theirs.scale() != ours.scale() {
            return Err(differs(format!(
                "it is scaled by {} (alpha {}{}), the adapters of this run by {}",
                theirs.scale(),
                theirs.alpha,
                if theirs.rslora { ", rslora" } else { "" },
                ours.scale()
            )));
        }
        let layers = self.model.config.linear_layers();
        if let Some(layer) = layers.iter().find(|layer| theirs.adapts(layer) != ours.adapts(layer)) {
            let (has, lacks) = if theirs.adapts(layer) { ("it", "this run") } else { ("this run", "it") };
            return Err(differs(format!("{has} adapts `{layer}`, {lacks} does not")));
        }
        let tensors = self.parameters().iter().filter(|parameter| parameter.kind != ParameterKind::Base);
        let known: HashSet<String> = tensors
            .flat_map(|parameter| parameter.tensors.iter().map(|t| format!("{}{}", adapter_prefix(parameter), t.name)))
            .collect();
        match checkpoint.names().find(|name| !known.contains(*name)) {
            Some(other) => Err(differs(format!("it holds `{other}`, for which this run has no place"))),
            None => Ok(()),
        }
    }
}

/// What PEFT puts before the name of a part of the model that it saves whole. Adapters carry it already.
pub(crate) fn adapter_prefix(parameter: &Parameter) -> &'static str {
    if parameter.kind == ParameterKind::Head { "base_model.model." } else { "" }
}

/// Draws a parameter. Every element depends on the seed, the parameter and its own place, and on nothing else: one stored in
/// few bits is the float32 one, encoded.
fn draw(session: &mut Session, parameter: &Parameter, slot: SlotId, stream: u64) -> Result<(), TrainError> {
    let key = mix(session.seed() ^ mix(stream.wrapping_add(0x5eed)));
    let (first, tensors) = (parameter.tensors[0].init, &parameter.tensors);
    let alike = tensors.iter().all(|tensor| tensor.init == first);
    let coded = session.executor().plan().slots.get(slot).storage.blocks.is_some();
    if alike && !coded {
        return draw_rows(session, slot, 0..parameter.shape.rows(), first, key);
    }
    for (index, tensor) in tensors.iter().enumerate() {
        let key = if alike { key } else { mix(key.wrapping_add(index as u64)) };
        if let Some(place) = coded_place(session, slot, tensor) {
            let (draw, at) = (Draw { distribution: spread(tensor.init), key }, if alike { place.first } else { 0 });
            place.draw(draw, at as u64, session.executor().backend())?;
            continue;
        }
        let rows = tensor.first_row..tensor.first_row + tensor.shape.rows();
        draw_rows(session, slot, rows, tensor.init, key)?;
    }
    Ok(())
}

fn spread(init: Init) -> Distribution {
    match init {
        Init::Zeros => Distribution::Constant(0.0),
        Init::Ones => Distribution::Constant(1.0),
        Init::Uniform { bound } => Distribution::Uniform { bound },
        Init::Normal { std } => Distribution::Normal { std },
    }
}

fn draw_rows(session: &mut Session, slot: SlotId, rows: Range<usize>, init: Init, key: u64) -> Result<(), TrainError> {
    let region = session.rows_region(slot, rows.start, rows.len());
    let dtype = session.executor().plan().slots.get(slot).dtype();
    let draw = Draw { distribution: spread(init), key };
    Ok(session.executor().backend().draw(region, dtype, draw)?)
}

/// The embedding of padding begins at zero, as PyTorch draws it.
fn clear_padding(session: &mut Session, parameter: &Parameter, slot: SlotId) -> Result<(), TrainError> {
    let embedding = session.model.config.embedding;
    match embedding.padding {
        Some(padding) if parameter.tensors[0].name == embedding.name => {
            let row = padding as usize;
            draw_rows(session, slot, row..row + 1, Init::Zeros, 0)
        }
        _ => Ok(()),
    }
}
