//! Adafactor's step beside the definition, and ten of them beside those of transformers.

use plimsoll_conformance::{Placement, Random, Rounding, Suite, Tensor};
use plimsoll_graph::ops::{Adafactor, AdafactorOptimizer, AdafactorSettings};
use plimsoll_graph::{DType, Matrix, Op, Optimizer, OptimizerSettings, Shape};

use crate::parity::Course;
use crate::{ACTIVE, clip, kinds, positive};

/// Means of rows and columns, their quotient, and roots.
const TOLERANCE: f64 = 3e-6;

/// Of a parameter: rows of its matrices and their columns, or the lengths of its vectors.
#[derive(Debug, Clone, Copy)]
enum Parts {
    Matrices(&'static [usize], usize),
    Vectors(&'static [usize]),
}

impl Parts {
    fn shape(self) -> Vec<usize> {
        match self {
            Parts::Matrices(rows, cols) => vec![rows.iter().sum(), cols],
            Parts::Vectors(lens) => vec![lens.iter().sum()],
        }
    }

    fn matrices(self) -> Vec<Matrix> {
        let (lens, cols) = match self {
            Parts::Matrices(rows, cols) => (rows, Some(cols)),
            Parts::Vectors(lens) => (lens, None),
        };
        let mut end = 0;
        let matrix = |&len: &usize| {
            end += len;
            let dims: Vec<usize> = std::iter::once(len).chain(cols).collect();
            Matrix { first_row: end - len, shape: Shape::new(&dims) }
        };
        lens.iter().map(matrix).collect()
    }
}

const PARTS: [Parts; 7] = [
    Parts::Matrices(&[1], 1),
    Parts::Matrices(&[1, 5], 9),
    Parts::Matrices(&[16, 8, 8], 16),
    Parts::Matrices(&[130, 7], 300),
    Parts::Vectors(&[1]),
    Parts::Vectors(&[63, 10]),
    Parts::Vectors(&[5000]),
];

fn settings(adafactor: AdafactorSettings, weight_decay: f64) -> OptimizerSettings {
    OptimizerSettings { adafactor, weight_decay, ..OptimizerSettings::default() }
}

fn variants() -> [OptimizerSettings; 3] {
    let plain = AdafactorSettings { relative_step: false, ..AdafactorSettings::default() };
    [
        settings(plain, 0.0),
        settings(AdafactorSettings { scale_parameter: false, clip_threshold: 0.25, ..plain }, 0.1),
        settings(AdafactorSettings { beta1: Some(0.9), ..plain }, 0.1),
    ]
}

fn hyper() -> Tensor {
    Tensor::fixed(&[4], vec![0.05, 0.7, 0.3, 3.0])
}

/// The operator, and its inputs with states of earlier updates.
fn case(random: &mut Random, settings: &OptimizerSettings, parts: Parts, factor: f32) -> (Adafactor, Vec<Tensor>) {
    let (shape, matrices, optimizer) = (parts.shape(), parts.matrices(), AdafactorOptimizer::new(settings));
    let mut inputs = vec![random.fixed(&shape), random.fixed(&shape), hyper(), clip(factor)];
    for state in optimizer.states(Shape::new(&shape), &matrices) {
        let dims = state.shape.dims();
        inputs.push(match state.name {
            "m" => random.fixed(dims),
            _ => Tensor::fixed(dims, positive(random, state.shape.elements()).f32s().iter().map(|x| x + 0.1).collect()),
        });
    }
    (optimizer.op(&Shape::new(&shape), &matrices, false), inputs)
}

#[test]
fn step() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(490));
    for settings in variants() {
        for parts in PARTS {
            let (op, inputs) = case(random, &settings, parts, 0.3);
            suite.check(&format!("{parts:?}"), op, &inputs, ACTIVE, TOLERANCE);
        }
    }
}

#[test]
fn without_a_gradient_nothing_moves_but_by_decay() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(491));
    for settings in variants() {
        let (op, mut inputs) = case(random, &settings, Parts::Matrices(&[8], 5), 1.0);
        inputs[1] = Tensor::fixed(&[8, 5], vec![0.0; 40]);
        inputs[4..].iter_mut().for_each(|state| *state = Tensor::fixed(state.shape.dims(), vec![0.0; state.len()]));
        suite.check("zeros", op, &inputs, ACTIVE, TOLERANCE);
    }
}

#[test]
fn step_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(492));
    for (p, g, state, master) in kinds() {
        for settings in variants() {
            for parts in [Parts::Matrices(&[16, 8, 8], 16), Parts::Matrices(&[70], 33), Parts::Vectors(&[63, 10])] {
                let (op, mut inputs) = case(random, &settings, parts, 0.3);
                let copy = inputs[0].clone();
                (inputs[0], inputs[1]) = (copy.stored(p), inputs[1].stored(g));
                if let Some(at) = op.momentum_output() {
                    inputs[at + 2] = inputs[at + 2].stored(state);
                }
                inputs.extend(master.then_some(copy));
                let name = format!("{parts:?}, gradient {}, state {}, master {master}", g.name(), state.name());
                // What becomes of the gradient takes its place, in its type.
                let rounding = Rounding::once(TOLERANCE).stores(2.0).within(0.5);
                suite.check_stored(&name, Adafactor { master, ..op }, &inputs, ACTIVE, rounding);
            }
        }
    }
}

#[test]
fn an_update_without_a_factor_leaves_everything() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(493));
    for settings in variants() {
        for parts in PARTS {
            let (op, inputs) = case(random, &settings, parts, f32::NAN);
            for harness in suite.harnesses() {
                let outputs = harness.run(&op.clone().into(), &inputs, ACTIVE, &Placement::default());
                assert!(outputs[0] == inputs[0], "{parts:?}: the parameter changed on {}", harness.name());
                assert!(outputs[1].f32s().iter().all(|&g| g == 0.0), "a gradient is left on {}", harness.name());
                assert!(outputs[2..] == inputs[4..], "{parts:?}: a state changed on {}", harness.name());
            }
        }
    }
}

#[test]
fn ten_updates_follow_transformers() {
    let parameters = [Parts::Matrices(&[16], 24), Parts::Vectors(&[40]), Parts::Matrices(&[24, 8, 8], 16)];
    let lens = parameters.map(|parts| parts.shape().iter().product());
    let course = Course::read("adafactor.f32", &lens);
    let plain = AdafactorSettings::default();
    let fixed = AdafactorSettings { relative_step: false, ..plain };
    let clipped = AdafactorSettings { beta1: Some(0.9), clip_threshold: 0.5, decay_rate: -0.5, ..fixed };
    let all = [
        settings(plain, 0.0),
        settings(AdafactorSettings { warmup_init: true, ..plain }, 0.0),
        settings(AdafactorSettings { scale_parameter: false, ..fixed }, 0.01),
        settings(clipped, 0.0),
    ];
    for (index, settings) in all.into_iter().enumerate() {
        let optimizer = AdafactorOptimizer::new(&settings);
        for (place, parts) in parameters.into_iter().enumerate() {
            let (shape, matrices) = (parts.shape(), parts.matrices());
            let make = |update: u64, [p, g]: [Tensor; 2], states: &[Tensor]| -> (Op, Vec<Tensor>) {
                let hyper = Tensor::fixed(&[4], optimizer.hyper(update, 1e-2).to_vec());
                let op = optimizer.op(&Shape::new(&shape), &matrices, false);
                (op.into(), [&[p, g, hyper, clip(1.0)], states].concat())
            };
            let states = optimizer.states(Shape::new(&shape), &matrices);
            course.check(&format!("setting {index}"), index, place, &shape, &states, make, 1e-5);
        }
    }
}

/// A number per row and per column of every matrix.
#[test]
fn states_of_matrices_are_small() {
    let parts = Parts::Matrices(&[4096, 1024, 1024], 4096);
    let optimizer = AdafactorOptimizer::new(&OptimizerSettings::default());
    let states = optimizer.states(Shape::new(&parts.shape()), &parts.matrices());
    let bytes: Vec<usize> = states.iter().map(|s| s.storage.bytes(&s.shape).expect("small")).collect();
    assert_eq!(bytes, [6144 * 4, 3 * 4096 * 4]);
    assert!(states.iter().all(|state| state.storage == DType::F32.into()));
}
