//! Numbers that are none never reach the weights.

use crate::support::{recipe, spec, start, trained_by};
use plimsoll_data::{Example, ExampleRef};
use plimsoll_graph::{OPTIMIZERS, Role, SlotId};
use plimsoll_models::Recipe;
use plimsoll_train::{Model, Session, TrainError};
use serde_json::json;

const SEQUENCES: usize = 2;
const MAX_LENGTH: usize = 16;

fn model() -> Model {
    let config = json!({
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 64,
    });
    Model::from_shape(config).expect("valid")
}

fn examples() -> Vec<Example> {
    let tokens = |i: usize| (0..=MAX_LENGTH).map(|t| (t * 7 + i * 3) as u32 % 64).collect::<Vec<u32>>();
    let example = |tokens: Vec<u32>| Example {
        targets: tokens[1..].iter().map(|&t| t as i32).collect(),
        tokens: tokens[..MAX_LENGTH].to_vec(),
        ..Example::default()
    };
    (0..SEQUENCES).map(|i| example(tokens(i))).collect()
}

/// Every byte of every slot of these roles.
fn held(session: &mut Session, roles: &[Role]) -> Vec<Vec<u8>> {
    let slots: Vec<(SlotId, usize)> = session
        .executor()
        .plan()
        .slots
        .iter()
        .filter(|(_, slot)| roles.contains(&slot.role) && slot.name != "clip")
        .map(|(id, slot)| (id, slot.bytes()))
        .collect();
    let read = |(slot, bytes): (SlotId, usize)| {
        let mut content = vec![0u8; bytes];
        session.executor().read_slot(slot, &mut content).expect("readable");
        content
    };
    slots.into_iter().map(read).collect()
}

#[test]
fn a_gradient_that_is_no_number_leaves_weights_and_states() {
    for &(optimizer, _) in OPTIMIZERS {
        for bad in [f32::NAN, f32::INFINITY] {
            let recipe = Recipe { groups: trained_by(optimizer), ..recipe(None) };
            let mut prepared = start(&spec(model(), recipe, SEQUENCES, MAX_LENGTH), false);
            let session = &mut prepared.session;
            let examples = examples();
            let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
            let batches = session.pack(&views).expect("fits");
            session.update(&batches, 1, 1e-2).expect("a good update");
            let kept = [Role::Weight, Role::OptimizerState];
            let before = held(session, &kept);

            session.accumulate(&batches, 2).expect("runs");
            let slots = &session.executor().plan().slots;
            let (gradient, _) = slots.iter().find(|(_, s)| s.role == Role::Gradient).expect("a gradient");
            session.executor().write_slot(gradient, &[bad]).expect("writable");
            let norm = session.apply(2, 1e-2).expect("runs");
            assert!(!norm.is_finite(), "{norm}");
            assert!(before == held(session, &kept), "{optimizer:?}: {bad} has reached weights or states");
            assert!(held(session, &[Role::Gradient]).concat().iter().all(|&byte| byte == 0), "gradients are zeroed");
            session.update(&batches, 2, 1e-2).expect("goes on from the last good state");
        }
    }
}

/// A weight that is no number makes a loss that is none: told with the step, nothing applied.
#[test]
fn a_loss_that_is_no_number_leaves_weights_and_states() {
    let mut prepared = start(&spec(model(), recipe(None), SEQUENCES, MAX_LENGTH), false);
    let session = &mut prepared.session;
    let examples = examples();
    let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
    let batches = session.pack(&views).expect("fits");
    let weight = session.parameters()[0].slot;
    session.executor().write_slot(weight, &[f32::NAN; 64 * 32]).expect("writable");
    let before = held(session, &[Role::Weight, Role::OptimizerState]);
    let stopped = session.update(&batches, 5, 1e-2);
    assert!(matches!(stopped, Err(TrainError::NotANumber { step: 5, .. })), "{stopped:?}");
    assert!(before == held(session, &[Role::Weight, Role::OptimizerState]));
}
