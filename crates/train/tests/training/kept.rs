//! Adapters' gradients from values that are kept rounded: what changes, by how much, and what does not.

use std::collections::BTreeMap;

use plimsoll_data::{Example, ExampleRef};
use plimsoll_graph::WeightFormat;
use plimsoll_models::{Lora, Recipe, Targets};
use plimsoll_plan::KeepPin;
use plimsoll_train::{Prepared, Spec};

use crate::same_bits::{MAX_LENGTH, SEQUENCES, check_with, examples, model};
use crate::support::{recipe, spec, start};

fn adapters(dropout: f32) -> Recipe {
    recipe(Some(Lora { r: 4, alpha: 8.0, dropout, targets: Targets::AllLinear, rslora: false }))
}

fn rounded(spec: &mut Spec) {
    spec.pins.keep = KeepPin::Rounded;
}

/// A value that is rebuilt is rounded as one that is kept.
#[test]
fn rounded_values_do_not_depend_on_the_plan() {
    check_with(&adapters(0.2), rounded);
    check_with(&Recipe { base: Some(WeightFormat::E4m3), fp8_products: true, ..adapters(0.0) }, rounded);
    check_with(&adapters(0.2), |spec| {
        rounded(spec);
        spec.pins.mlp_chunks = Some(3);
    });
}

/// The loss of the second update, and the gradients that it is made from; by then adapters do something.
fn second_update(keep: KeepPin) -> (Prepared, f64, BTreeMap<String, Vec<f32>>) {
    let mut spec = spec(model(), Recipe { clip: None, ..adapters(0.1) }, SEQUENCES, MAX_LENGTH);
    spec.pins.micro_batch_tokens = Some(3 * MAX_LENGTH);
    spec.pins.update_in_backward = Some(false);
    spec.pins.keep = keep;
    let mut prepared = start(&spec, false);
    let session = &mut prepared.session;
    let examples = examples();
    let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
    let batches = session.pack(&views).expect("fits");
    session.update(&batches, 1, 3e-3).expect("runs");
    let loss = session.accumulate(&batches, 2).expect("runs");
    let slots = session.executor().plan().slots.iter();
    let names = slots.filter_map(|(id, slot)| Some((id, slot.name.strip_prefix("grad:")?.to_owned(), slot.bytes())));
    let names: Vec<_> = names.collect();
    let gradients = names.into_iter().map(|(id, name, bytes)| {
        let mut gradient = vec![0f32; bytes / size_of::<f32>()];
        session.executor().read_slot(id, &mut gradient).expect("readable");
        (name, gradient)
    });
    let gradients = gradients.collect();
    (prepared, loss, gradients)
}

/// The gradients of second matrices are made from what first ones put out, which is computed from exact values.
#[test]
fn only_gradients_of_first_matrices_change_and_by_little() {
    let (exact, exact_loss, exact_gradients) = second_update(KeepPin::Exact);
    let (rounded, rounded_loss, rounded_gradients) = second_update(KeepPin::Rounded);
    assert_eq!(exact_loss.to_bits(), rounded_loss.to_bits());
    let size = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let mut changed = 0;
    for (name, exact) in &exact_gradients {
        let rounded = &rounded_gradients[name];
        let off = size(&mut exact.iter().zip(rounded).map(|(a, b)| a - b)) / size(&mut exact.iter().copied());
        if off > 0.0 {
            // Errors of single numbers have both signs: what they come to lies near their root of the mean square.
            assert!(name.ends_with("lora_A") && off < 0.05, "{name} is off by {off}");
            changed += 1;
        }
    }
    // Of each layer, those that read either norm and the activation; attention's output is needed as it is.
    assert_eq!(changed, 4 * 3, "{:?}", exact_gradients.keys());
    let kept = [("attn_norm", 4), ("mlp_act", 4), ("mlp_norm", 4)].map(|(class, k)| (class.to_owned(), k));
    assert_eq!(rounded.report.keep, BTreeMap::from(kept));
    assert!(exact.report.keep.is_empty());
}

/// Where nothing is adapted, there is nothing to round.
#[test]
fn full_training_is_left_alone() {
    let report = |keep| {
        let mut spec = spec(model(), recipe(None), SEQUENCES, MAX_LENGTH);
        spec.pins.keep = keep;
        start(&spec, false).report
    };
    let (exact, rounded) = (report(KeepPin::Exact), report(KeepPin::Rounded));
    assert!(rounded.keep.is_empty());
    assert_eq!(exact.layout, rounded.layout);
}
