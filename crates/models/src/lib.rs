//! Model families, adapters and their Hugging Face names, as graphs. No file is opened here.

mod adapter;
mod config;
mod decoder;
mod error;
mod forward;
mod parameters;
mod presets;
mod program;
mod rotary;

pub use adapter::{LINEAR_LAYERS, Lora, Targets};
pub use config::{DecoderConfig, Family, RopeScaling};
pub use decoder::SCORE_WEIGHT;
pub use error::ModelError;
pub use parameters::{Init, Parameter, ParameterKind, Part};
pub use presets::{preset, preset_names};
pub use program::{Built, Head, Inputs, OptimizerKind, OptimizerSlots, Recipe, build};
pub use rotary::rotary_table;
