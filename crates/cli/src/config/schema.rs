//! The one table of keys: what exists, what each may hold, its default.

use super::kind::{Kind, Range};
use super::words::{
    DataFormat, DataMode, Goal, Init, Mode, OptimizerName, Overlong, Precision, ScheduleName, StateStorage, Storage,
    Task,
};

/// A mapping with known keys.
#[derive(Debug)]
pub struct Section {
    pub keys: &'static [Key],
    /// Groups of keys of which only one may be given; a higher layer's choice replaces a lower one's.
    pub one_of: &'static [&'static [&'static str]],
}

#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub shape: Shape,
    /// In YAML. A key without one is left out when nobody sets it.
    pub default: Option<&'static str>,
    /// What other trainers call it; only ever used to suggest the name that is right here.
    pub also: &'static [&'static str],
}

#[derive(Clone, Copy, Debug)]
pub enum Shape {
    Leaf(Kind),
    /// Always there, if need be with defaults only.
    Section(&'static Section),
    /// There only when it was given.
    Optional(&'static Section),
    /// A single value or a mapping.
    Either(Kind, &'static Section),
    /// A mapping of free names to counts.
    Counts,
}

impl Section {
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.keys.iter().map(|key| key.name).collect()
    }

    /// The other keys of the groups that `name` is in.
    pub fn rivals(&self, name: &str) -> impl Iterator<Item = &'static str> {
        let groups = self.one_of.iter().filter(move |group| group.contains(&name));
        let members = groups.flat_map(|group| group.iter().copied());
        let name = name.to_owned();
        members.filter(move |member| *member != name)
    }
}

impl Shape {
    /// The keys below, where there are any.
    pub fn section(self) -> Option<&'static Section> {
        match self {
            Self::Section(section) | Self::Optional(section) | Self::Either(_, section) => Some(section),
            Self::Leaf(_) | Self::Counts => None,
        }
    }
}

/// The key at a dotted path.
pub fn find(path: &str) -> Option<&'static Key> {
    let (parents, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut section = &ROOT;
    for parent in parents.split('.').filter(|parent| !parent.is_empty()) {
        section = section.key(parent)?.shape.section()?;
    }
    section.key(name)
}

/// Every path of the schema, parents before children.
pub fn paths() -> Vec<(String, &'static Key)> {
    fn walk(section: &'static Section, prefix: &str, found: &mut Vec<(String, &'static Key)>) {
        for key in section.keys {
            let path = joined(prefix, key.name);
            found.push((path.clone(), key));
            if let Some(below) = key.shape.section() {
                walk(below, &path, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(&ROOT, "", &mut found);
    found
}

pub fn joined(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

const fn key(name: &'static str, shape: Shape) -> Key {
    Key { name, shape, default: None, also: &[] }
}

/// A count that no run exceeds. With these limits no size computed from several of them overflows.
const fn up_to(name: &'static str, max: u64) -> Key {
    leaf(name, Kind::Integer { min: 1, max })
}

const fn leaf(name: &'static str, kind: Kind) -> Key {
    key(name, Shape::Leaf(kind))
}

impl Key {
    const fn default(mut self, text: &'static str) -> Self {
        self.default = Some(text);
        self
    }

    const fn also(mut self, names: &'static [&'static str]) -> Self {
        self.also = names;
        self
    }
}

pub static ROOT: Section = Section {
    keys: &[
        key("model", Shape::Either(Kind::Text, &MODEL)).also(&["model_name_or_path"]),
        leaf("init", Kind::Word(Init::WORDS)).default("auto"),
        leaf("task", Kind::Word(Task::WORDS)).default("sft"),
        key("method", Shape::Either(Kind::Word(&["full", "lora"]), &METHOD)).default("full"),
        leaf("base", Kind::Word(Storage::WORDS)).default("auto"),
        leaf("precision", Kind::Word(Precision::WORDS)).default("auto").also(&["dtype"]),
        key("data", Shape::Section(&DATA)).also(&["dataset", "datasets"]),
        key("batch", Shape::Section(&BATCH)),
        key("memory", Shape::Section(&MEMORY)),
        key("optimizer", Shape::Section(&OPTIMIZER)).also(&["optim"]),
        key("schedule", Shape::Section(&SCHEDULE)).also(&["lr_scheduler_type", "scheduler"]),
        leaf("clip", Kind::NumberOrNone(Range::ABOVE_ZERO))
            .default("1.0")
            .also(&["max_grad_norm", "gradient_clipping"]),
        key("eval", Shape::Section(&EVAL)),
        key("save", Shape::Section(&SAVE)),
        leaf("seed", Kind::FROM_ZERO).default("42"),
        leaf("out", Kind::Text).also(&["output_dir"]),
        leaf("name", Kind::Text).also(&["run_name"]),
        leaf("device", Kind::Text).default("auto"),
        leaf("mode", Kind::Word(Mode::WORDS)).default("compiled"),
        key("plan", Shape::Section(&PLAN)),
    ],
    one_of: &[],
};

/// A model by its shape, in Hugging Face's own words.
static MODEL: Section = Section {
    keys: &[
        leaf("family", Kind::Text).also(&["model_type"]),
        up_to("hidden_size", 1 << 20),
        up_to("num_hidden_layers", 1 << 12),
        up_to("num_attention_heads", 1 << 12),
        up_to("num_key_value_heads", 1 << 12),
        up_to("head_dim", 1 << 12),
        up_to("intermediate_size", 1 << 22),
        up_to("vocab_size", 1 << 24),
        leaf("max_position_embeddings", Kind::COUNT),
        leaf("rms_norm_eps", Kind::Number(Range::ABOVE_ZERO)),
        leaf("rope_theta", Kind::Number(Range::ABOVE_ZERO)),
        key("rope_scaling", Shape::Optional(&ROPE_SCALING)),
        leaf("sliding_window", Kind::COUNT),
        leaf("use_sliding_window", Kind::Bool),
        leaf("max_window_layers", Kind::FROM_ZERO),
        leaf("tie_word_embeddings", Kind::Bool),
        leaf("attention_bias", Kind::Bool),
        leaf("mlp_bias", Kind::Bool),
        leaf("hidden_act", Kind::Text),
        leaf("initializer_range", Kind::Number(Range::ABOVE_ZERO)),
        leaf("init", Kind::Word(Init::WORDS)),
    ],
    one_of: &[],
};

static ROPE_SCALING: Section = Section {
    keys: &[
        leaf("rope_type", Kind::Text),
        leaf("type", Kind::Text),
        leaf("factor", Kind::Number(Range::ABOVE_ZERO)),
        leaf("low_freq_factor", Kind::Number(Range::ABOVE_ZERO)),
        leaf("high_freq_factor", Kind::Number(Range::ABOVE_ZERO)),
        leaf("original_max_position_embeddings", Kind::COUNT),
        leaf("attention_factor", Kind::Number(Range::ABOVE_ZERO)),
        leaf("beta_fast", Kind::Number(Range::ABOVE_ZERO)),
        leaf("beta_slow", Kind::Number(Range::ABOVE_ZERO)),
    ],
    one_of: &[&["rope_type", "type"]],
};

static METHOD: Section = Section {
    keys: &[
        key("full", Shape::Optional(&FULL)),
        key("lora", Shape::Optional(&LORA)).also(&["qlora", "peft"]),
        leaf("freeze", Kind::Texts),
    ],
    one_of: &[&["full", "lora"], &["lora", "freeze"]],
};

/// `full` has nothing to set; it stands beside `freeze` for whoever wants to say both.
static FULL: Section = Section { keys: &[], one_of: &[] };

static LORA: Section = Section {
    keys: &[
        up_to("r", 1 << 16).default("16").also(&["rank", "lora_r"]),
        leaf("alpha", Kind::Number(Range::ABOVE_ZERO)).default("32").also(&["lora_alpha"]),
        leaf("dropout", Kind::Number(Range::BELOW_ONE)).default("0.0").also(&["lora_dropout"]),
        leaf("targets", Kind::Texts).default("all-linear").also(&["target_modules"]),
        leaf("rslora", Kind::Bool).default("false").also(&["use_rslora"]),
    ],
    one_of: &[],
};

static DATA: Section = Section {
    keys: &[
        leaf("train", Kind::Sources).also(&["path"]),
        leaf("eval", Kind::Texts).also(&["validation", "test"]),
        leaf("eval_split", Kind::Number(Range::BETWEEN)).also(&["val_set_size"]),
        leaf("format", Kind::Word(DataFormat::WORDS)).default("auto"),
        leaf("max_length", Kind::Integer { min: 2, max: 1 << 24 }).default("1024").also(&[
            "max_seq_length",
            "sequence_len",
            "cutoff_len",
        ]),
        leaf("overlong", Kind::Word(Overlong::WORDS)).default("error"),
        leaf("shuffle", Kind::Bool).default("true"),
        leaf("tokenizer", Kind::Text).also(&["tokenizer_name", "tokenizer_path"]),
        leaf("template", Kind::Text).default("auto").also(&["chat_template"]),
        leaf("mode", Kind::Word(DataMode::WORDS)).default("auto").also(&["streaming"]),
        leaf("cache", Kind::Text).also(&["dataset_prepared_path", "cache_dir"]),
        leaf("buffer", Kind::Budget).default("auto").also(&["shuffle_buffer", "buffer_size"]),
        up_to("workers", 1 << 10).also(&["num_proc", "preprocessing_num_workers", "dataloader_num_workers"]),
        leaf("bad_rows", Kind::Number(Range::SHARE)).default("0.01"),
    ],
    one_of: &[&["eval", "eval_split"]],
};

static BATCH: Section = Section {
    keys: &[up_to("sequences", 1 << 20).default("16").also(&["batch_size", "size"]), up_to("tokens", 1 << 31)],
    one_of: &[&["sequences", "tokens"]],
};

static MEMORY: Section = Section {
    keys: &[
        leaf("gpu", Kind::Budget).default("auto").also(&["vram"]),
        leaf("host", Kind::Budget).default("auto").also(&["ram", "cpu"]),
        leaf("goal", Kind::Word(Goal::WORDS)).default("fastest"),
    ],
    one_of: &[],
};

static OPTIMIZER: Section = Section {
    keys: &[
        leaf("name", Kind::Word(OptimizerName::WORDS)).default("adamw").also(&["type"]),
        leaf("lr", Kind::Number(Range::ABOVE_ZERO)).default("2e-5").also(&["learning_rate"]),
        leaf("weight_decay", Kind::Number(Range::FROM_ZERO)).default("0.01"),
        leaf("betas", Kind::Numbers(2, Range::BELOW_ONE)).default("[0.9, 0.999]").also(&[
            "adam_beta1",
            "adam_beta2",
            "beta1",
            "beta2",
        ]),
        leaf("eps", Kind::Number(Range::ABOVE_ZERO)).default("1e-8").also(&["adam_epsilon"]),
        leaf("momentum", Kind::Number(Range::BELOW_ONE)),
        leaf("state", Kind::Word(StateStorage::WORDS)).default("fp32"),
    ],
    one_of: &[],
};

static SCHEDULE: Section = Section {
    keys: &[
        leaf("name", Kind::Word(ScheduleName::WORDS)).default("cosine").also(&["type"]),
        leaf("warmup", Kind::Extent).default("0").also(&["warmup_ratio", "warmup_steps"]),
        leaf("epochs", Kind::Number(Range::ABOVE_ZERO)).default("1").also(&["num_train_epochs"]),
        leaf("steps", Kind::COUNT).also(&["max_steps"]),
        leaf("final", Kind::Number(Range::SHARE)).default("0.0").also(&["min_lr_ratio"]),
        leaf("decay_start", Kind::Extent),
    ],
    one_of: &[&["epochs", "steps"]],
};

static EVAL: Section =
    Section { keys: &[leaf("every", Kind::COUNT).also(&["eval_steps"]), leaf("samples", Kind::COUNT)], one_of: &[] };

static SAVE: Section = Section {
    keys: &[
        leaf("every", Kind::COUNT).also(&["save_steps"]),
        leaf("keep", Kind::COUNT).default("2").also(&["save_total_limit"]),
        leaf("best", Kind::Word(&["loss"])).also(&["metric_for_best_model"]),
    ],
    one_of: &[],
};

/// Memory decisions the user takes instead of the planner.
static PLAN: Section = Section {
    keys: &[
        up_to("micro_batch_tokens", 1 << 24),
        key("recompute", Shape::Counts).also(&["gradient_checkpointing"]),
        leaf("loss_chunks", Kind::COUNT),
    ],
    one_of: &[],
};
