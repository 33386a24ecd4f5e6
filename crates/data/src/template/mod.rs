//! Chat templates: from conversations to text.

mod built_in;
mod chat;
mod jinja;
mod limits;
mod made;
mod python;

pub use built_in::BUILT_IN_TEMPLATES;
pub(crate) use built_in::{built_in_end, built_in_source};
pub use chat::{ChatTemplate, Rendered};
pub(crate) use python::strip;
