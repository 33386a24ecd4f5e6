//! The run that `train` does when it is given none.

use crate::config::Source;

pub fn quickstart() -> Source<'static> {
    Source::Embedded { name: "quickstart", text: include_str!("quickstart.yaml") }
}
