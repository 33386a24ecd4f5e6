//! How the frozen base is stored: as the run says, as the model's folder has it, or as the budget requires.

use plimsoll_graph::{DType, WeightFormat};
use plimsoll_models::{Recipe, weights_in_few_bits};
use plimsoll_plan::{Backing, DeviceProfile, PlanError};
use plimsoll_train::{AdapterFolder, Model, Spec, TrainError};

use crate::config::{BaseFormat, Method, Resolved};
use crate::diagnostics::explained;
use crate::failure::Failure;
use crate::note::Note;
use crate::units::bytes;

/// Which format `base` and the model's folder ask for; none for the precision of the run, which `auto` begins with.
pub fn asked(resolved: &Resolved, model: &Model, compute: DType) -> Result<Option<WeightFormat>, Failure> {
    let format = named(resolved, model)?;
    let own = own_word(compute);
    match resolved.run.base {
        Some(word) if format.is_none() && word != BaseFormat::Auto && word != own => {
            let message = format!("`base` is {word}, but the precision of the run is {own}");
            Err(resolved.invalid("base", message).hint("remove `base`, or set it to fp8, int8, nf4 or auto"))
        }
        _ => Ok(format),
    }
}

/// The format that `base` names, which must be that of the model's folder if it has one.
fn named(resolved: &Resolved, model: &Model) -> Result<Option<WeightFormat>, Failure> {
    let stored = model.stored_format().map_err(|error| explained(error, resolved))?;
    let Some(word) = resolved.run.base else { return Ok(stored) };
    let format = WeightFormat::named(word.word());
    match stored {
        Some(stored) if word != BaseFormat::Auto && format != Some(stored) => Err(resolved
            .invalid(
                "base",
                format!("`base` is {word}, but the weights of {} are stored in {}", model.name(), stored.name()),
            )
            .hint("remove `base`, or set `model` to the folder of the model that they were made from")),
        Some(stored) => Ok(Some(stored)),
        None => Ok(format),
    }
}

/// The base of a model that is started to evaluate or to generate: as asked for, else as its folder has it, else as its
/// adapter was trained on it. `plan` says whether it fits.
pub fn of_inference(
    spec: &mut Spec,
    resolved: &Resolved,
    adapter: Option<&AdapterFolder>,
    device: &DeviceProfile,
    plan: &dyn Fn(&Spec) -> Result<(), TrainError>,
) -> Result<Option<Note>, Failure> {
    let chosen = named(resolved, &spec.model)?;
    let trained_on = adapter.and_then(|adapter| adapter.base_format);
    let of_adapter = match resolved.run.base {
        None | Some(BaseFormat::Auto) if chosen.is_none() => trained_on,
        _ => None,
    };
    set(&mut spec.recipe, chosen.or(of_adapter), device);
    match of_adapter {
        Some(format) => Ok(Some(Note::AdapterBase(format.name()))),
        None => settle(spec, resolved, device, plan),
    }
}

/// That something of a run that stores its base in few bits is frozen, and stays as it is on disk.
pub fn check_method(resolved: &Resolved, format: WeightFormat, method: &Method) -> Result<(), Failure> {
    let Method::Full { freeze } = method else { return Ok(()) };
    let name = format.name();
    let message = if resolved.run.base.is_none() {
        format!("the weights of the model are stored in {name} and cannot be trained themselves")
    } else if freeze.is_empty() {
        format!("`base: {name}` is how frozen weights are stored, but `method: full` freezes none")
    } else {
        format!(
            "`base: {name}` is for adapters: a model that is trained in parts is saved whole, in the precision of the run"
        )
    };
    let failure = resolved.invalid("base", message).hint("train adapters, as in method: {lora: {r: 16}}");
    Err(if resolved.run.base.is_none() {
        failure.hint("or set `model` to the folder of the model that they were made from")
    } else {
        failure.hint("or remove `base`")
    })
}

/// What a base in the precision of the run is called.
fn own_word(compute: DType) -> BaseFormat {
    match compute {
        DType::BF16 => BaseFormat::Bf16,
        DType::F16 => BaseFormat::Fp16,
        _ => BaseFormat::Fp32,
    }
}

/// The recipe with its base in another format, and with products that the device has for it.
pub fn set(recipe: &mut Recipe, format: Option<WeightFormat>, device: &DeviceProfile) {
    recipe.base = format;
    recipe.fp8_products =
        format == Some(WeightFormat::E4m3) && device.traits.multiplies_codes && recipe.compute.bytes() == 2;
}

/// Formats to try, the one that loses least first. Eight bits with products of their own come before those without: they
/// lose more, but the run is faster for it.
pub fn in_order(device: &DeviceProfile) -> Vec<WeightFormat> {
    let multiplied = device.backing == Backing::Gpu && device.traits.multiplies_codes;
    let eight = if multiplied { WeightFormat::E4m3 } else { WeightFormat::Int8 };
    vec![eight, WeightFormat::Nf4]
}

/// What `auto` decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    pub format: &'static str,
    /// What did not fit, with what it needs.
    pub too_large: Vec<(&'static str, u64)>,
    pub budget_bytes: u64,
}

impl std::fmt::Display for Decided {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let needs = |(name, needed): &(&str, u64)| format!("{name} needs {}", bytes(*needed));
        match self.too_large.as_slice() {
            [] => write!(f, "base: auto takes {}, which fits", self.format),
            too_large => {
                let too_large: Vec<String> = too_large.iter().map(needs).collect();
                let (too_large, budget) = (too_large.join(", "), bytes(self.budget_bytes));
                write!(f, "base: auto takes {}: {too_large} at least, the budget is {budget}", self.format)
            }
        }
    }
}

/// With `base: auto`, the first format of which there is a plan: the precision of the run, then those of fewer bits. Where
/// there is none, the smallest, so that the refusal is about that. `plan` says whether the run fits.
pub fn settle(
    spec: &mut Spec,
    resolved: &Resolved,
    device: &DeviceProfile,
    plan: &dyn Fn(&Spec) -> Result<(), TrainError>,
) -> Result<Option<Note>, Failure> {
    if resolved.run.base != Some(BaseFormat::Auto) || spec.recipe.base.is_some() || !spec.recipe.freezes_base() {
        return Ok(None);
    }
    let memory_of_device = if device.backing == Backing::Gpu { "GPU" } else { "host" };
    let mut decided = Decided { format: own_word(spec.recipe.compute).word(), too_large: Vec::new(), budget_bytes: 0 };
    for format in [None].into_iter().chain(in_order(device).into_iter().map(Some)) {
        set(&mut spec.recipe, format, device);
        decided.format = format.map_or(own_word(spec.recipe.compute).word(), WeightFormat::name);
        match plan(spec) {
            Err(TrainError::Plan(PlanError::DoesNotFit { memory, needed_bytes, budget_bytes, .. })) => {
                // No format helps where it is the rest of the host that is too small.
                if memory != memory_of_device {
                    set(&mut spec.recipe, None, device);
                    return Ok(None);
                }
                decided.too_large.push((decided.format, needed_bytes));
                decided.budget_bytes = budget_bytes;
            }
            // Any other error is that of the plan that follows.
            _ => return Ok(Some(Note::Base(decided))),
        }
    }
    Ok(None)
}

/// Formats that take less than the run's own and that it could take, in the order in which they are proposed.
pub fn smaller(spec: &Spec, device: &DeviceProfile) -> Vec<WeightFormat> {
    let smaller = match spec.recipe.base {
        None => in_order(device),
        Some(WeightFormat::Int8 | WeightFormat::E4m3) => vec![WeightFormat::Nf4],
        Some(WeightFormat::Nf4) => Vec::new(),
    };
    // A folder of few bits has no others.
    if matches!(spec.model.stored_format(), Ok(None)) { smaller } else { Vec::new() }
}

/// Whether a format changes anything about a model: it may have no projection whose blocks divide evenly.
pub fn applies(spec: &Spec, format: WeightFormat) -> bool {
    let recipe = Recipe { base: Some(format), ..spec.recipe.clone() };
    weights_in_few_bits(&spec.model.config, &*spec.task.head(), &recipe).is_ok_and(|stored| !stored.is_empty())
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::WEIGHT_FORMATS;

    use super::*;

    #[test]
    fn every_format_is_a_word_of_the_run_file() {
        for format in WEIGHT_FORMATS {
            assert_eq!(BaseFormat::from_word(format.name()).map(BaseFormat::word), Some(format.name()));
        }
    }
}
