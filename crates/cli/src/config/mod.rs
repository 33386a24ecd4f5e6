//! The run's configuration: read, checked, merged and rendered back.
//!
//! Every source (file, environment, `--set`, flags) becomes a tree of [`node::Node`]s that remember
//! where they came from. Each tree is checked against the one [`schema`], merged over the ones below
//! it, filled with defaults and read into a [`RunConfig`].
//!
//! | file | what it does |
//! |---|---|
//! | `yaml`, `node`, `origin` | text to a tree in which every value knows its place |
//! | `schema`, `words`, `kind`, `size` | which keys exist and what each may hold |
//! | `check`, `nearest` | strict errors |
//! | `layers` | precedence, defaults |
//! | `run`, `method`, `model`, `reader` | the typed result |
//! | `resolved`, `render` | the result with origins, and back to YAML |

mod check;
mod kind;
mod layers;
mod method;
mod model;
mod nearest;
mod node;
mod origin;
mod reader;
mod render;
mod resolved;
mod run;
mod schema;
mod size;
mod sources;
#[cfg(test)]
mod tests;
mod words;
mod yaml;

pub use layers::{Flag, Overrides, Source, load, load_over};
pub use method::{Lora, Method, Targets};
pub use model::ModelSource;
pub use render::quoted;
pub use resolved::Resolved;
pub use run::{Batch, Length, RunConfig};
pub use size::Budget;
pub use sources::SourceEntry;
pub use words::{
    DataFormat, DataMode, Goal, Init, Mode, OptimizerName, Overlong, Precision, ScheduleName, StateStorage, Storage,
    Task,
};
