//! The configuration as a user meets it.

mod errors;
mod layers;
mod paths;
mod rendered;
mod typed;

use super::origin::Origin;
use super::size::Span;
use super::*;
use crate::failure::Failure;

fn source(text: &str) -> Source<'_> {
    Source::Embedded { name: "run.yaml", text }
}

fn parse(text: &str) -> Result<Resolved, Failure> {
    load(source(text), &Overrides::default())
}

/// A run with `model` set, so that a test can speak of one key only.
fn run(rest: &str) -> RunConfig {
    parse(&format!("model: tiny\n{rest}")).unwrap().run
}

fn environment(pairs: &[(&str, &str)]) -> Overrides {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Overrides { environment: pairs.iter().map(own).collect(), ..Overrides::default() }
}

fn set(texts: &[&str]) -> Overrides {
    Overrides { set: texts.iter().map(|text| (*text).to_owned()).collect(), ..Overrides::default() }
}
