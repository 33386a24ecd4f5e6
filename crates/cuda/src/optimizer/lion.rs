use plimsoll_graph::ops::Lion;

use super::update::Rule;

pub(super) fn rule(op: &Lion) -> Rule {
    let Lion { beta1, beta2, weight_decay, master } = *op;
    Rule {
        module: "optimizer_lion",
        name: "lion",
        shared: [3, 4],
        states: vec![2],
        master: master.then_some(3),
        numbers: vec![(1.0 - beta1) as f32, (1.0 - beta2) as f32, weight_decay],
    }
}
