use plimsoll_graph::ops::Sgd;

use super::update::Rule;

pub(super) fn rule(op: &Sgd) -> Rule {
    let Sgd { momentum, weight_decay, master } = *op;
    let states = if momentum != 0.0 { vec![2] } else { Vec::new() };
    let master = master.then_some(2 + states.len());
    let numbers = vec![momentum, weight_decay];
    Rule { module: "optimizer_sgd", name: "sgd", shared: [2, 3], states, master, numbers }
}
