use plimsoll_graph::ops::AdamW;

use super::update::Rule;

pub(super) fn rule(op: &AdamW) -> Rule {
    let AdamW { beta1, beta2, eps, weight_decay, master } = *op;
    Rule {
        module: "optimizer_adamw",
        name: "adamw",
        shared: [4, 5],
        states: vec![2, 3],
        master: master.then_some(4),
        numbers: vec![(1.0 - beta1) as f32, beta2 as f32, (1.0 - beta2) as f32, eps, weight_decay],
    }
}
