//! Keys of other trainers that mean something else here, or nothing. Those that only have another name are in the
//! `also` of their key.

/// Names, and what to do instead. Whatever stands between backticks is a key, or a line that can be put into a run file.
const REMARKS: &[(&[&str], &str)] = &[
    (
        &[
            "per_device_train_batch_size",
            "per_gpu_train_batch_size",
            "micro_batch_size",
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
        ],
        "set `batch.sequences` to the sequences of a whole update: those of a device × accumulation steps × devices. \
         The planner chooses the micro-batch",
    ),
    (
        &["gradient_accumulation_steps", "grad_accum_steps", "gradient_accumulation"],
        "set `batch.sequences` to the sequences of a whole update; the planner decides into how many micro-batches it \
         is split, and `plan.micro_batch_tokens` pins their size",
    ),
    (
        &["per_device_eval_batch_size", "per_gpu_eval_batch_size", "eval_batch_size"],
        "no key is needed: evaluation uses micro-batches of the size that training uses",
    ),
    (&["auto_find_batch_size"], "no key is needed: the plan is known to fit before the run starts"),
    (
        &["load_in_4bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "use_nested_quant", "qlora"],
        "use `base: nf4`, which is nf4 with double quantisation, beside `method: lora`",
    ),
    (
        &["load_in_8bit", "load_in_fp8"],
        "use `base: int8` beside `method: lora`; `base: fp8` has 8 bits too, and products of its own on Hopper",
    ),
    (
        &["quantization_bit", "quantization_config", "quantization_method", "bnb_config"],
        "use `base: nf4` for 4 bits or `base: int8` for 8, beside `method: lora`. The folder of a model that is quantised \
         already needs no key",
    ),
    (
        &["bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "llm_int8_threshold", "llm_int8_skip_modules"],
        "no key is needed: weights are decoded to the type that `precision` says, and activations are never rounded to int8",
    ),
    (
        &[
            "use_dora",
            "dora",
            "peft_use_dora",
            "init_lora_weights",
            "pissa_init",
            "loraplus_lr_ratio",
            "lora_plus_lr_ratio",
        ],
        "there is no such key: adapters are plain LoRA, or rsLoRA with `method: {lora: {rslora: true}}`",
    ),
    (
        &["modules_to_save", "lora_modules_to_save", "additional_target"],
        "there is no such key: with adapters, all other weights stay frozen; only a new score head is trained with them",
    ),
    (&["bf16", "pure_bf16", "bfloat16"], "use `precision: bf16`"),
    (&["fp16", "float16", "half"], "use `precision: fp16`"),
    (&["fp32", "float32"], "use `precision: fp32`"),
    (&["tf32", "half_precision_backend", "fp16_opt_level"], "there is no such key: `precision` decides the arithmetic"),
    (
        &[
            "gradient_checkpointing",
            "gradient_checkpointing_kwargs",
            "use_gradient_checkpointing",
            "activation_checkpointing",
            "enable_activation_checkpointing",
        ],
        "no key is needed: the planner recomputes what the budget requires. `plan.recompute` pins it",
    ),
    (
        &[
            "report_to",
            "use_wandb",
            "wandb_project",
            "wandb_entity",
            "wandb_name",
            "mlflow_experiment_name",
            "logging_dir",
            "metric_logger",
        ],
        "no key is needed: every run writes metrics.jsonl and log.txt into its folder (`out`)",
    ),
    (&["logging_strategy", "log_level", "disable_tqdm"], "`log.every` decides how often a line is shown"),
    (
        &["deepspeed", "fsdp", "fsdp_config", "ddp_backend", "tensor_parallel_size", "strategy", "num_gpus"],
        "there is no such key: a run trains on one device, within the budgets of `memory`",
    ),
    (
        &["eval_strategy", "evaluation_strategy", "evals_per_epoch", "do_eval"],
        "set `eval.every` to a number of updates",
    ),
    (&["save_strategy", "saves_per_epoch"], "set `save.every` to a number of updates"),
    (
        &["load_best_model_at_end", "greater_is_better"],
        "`save: {best: loss}` keeps the checkpoint with the lowest evaluation loss, `save: {best: bleu}` that with the highest bleu",
    ),
    (
        &[
            "packing",
            "packed",
            "sample_packing",
            "eval_sample_packing",
            "eval_packing",
            "neat_packing",
            "padding_free",
            "pad_to_sequence_len",
            "pad_to_max_length",
            "group_by_length",
            "multipack_real_batches",
        ],
        "no key is needed: sequences lie one behind another without padding, and none attends to another",
    ),
    (
        &[
            "train_on_inputs",
            "train_on_input",
            "train_on_prompt",
            "mask_history",
            "completion_only_loss",
            "assistant_only_loss",
            "train_on_responses_only",
        ],
        "use `task: sft` for the loss of answers only, or `task: pretrain` for that of every token",
    ),
    (
        &[
            "attn_implementation",
            "flash_attn",
            "flash_attention",
            "use_flash_attention_2",
            "sdp_attention",
            "xformers_attention",
        ],
        "no key is needed: attention never stores its scores",
    ),
    (&["torch_compile", "compile"], "no key is needed: `mode` decides whether GPU schedules are recorded"),
    (&["trust_remote_code"], "there is no such key: code from a model's folder is never run"),
    (&["push_to_hub", "hub_model_id", "hub_token", "hub_strategy"], "there is no such key: runs stay on this machine"),
    (&["overwrite_output_dir"], "there is no such key: a run never overwrites another; choose a new `out`"),
    (&["neftune_noise_alpha", "label_smoothing_factor"], "there is no such key, and nothing that does the same"),
];

/// A name as other trainers write it in Python: lower case, with underscores.
pub fn plain(name: &str) -> String {
    name.trim_start_matches('-').to_lowercase().replace('-', "_")
}

/// What to do instead of setting a key of another trainer.
pub fn remark(name: &str) -> Option<&'static str> {
    let name = plain(name);
    let (_, remark) = REMARKS.iter().find(|(names, _)| names.contains(&name.as_str()))?;
    Some(remark)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, Source, load, schema};

    #[test]
    fn only_what_exists_is_offered() {
        for (names, remark) in REMARKS {
            for offered in remark.split('`').skip(1).step_by(2).filter(|offered| !offered.starts_with("plimsoll ")) {
                let text = format!("model: tiny\n{offered}\n");
                let source = Source::Embedded { name: "run.yaml", text: &text };
                let exists = schema::find(offered).is_some()
                    || (offered.contains(": ") && load(source, &Overrides::default()).is_ok());
                assert!(exists, "{names:?} are told `{offered}`");
            }
        }
    }

    #[test]
    fn a_name_stands_in_one_place() {
        let keys = schema::all();
        let mut seen = std::collections::BTreeSet::new();
        let also = keys.iter().flat_map(|(_, key)| key.also.iter());
        for name in REMARKS.iter().flat_map(|(names, _)| names.iter()) {
            assert!(seen.insert(*name), "{name} stands there twice");
            assert_eq!(&plain(name), name);
            assert!(!keys.iter().any(|(_, key)| key.name == *name), "{name} is a key here");
            assert!(!also.clone().any(|also| also == name), "{name} is also in a key's own list");
        }
    }
}
