//! The same run by other methods: everything trained with states in less and less memory, parts of it, adapters.

use std::cmp::Ordering;

use plimsoll_models::{Built, ParameterKind};
use plimsoll_plan::{Alternative, Backing, Budgets, Chosen, DeviceProfile, PlanError};
use plimsoll_train::{Spec, TrainError};

use crate::base;
use crate::budgets::capacity;
use crate::config::{BaseFormat, Lora, Method, Resolved, StateStorage, Targets};
use crate::device::{self, Device};
use crate::failure::Failure;
use crate::note::Note;
use crate::prepare::{Beside, Options};
use crate::spec::spec;
use crate::units::bytes;

/// Each method with its plan: those that fit first, the fastest of them first.
pub struct MethodTable {
    pub device: String,
    pub budgets: Budgets,
    pub rows: Vec<Alternative>,
    /// What each row stands for.
    pub ways: Vec<Way>,
    pub notes: Vec<Note>,
}

/// Ranks of adapters to compare.
const RANKS: [u64; 3] = [8, 16, 64];
/// The rank at which formats of the base are compared where the run has none.
const RANK_OF_FORMATS: u64 = 16;
const FORMATS: [BaseFormat; 3] = [BaseFormat::Fp8, BaseFormat::Int8, BaseFormat::Nf4];
/// More than any plan takes.
const PLENTY: u64 = 1 << 50;

/// What is trained, and by which rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    name: String,
    pub method: Method,
    pub optimizer: String,
    pub state: StateStorage,
    /// How what is frozen is stored, if not as the run says.
    pub base: Option<BaseFormat>,
}

/// Plans the run by every method there is, for a device that need not be in this machine.
pub fn methods(resolved: &Resolved, options: Options<'_>) -> Result<MethodTable, Failure> {
    let device = device::planned(resolved, options.remeasure)?;
    let capacity = capacity(resolved, &device);
    let own = spec(resolved, &device.profile)?;
    let beside = Beside::find(resolved, &own, &device, capacity.budgets);
    let Device { profile, mut notes, .. } = device;
    notes.extend(beside.note.clone());
    notes.extend(capacity.notes);
    let planner = Planner { profile: &profile, beside };
    let mut rows = Vec::new();
    for way in ways(resolved, &planner.lower_half(&own)?) {
        let changed = way.applied_to(resolved);
        let mut row = match spec(&changed, &profile) {
            Ok(mut spec) => {
                let fits = |spec: &Spec| planner.plan(spec, capacity.budgets).map(|_| ());
                base::settle(&mut spec, &changed, &profile, &fits)?;
                planner.row(&spec, capacity.budgets)?
            }
            Err(failure) => impossible(failure.to_string()),
        };
        row.chosen = way.is_of(resolved);
        row.name.clone_from(&way.name);
        rows.push((row, way));
    }
    rows.sort_by(|(a, _), (b, _)| ranking(a, b));
    let (rows, ways) = rows.into_iter().unzip();
    Ok(MethodTable { device: profile.name.clone(), budgets: capacity.budgets, rows, ways, notes })
}

/// Those that fit by speed, the others by what they take.
fn ranking(a: &Alternative, b: &Alternative) -> Ordering {
    let memory = |row: &Alternative| row.gpu_bytes + row.host_bytes;
    b.fits.cmp(&a.fits).then(match a.fits {
        true => b.tokens_per_s.total_cmp(&a.tokens_per_s),
        false => memory(a).cmp(&memory(b)),
    })
}

/// The run's own first, if it is none of the others.
fn ways(resolved: &Resolved, lower_half: &[String]) -> Vec<Way> {
    let run = &resolved.run;
    // Adafactor's states are factors already.
    let moments = if run.optimizer.name == "adafactor" { "adamw" } else { &run.optimizer.name };
    let full = |freeze: &[String], what: &str, optimizer: &str, state: StateStorage| Way {
        name: match optimizer {
            "adafactor" => format!("{what}, adafactor"),
            _ => format!("{what}, {optimizer} with {state} states"),
        },
        method: Method::Full { freeze: freeze.to_vec() },
        optimizer: optimizer.to_owned(),
        state,
        base: None,
    };
    let states = [StateStorage::Fp32, StateStorage::Bf16, StateStorage::Int8];
    let mut ways: Vec<Way> = states.map(|state| full(&[], "full", moments, state)).to_vec();
    ways.push(full(&[], "full", "adafactor", StateStorage::Fp32));
    ways.push(full(lower_half, "lower half frozen", moments, StateStorage::Fp32));
    let lora = |r: u64, base: Option<BaseFormat>| Way {
        name: match base {
            None => format!("lora, rank {r}"),
            Some(base) => format!("lora, rank {r}, base {base}"),
        },
        method: Method::Lora(adapters(&run.method, r)),
        optimizer: run.optimizer.name.clone(),
        state: run.optimizer.state,
        base,
    };
    ways.extend(RANKS.map(|r| lora(r, None)));
    let own_rank = match &run.method {
        Method::Lora(lora) => lora.r,
        Method::Full { .. } => RANK_OF_FORMATS,
    };
    ways.extend(FORMATS.map(|base| lora(own_rank, Some(base))));
    if !ways.iter().any(|way| way.is_of(resolved)) {
        let stored = run.base.map_or_else(String::new, |base| format!(", base {base}"));
        let name = match &run.method {
            Method::Lora(lora) => format!("as configured: lora, rank {}{stored}", lora.r),
            Method::Full { freeze } if freeze.is_empty() => format!("as configured: full, {}", run.optimizer.name),
            Method::Full { .. } => format!("as configured: parts frozen, {}", run.optimizer.name),
        };
        let (method, optimizer) = (run.method.clone(), run.optimizer.name.clone());
        ways.insert(0, Way { name, method, optimizer, state: run.optimizer.state, base: run.base });
    }
    ways
}

/// As the run has them, at another rank.
fn adapters(method: &Method, r: u64) -> Lora {
    match method {
        Method::Lora(lora) => Lora { r, ..lora.clone() },
        Method::Full { .. } => {
            Lora { r, alpha: 2.0 * r as f64, dropout: 0.0, targets: Targets::AllLinear, rslora: false }
        }
    }
}

impl Way {
    fn is_of(&self, resolved: &Resolved) -> bool {
        let run = &resolved.run;
        let state = self.optimizer == "adafactor" || self.state == run.optimizer.state;
        self.method == run.method && self.optimizer == run.optimizer.name && state && self.base == run.base
    }

    fn applied_to(&self, resolved: &Resolved) -> Resolved {
        let mut changed = resolved.clone();
        changed.run.method = self.method.clone();
        changed.run.optimizer.name.clone_from(&self.optimizer);
        changed.run.optimizer.state = self.state;
        changed.run.base = self.base;
        // Which weights a run begins with takes no memory.
        changed.run.init_from = None;
        changed
    }
}

struct Planner<'a> {
    profile: &'a DeviceProfile,
    beside: Beside,
}

impl Planner<'_> {
    fn plan(&self, spec: &Spec, budgets: Budgets) -> Result<Chosen<Built>, TrainError> {
        Ok(self.beside.plan(spec, self.profile, budgets)?.0)
    }

    /// The names of what lies below the middle of the model: embedding and the first half of the layers.
    fn lower_half(&self, own: &Spec) -> Result<Vec<String>, Failure> {
        let built = self.plan(own, Budgets { gpu_bytes: PLENTY, host_bytes: PLENTY })?.built;
        let slots = &built.program.slots;
        let layers = built.parameters.iter().filter_map(|p| slots.get(p.slot).layer).max().map_or(0, |last| last + 1);
        let embedding = &own.model.config.embedding.name;
        let base = built.parameters.iter().filter(|p| p.kind == ParameterKind::Base);
        let below = base.flat_map(|p| {
            let lower = slots.get(p.slot).layer.is_some_and(|layer| layer < layers / 2);
            p.tensors.iter().filter(move |tensor| lower || tensor.name == *embedding)
        });
        Ok(below.map(|tensor| tensor.name.clone()).collect())
    }

    fn row(&self, spec: &Spec, budgets: Budgets) -> Result<Alternative, Failure> {
        let on_gpu = self.profile.backing == Backing::Gpu;
        match self.plan(spec, budgets) {
            Ok(Chosen { report, .. }) => Ok(report.as_alternative("")),
            Err(TrainError::Plan(PlanError::DoesNotFit {
                memory, budget_bytes, needed_bytes, alternatives, ..
            })) => {
                let over = bytes(needed_bytes.saturating_sub(budget_bytes));
                let why_not = format!("at least {over} over the {memory} budget");
                // The smallest plan there is comes last.
                match alternatives.into_iter().next_back() {
                    Some(lowest) => {
                        let (gpu_bytes, host_bytes) =
                            if on_gpu { (needed_bytes, lowest.host_bytes) } else { (0, needed_bytes) };
                        Ok(Alternative { gpu_bytes, host_bytes, fits: false, why_not: Some(why_not), ..lowest })
                    }
                    None => Ok(impossible(why_not)),
                }
            }
            Err(error) => Ok(impossible(error.to_string())),
        }
    }
}

/// A method of which there is no plan at all.
fn impossible(why_not: String) -> Alternative {
    Alternative {
        name: String::new(),
        micro_batch_tokens: 0,
        gpu_bytes: 0,
        host_bytes: 0,
        tokens_per_s: 0.0,
        fits: false,
        chosen: false,
        why_not: Some(why_not),
    }
}
