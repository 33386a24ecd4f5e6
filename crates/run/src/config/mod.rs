//! The run's configuration: read, checked, merged and rendered back.
//!
//! Every source (file, environment, `--set`, flags) becomes a tree of [`node::Node`]s that remember
//! where they came from. Each tree is checked against the one [`schema`], merged over the ones below
//! it, filled with defaults and read into a [`RunConfig`].
//!
//! | file | what it does |
//! |---|---|
//! | `yaml`, `node`, `origin` | text to a tree in which every value knows its place |
//! | `section` | one definition per key: struct, table and reader from one entry |
//! | `run`, `data`, `optimizer`, `method`, `model`, `tasks` | the keys, and the typed result |
//! | `schema`, `words`, `kind`, `size`, `sources` | what a key may hold |
//! | `check`, `nearest`, `elsewhere` | strict errors |
//! | `paths` | what a relative path is relative to |
//! | `layers` | precedence, defaults |
//! | `reader` | typed values out of the merged tree |
//! | `resolved`, `render` | the result with origins, and back to YAML |

mod check;
mod data;
mod device;
mod elsewhere;
mod kind;
mod layers;
mod method;
mod model;
mod nearest;
mod node;
mod optimizer;
mod origin;
mod paths;
mod reader;
mod reference;
mod render;
mod resolved;
mod run;
mod schema;
mod section;
mod size;
mod sources;
mod tasks;
#[cfg(test)]
mod tests;
mod words;
mod yaml;

pub use device::{DeviceChoice, DeviceFigures};
pub use layers::{Flag, Overrides, Source, load, load_run};
pub use method::{Lora, Method, Targets};
pub use model::ModelSource;
pub use optimizer::{Length, OptimizerConfig};
pub use origin::Origin;
pub use reference::{KeyReference, reference, reference_page};
pub use render::quoted;
pub use resolved::{OriginRow, Resolved};
pub use run::{Batch, RunConfig};
pub(crate) use schema::find as key_at;
pub use size::{Budget, BudgetError, HostBudget};
pub use sources::SourceEntry;
pub use words::{
    BaseFormat, DataFormat, DataMode, Goal, GuardAction, Init, KeepPrecision, Mode, Overlong, Precision, RankingLoss,
    SavePlan, ScheduleName, StateStorage,
};
