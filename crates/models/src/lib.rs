//! Model families, adapters and Hugging Face names, as graphs. No file is opened here.

mod adapter;
mod architecture;
mod error;
mod family;
mod forward;
mod frozen;
mod groups;
mod head;
mod inference;
pub mod limits;
mod parameters;
mod position;
mod presets;
mod program;
mod registry;
mod rotary;
mod update;

pub use adapter::{Lora, Targets};
pub use architecture::{
    Architecture, AttentionModule, Block, Branch, BranchClasses, Embedding, Keys, MlpModule, Module, Norm,
    PositionBias, Projection, QkNorm, Residual, Stack, VocabularyHead,
};
pub use error::ModelError;
pub use family::{FAMILIES, Family};
pub use frozen::weights_in_few_bits;
pub use groups::{GroupDescription, Members, ParameterGroup, parameter_groups};
pub use head::{Head, HeadRows, HeadWeight, LossOperands, LossTerm, ReferenceOperands};
pub use inference::{CacheInputs, Purpose, SourceInputs, build_inference};
pub use parameters::{HfTensor, Init, Parameter, ParameterKind};
pub use position::position_buckets;
pub use presets::{preset, preset_names};
pub use program::{Built, Inputs, Recipe, StreamInputs, Trained, build, build_updating_in_backward};
pub use rotary::{RopeScaling, Rotary, frequency_divisors, rotary_table};
