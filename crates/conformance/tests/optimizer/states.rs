//! States in fewer bits than their numbers are computed in, beside parameters in float32.

use std::iter;

use plimsoll_conformance::reference::{Array, NoDropout, evaluate};
use plimsoll_conformance::{Data, F32_ELEMENTWISE, Placement, Random, Suite, Tensor, compare, placements, unit};
use plimsoll_graph::ops::{AdamW, Lion, Sgd};
use plimsoll_graph::{
    BlockFormat, Code, DType, Matrix, Op, OpRule, OptimizerSettings, Shape, StateStorage, optimizer_named,
};

use crate::{ACTIVE, clip, positive};

/// Beyond what stays in float32 however it is asked for; around whole blocks and whole tasks.
const LENGTHS: [usize; 5] = [4096, 4097, 4351, 16_384, 16_641];

/// An update with its states in one storage: the operator, its inputs, and which of these are states.
fn updates(random: &mut Random, len: usize, state: StateStorage) -> [(Op, Vec<Tensor>, Vec<usize>); 3] {
    let shape = Shape::new(&[len]);
    let hyper = || Tensor::fixed(&[4], vec![0.01, 0.19, 0.002, 3.0]);
    let mut signed = || random.fixed(&[len]).stored_as(state.signed("m", shape).storage);
    let [m, momentum, heavy_ball] = [(); 3].map(|()| signed());
    let v = positive(random, len).stored_as(state.unsigned("v", shape).storage);
    let mut pair = || [random.fixed(&[len]), random.fixed(&[len])];
    let ([p, g], [p2, g2], [p3, g3]) = (pair(), pair(), pair());
    let adamw = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, master: false };
    let lion = Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.1, master: false };
    let sgd = Sgd { momentum: 0.9, weight_decay: 0.1, master: false };
    [
        (adamw.into(), vec![p, g, m, v, hyper(), clip(0.3)], vec![2, 3]),
        (lion.into(), vec![p2, g2, momentum, hyper(), clip(0.3)], vec![2]),
        (sgd.into(), vec![p3, g3, hyper(), clip(0.3), heavy_ball], vec![4]),
    ]
}

/// How far a state may be from the exact number: to the nearest code, or to either neighbour in bfloat16.
fn allowed(number: f64, largest: f64, format: Option<BlockFormat>) -> f64 {
    match format {
        None => 2.0 * unit(DType::BF16) * number.abs() + F32_ELEMENTWISE * largest,
        Some(format) => {
            let distance = |&code: &f32| (f64::from(code) * largest - number).abs();
            let nearest = format.code.numbers().iter().map(distance).fold(f64::INFINITY, f64::min);
            nearest + 2.0 * F32_ELEMENTWISE * largest
        }
    }
}

fn check_state(got: &Tensor, want: &Array, place: &str) {
    let format = got.storage().blocks;
    let block = format.map_or(want.data.len(), |format| format.elements);
    let got = got.array(ACTIVE).data;
    for (index, (got, want)) in got.chunks(block).zip(want.data.chunks(block)).enumerate() {
        let largest = want.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
        for (got, want) in got.iter().zip(want) {
            let off = (got - want).abs();
            assert!(off <= allowed(*want, largest, format), "{place}: {got} in block {index}, expected {want}");
        }
    }
}

#[test]
fn states_are_stored_as_near_as_they_can_be() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(290));
    for state in [StateStorage::Bfloat16, StateStorage::Int8] {
        for len in LENGTHS {
            for (op, inputs, states) in updates(random, len, state) {
                let arrays: Vec<Array> = inputs.iter().map(|t| t.array(ACTIVE)).collect();
                let expected = evaluate(&op, &arrays.iter().collect::<Vec<_>>(), &mut NoDropout);
                for harness in suite.harnesses() {
                    let place = format!("{op:?} of {len}, {state:?} on {}", harness.name());
                    let outputs = harness.run(&op, &inputs, ACTIVE, &Placement::default());
                    if let Err(difference) = compare(&outputs[0].array(ACTIVE), &expected[0], F32_ELEMENTWISE) {
                        panic!("{place}: {difference}");
                    }
                    assert!(outputs[1].f32s().iter().all(|&g| g == 0.0), "{place}: the gradient is left at zero");
                    for index in 2..2 + states.len() {
                        check_state(&outputs[index], &expected[index], &place);
                    }
                    for shift in [1, 7] {
                        let elsewhere = Placement { shift, ..placements(&op, &inputs).remove(0) };
                        let again = harness.run(&op, &inputs, ACTIVE, &elsewhere);
                        assert!(again == outputs, "{place}: other bits at another address");
                    }
                }
            }
        }
    }
}

/// Both sides of every middle between two numbers, the numbers themselves, what is next to nothing, and numbers of all
/// sizes. In a block whose largest is one, codes are of these very numbers; other powers of two change nothing, down to
/// where floats lose digits and the largest has no inverse.
fn corners(code: Code) -> Vec<f32> {
    let numbers = code.numbers();
    let middles = numbers.windows(2).map(|pair| 0.5 * (pair[0] + pair[1]));
    let mut corners: Vec<f32> = middles.flat_map(|middle| [middle.next_down(), middle, middle.next_up()]).collect();
    corners.extend_from_slice(numbers);
    corners.extend([0.0, 1e-30, 1e-9, 1e-7, 2f32.powi(-22), 2f32.powi(-23), 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6]);
    corners.extend((0..5000).map(|index| 10f32.powf(-8.0 * index as f32 / 5000.0)));
    if code == Code::DynamicSigned {
        corners.extend(corners.clone().iter().map(|corner| -corner));
    }
    corners
}

/// The codes of a state in blocks that each begin with their largest number.
fn check_codes(state: &Tensor, numbers: &[f32], code: Code, place: &str) {
    let Data::Blocks(blocks) = &state.data else { panic!("{place}: a state in codes") };
    for (index, &number) in numbers.iter().enumerate() {
        let scale = numbers[index / 256 * 256].abs();
        let expected = code.nearest(number / scale);
        assert_eq!(blocks.bytes[index], expected, "{place}: {number:e} beside {scale:e} at {index}");
    }
}

#[test]
fn every_number_has_the_nearest_code() {
    let suite = &mut Suite::new();
    for exponent in [0, -20, 100, -130] {
        let scale = 2f64.powi(exponent) as f32;
        let in_blocks = |code: Code| -> Vec<f32> {
            corners(code).chunks(255).flat_map(|some| iter::once(&1.0).chain(some)).map(|x| x * scale).collect()
        };
        // What was no velocity before becomes the gradient.
        let gradient = in_blocks(Code::DynamicSigned);
        let shape = Shape::new(&[gradient.len()]);
        let all = |x: f32, len: usize| Tensor::fixed(&[len], vec![x; len]);
        let zeros = all(0.0, gradient.len());
        let hyper = Tensor::fixed(&[4], vec![0.0, 1.0, 1.0, 1.0]);
        let signed = zeros.stored_as(StateStorage::Int8.signed("m", shape).storage);
        let sgd = Op::from(Sgd { momentum: 0.9, weight_decay: 0.0, master: false });
        let inputs =
            [zeros.clone(), Tensor::fixed(&[gradient.len()], gradient.clone()), hyper.clone(), clip(1.0), signed];
        for harness in suite.harnesses() {
            let outputs = harness.run(&sgd, &inputs, ACTIVE, &Placement::default());
            check_codes(&outputs[2], &gradient, Code::DynamicSigned, &format!("2^{exponent} on {}", harness.name()));
        }
        // A second moment of which nothing is kept becomes the square.
        if exponent.abs() > 20 {
            continue;
        }
        let roots: Vec<f32> = in_blocks(Code::DynamicUnsigned).iter().map(|x| x.sqrt()).collect();
        let near = |block: &[f32]| -> Vec<f32> {
            let largest = block[0];
            let around = |&x: &f32| [x.next_down(), x, x.next_up().min(largest)];
            block[1..].chunks(85).flat_map(|some| iter::once(largest).chain(some.iter().flat_map(around))).collect()
        };
        let near: Vec<f32> = roots.chunks(256).flat_map(near).collect();
        let squares: Vec<f32> = near.iter().map(|x| x * x).collect();
        let shape = Shape::new(&[near.len()]);
        let zeros = all(0.0, near.len());
        let [m, v] = [StateStorage::Int8.signed("m", shape), StateStorage::Int8.unsigned("v", shape)];
        let [m, v] = [m, v].map(|state| zeros.stored_as(state.storage));
        let adamw = Op::from(AdamW { beta1: 0.9, beta2: 0.0, eps: 1e-8, weight_decay: 0.0, master: false });
        let inputs = [zeros.clone(), Tensor::fixed(&[near.len()], near), m, v, hyper, clip(1.0)];
        for harness in suite.harnesses() {
            let outputs = harness.run(&adamw, &inputs, ACTIVE, &Placement::default());
            check_codes(&outputs[3], &squares, Code::DynamicUnsigned, &format!("2^{exponent} on {}", harness.name()));
        }
    }
}

/// What a factor that is no number must leave alone, codes and scales included.
#[test]
fn an_update_without_a_factor_leaves_stored_states() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(291));
    for state in [StateStorage::Bfloat16, StateStorage::Int8] {
        for (op, mut inputs, states) in updates(random, 5000, state) {
            let at = op.shared_numbers().expect("an update").end - 1;
            inputs[at] = clip(f32::NAN);
            for harness in suite.harnesses() {
                let outputs = harness.run(&op, &inputs, ACTIVE, &Placement::default());
                for (output, &input) in (2..).zip(&states) {
                    assert_eq!(outputs[output].data, inputs[input].data, "{state:?} on {}", harness.name());
                }
            }
        }
    }
}

/// Steps far below what a state can tell apart: to the nearest, all of them would be lost.
#[test]
fn small_steps_of_bfloat16_states_are_kept_on_average() {
    let suite = &mut Suite::new();
    let len = 40_000;
    for harness in suite.harnesses() {
        let all = |x: f32| Tensor::fixed(&[len], vec![x; len]);
        let hyper = Tensor::fixed(&[4], vec![0.0, 1.0, 1.0, 1.0]);
        let m = all(0.75).stored(DType::BF16);
        // The momentum goes up by a tenth of the distance to its neighbour.
        let step = unit(DType::BF16) * 0.05;
        let op = Op::from(Lion { beta1: 0.9, beta2: 0.9, weight_decay: 0.0, master: false });
        let inputs = [all(1.0), all(0.75 + 10.0 * step as f32), m, hyper, clip(1.0)];
        let outputs = harness.run(&op, &inputs, ACTIVE, &Placement::default());
        let moved = outputs[2].array(ACTIVE).data.iter().sum::<f64>() / len as f64 - 0.75;
        // Draws between neighbours, averaged: five standard deviations.
        let deviation = 0.5 * unit(DType::BF16) / (len as f64).sqrt();
        assert!((moved - step).abs() < 5.0 * deviation, "{moved} on {}, expected {step}", harness.name());
    }
}

/// Sizes that users budget with: 8.03 bits for a large state, and float32 for what is too small to gain from less.
#[test]
fn planned_bytes_are_exact() {
    let matrices: [Matrix; 0] = [];
    for (name, state, dims, bytes) in [
        ("adamw", StateStorage::Int8, [256, 256], vec![65_536 + 4 * 256; 2]),
        ("adamw", StateStorage::Int8, [1, 4097], vec![4100 + 4 * 17; 2]),
        ("adamw", StateStorage::Int8, [1, 4095], vec![4 * 4095; 2]),
        ("adamw", StateStorage::Bfloat16, [3, 5], vec![30; 2]),
        ("lion", StateStorage::Int8, [256, 256], vec![65_536 + 4 * 256]),
        ("lion", StateStorage::Float32, [3, 5], vec![60]),
    ] {
        let settings = OptimizerSettings { state, ..OptimizerSettings::default() };
        let optimizer = optimizer_named(name, &settings).expect("it is there");
        let states = optimizer.states(Shape::new(&dims), &matrices);
        let planned: Vec<usize> = states.iter().map(|s| s.storage.bytes(&s.shape).expect("small")).collect();
        assert_eq!(planned, bytes, "{name} {state:?} {dims:?}");
    }
}

/// A noisy bowl, as steep in each row as rows of a matrix are, three decades in all: the curve of the loss with states in
/// few bits is that with float32.
#[test]
fn few_bits_follow_the_loss_of_thirty_two() {
    let len = 8192;
    let curve = |state: StateStorage| {
        let settings = OptimizerSettings { state, ..OptimizerSettings::default() };
        let adamw = optimizer_named("adamw", &settings).expect("it is there");
        let random = &mut Random::new(292);
        let curvature: Vec<f32> = (0..len).map(|i| 10f32.powf(-3.0 * (i / 512) as f32 / 15.0)).collect();
        let mut p = random.fixed(&[len]);
        let zeros = Tensor::fixed(&[len], vec![0.0; len]);
        let states = adamw.states(Shape::new(&[len]), &[]);
        let mut moments: Vec<Tensor> = states.iter().map(|state| zeros.stored_as(state.storage)).collect();
        let suite = &mut Suite::new();
        let harness = &mut suite.harnesses()[0];
        let op = Op::from(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, master: false });
        let mut losses = Vec::new();
        for step in 1..=60 {
            let noise = random.floats(len, 0.05);
            let position = || p.f32s().iter().zip(&curvature);
            losses.push(position().map(|(x, c)| 0.5 * f64::from(c * x * x)).sum::<f64>());
            let gradient = position().zip(noise).map(|((x, c), noise)| c * (x + noise)).collect();
            let hyper = Tensor::fixed(&[4], adamw.hyper(step, 0.02).to_vec());
            let [m, v] = [moments[0].clone(), moments[1].clone()];
            let inputs = [p.clone(), Tensor::fixed(&[len], gradient), m, v, hyper, clip(1.0)];
            let mut outputs = harness.run(&op, &inputs, ACTIVE, &Placement::default());
            moments = outputs.split_off(2);
            p = outputs.remove(0);
        }
        losses
    };
    let exact = curve(StateStorage::Float32);
    assert!(exact[59] < 0.1 * exact[0], "the bowl is run down: {exact:?}");
    for state in [StateStorage::Bfloat16, StateStorage::Int8] {
        let losses = curve(state);
        assert_ne!(losses, exact, "{state:?} is something else");
        for (step, (loss, exact)) in losses.iter().zip(&exact).enumerate() {
            // Of what there was to lose: near the bottom nothing but noise is left.
            let off = (loss - exact).abs() / (exact + 0.01 * losses[0]);
            assert!(off < 0.02, "{state:?}: {loss} after {step} updates, {exact} in float32");
        }
    }
}
