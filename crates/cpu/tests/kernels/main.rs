//! Operators through the backend, one step at a time.

mod coded;
mod definition;
mod sharing;
mod support;
