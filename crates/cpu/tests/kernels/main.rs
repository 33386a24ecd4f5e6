//! Operators through the backend, one step at a time.

mod definition;
mod sharing;
mod support;
