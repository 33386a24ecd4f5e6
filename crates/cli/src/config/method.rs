//! What is trained: everything, everything but some parts, or adapters.

use super::reader::Reader;
use crate::error::Failure;

#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// Every weight but those whose name matches a pattern in `freeze`.
    Full {
        freeze: Vec<String>,
    },
    Lora(Lora),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    pub r: u64,
    pub alpha: f64,
    pub dropout: f64,
    pub targets: Targets,
    /// Scale by `alpha / sqrt(r)` instead of `alpha / r`.
    pub rslora: bool,
}

/// Which linear layers get adapters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    AllLinear,
    Names(Vec<String>),
}

pub fn read(root: &Reader<'_>) -> Result<Method, Failure> {
    let Some(method) = root.given("method")? else {
        return Ok(Method::Full { freeze: Vec::new() });
    };
    let Some(lora) = method.given("lora")? else {
        let freeze = method.find("freeze")?.unwrap_or_default();
        return Ok(Method::Full { freeze });
    };
    let targets: Vec<String> = lora.get("targets")?;
    Ok(Method::Lora(Lora {
        r: lora.get("r")?,
        alpha: lora.get("alpha")?,
        dropout: lora.get("dropout")?,
        targets: if targets == ["all-linear"] { Targets::AllLinear } else { Targets::Names(targets) },
        rslora: lora.get("rslora")?,
    }))
}
