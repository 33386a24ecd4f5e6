//! What a run goes on with: the rows, the base and the chunks that it began with, and no others.

use std::fs;

use plimsoll_graph::WeightFormat;
use plimsoll_models::Recipe;
use plimsoll_plan::{KeepPin, Pins};
use plimsoll_train::{Effect, Event, Resume, Saving, TrainError};

use crate::run::{Place, Setup, lora};
use crate::support::recipe;

/// Before its first checkpoint a run may begin again as another one; its adapters then name the base that they stand beside.
#[test]
fn a_base_is_that_of_the_run_that_is_trained() {
    let place = Place::new();
    let saving = Saving { every: None, interval: None, ..Saving::default() };
    let adapters = |seed| {
        let mut setup = Setup { saving, steps: 2, ..Setup::new(recipe(Some(lora()))) };
        setup.spec.seed = seed;
        setup
    };
    place.train("run", &adapters(7)).ok();
    fs::remove_dir_all(place.path("run/final")).expect("there");
    place.train("run", &adapters(8)).ok();
    place.train("other", &adapters(8)).ok();
    let base = |run: &str| fs::read(place.path(run).join("base/model.safetensors")).expect("a base");
    assert!(base("run") == base("other"));
    place.assert_same("run", "other");
}

#[test]
fn an_mlp_in_chunks_goes_on_bit_by_bit() {
    let place = Place::new();
    let chunked = || {
        let mut setup = Setup::new(recipe(Some(lora())));
        setup.spec.pins.mlp_chunks = Some(2);
        setup
    };
    place.train("whole", &chunked()).ok();
    place.train("stopped", &chunked().stopped_after(2)).ok();
    let rest = place.train("stopped", &chunked());
    let Some(Event::Resumed(resumed)) = rest.events.first() else { panic!("{:?}", rest.events.first()) };
    assert_eq!(resumed.changes.len(), 0);
    place.assert_same("whole", "stopped");
}

/// What the planner decided once it does not decide again; who asks for another precision is told what that does.
#[test]
fn rounded_values_go_on_bit_by_bit() {
    let place = Place::new();
    let kept = |keep| {
        let mut setup = Setup::new(recipe(Some(lora())));
        setup.spec.pins.keep = keep;
        setup
    };
    place.train("whole", &kept(KeepPin::Rounded)).ok();
    place.train("exact", &kept(KeepPin::Exact)).ok();
    assert!(place.history("whole") != place.history("exact"), "it is another course");
    place.train("stopped", &kept(KeepPin::Rounded).stopped_after(2)).ok();
    place.train("changed", &kept(KeepPin::Rounded).stopped_after(2)).ok();
    let saved = Resume::find(&place.path("stopped")).expect("sound").expect("saved");
    for (asked, pinned) in [(KeepPin::RoundedIfBetter, KeepPin::Rounded), (KeepPin::Exact, KeepPin::Exact)] {
        let mut pins = Pins { keep: asked, ..Pins::default() };
        saved.pin(&mut pins);
        assert_eq!(pins.keep, pinned);
    }
    let rest = place.train("stopped", &kept(KeepPin::Rounded));
    let Some(Event::Resumed(resumed)) = rest.events.first() else { panic!("{:?}", rest.events.first()) };
    assert_eq!(resumed.changes.len(), 0);
    place.assert_same("whole", "stopped");
    let rest = place.train("changed", &kept(KeepPin::Exact));
    let Some(Event::Resumed(resumed)) = rest.events.first() else { panic!("{:?}", rest.events.first()) };
    let [change] = &resumed.changes[..] else { panic!("{:?}", resumed.changes) };
    assert_eq!((change.key, &*change.was, &*change.is, change.effect), ("plan.keep", "fp8", "exact", Effect::Rounding));
}

/// Adapters mean nothing beside another base than the one they were trained on.
#[test]
fn another_base_is_refused() {
    let place = Place::new();
    let beside = |base| Setup { steps: 4, ..Setup::new(Recipe { base, ..recipe(Some(lora())) }) };
    let nf4 = Some(WeightFormat::Nf4);
    place.train("run", &beside(nf4).stopped_after(2)).ok();
    for other in [None, Some(WeightFormat::Int8)] {
        let error = place.train("run", &beside(other)).outcome.expect_err("another base");
        let TrainError::Changed(change) = &error else { panic!("{error}") };
        let is = other.map_or("the precision of the run", WeightFormat::name);
        assert_eq!((change.key, &*change.was, &*change.is), ("base", "nf4", is));
    }
    place.train("run", &beside(nf4)).ok();
}

/// Rows are known by what they hold, not by how many there are.
#[test]
fn other_rows_are_refused() {
    let place = Place::new();
    place.train("whole", &Setup::full()).ok();
    place.train("run", &Setup::full().stopped_after(3)).ok();
    let rows = fs::read_to_string(place.path("rows.jsonl")).expect("readable");
    fs::write(place.path("rows.jsonl"), rows.replace("11 and", "12 and")).expect("writable");
    let refused = place.train("run", &Setup::full()).outcome.expect_err("other data");
    assert!(matches!(refused, TrainError::Data(_)), "{refused}");
    fs::write(place.path("rows.jsonl"), rows).expect("writable");
    place.train("run", &Setup::full()).ok();
    place.assert_same("whole", "run");
}
