mod adafactor;
mod lion;
mod muon;

pub use adafactor::adafactor;
pub use lion::lion;
pub use muon::muon;

use plimsoll_graph::ops::{AdamW, GlobalNorm, Sgd, SquareSum};

use super::Array;

/// `[norm, factor]` over all gradients together.
pub fn global_norm(op: &GlobalNorm, inputs: &[&Array]) -> Array {
    let gradients = op.gradients(inputs.len());
    let unscale = if op.scaled { inputs[1 + gradients].data[0] } else { 1.0 };
    let squares: f64 = inputs[1..=gradients].iter().flat_map(|g| &g.data).map(|g| g * g).sum();
    let norm = squares.sqrt() * unscale;
    let factor = match op.max_norm {
        _ if !norm.is_finite() => f64::NAN,
        Some(max) => (f64::from(max) / (norm + 1e-6)).min(1.0),
        None => 1.0,
    };
    Array::new(&[2], vec![norm, unscale * factor])
}

/// The guard, and the sums with that of one gradient in its place.
pub fn square_sum(op: &SquareSum, inputs: &[&Array]) -> Vec<Array> {
    let (mut guard, mut sums) = (inputs[0].clone(), inputs[1].clone());
    sums.data[op.index] = inputs[2].data.iter().map(|g| g * g).sum();
    if !(sums.data[op.index].sqrt() as f32).is_finite() {
        guard.data[0] = f64::NAN;
    }
    guard.data[1] = 1.0 + guard.data[0];
    vec![guard, sums]
}

pub fn total_norm(inputs: &[&Array]) -> Array {
    let norm = inputs[1].data.iter().sum::<f64>().sqrt();
    Array::new(&[2], vec![norm, if (norm as f32).is_finite() { 1.0 } else { f64::NAN }])
}

/// One step of Adam with decoupled weight decay on the clipped gradient.
pub fn adamw(op: &AdamW, inputs: &[&Array]) -> Vec<Array> {
    let (mut p, g, mut m, mut v) = (inputs[0].clone(), inputs[1], inputs[2].clone(), inputs[3].clone());
    let (lr, correction1, correction2) = (inputs[4].data[0], inputs[4].data[1], inputs[4].data[2]);
    let factor = inputs[5].data[1];
    let (beta1, beta2) = (op.beta1, op.beta2);
    if op.master {
        p = inputs[6].clone();
    }
    let len = if factor.is_nan() { 0 } else { p.data.len() };
    for i in 0..len {
        let gradient = g.data[i] * factor;
        m.data[i] = beta1 * m.data[i] + (1.0 - beta1) * gradient;
        v.data[i] = beta2 * v.data[i] + (1.0 - beta2) * gradient * gradient;
        let (m_hat, v_hat) = (m.data[i] / correction1, v.data[i] / correction2);
        p.data[i] -= lr * f64::from(op.weight_decay) * p.data[i];
        p.data[i] -= lr * m_hat / (v_hat.sqrt() + f64::from(op.eps));
    }
    let master = op.master.then(|| p.clone());
    [p, Array::zeros_like(g), m, v].into_iter().chain(master).collect()
}

/// One step of SGD: weight decay joins the clipped gradient, and momentum gathers both.
pub fn sgd(op: &Sgd, inputs: &[&Array]) -> Vec<Array> {
    let (mut p, g) = (inputs[0].clone(), inputs[1]);
    let (lr, factor) = (inputs[2].data[0], inputs[3].data[1]);
    let mut state = inputs[4..].iter();
    let mut momentum = (op.momentum != 0.0).then(|| (*state.next().expect("momentum")).clone());
    if op.master {
        p = (*state.next().expect("master")).clone();
    }
    let len = if factor.is_nan() { 0 } else { p.data.len() };
    for i in 0..len {
        let mut direction = g.data[i] * factor + f64::from(op.weight_decay) * p.data[i];
        if let Some(momentum) = &mut momentum {
            momentum.data[i] = f64::from(op.momentum) * momentum.data[i] + direction;
            direction = momentum.data[i];
        }
        p.data[i] -= lr * direction;
    }
    let master = op.master.then(|| p.clone());
    [p, Array::zeros_like(g)].into_iter().chain(momentum).chain(master).collect()
}
