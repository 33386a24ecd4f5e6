//! Which parameters are trained by which settings.

use std::sync::Arc;

use plimsoll_graph::{OPTIMIZERS, Optimizer, OptimizerSettings, Shape, optimizer_named};

use crate::ModelError;
use crate::parameters::matches;

/// Of the parameters that a group's patterns fit, those that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Members {
    All,
    Matrices,
    /// Norms and biases.
    Vectors,
}

impl Members {
    fn include(self, shape: &Shape) -> bool {
        match self {
            Members::All => true,
            Members::Matrices => shape.rank() == 2,
            Members::Vectors => shape.rank() < 2,
        }
    }
}

/// Parameters that are trained by the same settings.
#[derive(Debug, Clone)]
pub struct ParameterGroup {
    /// Hugging Face names with `*`; a parameter belongs to the first group with one that fits it.
    pub patterns: Vec<String>,
    pub members: Members,
    pub optimizer: Arc<dyn Optimizer>,
    /// Its learning rate as a multiple of the run's.
    pub lr_factor: f64,
}

impl ParameterGroup {
    /// All parameters that no other group has.
    pub fn rest(optimizer: Arc<dyn Optimizer>) -> Self {
        Self { patterns: vec!["*".to_owned()], members: Members::All, optimizer, lr_factor: 1.0 }
    }

    pub(crate) fn has(&self, hf_name: &str, shape: &Shape) -> bool {
        self.members.include(shape) && self.patterns.iter().any(|pattern| matches(pattern, hf_name))
    }
}

/// A group as a run describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupDescription {
    /// Hugging Face names with `*`.
    pub patterns: Vec<String>,
    /// A name of [`OPTIMIZERS`].
    pub optimizer: String,
    /// The highest learning rate.
    pub lr: f64,
    pub settings: OptimizerSettings,
    /// Whether norms and biases decay too. Most trainers, Hugging Face's among them, leave them out.
    pub decay_vectors: bool,
}

impl GroupDescription {
    fn made(&self, settings: &OptimizerSettings) -> Result<Arc<dyn Optimizer>, ModelError> {
        optimizer_named(&self.optimizer, settings).ok_or_else(|| {
            let known: Vec<&str> = OPTIMIZERS.iter().map(|(name, _)| *name).collect();
            ModelError::Optimizer { name: self.optimizer.clone(), known: known.join(", ") }
        })
    }

    /// Where vectors do not decay they are a group of their own, before the rest. Those that the optimizer does not take go
    /// to AdamW with the same settings.
    fn groups(&self, lr: f64) -> Result<Vec<ParameterGroup>, ModelError> {
        let group = |members, settings| -> Result<ParameterGroup, ModelError> {
            let (patterns, optimizer) = (self.patterns.clone(), self.made(&settings)?);
            Ok(ParameterGroup { patterns, members, optimizer, lr_factor: self.lr / lr })
        };
        let whole = group(Members::All, self.settings)?;
        if whole.optimizer.matrices_only() {
            let matrices = ParameterGroup { members: Members::Matrices, ..whole };
            let others = Self { optimizer: OTHER_OPTIMIZER.to_owned(), ..self.clone() };
            return Ok([vec![matrices], others.groups(lr)?].concat());
        }
        if self.decay_vectors || self.settings.weight_decay == 0.0 {
            return Ok(vec![whole]);
        }
        let undecayed = OptimizerSettings { weight_decay: 0.0, ..self.settings };
        Ok(vec![group(Members::Vectors, undecayed)?, whole])
    }
}

/// What optimizers that take only matrices leave over.
const OTHER_OPTIMIZER: &str = "adamw";

/// The groups of a run, in the order in which parameters are looked for in them. `rest` has what no other has, whatever its
/// patterns, and its learning rate is the run's.
pub fn parameter_groups(
    described: &[GroupDescription],
    rest: &GroupDescription,
) -> Result<Vec<ParameterGroup>, ModelError> {
    if let Some(bad) = described.iter().chain([rest]).find(|group| !(group.lr.is_finite() && group.lr > 0.0)) {
        let patterns = bad.patterns.join(", ");
        return Err(ModelError::Method(format!("the learning rate of `{patterns}` is {}; it must be above 0", bad.lr)));
    }
    let mut groups = Vec::new();
    for group in described {
        groups.extend(group.groups(rest.lr)?);
    }
    let rest = GroupDescription { patterns: vec!["*".to_owned()], ..rest.clone() };
    groups.extend(rest.groups(rest.lr)?);
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(patterns: &[&str], optimizer: &str, lr: f64, weight_decay: f64) -> GroupDescription {
        GroupDescription {
            patterns: patterns.iter().map(|&pattern| pattern.to_owned()).collect(),
            optimizer: optimizer.to_owned(),
            lr,
            settings: OptimizerSettings { weight_decay, ..OptimizerSettings::default() },
            decay_vectors: false,
        }
    }

    /// The optimizer, the learning rate relative to the run's and the weight decay of each parameter.
    fn check(groups: &[ParameterGroup], expected: &[(&str, &[usize], &str, f64, f64)]) {
        for &(name, dims, optimizer, lr_factor, decay) in expected {
            let shape = Shape::new(dims);
            let group = groups.iter().find(|group| group.has(name, &shape)).expect("the last takes everything");
            assert_eq!(group.optimizer.name(), optimizer, "{name}");
            assert!((group.lr_factor - lr_factor).abs() < 1e-12, "{name}: {}", group.lr_factor);
            let decays = format!("{:?}", group.optimizer).contains(&format!("weight_decay: {decay:?}"));
            assert!(decays, "{name}: {:?}, expected a weight decay of {decay}", group.optimizer);
        }
    }

    #[test]
    fn norms_and_biases_do_not_decay() {
        let groups = parameter_groups(&[], &described(&[], "adamw", 2e-5, 0.01)).expect("valid");
        check(
            &groups,
            &[
                ("model.embed_tokens.weight", &[64, 32], "adamw", 1.0, 0.01),
                ("model.layers.0.self_attn.q_proj.weight", &[32, 32], "adamw", 1.0, 0.01),
                ("model.layers.0.self_attn.q_proj.bias", &[32], "adamw", 1.0, 0.0),
                ("model.layers.0.input_layernorm.weight", &[32], "adamw", 1.0, 0.0),
                ("model.norm.weight", &[32], "adamw", 1.0, 0.0),
            ],
        );
        let rest = GroupDescription { decay_vectors: true, ..described(&[], "adamw", 2e-5, 0.01) };
        check(&parameter_groups(&[], &rest).expect("valid"), &[("model.norm.weight", &[32], "adamw", 1.0, 0.01)]);
    }

    /// Head, embedding and matrices of blocks apart, the former two by AdamW at rates that depend on the width.
    #[test]
    fn the_groups_of_nanochat() {
        let width: f64 = 1280.0;
        let scale = (width / 768.0).powf(-0.5);
        let of_width = |patterns: &[&str], lr: f64| {
            let mut group = described(patterns, "adamw", lr * scale, 0.0);
            group.settings.betas = Some([0.8, 0.95]);
            group
        };
        let (head, embedding) = (of_width(&["lm_head*"], 0.004), of_width(&["*embed_tokens*"], 0.2));
        let rest = described(&[], "muon", 0.02, 0.0);
        let groups = parameter_groups(&[head, embedding], &rest).expect("valid");
        check(
            &groups,
            &[
                ("lm_head.weight", &[65_536, 1280], "adamw", 0.2 * scale, 0.0),
                ("model.embed_tokens.weight", &[65_536, 1280], "adamw", 10.0 * scale, 0.0),
                ("model.layers.3.mlp.fc1.weight", &[5120, 1280], "muon", 1.0, 0.0),
                ("model.layers.3.self_attn.q_norm.weight", &[128], "adamw", 1.0, 0.0),
            ],
        );
        // Each group's numbers are its own.
        let hyper: Vec<[f32; 4]> =
            groups.iter().map(|group| group.optimizer.hyper(3, 0.02 * group.lr_factor)).collect();
        assert_eq!(hyper[0][0], (0.004 * scale) as f32);
        assert_eq!(hyper[1][..2], [(0.2 * scale) as f32, (1.0 - 0.8f64.powi(3)) as f32]);
        assert_eq!(hyper[2][..2], [0.02, 0.95]);
    }

    #[test]
    fn the_first_group_that_fits_has_a_parameter() {
        let groups = parameter_groups(
            &[described(&["*.bias"], "sgd", 1.0, 0.0), described(&["model.layers.0*"], "lion", 0.5, 0.2)],
            &described(&["ignored"], "adafactor", 2.0, 0.0),
        );
        check(
            &groups.expect("valid"),
            &[
                ("model.layers.0.fc1.bias", &[8], "sgd", 0.5, 0.0),
                ("model.layers.0.fc1.weight", &[8, 8], "lion", 0.25, 0.2),
                ("model.layers.0.norm.weight", &[8], "lion", 0.25, 0.0),
                ("model.layers.1.fc1.weight", &[8, 8], "adafactor", 1.0, 0.0),
            ],
        );
    }

    /// A group has all that its patterns fit, its vectors with its rate and its decay, whoever updates them.
    #[test]
    fn vectors_of_a_group_keep_its_settings() {
        let groups =
            parameter_groups(&[described(&["*self_attn*"], "muon", 0.1, 0.2)], &described(&[], "muon", 0.2, 0.3));
        let mut decayed = described(&["*self_attn*"], "muon", 0.1, 0.2);
        decayed.decay_vectors = true;
        let expected = |decay| {
            [
                ("model.layers.0.self_attn.q_proj.weight", &[8, 8][..], "muon", 0.5, 0.2),
                ("model.layers.0.self_attn.q_norm.weight", &[8], "adamw", 0.5, decay),
                ("model.layers.0.mlp.up_proj.weight", &[8, 8], "muon", 1.0, 0.3),
                ("model.norm.weight", &[8], "adamw", 1.0, 0.0),
            ]
        };
        check(&groups.expect("valid"), &expected(0.0));
        check(&parameter_groups(&[decayed], &described(&[], "muon", 0.2, 0.3)).expect("valid"), &expected(0.2));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let rest = described(&[], "adamw", 1e-3, 0.0);
        let unknown = parameter_groups(&[described(&["*"], "adam", 1e-3, 0.0)], &rest).expect_err("no such name");
        assert_eq!(unknown.to_string(), "unknown optimizer `adam`; expected one of adamw, sgd, lion, muon, adafactor");
        for lr in [0.0, -1.0, f64::NAN] {
            let refused = parameter_groups(&[described(&["lm_head*"], "adamw", lr, 0.0)], &rest).expect_err("no rate");
            assert!(refused.to_string().contains("`lm_head*`"), "{refused}");
        }
    }
}
