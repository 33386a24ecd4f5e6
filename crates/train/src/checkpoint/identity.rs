//! What a run is, key by key, so that one that goes on can be compared with what it was.

use std::collections::BTreeMap;
use std::fmt;

use plimsoll_data::Amount;
use plimsoll_graph::{Role, WeightFormat};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::{LearningRate, Session, TrainError};

/// What follows from another value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// What was saved means nothing under it.
    Refused,
    /// Training goes on another way from here.
    Course,
    /// The same training, with sums rounded in another order.
    Rounding,
}

/// Every key of a run file that decides what training does, and what follows if it has changed.
const KEYS: &[(&str, Effect)] = &[
    ("model", Effect::Refused),
    ("task", Effect::Refused),
    ("method", Effect::Refused),
    ("precision", Effect::Refused),
    ("base", Effect::Refused),
    ("optimizer.name", Effect::Refused),
    ("seed", Effect::Refused),
    ("task settings", Effect::Course),
    ("optimizer", Effect::Course),
    ("schedule", Effect::Course),
    ("batch", Effect::Course),
    ("clip", Effect::Course),
    ("device", Effect::Rounding),
    ("plan.micro_batch_tokens", Effect::Rounding),
    ("plan.loss_chunks", Effect::Rounding),
    ("plan.mlp_chunks", Effect::Rounding),
    ("plan.keep", Effect::Rounding),
];

/// A value for each of [`KEYS`], as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity(BTreeMap<String, String>);

/// A key whose value is another one than when the checkpoint was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub key: &'static str,
    pub was: String,
    pub is: String,
    pub effect: Effect,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, was, is, effect } = self;
        let follows = match effect {
            Effect::Refused => "the saved state does not fit",
            Effect::Course => "updates differ from here on",
            Effect::Rounding => "results differ by rounding from here on",
        };
        write!(f, "`{key}` has changed from {was} to {is}: {follows}")
    }
}

impl Identity {
    pub fn of(session: &mut Session, amount: Amount, rate: &LearningRate) -> Self {
        let plan = session.plan_position();
        let device = session.executor().backend().name().to_owned();
        let recipe = &session.recipe;
        let optimizers: Vec<String> = recipe.groups.iter().map(|group| format!("{group:?}")).collect();
        let lora = recipe.lora.as_ref().map_or_else(|| "full".to_owned(), |lora| format!("{lora:?}"));
        let frozen = if recipe.freeze.is_empty() { String::new() } else { format!(", frozen: {:?}", recipe.freeze) };
        let (clip, precision) =
            (format!("{:?}", recipe.clip), format!("{:?}, master: {}", recipe.compute, recipe.master));
        let amount = match amount {
            Amount::Sequences(sequences) => format!("{sequences} sequences"),
            Amount::Tokens(tokens) => format!("{tokens} tokens"),
        };
        let values = [
            ("model", session.model.config.source.to_string()),
            ("task", session.task.name().to_owned()),
            ("method", lora + &frozen),
            ("precision", precision),
            ("base", recipe.base.map_or(WHOLE, WeightFormat::name).to_owned()),
            ("optimizer.name", states(session)),
            ("seed", session.seed().to_string()),
            ("task settings", format!("{:?}", session.task)),
            ("optimizer", optimizers.join("; ")),
            ("schedule", format!("{rate:?}")),
            ("batch", amount),
            ("clip", clip),
            ("device", device),
            ("plan.micro_batch_tokens", plan.micro_batch_tokens.to_string()),
            ("plan.loss_chunks", plan.loss_chunks.map_or_else(|| "none".to_owned(), |chunks| chunks.to_string())),
            ("plan.mlp_chunks", plan.mlp_chunks.to_string()),
            ("plan.keep", if plan.keep_fp8 { "fp8" } else { EXACT }.to_owned()),
        ];
        assert!(values.iter().map(|(key, _)| key).eq(KEYS.iter().map(|(key, _)| key)), "every key has its value");
        Self(values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// The format of few bits that the base was stored in, if it was.
    pub fn base_format(&self) -> Option<WeightFormat> {
        self.0.get("base").and_then(|name| WeightFormat::named(name))
    }

    /// What has changed since `self` was written. Refused if what was saved means nothing any more.
    pub fn compare(&self, now: &Self) -> Result<Vec<Change>, TrainError> {
        let mut changes = Vec::new();
        for &(key, effect) in KEYS {
            // Earlier versions did not keep all of them.
            let known = |identity: &Self| identity.0.get(key).cloned().or_else(|| absent(key).map(str::to_owned));
            let (Some(was), Some(is)) = (known(self), known(now)) else { continue };
            if was == is {
                continue;
            }
            let (was, is) = difference(&was, &is).or_else(|| differing_parts(&was, &is)).unwrap_or((was, is));
            if effect == Effect::Refused {
                return Err(TrainError::Changed(Change { key, was, is, effect }));
            }
            changes.push(Change { key, was, is, effect });
        }
        Ok(changes)
    }
}

/// What a base that is not in few bits is called.
const WHOLE: &str = "the precision of the run";

/// That what adapters' gradients need is kept as it was computed.
const EXACT: &str = "exact";

/// What earlier versions did, which had no such key.
fn absent(key: &str) -> Option<&'static str> {
    match key {
        "base" => Some(WHOLE),
        "plan.mlp_chunks" => Some("1"),
        "plan.keep" => Some(EXACT),
        _ => None,
    }
}

/// Of two JSON objects, the first entry in which they differ.
fn difference(was: &str, is: &str) -> Option<(String, String)> {
    let parse = |text: &str| serde_json::from_str::<Map<String, Json>>(text).ok();
    let (was, is) = (parse(was)?, parse(is)?);
    let key = was.keys().chain(is.keys()).find(|key| was.get(*key) != is.get(*key))?;
    let shown = |map: &Map<String, Json>| match map.get(key) {
        Some(value) => format!("{key}: {value}"),
        None => format!("no {key}"),
    };
    Some((shown(&was), shown(&is)))
}

/// Of two descriptions with the same parts, those that differ: `total: 6` and `total: 8`.
fn differing_parts(was: &str, is: &str) -> Option<(String, String)> {
    let mut depth = 0;
    let mut is_between = |letter: char| {
        depth += i32::from(letter == '[') - i32::from(letter == ']');
        matches!(letter, '{' | '}') || (letter == ',' && depth == 0)
    };
    let mut parts = |text: &str| -> Vec<String> {
        text.split(&mut is_between).map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
    };
    let (was, is) = (parts(was), parts(is));
    // One part that is all there is needs no choosing from.
    if was.len() != is.len() || was.len() == 1 {
        return None;
    }
    let (was, is): (Vec<String>, Vec<String>) = was.into_iter().zip(is).filter(|(was, is)| was != is).unzip();
    Some((was.join(", "), is.join(", ")))
}

/// Which optimizers there are and what they keep: `adamw (adam_m F32, adam_v F32)`.
fn states(session: &mut Session) -> String {
    let names: Vec<&str> = session.recipe.groups.iter().map(|group| group.optimizer.name()).collect();
    let names = names.join(", ");
    let slots = &session.executor().plan().slots;
    let kept = slots.iter().filter(|(_, slot)| slot.role == Role::OptimizerState);
    let kind = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
    let kinds: std::collections::BTreeSet<String> =
        kept.map(|(_, slot)| format!("{} {:?}", kind(&slot.name), slot.dtype())).collect();
    format!("{names} ({})", kinds.into_iter().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_shown_and_nothing_else() {
        let check = |was: &str, is: &str, expected: Option<(&str, &str)>| {
            let found = differing_parts(was, is);
            assert_eq!(found.as_ref().map(|(was, is)| (was.as_str(), is.as_str())), expected, "{was} and {is}");
        };
        check("Rate { peak: 1, total: 6 }", "Rate { peak: 1, total: 8 }", Some(("total: 6", "total: 8")));
        check(
            "A { betas: [0.9, 0.99], eps: 1 }",
            "A { betas: [0.9, 0.9], eps: 1 }",
            Some(("betas: [0.9, 0.99]", "betas: [0.9, 0.9]")),
        );
        check("4 sequences", "6 sequences", None);
        check("A { a: 1 }", "B { a: 1, b: 2 }", None);
    }
}
