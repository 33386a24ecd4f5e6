//! What a graph takes with some of its values dropped, found without making it: a search asks this many times of one graph,
//! and most of what operators say about themselves is the same each time.

use std::rc::Rc;

use plimsoll_graph::{Graph, Io, Op, OpRule, ValueId};

use crate::DeviceProfile;
use crate::lifetimes::{Demand, Lifetimes, Reading, follow};
use crate::recompute::{Drops, Rebuilding};
use crate::time::{Estimate, operator_seconds};

/// What one run of a graph takes.
#[derive(Debug, Clone)]
pub(crate) struct Sizes {
    /// No layout can be smaller.
    pub bytes: usize,
    /// Kernels and copies at most.
    pub launches: usize,
    pub time: Estimate,
}

/// What an operator says of one node, or of the same one run again.
struct Facts {
    demand: Demand,
    launches: usize,
    parts: Vec<(&'static str, f64)>,
}

impl Facts {
    fn of(op: &Op, io: &Io, device: &DeviceProfile) -> Self {
        let demand = Demand::of(op, io, &device.traits);
        Self { demand, launches: op.launches(io), parts: operator_seconds(op, io, device) }
    }
}

/// What is the same of a graph whatever is dropped of it.
pub(crate) struct Sizing {
    rebuilding: Rebuilding,
    facts: Vec<Rc<Facts>>,
}

impl Sizing {
    pub(crate) fn new(graph: &Graph, device: &DeviceProfile) -> Self {
        let facts = graph.nodes.iter().map(|node| Rc::new(Facts::of(&node.op, &graph.io(node), device)));
        Self { rebuilding: Rebuilding::of(graph), facts: facts.collect() }
    }

    /// Of the graph that this was made for.
    pub(crate) fn with(&self, graph: &Graph, drops: &Drops, device: &DeviceProfile) -> Sizes {
        self.measured(graph, drops, device, |facts, lifetimes| {
            let mut time = Estimate::default();
            facts.iter().flat_map(|facts| &facts.parts).for_each(|&part| time.add(part));
            Sizes { bytes: lifetimes.lower_bound(), launches: facts.iter().map(|facts| facts.launches).sum(), time }
        })
    }

    /// The same buffers as those of the graph once it is made.
    pub(crate) fn lifetimes(&self, graph: &Graph, drops: &Drops, device: &DeviceProfile) -> Lifetimes {
        self.measured(graph, drops, device, |_, lifetimes| lifetimes)
    }

    fn measured<T>(
        &self,
        graph: &Graph,
        drops: &Drops,
        device: &DeviceProfile,
        answer: impl FnOnce(&[Rc<Facts>], Lifetimes) -> T,
    ) -> T {
        let rewritten = self.rebuilding.rewritten(graph, drops);
        let values = |ids: &[ValueId]| ids.iter().map(|&id| rewritten.value(id)).collect();
        let facts = rewritten.runs.iter().map(|run| match &run.shortcut {
            None => self.facts[run.node].clone(),
            Some(op) => {
                let io = Io { inputs: values(&run.inputs), outputs: values(&run.outputs) };
                Rc::new(Facts::of(op, &io, device))
            }
        });
        let facts: Vec<Rc<Facts>> = facts.collect();
        let nodes = rewritten.runs.iter().zip(&facts);
        let nodes =
            nodes.map(|(run, facts)| Reading { inputs: &run.inputs, outputs: &run.outputs, demand: &facts.demand });
        let nodes: Vec<Reading> = nodes.collect();
        let lifetimes = follow(&nodes, &graph.results, rewritten.value_count(), |id| rewritten.value(id));
        answer(&facts, lifetimes)
    }
}
