//! Lion's step and its course.

use plimsoll_conformance::{F32_ELEMENTWISE, Random, Rounding, Suite, Tensor};
use plimsoll_graph::ops::Lion;
use plimsoll_graph::{OptimizerSettings, optimizer_named};

use crate::{ACTIVE, LENGTHS, LR, STEPS, clip, clipped, course, gathered, kinds, run_course};

const LION: Lion = Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.1, master: false };

#[test]
fn step() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(190));
    for len in LENGTHS {
        let hyper = Tensor::fixed(&[4], vec![0.01, 1.0, 1.0, 3.0]);
        let [p, g, m] = [(); 3].map(|()| random.fixed(&[len]));
        suite.check(&format!("{len}"), LION, &[p, g, m, hyper, clip(0.3)], ACTIVE, F32_ELEMENTWISE);
    }
}

/// Where momentum and gradient are zero, the parameter decays and does not move.
#[test]
fn nothing_has_no_sign() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(191));
    for zero in [0.0, -0.0] {
        let zeros = || Tensor::fixed(&[20], vec![zero; 20]);
        let hyper = Tensor::fixed(&[4], vec![0.01, 1.0, 1.0, 1.0]);
        let inputs = [random.fixed(&[20]), zeros(), zeros(), hyper, clip(1.0)];
        suite.check("zero", LION, &inputs, ACTIVE, F32_ELEMENTWISE);
    }
}

#[test]
fn step_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(192));
    for (p, g, state, master) in kinds() {
        for len in [1, 7, 16, 63, 4099] {
            let hyper = Tensor::fixed(&[4], vec![0.01, 1.0, 1.0, 3.0]);
            let copy = random.fixed(&[len]);
            let (gradient, m) = (random.fixed(&[len]).stored(g), random.fixed(&[len]).stored(state));
            let mut inputs = vec![copy.stored(p), gradient, m, hyper, clip(0.3)];
            inputs.extend(master.then_some(copy));
            let name = format!("{len}, gradient {}, state {}, master {master}", g.name(), state.name());
            let rounding: Rounding = gathered(state, master);
            suite.check_stored(&name, Lion { master, ..LION }, &inputs, ACTIVE, rounding);
        }
    }
}

/// Chen and others, "Symbolic discovery of optimization algorithms", algorithm 2.
#[test]
fn several_steps() {
    let course = course(&mut Random::new(193), STEPS);
    let max_norm = 2.0;
    let settings = OptimizerSettings { weight_decay: 0.1, ..OptimizerSettings::default() };
    let lion = optimizer_named("lion", &settings).expect("it is there");
    let mut theta: Vec<f64> = course.start.iter().map(|&x| f64::from(x)).collect();
    let mut m = vec![0.0; theta.len()];
    let mut expected = Vec::new();
    for gradients in &course.gradients {
        for (i, g) in clipped(gradients, max_norm).into_iter().enumerate() {
            let interpolated = 0.9 * m[i] + 0.1 * g;
            theta[i] -= LR * (interpolated.signum() + 0.1 * theta[i]);
            m[i] = 0.99 * m[i] + 0.01 * g;
        }
        expected.push(theta.clone());
    }
    run_course(
        &course,
        max_norm as f32,
        1,
        |step, [p, g, clip], state| {
            let hyper = Tensor::fixed(&[4], lion.hyper(step as u64, LR).to_vec());
            (LION.into(), vec![p, g, state[0].clone(), hyper, clip])
        },
        &expected,
    );
}
