//! What a run goes on with: the rows and the base that it began with, and no others.

use std::fs;

use plimsoll_train::{Saving, TrainError};

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
