use plimsoll_graph::GraphError;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum ModelError {
    #[error("config.json: {0}")]
    Config(String),
    /// A rate that training would not apply.
    #[error("`{key}: {rate}` is not supported")]
    Dropout { key: String, rate: f64 },
    #[error("model type `{name}` is not supported; supported are {known}")]
    Family { name: String, known: String },
    #[error(
        "freeze pattern `{0}` matches no parameter; patterns are Hugging Face names with `*`, such as `model.embed_tokens*`"
    )]
    FreezePattern(String),
    #[error("optimizer group `{0}` matches no parameter; patterns are Hugging Face names with `*`, such as `lm_head*`")]
    GroupPattern(String),
    #[error("unknown optimizer `{name}`; expected one of {known}")]
    Optimizer { name: String, known: String },
    #[error("adapter target `{target}` names no linear layer of this model; it has {known}")]
    Target { target: String, known: String },
    #[error("{0}")]
    Method(String),
    /// Its attention is of a kind that no cache is made for.
    #[error(
        "models of type `{0}` cannot generate text here yet: their attention needs more than its own earlier tokens"
    )]
    NoGeneration(&'static str),
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl ModelError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Dropout { .. } => Some("set it to 0 in config.json to train without this dropout".to_owned()),
            _ => None,
        }
    }
}
