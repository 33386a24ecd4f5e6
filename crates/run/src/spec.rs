//! From the configuration to what the planner and the trainer take.

use std::sync::Arc;

use plimsoll_graph::{DType, StateStorage};
use plimsoll_models::{Lora, Recipe, Targets, parameter_groups};
use plimsoll_plan::{Backing, DeviceProfile, Goal, KeepPin, Pins, SavePin};
use plimsoll_train::{
    Model, ModelOrigin, RankingLoss, RankingSettings, Reward, Spec, Task, TaskLacks, TaskSettings, task_named,
};

use crate::base;
use crate::config::{self, Batch, Init, KeepPrecision, Method, ModelSource, Precision, Resolved, RunConfig, SavePlan};
use crate::diagnostics::explained;
use crate::failure::Failure;

/// Everything a plan depends on; what this version cannot do is refused here.
pub fn spec(resolved: &Resolved, device: &DeviceProfile) -> Result<Spec, Failure> {
    let run = &resolved.run;
    check_pins(resolved)?;
    let model = model(resolved)?;
    let task = task(resolved, &model)?;
    let sequences = sequences(resolved, &*task)?;
    let recipe = recipe(resolved, device, &model)?;
    Ok(Spec {
        model,
        recipe,
        task,
        sequences,
        tokens: match run.batch {
            Batch::Tokens(tokens) => Some(tokens),
            Batch::Sequences(_) => None,
        },
        max_length: run.data.max_length as usize,
        goal: match run.memory.goal {
            config::Goal::Fastest => Goal::Fastest,
            config::Goal::Lowest => Goal::Lowest,
        },
        pins: pins(run),
        seed: run.seed,
    })
}

/// What the model is trained to do.
pub(crate) fn task(resolved: &Resolved, model: &Model) -> Result<Arc<dyn Task>, Failure> {
    let run = &resolved.run;
    let settings = TaskSettings {
        classes: run.data.classes.clone(),
        reward: Reward { centring: run.reward.centring, margin: run.reward.margin },
        ranking: RankingSettings {
            loss: match run.ranking.loss {
                config::RankingLoss::ListMle => RankingLoss::ListMle,
                config::RankingLoss::ListNet => RankingLoss::ListNet,
                config::RankingLoss::Pairwise => RankingLoss::Pairwise,
            },
            weight: run.ranking.weight,
            lm_weight: run.ranking.lm_weight,
            top: run.ranking.top.map(|top| top as u32),
        },
        dpo_beta: run.dpo.beta,
        dpo_label_smoothing: run.dpo.label_smoothing,
        orpo_lambda: run.orpo.lambda,
        decoder_start: model.config.decoder_start,
    };
    let task = match task_named(&run.task, &settings) {
        Some(Ok(task)) => task,
        Some(Err(TaskLacks::Classes)) => {
            return Err(Failure::config(
                "`data.classes` is missing: how many classes there are decides the model's head",
            )
            .hint("set it to their number or to a list of their names, as in data: {classes: [no, yes]}"));
        }
        Some(Err(TaskLacks::DecoderStart)) => {
            let family = model.config.family.model_type;
            let message = format!("`task: {}` needs a model with an encoder, which {family} models lack", run.task);
            return Err(resolved.invalid("task", message).hint("use `task: sft`, or a t5 or mt5 model"));
        }
        None => return Err(resolved.unsupported("task", &[])),
    };
    let adapted = matches!(run.method, Method::Lora(_));
    if run.init_from.is_some() && !adapted {
        return Err(resolved
            .invalid("init_from", "`init_from` names adapters, but this run trains the model itself")
            .hint("set `model` to that folder instead"));
    }
    if !task.head().uses_vocabulary() {
        check_scores(resolved)?;
    }
    Ok(task)
}

/// Keys that mean nothing where sequences get scores.
fn check_scores(resolved: &Resolved) -> Result<(), Failure> {
    let run = &resolved.run;
    for (path, given, message) in [
        (
            "plan.loss_chunks",
            run.plan.loss_chunks.is_some(),
            "`plan.loss_chunks` splits the logits, but a score head has none",
        ),
        (
            "eval.samples",
            run.eval.samples.is_some(),
            "`eval.samples` generates answers, but a model for this task produces no text",
        ),
    ] {
        if given {
            return Err(resolved.invalid(path, message).hint(format!("remove {path}")));
        }
    }
    Ok(())
}

fn model(resolved: &Resolved) -> Result<Model, Failure> {
    let found = match &resolved.run.model {
        ModelSource::Name(name) => Model::find(name),
        ModelSource::Shape(shape) => Model::from_shape(serde_json::Value::Object(shape.config.clone())),
    };
    let mut model = found.map_err(|error| explained(error, resolved))?;
    model.random |= resolved.run.init == Init::Random;
    if resolved.run.train_padding {
        model.config.embedding.padding = None;
    }
    Ok(model)
}

/// A preset is a shape without weights; training it from random ones must be asked for.
pub fn check_weights(resolved: &Resolved, model: &Model) -> Result<(), Failure> {
    match &model.origin {
        ModelOrigin::Preset(name) if resolved.run.init != Init::Random => Err(resolved
            .invalid("model", format!("the preset `{name}` has no weights"))
            .hint("set `model` to the folder of a downloaded model, or train from random weights with `init: random`")),
        _ => Ok(()),
    }
}

fn recipe(resolved: &Resolved, device: &DeviceProfile, model: &Model) -> Result<Recipe, Failure> {
    let run = &resolved.run;
    let compute = compute(resolved, device)?;
    let format = base::asked(resolved, model, compute)?;
    if let Some(format) = format {
        base::check_method(resolved, format, &run.method)?;
    }
    let state = match run.optimizer.state {
        config::StateStorage::Fp32 => StateStorage::Float32,
        config::StateStorage::Bf16 => StateStorage::Bfloat16,
        config::StateStorage::Int8 => StateStorage::Int8,
    };
    let groups = parameter_groups(&run.optimizer.described_groups(state), &run.optimizer.rest(state))
        .map_err(|error| resolved.invalid("optimizer", error.to_string()))?;
    let (lora, freeze) = match &run.method {
        Method::Full { freeze } => (None, freeze.clone()),
        Method::Lora(lora) => (Some(adapter(lora)), Vec::new()),
    };
    let mut recipe = Recipe {
        lora,
        freeze,
        groups,
        clip: run.clip.map(|c| c as f32),
        compute,
        base: None,
        fp8_products: false,
        keep_fp8: false,
        // Sixteen-bit weights lose small updates; a float32 copy keeps them unless the state is sixteen-bit too.
        master: compute != DType::F32 && state == StateStorage::Float32,
        scaled_loss: compute == DType::F16,
    };
    base::set(&mut recipe, format, device);
    Ok(recipe)
}

fn adapter(lora: &config::Lora) -> Lora {
    Lora {
        r: lora.r as usize,
        alpha: lora.alpha as f32,
        dropout: lora.dropout as f32,
        targets: match &lora.targets {
            config::Targets::AllLinear => Targets::AllLinear,
            config::Targets::Names(names) => Targets::Named(names.clone()),
        },
        rslora: lora.rslora,
    }
}

pub(crate) fn compute(resolved: &Resolved, device: &DeviceProfile) -> Result<DType, Failure> {
    match (resolved.run.precision, device.backing) {
        (Precision::Auto | Precision::Fp32, Backing::Host) => Ok(DType::F32),
        (_, Backing::Host) => Err(resolved.unsupported("precision", &["fp32 on the CPU"])),
        (Precision::Auto, Backing::Gpu) => Ok(device.native16),
        (Precision::Fp32, Backing::Gpu) => Ok(DType::F32),
        (Precision::Bf16, Backing::Gpu) => Ok(DType::BF16),
        (Precision::Fp16, Backing::Gpu) => Ok(DType::F16),
    }
}

/// Sequences of one update, in whole groups where they come in groups. Of a batch in tokens, as many as fit into it if
/// all are of the greatest length.
fn sequences(resolved: &Resolved, task: &dyn Task) -> Result<usize, Failure> {
    let group = task.group() as u64;
    let max_length = resolved.run.data.max_length;
    let group_tokens = group * max_length;
    match resolved.run.batch {
        Batch::Sequences(n) if n.is_multiple_of(group) => Ok(n as usize),
        Batch::Sequences(n) => Err(resolved
            .invalid(
                "batch.sequences",
                format!("`batch.sequences` is {n}, but `task: {}` takes sequences in groups of {group}", task.name()),
            )
            .hint(format!("set batch.sequences to {}", n.next_multiple_of(group)))),
        Batch::Tokens(tokens) if tokens >= group_tokens => Ok((tokens / group_tokens * group) as usize),
        Batch::Tokens(tokens) => {
            let what = if group == 1 { "one sequence".to_owned() } else { format!("a group of {group} sequences") };
            Err(resolved
                .invalid(
                    "batch.tokens",
                    format!("`batch.tokens` is {tokens}, but {what} may have {group_tokens} tokens (data.max_length)"),
                )
                .hint(format!("set batch.tokens to {group_tokens} or more, or lower data.max_length")))
        }
    }
}

/// Whether bad updates are to leave no trace.
fn looks_first(run: &RunConfig) -> bool {
    run.guard.action == config::GuardAction::Skip || run.guard.spike.is_some()
}

/// Pins that the guard does not bear, or that mean nothing for the method.
fn check_pins(resolved: &Resolved) -> Result<(), Failure> {
    let run = &resolved.run;
    if run.plan.keep == KeepPrecision::Fp8 && !matches!(run.method, Method::Lora(_)) {
        let message = "`plan.keep` is fp8, but only adapters' gradients may be made from rounded values";
        return Err(resolved
            .invalid("plan.keep", message)
            .hint("remove plan.keep, or train adapters: `method: {lora: {}}`"));
    }
    if run.plan.update_in_backward != Some(true) || !looks_first(run) {
        return Ok(());
    }
    let message = "`plan.update_in_backward` is true, but `guard` looks at an update before any weight is touched";
    Err(resolved
        .invalid("plan.update_in_backward", message)
        .hint("remove guard.action and guard.spike, or remove plan.update_in_backward"))
}

fn pins(run: &RunConfig) -> Pins {
    Pins {
        micro_batch_tokens: run.plan.micro_batch_tokens.map(|n| n as usize),
        loss_chunks: run.plan.loss_chunks.map(|n| n as usize),
        mlp_chunks: run.plan.mlp_chunks.map(|n| n as usize),
        recompute: run.plan.recompute.as_ref().map(|m| m.iter().map(|(k, v)| (k.clone(), *v as usize)).collect()),
        // The guard looks at a whole update before it is applied.
        update_in_backward: if looks_first(run) { Some(false) } else { run.plan.update_in_backward },
        keep: match run.plan.keep {
            KeepPrecision::Exact => KeepPin::Exact,
            KeepPrecision::Fp8 => KeepPin::RoundedIfBetter,
        },
        save: match run.plan.save {
            SavePlan::Between => SavePin::Between,
            SavePlan::Beside => SavePin::Beside,
            // What is saved every half an hour costs no time that memory should be spent on.
            SavePlan::Auto if run.save.every.is_none() && run.save.best.is_none() => SavePin::Between,
            SavePlan::Auto if run.memory.goal == config::Goal::Lowest => SavePin::Between,
            SavePlan::Auto => SavePin::IfRoom,
        },
    }
}
