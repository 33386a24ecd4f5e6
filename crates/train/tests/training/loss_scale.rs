//! Dynamic loss scaling, in float32, whose range is so large that scales which overflow are large, too.

use plimsoll_models::Recipe;
use plimsoll_train::{Event, LossScaling, Session, StepEvent, TrainError};

use crate::run::{Place, Ran, Setup};
use crate::support::recipe;

fn scaled() -> Setup {
    Setup::new(Recipe { scaled_loss: true, ..recipe(None) })
}

/// So large that gradients overflow, until it has been halved some times; every clean update doubles it again.
fn overflowing() -> LossScaling {
    LossScaling { initial: 2f64.powi(116), growth_interval: 1, floor: 1.0, ceiling: 2f64.powi(131) }
}

/// With a last norm that makes gradients large: the loss itself stays within float32 under those scales.
fn set(session: &mut Session, scaling: LossScaling) {
    session.set_loss_scaling(scaling);
    let norm = session.parameters().iter().find(|p| p.tensors[0].name == "model.norm.weight").expect("there is one");
    let (slot, elements) = (norm.slot, norm.shape.elements());
    session.executor().write_slot(slot, &vec![64f32; elements]).expect("writable");
}

fn overflows() -> Setup {
    Setup { change: |session| set(session, overflowing()), ..scaled() }
}

fn steps(ran: &Ran) -> Vec<&StepEvent> {
    ran.events.iter().filter_map(|event| if let Event::Step(step) = event { Some(step) } else { None }).collect()
}

/// A scale is a power of two: losses, norms and weights have the bits that they have without one.
#[test]
fn a_scale_does_not_show_in_the_bits() {
    let place = Place::new();
    place.train("plain", &Setup::full()).ok();
    let ran = place.train("scaled", &scaled());
    for step in steps(&ran) {
        assert_eq!((step.metrics.get("loss_scale"), step.metrics.get("skipped")), (Some(65_536.0), Some(0.0)));
    }
    ran.ok();
    place.assert_same("plain", "scaled");
}

/// Whether a run was stopped or not, it meets the same overflows, passes over the same data and ends with the same weights.
#[test]
fn overflows_are_left_out_and_a_run_goes_on_bit_by_bit() {
    let place = Place::new();
    let ran = place.train("whole", &overflows());
    let steps = steps(&ran);
    let course: Vec<(f64, f64)> = steps
        .iter()
        .map(|step| {
            let of = |name| step.metrics.get(name).expect("reported");
            assert!(step.loss.is_finite() && step.grad_norm.is_finite());
            (of("loss_scale"), of("skipped"))
        })
        .collect();
    let (first, last) = (course[0], course[course.len() - 1]);
    assert!(first.1 >= 1.0 && first.0 == overflowing().initial / 2f64.powf(first.1), "{course:?}");
    assert!(course.windows(2).any(|pair| pair[1].0 > pair[0].0), "the scale grows: {course:?}");
    assert!(last.1 > first.1, "and overflows again: {course:?}");
    assert_eq!(steps.len() as u64, overflows().steps, "every step of the schedule was made");
    ran.ok();
    for step in [1, 3, 4] {
        let name = format!("stopped-{step}");
        place.train(&name, &overflows().stopped_after(step)).ok();
        place.train(&name, &overflows()).ok();
        place.assert_same("whole", &name);
    }
}

/// Below the floor it is not the scale's fault: the guard has its say.
#[test]
fn at_the_floor_the_guard_stops_the_run() {
    let change = |session: &mut Session| set(session, LossScaling { floor: 2f64.powi(116), ..overflowing() });
    let ran = Place::new().train("run", &Setup { change, ..scaled() });
    assert!(matches!(ran.outcome, Err(TrainError::BadGradient { step: 1, .. })), "{:?}", ran.outcome);
}
