//! The run that `train` does when it is given none.

use crate::config::Source;

pub fn quickstart_config() -> &'static str {
    include_str!("quickstart.yaml")
}

pub fn source() -> Source<'static> {
    Source::Embedded { name: "quickstart", text: quickstart_config() }
}

/// What lies over the quickstart where a GPU trains it.
pub fn on_gpu() -> Source<'static> {
    Source::Embedded { name: "quickstart on a GPU", text: include_str!("quickstart-gpu.yaml") }
}
