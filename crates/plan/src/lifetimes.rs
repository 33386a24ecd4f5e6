//! From when to when each buffer is needed, and which values share one.

use plimsoll_graph::{Alias, BackendTraits, Graph, OpRule, Role, ValueId};

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
    pub fn profile(&self, nodes: usize) -> Vec<usize> {
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
    pub fn lower_bound(&self, nodes: usize) -> usize {
        self.profile(nodes).into_iter().max().unwrap_or(0)
    }
}

/// Follows every value from its making to its last use and shares memory in place where the operators allow it.
pub fn lifetimes(graph: &Graph, traits: &BackendTraits) -> Lifetimes {
    let last_use = last_uses(graph);
    let mut found = Lifetimes {
        buffers: Vec::with_capacity(graph.values.len()),
        of_value: vec![None; graph.values.len()],
        of_node: vec![None; graph.nodes.len()],
    };
    for (index, node) in graph.nodes.iter().enumerate() {
        let io = graph.io(node);
        let aliases = node.op.aliases();
        let mut taken: Vec<usize> = Vec::new();
        for (position, &output) in node.outputs.iter().enumerate() {
            let value = graph.value(output);
            if value.slot.is_some() {
                continue;
            }
            let bytes = aligned(value.bytes());
            let shared = aliases.iter().find_map(|alias| {
                let input = shareable(alias, position)?;
                let source = node.inputs[input];
                let buffer = found.of_value[source.index()]?;
                let dies_here = last_use[source.index()] == index && occurrences(&node.inputs, source) == 1;
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
            found.buffers[buffer].last = last_use[output.index()].clamp(index, graph.nodes.len() - 1);
            found.of_value[output.index()] = Some(buffer);
        }
        let scratch = node.op.workspace_bytes(&io, traits);
        if scratch > 0 {
            found.of_node[index] = Some(found.buffers.len());
            found.buffers.push(Lifetime {
                bytes: aligned(scratch),
                first: index,
                last: index,
                role: node.op.workspace_role(),
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
fn last_uses(graph: &Graph) -> Vec<usize> {
    let mut last = vec![0; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for input in &node.inputs {
            last[input.index()] = index;
        }
    }
    for result in &graph.results {
        last[result.index()] = graph.nodes.len();
    }
    last
}
