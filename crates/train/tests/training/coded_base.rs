//! Adapters beside a base in few bits: losses are those of PEFT beside the weights that the codes stand for, wherever
//! the codes come from. The fixtures are made by `fixtures/make_formats.py`.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_data::{Example, ExampleRef};
use plimsoll_graph::WeightFormat;
use plimsoll_models::{Lora, Recipe, Targets};
use plimsoll_train::{Language, Model, Session};

use crate::parity::examples;
use crate::support::{fixture, json, on_cuda, recipe, spec_for, start, start_with_threads};

const FORMATS: [(WeightFormat, &str); 3] =
    [(WeightFormat::Nf4, "nf4"), (WeightFormat::Int8, "int8"), (WeightFormat::E4m3, "fp8")];
const UPDATES: usize = 10;

fn folder(name: &str) -> PathBuf {
    fixture("../formats").join(name)
}

fn lora() -> Lora {
    Lora { r: 4, alpha: 8.0, dropout: 0.0, targets: Targets::AllLinear, rslora: false }
}

fn recipe_with(base: Option<WeightFormat>) -> Recipe {
    Recipe { base, ..recipe(Some(lora())) }
}

fn session(model: &str, base: Option<WeightFormat>, threads: Option<usize>, paranoid: bool) -> Session {
    let model = Model::find(folder(model).to_str().expect("UTF-8")).expect("a model folder");
    let spec = spec_for(Arc::new(Language::sft()), model, recipe_with(base), 6, 24);
    let started = match threads {
        Some(threads) => start_with_threads(&spec, threads),
        None => start(&spec, paranoid),
    };
    let mut session = started.session;
    session.load_adapters(&folder("lora_init")).expect("adapters");
    session
}

/// The losses of ten updates.
fn losses(mut session: Session) -> Vec<f64> {
    let examples = examples("qwen2");
    let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
    let batches = session.pack(&views).expect("fits");
    (1..=UPDATES).map(|step| session.update(&batches, step as u64, 1e-3).expect("runs").loss).collect()
}

fn relative(found: f64, expected: f64) -> f64 {
    (found - expected).abs() / expected.abs()
}

#[test]
fn losses_are_those_beside_the_decoded_weights() {
    let expected = json(&folder("lora.json"));
    // On a card other orders of sums add up over the updates.
    let (first, all) = if on_cuda() { (1e-5, 1e-3) } else { (1e-5, 1e-4) };
    for (format, name) in FORMATS {
        let found = losses(session("model", Some(format), None, true));
        let wanted = expected[name]["losses"].as_array().expect("losses");
        let wanted: Vec<f64> = wanted.iter().map(|loss| loss.as_f64().expect("a loss")).collect();
        assert_eq!(found.len(), wanted.len());
        assert!(relative(found[0], wanted[0]) < first, "{name}: {} instead of {}", found[0], wanted[0]);
        for (step, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert!(relative(*found, *wanted) < all, "{name}, update {}: {found} instead of {wanted}", step + 1);
        }
        // The codes that others made are the same ones.
        let loaded = losses(session(&format!("model_{name}"), Some(format), None, false));
        assert_eq!(loaded, found, "{name}");
    }
}

/// A base that is to be whole is decoded while it is read.
#[test]
fn bases_in_few_bits_can_be_made_whole() {
    for (_, name) in FORMATS {
        let expected = json(&folder("lora.json"));
        let wanted = expected[name]["losses"][0].as_f64().expect("a loss");
        let found = losses(session(&format!("model_{name}"), None, None, false))[0];
        assert!(relative(found, wanted) < 1e-5, "{name}: {found} instead of {wanted}");
    }
}

/// Not even the last bit depends on threads.
#[test]
fn threads_do_not_show_beside_a_base_in_few_bits() {
    for (format, name) in FORMATS {
        let of = |threads| losses(session("model", Some(format), Some(threads), false));
        assert_eq!(of(1), of(3), "{name}");
    }
}

/// Drawn weights in few bits train too, and differ from whole ones by no more than their format.
#[test]
fn drawn_bases_are_encoded() {
    let loss = |base| {
        let mut model = Model::find(folder("model").to_str().expect("UTF-8")).expect("a model folder");
        model.random = true;
        let spec = spec_for(Arc::new(Language::sft()), model, recipe_with(base), 6, 24);
        losses(start(&spec, true).session)
    };
    let whole = loss(None);
    for (format, name) in FORMATS {
        let found = loss(Some(format));
        assert!(found[0] != whole[0], "{name}: the base is not encoded");
        assert!(relative(found[0], whole[0]) < 0.01, "{name}: {} beside {}", found[0], whole[0]);
        assert!(found[UPDATES - 1] < found[0], "{name}: {found:?}");
    }
}
