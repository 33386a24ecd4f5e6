use plimsoll_graph::ops::Lion;

use crate::reference::Array;

/// One step of Lion on the clipped gradient.
pub fn lion(op: &Lion, inputs: &[&Array]) -> Vec<Array> {
    let (mut p, g, mut m) = (inputs[0].clone(), inputs[1], inputs[2].clone());
    let (lr, factor) = (inputs[3].data[0], inputs[4].data[1]);
    if op.master {
        p = inputs[5].clone();
    }
    let len = if factor.is_nan() { 0 } else { p.data.len() };
    for i in 0..len {
        let gradient = g.data[i] * factor;
        let direction = op.beta1 * m.data[i] + (1.0 - op.beta1) * gradient;
        let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
        p.data[i] -= lr * (sign + f64::from(op.weight_decay) * p.data[i]);
        m.data[i] = op.beta2 * m.data[i] + (1.0 - op.beta2) * gradient;
    }
    let master = op.master.then(|| p.clone());
    [p, Array::zeros_like(g), m].into_iter().chain(master).collect()
}
