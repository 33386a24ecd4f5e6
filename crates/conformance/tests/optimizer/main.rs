//! Gradient norm, clipping, and several steps of each optimizer beside the textbook's.

mod adafactor;
mod lion;
mod muon;
mod parity;
mod states;

use plimsoll_conformance::reference::{Array, NoDropout, evaluate};
use plimsoll_conformance::{Data, F32_ELEMENTWISE, Placement, Random, Rounding, SIXTEEN, Suite, Tensor, compare, unit};
use plimsoll_graph::ops::{AdamW, GlobalNorm, Sgd, SquareSum, TotalNorm};
use plimsoll_graph::{DType, Extent, Op, OptimizerSettings, optimizer_named};
use plimsoll_runtime::Active;

const LENGTHS: [usize; 6] = [1, 7, 16, 63, 1000, 70_001];

/// Optimizers do not care how full a micro-batch was.
const ACTIVE: Active = Active::one(0, 0);

const ADAMW: AdamW = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, master: false };

fn positive(random: &mut Random, len: usize) -> Tensor {
    Tensor::fixed(&[len], random.floats(len, 1.0).into_iter().map(f32::abs).collect())
}

fn clip(factor: f32) -> Tensor {
    Tensor::fixed(&[2], vec![3.0, factor])
}

#[test]
fn global_norm() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(90));
    for max_norm in [None, Some(0.5), Some(1e6)] {
        let sets: [&[usize]; 5] = [&[1], &[7, 3], &[1000, 1, 64], &[70_001], &[33; 40]];
        for lengths in sets {
            let mut inputs = vec![Tensor::fixed(&[2], vec![f32::NAN; 2])];
            inputs.extend(lengths.iter().map(|&len| random.fixed(&[len])));
            suite.check(
                &format!("{lengths:?}"),
                GlobalNorm { max_norm, scaled: false },
                &inputs,
                ACTIVE,
                F32_ELEMENTWISE,
            );
        }
    }
    let inputs = [Tensor::fixed(&[2], vec![0.0; 2]), Tensor::fixed(&[5], vec![0.0; 5])];
    suite.check("no gradient", GlobalNorm { max_norm: Some(1.0), scaled: false }, &inputs, ACTIVE, F32_ELEMENTWISE);
}

/// The scale of the loss leaves norm and gradients by the factor.
#[test]
fn global_norm_of_a_scaled_loss() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(101));
    for max_norm in [None, Some(0.5), Some(1e6)] {
        let gradients: Vec<Tensor> = [1000, 1, 64].iter().map(|&len| random.fixed(&[len])).collect();
        let plain = [&[Tensor::fixed(&[2], vec![f32::NAN; 2])], &gradients[..]].concat();
        let scaled = [&plain[..], &[Tensor::fixed(&[1], vec![0.125])]].concat();
        let op = GlobalNorm { max_norm, scaled: true };
        suite.check(&format!("{max_norm:?}"), op.clone(), &scaled, ACTIVE, F32_ELEMENTWISE);
        if max_norm.is_none() {
            for harness in suite.harnesses() {
                let norm = GlobalNorm { max_norm, scaled: false }.into();
                let whole = harness.run(&norm, &plain, ACTIVE, &Placement::default()).remove(0);
                let found = harness.run(&op.clone().into(), &scaled, ACTIVE, &Placement::default()).remove(0);
                assert_eq!(found.f32s(), [whole.f32s()[0] / 8.0, 0.125], "exactly, on {}", harness.name());
            }
        }
    }
}

fn sums(values: Vec<f64>) -> Tensor {
    Tensor::new(&[values.len()], Extent::Fixed, Data::F64(values))
}

/// Gradient by gradient, in any order, the norm has the bits that it has over all of them at once.
#[test]
fn sums_of_single_gradients_make_the_same_norm() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(102));
    let lengths = [7, 70_001, 1, 33, 16_385];
    let gradients: Vec<Tensor> = lengths.iter().map(|&len| random.fixed(&[len])).collect();
    let guard = Tensor::fixed(&[2], vec![0.0, 1.0]);
    for (index, gradient) in gradients.iter().enumerate() {
        let inputs = [guard.clone(), sums(vec![2.0; 5]), gradient.clone()];
        suite.check(&format!("sum {index}"), SquareSum { index }, &inputs, ACTIVE, F32_ELEMENTWISE);
    }
    suite.check("total", TotalNorm, &[guard.clone(), sums(vec![1.0, 4.0, 0.25])], ACTIVE, F32_ELEMENTWISE);
    for harness in suite.harnesses() {
        let mut state = vec![Tensor::fixed(&[2], vec![0.0; 2]), sums(vec![0.0; 5])];
        for index in [3, 0, 4, 2, 1] {
            let inputs = [&state[..], &[gradients[index].clone()]].concat();
            state = harness.run(&SquareSum { index }.into(), &inputs, ACTIVE, &Placement::default());
        }
        assert_eq!(state[0].f32s(), [0.0, 1.0]);
        let clip = || Tensor::fixed(&[2], vec![f32::NAN; 2]);
        let one = harness.run(&TotalNorm.into(), &[clip(), state[1].clone()], ACTIVE, &Placement::default());
        let all = [&[clip()], &gradients[..]].concat();
        let norm = GlobalNorm { max_norm: None, scaled: false }.into();
        let together = harness.run(&norm, &all, ACTIVE, &Placement::default());
        assert_eq!(one[0].f32s(), together[0].f32s(), "on {}", harness.name());
    }
}

/// From a gradient that is not finite on, no update has a factor.
#[test]
fn a_bad_gradient_spoils_the_guard_for_good() {
    for harness in Suite::new().harnesses() {
        let mut state = vec![Tensor::fixed(&[2], vec![0.0; 2]), sums(vec![0.0; 3])];
        let mut factors = Vec::new();
        for (index, value) in [1.0, f32::INFINITY, 1.0].into_iter().enumerate() {
            let inputs = [&state[..], &[Tensor::fixed(&[9], vec![value; 9])]].concat();
            state = harness.run(&SquareSum { index }.into(), &inputs, ACTIVE, &Placement::default());
            factors.push(state[0].f32s()[1].is_nan());
        }
        assert_eq!(factors, [false, true, true], "on {}", harness.name());
        let inputs = [Tensor::fixed(&[2], vec![0.0; 2]), state[1].clone()];
        let clip = harness.run(&TotalNorm.into(), &inputs, ACTIVE, &Placement::default()).remove(0);
        assert!(!clip.f32s()[0].is_finite() && clip.f32s()[1].is_nan(), "on {}", harness.name());
    }
}

/// A million squares of which each alone vanishes beside the sum: partial sums must not lose them.
#[test]
fn global_norm_of_many_small_gradients() {
    let suite = &mut Suite::new();
    let mut gradient = vec![1e-4; 1_000_000];
    gradient[0] = 1.0;
    let inputs = [Tensor::fixed(&[2], vec![0.0; 2]), Tensor::fixed(&[1000, 1000], gradient)];
    suite.check("small", GlobalNorm { max_norm: Some(1.0), scaled: false }, &inputs, ACTIVE, F32_ELEMENTWISE);
}

#[test]
fn adamw_step() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(91));
    for len in LENGTHS {
        let hyper = Tensor::fixed(&[4], vec![0.01, 0.19, 0.002, 0.0]);
        let [p, g, m] = [(); 3].map(|()| random.fixed(&[len]));
        let inputs = [p, g, m, positive(random, len), hyper, clip(0.3)];
        suite.check(&format!("{len}"), ADAMW, &inputs, ACTIVE, F32_ELEMENTWISE);
    }
}

/// Before the first step there is no second moment: eps alone keeps the quotient finite.
#[test]
fn adamw_without_a_gradient_stays() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(95));
    let zeros = || Tensor::fixed(&[20], vec![0.0; 20]);
    let hyper = Tensor::fixed(&[4], vec![0.01, 0.1, 0.001, 0.0]);
    let inputs = [random.fixed(&[20]), zeros(), zeros(), zeros(), hyper, clip(1.0)];
    suite.check("no gradient", ADAMW, &inputs, ACTIVE, F32_ELEMENTWISE);
}

#[test]
fn sgd_step() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(92));
    for len in LENGTHS {
        for momentum in [0.0, 0.9] {
            let hyper = Tensor::fixed(&[4], vec![0.05, 1.0, 1.0, 0.0]);
            let mut inputs = vec![random.fixed(&[len]), random.fixed(&[len]), hyper, clip(0.3)];
            if momentum != 0.0 {
                inputs.push(random.fixed(&[len]));
            }
            let op = Sgd { momentum, weight_decay: 0.01, master: false };
            suite.check(&format!("{len}"), op, &inputs, ACTIVE, F32_ELEMENTWISE);
        }
    }
}

/// Parameters, gradients of each step, and the textbook's parameters after each.
struct Course {
    start: Vec<f32>,
    gradients: Vec<Vec<f32>>,
}

const STEPS: usize = 12;
const LR: f64 = 0.02;

fn course(random: &mut Random, steps: usize) -> Course {
    let len = 203;
    Course { start: random.floats(len, 1.0), gradients: (0..steps).map(|_| random.floats(len, 1.0)).collect() }
}

/// Runs norm and optimizer for all steps and compares the parameters after each with `expected`.
/// `make` gives the operator and its inputs at a step, from the parameter, the gradient, the clip and the state.
fn run_course(
    course: &Course,
    max_norm: f32,
    states: usize,
    make: impl Fn(usize, [Tensor; 3], &[Tensor]) -> (Op, Vec<Tensor>),
    expected: &[Vec<f64>],
) {
    let len = course.start.len();
    for harness in Suite::new().harnesses() {
        let mut parameter = Tensor::fixed(&[len], course.start.clone());
        let mut state = vec![Tensor::fixed(&[len], vec![0.0; len]); states];
        for (step, gradient) in course.gradients.iter().enumerate() {
            let gradient = Tensor::fixed(&[len], gradient.clone());
            let norm = GlobalNorm { max_norm: Some(max_norm), scaled: false }.into();
            let norm_inputs = [Tensor::fixed(&[2], vec![0.0; 2]), gradient.clone()];
            let clip = harness.run(&norm, &norm_inputs, ACTIVE, &Placement::default()).remove(0);
            let (op, inputs) = make(step + 1, [parameter, gradient, clip], &state);
            let mut outputs = harness.run(&op, &inputs, ACTIVE, &Placement::default());
            assert!(outputs[1].f32s().iter().all(|&g| g == 0.0), "the gradient is left at zero");
            state = outputs.split_off(2);
            parameter = outputs.remove(0);
            let want = Array::new(&[len], expected[step].clone());
            if let Err(difference) = compare(&parameter.array(ACTIVE), &want, F32_ELEMENTWISE) {
                panic!("step {step} on {}: {difference}", harness.name());
            }
        }
    }
}

/// Gradients scaled down to a global norm of at most `max`.
fn clipped(gradients: &[f32], max: f64) -> Vec<f64> {
    let norm = gradients.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt();
    gradients.iter().map(|&g| f64::from(g) * (max / (norm + 1e-6)).min(1.0)).collect()
}

/// Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2.
#[test]
fn adamw_over_several_steps() {
    let course = course(&mut Random::new(93), STEPS);
    let (beta1, beta2, eps, decay, max_norm) = (0.9f64, 0.999f64, 1e-8, 0.1, 2.0);
    let mut theta: Vec<f64> = course.start.iter().map(|&x| f64::from(x)).collect();
    let (mut m, mut v) = (vec![0.0; theta.len()], vec![0.0; theta.len()]);
    let mut expected = Vec::new();
    for (step, gradients) in course.gradients.iter().enumerate() {
        let t = step as i32 + 1;
        for (i, g) in clipped(gradients, max_norm).into_iter().enumerate() {
            m[i] = beta1 * m[i] + (1.0 - beta1) * g;
            v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
            let m_hat = m[i] / (1.0 - beta1.powi(t));
            let v_hat = v[i] / (1.0 - beta2.powi(t));
            theta[i] -= LR * (m_hat / (v_hat.sqrt() + eps) + decay * theta[i]);
        }
        expected.push(theta.clone());
    }
    let make = |step: usize, [p, g, clip]: [Tensor; 3], state: &[Tensor]| {
        let corrections = [1.0 - beta1.powi(step as i32), 1.0 - beta2.powi(step as i32)].map(|x| x as f32);
        let hyper = Tensor::fixed(&[4], vec![LR as f32, corrections[0], corrections[1], 0.0]);
        (ADAMW.into(), vec![p, g, state[0].clone(), state[1].clone(), hyper, clip])
    };
    run_course(&course, max_norm as f32, 2, make, &expected);
}

/// The parameters after each of torch's AdamW updates, in double precision, with bias corrections from these β.
fn torch_adamw(course: &Course, settings: &OptimizerSettings, correcting: [f64; 2]) -> Vec<Vec<f64>> {
    let OptimizerSettings { betas, eps, weight_decay, .. } = *settings;
    let ([beta1, beta2], eps) = (betas.expect("given"), eps.expect("given"));
    let mut theta: Vec<f64> = course.start.iter().map(|&x| f64::from(x)).collect();
    let (mut m, mut v) = (vec![0.0; theta.len()], vec![0.0; theta.len()]);
    let mut after = Vec::new();
    for (step, gradients) in course.gradients.iter().enumerate() {
        let [correction1, correction2] = correcting.map(|beta| 1.0 - beta.powi(step as i32 + 1));
        for (i, &g) in gradients.iter().enumerate() {
            let g = f64::from(g);
            theta[i] *= 1.0 - LR * weight_decay;
            m[i] += (1.0 - beta1) * (g - m[i]);
            v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
            let denominator = v[i].sqrt() / correction2.sqrt() + eps;
            theta[i] -= LR / correction1 * (m[i] / denominator);
        }
        after.push(theta.clone());
    }
    after
}

/// A β close to one: rounded to float32 before `1 - βᵗ` is taken, most of what is left of it would be wrong.
#[test]
fn adamw_with_a_second_beta_close_to_one() {
    let course = course(&mut Random::new(194), 15);
    let betas = [0.9, 0.99999];
    let settings =
        OptimizerSettings { betas: Some(betas), eps: Some(1e-8), weight_decay: 0.1, ..OptimizerSettings::default() };
    let adamw = optimizer_named("adamw", &settings).expect("it is there");
    let expected = torch_adamw(&course, &settings, betas);
    let make = |step: usize, [p, g, clip]: [Tensor; 3], state: &[Tensor]| {
        let op = AdamW { beta1: betas[0], beta2: betas[1], ..ADAMW };
        let hyper = Tensor::fixed(&[4], adamw.hyper(step as u64, LR).to_vec());
        (op.into(), vec![p, g, state[0].clone(), state[1].clone(), hyper, clip])
    };
    run_course(&course, f32::INFINITY, 2, make, &expected);
    let rounded = torch_adamw(&course, &settings, betas.map(|beta| f64::from(beta as f32)));
    for (step, (rounded, expected)) in rounded.into_iter().zip(expected).enumerate() {
        let [rounded, expected] = [rounded, expected].map(|numbers| Array::new(&[numbers.len()], numbers));
        let caught = compare(&rounded, &expected, 5.0 * F32_ELEMENTWISE).is_err();
        assert!(caught, "update {step}: β in float32 would not have been noticed");
    }
}

/// Polyak's heavy ball, weight decay as part of the gradient.
#[test]
fn sgd_over_several_steps() {
    let course = course(&mut Random::new(94), STEPS);
    for (mu, decay) in [(0.0, 0.0), (0.0, 0.05), (0.8, 0.0), (0.8, 0.05)] {
        let max_norm = 5.0;
        let mut theta: Vec<f64> = course.start.iter().map(|&x| f64::from(x)).collect();
        let mut velocity = vec![0.0; theta.len()];
        let mut expected = Vec::new();
        for gradients in &course.gradients {
            for (i, g) in clipped(gradients, max_norm).into_iter().enumerate() {
                velocity[i] = mu * velocity[i] + g + decay * theta[i];
                theta[i] -= LR * velocity[i];
            }
            expected.push(theta.clone());
        }
        let make = |_: usize, [p, g, clip]: [Tensor; 3], state: &[Tensor]| {
            let hyper = Tensor::fixed(&[4], vec![LR as f32, 1.0, 1.0, 0.0]);
            let op = Sgd { momentum: mu as f32, weight_decay: decay as f32, master: false };
            (op.into(), [&[p, g, hyper, clip], state].concat())
        };
        run_course(&course, max_norm as f32, usize::from(mu != 0.0), make, &expected);
    }
}

/// Types of parameter, gradient and state, and whether there is a master copy, as runs in sixteen bits have them.
fn kinds() -> impl Iterator<Item = (DType, DType, DType, bool)> {
    let types =
        |p| [(p, p, DType::F32), (p, DType::F32, DType::F32), (p, p, DType::BF16), (p, DType::F32, DType::BF16)];
    SIXTEEN.into_iter().flat_map(types).flat_map(|(p, g, state)| [false, true].map(|master| (p, g, state, master)))
}

/// With a master copy the parameter is its nearest neighbour; what gathers steps in sixteen bits is rounded stochastically,
/// to the farther neighbour if need be.
fn gathered(state: DType, master: bool) -> Rounding {
    let stochastic = !master || state == DType::BF16;
    Rounding::once(F32_ELEMENTWISE).stores(if stochastic { 2.0 } else { 1.0 })
}

#[test]
fn adamw_step_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(96));
    for (p, g, state, master) in kinds() {
        for len in [1, 7, 16, 63, 4099] {
            let hyper = Tensor::fixed(&[4], vec![0.01, 0.19, 0.002, 3.0]);
            let copy = random.fixed(&[len]);
            let (gradient, m) = (random.fixed(&[len]).stored(g), random.fixed(&[len]).stored(state));
            let mut inputs = vec![copy.stored(p), gradient, m, positive(random, len).stored(state), hyper, clip(0.3)];
            inputs.extend(master.then_some(copy));
            let name = format!("{len}, gradient {}, state {}, master {master}", g.name(), state.name());
            suite.check_stored(&name, AdamW { master, ..ADAMW }, &inputs, ACTIVE, gathered(state, master));
        }
    }
}

#[test]
fn sgd_step_in_sixteen_bits() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(97));
    for (p, g, state, master) in kinds() {
        for (len, momentum) in [1, 7, 16, 63, 4099].into_iter().flat_map(|len| [(len, 0.0), (len, 0.9)]) {
            let hyper = Tensor::fixed(&[4], vec![0.05, 1.0, 1.0, 3.0]);
            let copy = random.fixed(&[len]);
            let mut inputs = vec![copy.stored(p), random.fixed(&[len]).stored(g), hyper, clip(0.3)];
            inputs.extend((momentum != 0.0).then(|| random.fixed(&[len]).stored(state)));
            inputs.extend(master.then_some(copy));
            let name = format!("{len}, gradient {}, state {}, master {master}", g.name(), state.name());
            let op = Sgd { momentum, weight_decay: 0.01, master };
            suite.check_stored(&name, op, &inputs, ACTIVE, gathered(state, master));
        }
    }
}

#[test]
fn global_norm_of_sixteen_bit_gradients() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(98));
    for max_norm in [None, Some(0.5)] {
        let sets: [&[usize]; 4] = [&[1], &[7, 3], &[1000, 1, 64, 20_001], &[33; 40]];
        for lengths in sets {
            let mut inputs = vec![Tensor::fixed(&[2], vec![f32::NAN; 2])];
            inputs.extend(lengths.iter().map(|&len| random.fixed(&[len])));
            let (name, op) = (format!("{lengths:?}"), GlobalNorm { max_norm, scaled: false });
            let rounding = Rounding::none(F32_ELEMENTWISE);
            let all: Vec<usize> = (1..inputs.len()).collect();
            suite.check_sixteen(&name, op.clone(), &inputs, &all, ACTIVE, rounding);
            // Gradients of two types in one run.
            suite.check_sixteen(&name, op, &inputs, &all[..all.len().div_ceil(2)], ACTIVE, rounding);
        }
    }
}

/// Steps far smaller than the distance between neighbours: to the nearest, every one of them would be lost, and moments
/// would stand still. Stochastic rounding keeps them on average, within five standard deviations of so many draws.
#[test]
fn stochastic_roundings_lose_nothing_on_average() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(99));
    let len = 40_000;
    for harness in suite.all_harnesses().filter(|harness| harness.stores_sixteen()) {
        for dtype in SIXTEEN {
            let step = 0.2 * unit(dtype) as f32;
            let hyper = Tensor::fixed(&[4], vec![step, 1.0, 1.0, 3.0]);
            let all = |x: f32, dtype| Tensor::fixed(&[len], vec![x; len]).stored(dtype);
            let gradient = Tensor::fixed(&[len], random.floats(len, 0.01).into_iter().map(|x| 0.76 + x).collect());
            let [m, v] = [all(0.75, DType::BF16), all(0.5, DType::BF16)];
            let inputs = [all(1.5, dtype), gradient.stored(dtype), m, v, hyper, clip(1.0)];
            let op = Op::from(AdamW { weight_decay: 0.0, ..ADAMW });
            let arrays: Vec<Array> = inputs.iter().map(|t| t.array(ACTIVE)).collect();
            let expected = evaluate(&op, &arrays.iter().collect::<Vec<_>>(), &mut NoDropout);
            let outputs = harness.run(&op, &inputs, ACTIVE, &Placement::default());
            for (output, name) in [(0, "parameter"), (2, "first moment"), (3, "second moment")] {
                let got = outputs[output].array(ACTIVE).data;
                let pairs = || got.iter().zip(&expected[output].data);
                let strayed = pairs().map(|(got, want)| got - want).sum::<f64>();
                // A draw between neighbours strays by at most half of their distance, root mean square.
                let unit = unit(outputs[output].dtype());
                let deviation = pairs().map(|(_, want)| (unit * want).powi(2)).sum::<f64>().sqrt();
                let place = format!("{name} in {} on {}", dtype.name(), harness.name());
                assert!(strayed.abs() <= 5.0 * deviation, "{place}: off by {strayed}, expected 0 ± {deviation}");
                let lost = pairs().map(|(_, want)| nearest_difference(*want, outputs[output].dtype())).sum::<f64>();
                assert!(lost.abs() > 5.0 * deviation, "{place}: the nearest numbers would do as well");
            }
        }
    }
}

/// What rounding to the nearest does to a number.
fn nearest_difference(number: f64, dtype: DType) -> f64 {
    Tensor::fixed(&[1], vec![number as f32]).stored(dtype).array(ACTIVE).data[0] - number
}

/// A gradient that is not finite anywhere makes a factor that is no number, with or without clipping.
#[test]
fn a_norm_that_is_not_finite_is_told() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        for max_norm in [None, Some(1.0)] {
            for harness in Suite::new().harnesses() {
                let mut gradient = vec![f32::MAX.min(bad.abs().max(1.0)); 1000];
                gradient[517] = bad;
                let inputs = [Tensor::fixed(&[2], vec![0.0; 2]), Tensor::fixed(&[1000], gradient)];
                let norm = GlobalNorm { max_norm, scaled: false }.into();
                let clip = harness.run(&norm, &inputs, ACTIVE, &Placement::default()).remove(0);
                let clip = clip.f32s();
                assert!(
                    !clip[0].is_finite() && clip[1].is_nan(),
                    "{bad}, {max_norm:?}: {clip:?} on {}",
                    harness.name()
                );
            }
        }
    }
}

/// Then nothing is touched but the gradient, which is left zeroed as ever.
#[test]
fn an_update_without_a_factor_leaves_everything() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(96));
    for len in LENGTHS {
        let hyper = || Tensor::fixed(&[4], vec![0.01, 0.19, 0.002, 1.0]);
        let mut spoilt = random.floats(len, 1.0);
        spoilt[len / 2] = f32::NAN;
        let gradient = || Tensor::fixed(&[len], spoilt.clone());
        let adamw =
            [random.fixed(&[len]), gradient(), random.fixed(&[len]), positive(random, len), hyper(), clip(f32::NAN)];
        let sgd = [random.fixed(&[len]), gradient(), hyper(), clip(f32::NAN), random.fixed(&[len])];
        let momentum = Sgd { momentum: 0.9, weight_decay: 0.01, master: false };
        for (op, inputs, states) in [(Op::from(ADAMW), &adamw[..], [2, 3]), (momentum.into(), &sgd[..], [4, 4])] {
            for harness in suite.harnesses() {
                let outputs = harness.run(&op, inputs, ACTIVE, &Placement::default());
                let same = |output: usize, input: usize| outputs[output].f32s() == inputs[input].f32s();
                assert!(same(0, 0), "{len}: a parameter changed on {}", harness.name());
                assert!(outputs[1].f32s().iter().all(|&g| g == 0.0), "{len}: a gradient is left on {}", harness.name());
                for (output, &input) in (2..outputs.len()).zip(&states) {
                    assert!(same(output, input), "{len}: a state changed on {}", harness.name());
                }
            }
        }
    }
}
