//! What is trained: everything, everything but some weights, or adapters.

use super::kind::{FromValue, Range, Value};
use super::reader::Reader;
use super::schema::{boolean, number, optional, texts, up_to};
use super::section::{Field, Keys, section};
use crate::failure::Failure;

section! {
    /// The keys of `method` where it is a mapping.
    pub struct MethodKeys {
        /// Train all weights. It has no keys of its own and may stand beside `method.freeze`.
        full: Option<FullKeys> = optional::<FullKeys>();
        /// Train low-rank adapters beside the frozen weights.
        lora: Option<Lora> = optional::<Lora>(), also ["peft"];
        /// Hugging Face names of weights that are not trained; `*` matches any characters.
        freeze: Vec<String> = texts(), also ["freeze_modules", "frozen_parameters"];
    }
    one_of &[&["full", "lora"], &["lora", "freeze"]];
}

section! {
    pub struct FullKeys {}
}

section! {
    pub struct Lora {
        /// The rank.
        r: u64 = up_to(1 << 16), default "16", also ["rank", "lora_r", "lora_rank"];
        /// The scale: what adapters add is multiplied by alpha / r.
        alpha: f64 = number(Range::ABOVE_ZERO), default "32", also ["lora_alpha"];
        /// Dropout on the adapters' input.
        dropout: f64 = number(Range::BELOW_ONE), default "0.0", also ["lora_dropout"];
        /// Linear layers that get adapters: their names, or `all-linear`.
        targets: Targets = texts(), default "all-linear", also ["target_modules", "lora_target", "lora_target_modules", "lora_target_linear", "lora_attn_modules"];
        /// Scale by alpha / sqrt(r) instead.
        rslora: bool = boolean(), default "false", also ["use_rslora"];
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// Every weight but those whose name matches a pattern in `freeze`.
    Full {
        freeze: Vec<String>,
    },
    Lora(Lora),
}

/// Which linear layers get adapters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    AllLinear,
    Names(Vec<String>),
}

impl FromValue for Targets {
    fn from_value(value: Value) -> Option<Self> {
        let names = Vec::from_value(value)?;
        Some(if names == ["all-linear"] { Self::AllLinear } else { Self::Names(names) })
    }
}

impl Field for Method {
    fn read_field(section: &Reader<'_>, name: &str) -> Result<Self, Failure> {
        // A word that stood there was `full`: `lora` has become a mapping with its defaults.
        let Some(keys) = section.given(name)? else { return Ok(Self::Full { freeze: Vec::new() }) };
        let MethodKeys { lora, freeze, .. } = MethodKeys::read(&keys)?;
        Ok(lora.map_or(Self::Full { freeze }, Self::Lora))
    }
}
