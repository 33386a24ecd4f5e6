//! Low-rank adapters: two small products accumulated into the big one.

use crate::ModelError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Targets {
    /// Every linear layer but the vocabulary projection.
    AllLinear,
    Named(Vec<String>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    pub r: usize,
    pub alpha: f32,
    pub dropout: f32,
    pub targets: Targets,
    /// Scale by `alpha / √r` instead of `alpha / r`.
    pub rslora: bool,
}

impl Lora {
    pub fn scale(&self) -> f32 {
        let r = self.r as f32;
        self.alpha / if self.rslora { r.sqrt() } else { r }
    }

    pub fn adapts(&self, layer: &str) -> bool {
        match &self.targets {
            Targets::AllLinear => true,
            Targets::Named(names) => names.iter().any(|n| n == layer),
        }
    }

    pub(crate) fn check(&self, layers: &[&str]) -> Result<(), ModelError> {
        if self.r == 0 {
            return Err(ModelError::Method("`method.lora.r` must be at least 1".into()));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(ModelError::Method(format!(
                "`method.lora.dropout` must lie in [0, 1), found {}",
                self.dropout
            )));
        }
        if let Targets::Named(names) = &self.targets {
            if names.is_empty() {
                return Err(ModelError::Method("`method.lora.targets` is empty; name layers or use all-linear".into()));
            }
            if let Some(unknown) = names.iter().find(|n| !layers.contains(&n.as_str())) {
                return Err(ModelError::Target { target: unknown.clone(), known: layers.join(", ") });
            }
        }
        Ok(())
    }
}
