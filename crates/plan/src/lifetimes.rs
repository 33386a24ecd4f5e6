//! From when to when each buffer is needed, and which values share one.

use plimsoll_graph::{Alias, BackendTraits, Graph, Io, Node, Op, OpRule, Role, Value, ValueId};

/// Addresses are multiples of this; wide enough for any vector load and any copy engine.
pub const ALIGNMENT: usize = 256;

pub fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// What a buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A value, or several of which each takes the one before's place.
    Values,
    /// Scratch of one node.
    Workspace { node: usize },
}

/// Memory needed from the start of node `first` to the end of node `last`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifetime {
    pub bytes: usize,
    pub first: usize,
    pub last: usize,
    pub role: Role,
    pub content: Content,
}

impl Lifetime {
    pub fn overlaps(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The buffers of one graph that are not slots.
#[derive(Debug, Clone, Default)]
pub struct Lifetimes {
    pub buffers: Vec<Lifetime>,
    /// Buffer of each value; `None` for slots and for values nobody made.
    pub of_value: Vec<Option<usize>>,
    /// Scratch buffer of each node.
    pub of_node: Vec<Option<usize>>,
}

impl Lifetimes {
    /// Bytes alive during each node.
    pub fn profile(&self) -> Vec<usize> {
        let nodes = self.of_node.len();
        let mut change = vec![0isize; nodes + 1];
        for buffer in &self.buffers {
            change[buffer.first] += buffer.bytes as isize;
            change[buffer.last + 1] -= buffer.bytes as isize;
        }
        let mut live = 0;
        change[..nodes]
            .iter()
            .map(|c| {
                live += c;
                live as usize
            })
            .collect()
    }

    /// No layout can be smaller than this.
    pub fn lower_bound(&self) -> usize {
        self.profile().into_iter().max().unwrap_or(0)
    }
}

/// What an operator asks for beside its operands.
#[derive(Debug, Clone)]
pub(crate) struct Demand {
    aliases: Vec<Alias>,
    scratch_bytes: usize,
    scratch_role: Role,
}

impl Demand {
    pub(crate) fn of(op: &Op, io: &Io, traits: &BackendTraits) -> Self {
        let scratch_bytes = op.workspace_bytes(io, traits);
        Self { aliases: op.aliases(), scratch_bytes, scratch_role: op.workspace_role() }
    }
}

/// A node as lifetimes see it.
pub(crate) struct Reading<'g> {
    pub inputs: &'g [ValueId],
    pub outputs: &'g [ValueId],
    pub demand: &'g Demand,
}

/// Follows every value from its making to its last use and shares memory in place where the operators allow it.
pub fn lifetimes(graph: &Graph, traits: &BackendTraits) -> Lifetimes {
    let demand = |node: &Node| Demand::of(&node.op, &graph.io(node), traits);
    let demands: Vec<Demand> = graph.nodes.iter().map(demand).collect();
    let nodes = graph.nodes.iter().zip(&demands);
    let nodes = nodes.map(|(Node { inputs, outputs, .. }, demand)| Reading { inputs, outputs, demand });
    follow(&nodes.collect::<Vec<_>>(), &graph.results, graph.values.len(), |id| graph.value(id))
}

/// As [`lifetimes`], of nodes over so many values.
pub(crate) fn follow<'v>(
    nodes: &[Reading<'_>],
    results: &[ValueId],
    values: usize,
    value: impl Fn(ValueId) -> &'v Value,
) -> Lifetimes {
    let last_use = last_uses(nodes, results, values);
    let mut found = Lifetimes {
        buffers: Vec::with_capacity(values),
        of_value: vec![None; values],
        of_node: vec![None; nodes.len()],
    };
    let mut taken: Vec<usize> = Vec::new();
    for (index, &Reading { inputs, outputs, demand }) in nodes.iter().enumerate() {
        taken.clear();
        for (position, &output) in outputs.iter().enumerate() {
            let value = value(output);
            if value.slot.is_some() {
                continue;
            }
            let bytes = aligned(value.bytes());
            let shared = demand.aliases.iter().find_map(|alias| {
                let input = shareable(alias, position)?;
                let source = inputs[input];
                let buffer = found.of_value[source.index()]?;
                let dies_here = last_use[source.index()] == index && occurrences(inputs, source) == 1;
                let fits = found.buffers[buffer].bytes == bytes && !taken.contains(&buffer);
                (dies_here && fits).then_some(buffer)
            });
            let buffer = shared.unwrap_or_else(|| {
                found.buffers.push(Lifetime {
                    bytes,
                    first: index,
                    last: index,
                    role: value.role,
                    content: Content::Values,
                });
                found.buffers.len() - 1
            });
            taken.push(buffer);
            // Results outlive the last node, which so cannot take their place.
            found.buffers[buffer].last = last_use[output.index()].clamp(index, nodes.len() - 1);
            found.of_value[output.index()] = Some(buffer);
        }
        if demand.scratch_bytes > 0 {
            found.of_node[index] = Some(found.buffers.len());
            found.buffers.push(Lifetime {
                bytes: aligned(demand.scratch_bytes),
                first: index,
                last: index,
                role: demand.scratch_role,
                content: Content::Workspace { node: index },
            });
        }
    }
    found
}

fn shareable(alias: &Alias, position: usize) -> Option<usize> {
    match *alias {
        Alias::May { output, input } | Alias::Must { output, input } => (output == position).then_some(input),
    }
}

fn occurrences(inputs: &[ValueId], value: ValueId) -> usize {
    inputs.iter().filter(|&&v| v == value).count()
}

/// Index of the last node that reads each value; results are read after the last one.
fn last_uses(nodes: &[Reading<'_>], results: &[ValueId], values: usize) -> Vec<usize> {
    let mut last = vec![0; values];
    for (index, node) in nodes.iter().enumerate() {
        for input in node.inputs {
            last[input.index()] = index;
        }
    }
    for result in results {
        last[result.index()] = nodes.len();
    }
    last
}
