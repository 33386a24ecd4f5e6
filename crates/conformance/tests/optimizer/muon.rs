//! Muon's step beside the definition, and ten of them beside torch's.

use plimsoll_conformance::{Placement, Random, Rounding, Suite, Tensor};
use plimsoll_graph::ops::{MatrixRows, MomentumRamp, Muon, MuonScale, MuonSettings};
use plimsoll_graph::{Matrix, Op, OptimizerSettings, Shape, StateStorage, optimizer_named};

use crate::parity::Course;
use crate::{ACTIVE, clip, kinds};

/// Small singular values grow 480-fold in five steps, and what float32 lost of them.
const TOLERANCE: f64 = 1e-5;

fn matrices(rows: &[usize], cols: usize) -> Vec<Matrix> {
    let mut first_row = 0;
    let matrix = |&rows: &usize| {
        first_row += rows;
        Matrix { first_row: first_row - rows, shape: Shape::new(&[rows, cols]) }
    };
    rows.iter().map(matrix).collect()
}

fn muon(rows: &[usize], cols: usize) -> Muon {
    let matrices = MatrixRows::new(&matrices(rows, cols));
    Muon { nesterov: true, weight_decay: 0.1, scale: MuonScale::Original, matrices, master: false }
}

fn hyper() -> Tensor {
    Tensor::fixed(&[4], vec![0.02, 0.9, 1.0, 3.0])
}

/// Rows of the matrices of a parameter, and its columns: one or several, wide, tall and square.
const SHAPES: [(&[usize], usize); 7] =
    [(&[1], 1), (&[1], 9), (&[9], 1), (&[16, 8, 8], 16), (&[33], 70), (&[130, 7], 40), (&[64], 64)];

#[test]
fn step() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(390));
    for (rows, cols) in SHAPES {
        for (nesterov, scale) in [(true, MuonScale::Original), (false, MuonScale::MatchRmsAdamW)] {
            let shape = [rows.iter().sum(), cols];
            let [p, g, m] = [(); 3].map(|()| random.fixed(&shape));
            let op = Muon { nesterov, scale, ..muon(rows, cols) };
            suite.check(&format!("{rows:?} × {cols}"), op, &[p, g, m, hyper(), clip(0.3)], ACTIVE, TOLERANCE);
        }
    }
}

/// A gradient of zeros has no direction: the norm is not divided by.
#[test]
fn without_a_gradient_nothing_moves_but_by_decay() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(391));
    let zeros = || Tensor::fixed(&[8, 5], vec![0.0; 40]);
    let inputs = [random.fixed(&[8, 5]), zeros(), zeros(), hyper(), clip(1.0)];
    suite.check("zeros", muon(&[8], 5), &inputs, ACTIVE, TOLERANCE);
}

#[test]
fn step_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(392));
    for (p, g, state, master) in kinds() {
        for (rows, cols) in [(&[16, 8, 8][..], 16), (&[24], 64), (&[64, 32], 24)] {
            let shape = [rows.iter().sum(), cols];
            let copy = random.fixed(&shape);
            let (gradient, m) = (random.fixed(&shape).stored(g), random.fixed(&shape).stored(state));
            let mut inputs = vec![copy.stored(p), gradient, m, hyper(), clip(0.3)];
            inputs.extend(master.then_some(copy));
            let name = format!("{rows:?} × {cols}, gradient {}, state {}, master {master}", g.name(), state.name());
            // The iteration itself is in sixteen bits where the parameter is.
            let rounding = Rounding::once(TOLERANCE).stores(2.0).within(1.0).apart(&[2]);
            suite.check_stored(&name, Muon { master, ..muon(rows, cols) }, &inputs, ACTIVE, rounding);
        }
    }
}

#[test]
fn an_update_without_a_factor_leaves_everything() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(393));
    let inputs = [(); 3].map(|()| random.fixed(&[96, 64]));
    let [p, g, m] = inputs;
    let m = m.stored_as(StateStorage::Int8.signed("m", m.shape).storage);
    let inputs = [p, g, m, hyper(), clip(f32::NAN)];
    for harness in suite.harnesses() {
        let outputs = harness.run(&muon(&[96], 64).into(), &inputs, ACTIVE, &Placement::default());
        assert!(outputs[0] == inputs[0] && outputs[2] == inputs[2], "changed on {}", harness.name());
        assert!(outputs[1].f32s().iter().all(|&g| g == 0.0), "a gradient is left on {}", harness.name());
    }
}

/// torch.optim.Muon, which iterates in bfloat16: in float32 for the first settings, as it is for the last.
#[test]
fn ten_updates_follow_torch() {
    let parameters: [(&[usize], usize); 3] = [(&[16], 24), (&[40], 8), (&[24, 8, 8], 16)];
    let course = Course::read("muon.f32", &parameters.map(|(rows, cols)| rows.iter().sum::<usize>() * cols));
    let settings = |weight_decay, momentum, muon| OptimizerSettings {
        weight_decay,
        momentum,
        muon,
        ..OptimizerSettings::default()
    };
    let plain = MuonSettings::default();
    let scaled = MuonSettings { scale: MuonScale::MatchRmsAdamW, ..plain };
    let heavy = MuonSettings { nesterov: false, ..plain };
    let ramp = MuonSettings { ramp: Some(MomentumRamp { from: 0.85, updates: 5 }), ..plain };
    let all = [
        (settings(0.1, None, plain), 0.02, 2e-5),
        (settings(0.0, Some(0.9), scaled), 0.02, 2e-5),
        (settings(0.1, None, heavy), 0.02, 2e-5),
        (settings(0.1, None, ramp), 0.02, 2e-5),
        (settings(0.1, None, plain), 0.002, 1e-3),
    ];
    for (index, (settings, lr, tolerance)) in all.into_iter().enumerate() {
        let optimizer = optimizer_named("muon", &settings).expect("it is there");
        for (place, (rows, cols)) in parameters.into_iter().enumerate() {
            let shape = [rows.iter().sum(), cols];
            let make = |update: u64, [p, g]: [Tensor; 2], states: &[Tensor]| -> (Op, Vec<Tensor>) {
                let hyper = Tensor::fixed(&[4], optimizer.hyper(update, lr).to_vec());
                let MuonSettings { nesterov, scale, .. } = settings.muon;
                let op = Muon { nesterov, scale, weight_decay: settings.weight_decay as f32, ..muon(rows, cols) };
                (op.into(), vec![p, g, states[0].clone(), hyper, clip(1.0)])
            };
            let states = optimizer.states(Shape::new(&shape), &matrices(rows, cols));
            course.check(&format!("setting {index}"), index, place, &shape, &states, make, tolerance);
        }
    }
}
