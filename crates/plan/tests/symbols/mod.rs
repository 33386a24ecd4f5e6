//! Programs run on symbols instead of numbers: what an operator makes is a hash of the operator and
//! of what it read. Two ways to the same symbols are two ways to the same bits.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use plimsoll_graph::ops::RmsNorm;
use plimsoll_graph::{Graph, Op, SlotTable, ValueId};

/// What a piece of memory holds, as one number.
pub type Symbol = u64;

/// What a program leaves behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub slots: Vec<Symbol>,
    pub results: Vec<Symbol>,
}

pub fn symbol(of: impl Hash) -> Symbol {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// What a slot holds before anything ran.
pub fn initial(slot: usize) -> Symbol {
    symbol(("slot", slot))
}

/// The byte at one position of a value.
pub fn byte(content: Symbol, position: usize) -> Symbol {
    mixed(content.wrapping_add(position as u64))
}

/// What a reader of these bytes takes them for. Every byte counts, and its position.
pub fn seen(bytes: impl Iterator<Item = Symbol>) -> Symbol {
    bytes.fold(0, |all, byte| mixed(all ^ byte))
}

/// What a reader takes an intact value for.
pub fn intact(content: Symbol, bytes: usize) -> Symbol {
    seen((0..bytes).map(|position| byte(content, position)))
}

fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits ^ (bits >> 31)
}

/// What an operator makes of what it saw; `sum_bytes` is the size of its first operand.
pub fn apply(op: &Op, saw: &[Symbol], outputs: usize, sum_bytes: usize) -> Vec<Symbol> {
    let Op::RmsNorm(norm) = op else {
        let name = symbol(format!("{op:?}"));
        return (0..outputs).map(|position| symbol((name, position, saw))).collect();
    };
    // The norm of a sum is the same whether the sum is made on the way or was there before.
    let RmsNorm { eps, weight, offset, residual } = norm;
    let (mut made, mut normed) = (Vec::new(), saw[0]);
    if *residual {
        let sum = symbol(("sum", saw[0], saw[1]));
        made.push(sum);
        normed = intact(sum, sum_bytes);
    }
    let scale = weight.then(|| (offset.to_bits(), saw[saw.len() - 1]));
    made.push(symbol(("norm", eps.to_bits(), normed, scale)));
    made.push(symbol(("rstd", eps.to_bits(), normed)));
    made
}

/// What a graph means if every value keeps its own memory for ever.
pub fn meaning(graph: &Graph, slots: &SlotTable) -> Outcome {
    let mut contents: HashMap<ValueId, Symbol> = HashMap::new();
    let mut newest: Vec<Symbol> = (0..slots.len()).map(initial).collect();
    let look = |contents: &HashMap<ValueId, Symbol>, id: ValueId| {
        let value = graph.value(id);
        let content = contents.get(&id).copied().or(value.slot.map(|s| initial(s.0 as usize)));
        intact(content.expect("made before it is read, or a slot"), value.bytes())
    };
    for node in &graph.nodes {
        let saw: Vec<Symbol> = node.inputs.iter().map(|&v| look(&contents, v)).collect();
        let made = apply(&node.op, &saw, node.outputs.len(), graph.value(node.inputs[0]).bytes());
        for (&output, content) in node.outputs.iter().zip(made) {
            contents.insert(output, content);
            if let Some(slot) = graph.value(output).slot {
                newest[slot.0 as usize] = content;
            }
        }
    }
    Outcome {
        slots: slots.iter().zip(&newest).map(|((_, slot), &content)| intact(content, slot.bytes())).collect(),
        results: graph.results.iter().map(|&v| look(&contents, v)).collect(),
    }
}
