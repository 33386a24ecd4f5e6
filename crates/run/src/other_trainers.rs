//! The planner's figures as configurations of other trainers: DeepSpeed's JSON and accelerate's YAML.

use std::fmt::Write;

use plimsoll_graph::DType;
use plimsoll_plan::{Backing, Report};
use serde_json::{Value as Json, json};

use crate::config::{Budget, Goal, Resolved};
use crate::device;
use crate::failure::{Cause, Failure, Memory};
use crate::prepare::{Options, plan};
use crate::spec::{compute, spec};
use crate::units::bytes;

/// What a run means to a trainer that takes sequences and keeps the whole model where it computes.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainerFigures {
    pub gpus: usize,
    /// Of an update, over all GPUs.
    pub sequences: usize,
    /// Sequences on one GPU at a time.
    pub micro_batch: usize,
    pub accumulation: usize,
    /// As PyTorch names it: bf16, fp16 or no.
    pub precision: &'static str,
    pub clip: Option<f64>,
    pub on_cpu: bool,
    /// What has to lie in the host's memory, because it does not fit beside the rest.
    pub offload: Offload,
    /// AdamW's settings; other rules are for the script to choose.
    optimizer: Option<Json>,
    /// What the figures cannot say.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    None,
    Optimizer,
    /// Also weights and gradients, a layer at a time.
    Parameters,
}

impl Offload {
    /// ZeRO's stage: the second shards gradients and states, the third weights too.
    fn stage(self) -> u32 {
        if self == Self::Parameters { 3 } else { 2 }
    }
}

/// Plans the run and divides its update among so many GPUs.
pub fn trainer_figures(resolved: &Resolved, gpus: usize) -> Result<TrainerFigures, Failure> {
    let profile = device::planned(resolved, false)?.profile;
    let (dtype, model) = (compute(resolved, &profile)?, spec(resolved, &profile)?.model);
    let on_cpu = profile.backing == Backing::Host;
    if on_cpu && gpus > 1 {
        return Err(Failure::usage(format!("--gpus {gpus}, but the run is planned for the CPU"))
            .hint("name a GPU with --device"));
    }
    let (report, offload) = planned(resolved)?;
    let length = resolved.run.data.max_length as usize;
    let sequences = report.effective_batch.sequences;
    if !sequences.is_multiple_of(gpus) {
        return Err(resolved
            .invalid("batch.sequences", format!("{sequences} sequences per update cannot be divided among {gpus} GPUs"))
            .hint("choose a multiple"));
    }
    let share = sequences / gpus;
    let fits = |n: &usize| share.is_multiple_of(*n) && n * length <= report.micro_batch_tokens;
    let micro_batch = (1..=share).rev().find(fits).unwrap_or(1);
    let logits = (micro_batch * length * model.config.vocab_size * 4) as u64;
    let mut notes = vec![format!(
        "the figures are of Plimsoll's plan; PyTorch keeps more, such as {} of logits of a micro-batch in float32",
        bytes(logits)
    )];
    if report.effective_batch.in_tokens {
        notes.push(format!("batch.tokens is written as {sequences} sequences of {length} tokens"));
    }
    let optimizer = &resolved.run.optimizer;
    let is_adamw = optimizer.name == "adamw";
    if !is_adamw {
        notes.push(format!("the optimizer {} is left to the script", optimizer.name));
    }
    let settings = json!({"type": "AdamW", "params": {
        "lr": optimizer.lr,
        "betas": optimizer.betas.unwrap_or([0.9, 0.999]),
        "eps": optimizer.eps.unwrap_or(1e-8),
        "weight_decay": optimizer.weight_decay,
    }});
    Ok(TrainerFigures {
        gpus,
        sequences,
        micro_batch,
        accumulation: share / micro_batch,
        precision: match dtype {
            DType::BF16 => "bf16",
            DType::F16 => "fp16",
            _ => "no",
        },
        clip: resolved.run.clip,
        on_cpu,
        offload,
        optimizer: is_adamw.then_some(settings),
        notes,
    })
}

/// The plan within the budget; where there is none, the smallest one there is, and what of it must lie elsewhere.
fn planned(resolved: &Resolved) -> Result<(Report, Offload), Failure> {
    let refused = match plan(resolved, Options::default()) {
        Ok(planned) => return Ok((planned.report, Offload::None)),
        Err(failure) => failure,
    };
    let Cause::DoesNotFit(Some(refusal)) = &refused.cause else { return Err(refused) };
    if refusal.memory != Memory::Gpu {
        return Err(refused);
    }
    let mut larger = resolved.clone();
    larger.run.memory.gpu = Budget::Bytes(refusal.needed_bytes);
    larger.run.memory.goal = Goal::Lowest;
    let Ok(planned) = plan(&larger, Options::default()) else { return Err(refused) };
    let report = planned.report;
    let of = report.gpu.categories;
    let without_states = report.gpu.planned_bytes - of.optimizer;
    if without_states <= refusal.budget_bytes {
        return Ok((report, Offload::Optimizer));
    }
    if without_states - of.weights - of.gradients <= refusal.budget_bytes {
        return Ok((report, Offload::Parameters));
    }
    Err(refused)
}

impl TrainerFigures {
    /// DeepSpeed's configuration.
    pub fn deepspeed(&self) -> Result<String, Failure> {
        if self.on_cpu {
            return Err(Failure::usage("DeepSpeed trains on GPUs, but the run is planned for the CPU")
                .hint("name one with --device, such as --device 'RTX 4090'; it need not be in this machine"));
        }
        let to_host = json!({"device": "cpu", "pin_memory": true});
        let mut zero = json!({"stage": self.offload.stage(), "overlap_comm": true, "contiguous_gradients": true});
        if self.offload != Offload::None {
            zero["offload_optimizer"] = to_host.clone();
        }
        if self.offload == Offload::Parameters {
            zero["offload_param"] = to_host;
            zero["stage3_gather_16bit_weights_on_model_save"] = true.into();
        }
        let mut config = json!({
            "train_batch_size": self.sequences,
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "gradient_accumulation_steps": self.accumulation,
            "zero_optimization": zero,
        });
        if let Some(clip) = self.clip {
            config["gradient_clipping"] = clip.into();
        }
        match self.precision {
            "bf16" => config["bf16"] = json!({"enabled": true}),
            // A scale of 0 is one that is found and kept up.
            "fp16" => config["fp16"] = json!({"enabled": true, "loss_scale": 0}),
            _ => {}
        }
        if let Some(optimizer) = &self.optimizer {
            config["optimizer"] = optimizer.clone();
        }
        Ok(serde_json::to_string_pretty(&config).expect("plain data") + "\n")
    }

    /// accelerate's configuration. It has no place for the micro-batch, which is the script's DataLoader's.
    pub fn accelerate(&self) -> String {
        let device = |offloaded: bool| if offloaded { "cpu" } else { "none" };
        let mut text = format!(
            "# Sequences of a DataLoader's batch: {}; batches of an update: {}.\n\
            compute_environment: LOCAL_MACHINE\n",
            self.micro_batch, self.accumulation
        );
        let mut line = |key: &str, value: &str| {
            let _ = writeln!(text, "{key}: {value}");
        };
        line("distributed_type", if self.on_cpu { "'NO'" } else { "DEEPSPEED" });
        if !self.on_cpu {
            let third = self.offload == Offload::Parameters;
            line("deepspeed_config", "");
            line("  gradient_accumulation_steps", &self.accumulation.to_string());
            if let Some(clip) = self.clip {
                line("  gradient_clipping", &format!("{clip:?}"));
            }
            line("  offload_optimizer_device", device(self.offload != Offload::None));
            line("  offload_param_device", device(third));
            line("  zero3_init_flag", &third.to_string());
            line("  zero3_save_16bit_model", &third.to_string());
            line("  zero_stage", &self.offload.stage().to_string());
        }
        line("mixed_precision", if self.precision == "no" { "'no'" } else { self.precision });
        for (key, value) in [
            ("machine_rank", "0"),
            ("main_training_function", "main"),
            ("num_machines", "1"),
            ("num_processes", &self.gpus.to_string()),
            ("rdzv_backend", "static"),
            ("same_network", "true"),
            ("use_cpu", &self.on_cpu.to_string()),
            ("debug", "false"),
        ] {
            line(key, value);
        }
        text
    }
}
