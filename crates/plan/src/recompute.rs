//! Dropping values after the forward pass and rebuilding them before the backward pass needs them.
//!
//! The unit is a class of values in the first `k` layers: the last layers' values are needed again
//! soonest, so keeping those costs least. A dropped value is rebuilt by the cheapest chain from what
//! was kept: an operator's own shortcut if it has one, else the operator again, its inputs first. What an operator of the
//! backward pass makes on its way may be taken from there; who needs it earlier then waits, if nobody waits for that.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use plimsoll_graph::{Class, Graph, Node, NodeId, Op, OpRule, Phase, Value, ValueId};

/// What is dropped, and how it comes back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Drops {
    /// In how many of the layers that have it, counted from the first, each class is dropped.
    pub classes: BTreeMap<Class, usize>,
    /// Whether what gradients make on their way is taken from there. That is faster, but such a value then lies beside the
    /// gradient.
    pub on_the_way: bool,
}

impl Drops {
    pub fn of(classes: impl IntoIterator<Item = (Class, usize)>) -> Self {
        Self { classes: classes.into_iter().collect(), on_the_way: false }
    }

    pub fn is_empty(&self) -> bool {
        self.classes.values().all(|&k| k == 0)
    }

    fn layers(&self, class: Class) -> usize {
        self.classes.get(&class).copied().unwrap_or(0)
    }
}

/// Classes that the backward pass reads, with the layers that have them, in order.
pub fn droppable(graph: &Graph) -> BTreeMap<Class, BTreeSet<Option<u32>>> {
    let mut classes: BTreeMap<Class, BTreeSet<Option<u32>>> = BTreeMap::new();
    for id in kept(graph) {
        let value = graph.value(id);
        if value.class != Class::NONE {
            classes.entry(value.class).or_default().insert(value.layer);
        }
    }
    classes
}

/// Forward values that backward nodes read.
fn kept(graph: &Graph) -> Vec<ValueId> {
    let mut made = vec![false; graph.values.len()];
    for node in graph.nodes.iter().filter(|n| n.phase == Phase::Forward) {
        for output in &node.outputs {
            made[output.index()] = true;
        }
    }
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    for node in graph.nodes.iter().filter(|n| n.phase == Phase::Backward) {
        for &input in &node.inputs {
            if made[input.index()] && graph.value(input).slot.is_none() && seen.insert(input) {
                kept.push(input);
            }
        }
    }
    kept
}

/// The graph with the given classes dropped and rebuilt.
pub fn recompute(graph: &Graph, drops: &Drops) -> Graph {
    Rebuilding::of(graph).rewritten(graph, drops).into_graph()
}

/// What rebuilding depends on of a graph, whatever is dropped of it.
pub(crate) struct Rebuilding {
    producers: Vec<Option<NodeId>>,
    /// Forward values that the backward pass reads; of those with a class, how many layers before theirs have it.
    kept: Vec<(ValueId, Option<usize>)>,
    /// By the index of their nodes.
    makers: BTreeMap<usize, Maker>,
    /// Of nodes that can wait for a maker, its node.
    waiting: HashMap<usize, usize>,
}

/// A node of the backward pass that makes a forward value on its way.
struct Maker {
    value: ValueId,
    /// What makes it beside the node's own outputs.
    op: Op,
}

impl Rebuilding {
    pub(crate) fn of(graph: &Graph) -> Self {
        let classes = droppable(graph);
        let earlier = |id: ValueId| {
            let Value { class, layer, .. } = graph.value(id);
            Some(classes.get(class)?.range(..*layer).count())
        };
        let kept: Vec<_> = kept(graph).into_iter().map(|id| (id, earlier(id))).collect();
        let mut rebuilding =
            Self { producers: graph.producers(), kept, makers: BTreeMap::new(), waiting: HashMap::new() };
        rebuilding.find_makers(graph);
        rebuilding
    }

    fn find_makers(&mut self, graph: &Graph) {
        let producer = |value: ValueId| self.producers[value.index()].map(|id| &graph.nodes[id.0 as usize]);
        let mut by_input: HashMap<ValueId, Vec<(ValueId, &Node)>> = HashMap::new();
        for &(value, _) in &self.kept {
            let Some(forward) = producer(value).filter(|node| node.outputs.len() == 1) else { continue };
            if let Some(&input) = forward.inputs.first() {
                by_input.entry(input).or_default().push((value, forward));
            }
        }
        let mut readers: HashMap<ValueId, Vec<usize>> = HashMap::new();
        for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.phase != Phase::Forward) {
            node.inputs.iter().for_each(|&input| readers.entry(input).or_default().push(index));
        }
        let read_behind = |value: &ValueId, at: usize| {
            readers.get(value).is_none_or(|readers| readers.iter().all(|&reader| reader > at))
        };
        for (at, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.phase == Phase::Backward) {
            let made = node.inputs.first().and_then(|input| by_input.get(input)).into_iter().flatten();
            for &(value, forward) in made {
                let Some(op) = node.op.remaking(node, forward) else { continue };
                let earlier: Vec<usize> =
                    readers.get(&value).into_iter().flatten().copied().filter(|&reader| reader < at).collect();
                let can_wait = |&reader: &usize| graph.nodes[reader].outputs.iter().all(|o| read_behind(o, at));
                if earlier.iter().all(can_wait) {
                    self.waiting.extend(earlier.into_iter().map(|reader| (reader, at)));
                    self.makers.insert(at, Maker { value, op });
                }
            }
        }
    }

    /// The graph's nodes in their order, each behind what is rebuilt for it.
    pub(crate) fn rewritten<'g>(&self, graph: &'g Graph, drops: &Drops) -> Rewritten<'g> {
        let mut found = vec![Found::Nowhere; graph.values.len()];
        for &(id, earlier) in &self.kept {
            let dropped = drops.layers(graph.value(id).class);
            if earlier.is_none_or(|earlier| earlier >= dropped) {
                found[id.index()] = Found::Kept;
            }
        }
        let rewritten = Rewritten { graph, runs: Vec::with_capacity(graph.nodes.len()), copies: Vec::new() };
        let mut pass = Rebuild { producers: &self.producers, found, rewritten };
        let maker_at = |index: usize| self.makers.get(&index).filter(|_| drops.on_the_way);
        let mut waiting: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for index in 0..graph.nodes.len() {
            let later =
                self.waiting.get(&index).filter(|&&at| maker_at(at).is_some_and(|maker| pass.lacks(maker.value)));
            if let Some(&at) = later {
                waiting.entry(at).or_default().push(index);
                continue;
            }
            pass.run(index, maker_at(index));
            waiting.remove(&index).into_iter().flatten().for_each(|index| pass.run(index, None));
        }
        pass.rewritten
    }
}

/// A graph whose dropped values are rebuilt, as what differs from the one it comes from.
pub(crate) struct Rewritten<'g> {
    graph: &'g Graph,
    pub runs: Vec<Run<'g>>,
    /// The originals of the values that were added.
    copies: Vec<ValueId>,
}

/// A node of the graph, run where it was or once more.
pub(crate) struct Run<'g> {
    pub node: usize,
    again: bool,
    /// What makes these outputs in its place; rarely there.
    pub shortcut: Option<Box<Op>>,
    pub inputs: Cow<'g, [ValueId]>,
    pub outputs: Cow<'g, [ValueId]>,
}

impl<'g> Rewritten<'g> {
    /// As large and of the same kind as the value, if not itself.
    pub(crate) fn value(&self, id: ValueId) -> &'g Value {
        let values = &self.graph.values;
        values.get(id.index()).unwrap_or_else(|| self.graph.value(self.copies[id.index() - values.len()]))
    }

    pub(crate) fn value_count(&self) -> usize {
        self.graph.values.len() + self.copies.len()
    }

    fn into_graph(self) -> Graph {
        let node = |run: Run| {
            let Node { op, phase, layer, .. } = &self.graph.nodes[run.node];
            Node {
                op: run.shortcut.map_or_else(|| op.clone(), |shortcut| *shortcut),
                inputs: run.inputs.into_owned(),
                outputs: run.outputs.into_owned(),
                phase: if run.again { Phase::Recompute } else { *phase },
                layer: *layer,
            }
        };
        self.graph.rewritten(self.runs.into_iter().map(node).collect(), &self.copies)
    }
}

/// Where the backward pass finds a forward value.
#[derive(Clone, Copy, PartialEq)]
enum Found {
    Nowhere,
    /// In memory since the forward pass.
    Kept,
    Rebuilt(ValueId),
}

struct Rebuild<'a, 'g> {
    producers: &'a [Option<NodeId>],
    found: Vec<Found>,
    rewritten: Rewritten<'g>,
}

impl<'g> Rebuild<'_, 'g> {
    fn lacks(&self, id: ValueId) -> bool {
        self.found[id.index()] == Found::Nowhere
    }

    /// A node in its place, behind what is rebuilt for it; it also makes what it can, if that is lacking.
    fn run(&mut self, index: usize, maker: Option<&Maker>) {
        let node = &self.rewritten.graph.nodes[index];
        let mut inputs = Cow::Borrowed(node.inputs.as_slice());
        if node.phase == Phase::Backward {
            for (position, &input) in node.inputs.iter().enumerate() {
                let obtained = self.obtain(input);
                if obtained != input {
                    inputs.to_mut()[position] = obtained;
                }
            }
        }
        let mut outputs = Cow::Borrowed(node.outputs.as_slice());
        let maker = maker.filter(|maker| self.lacks(maker.value));
        if let Some(maker) = maker {
            outputs.to_mut().push(self.copy(maker.value));
        }
        let shortcut = maker.map(|maker| Box::new(maker.op.clone()));
        self.rewritten.runs.push(Run { node: index, again: false, shortcut, inputs, outputs });
    }

    /// The value under which the backward pass finds `id`, rebuilding it on the spot if need be.
    fn obtain(&mut self, id: ValueId) -> ValueId {
        match self.found[id.index()] {
            Found::Kept => return id,
            Found::Rebuilt(rebuilt) => return rebuilt,
            Found::Nowhere => {}
        }
        let Some((index, node)) = self.producer(id) else { return id };
        if node.phase != Phase::Forward || self.rewritten.value(id).slot.is_some() {
            return id;
        }
        if self.begins_layer(id) {
            // Keeping what a layer starts from is cheaper than running the layers before it again.
            self.found[id.index()] = Found::Kept;
            return id;
        }
        self.rebuild(id, index, node);
        let Found::Rebuilt(rebuilt) = self.found[id.index()] else { unreachable!("it was rebuilt") };
        rebuilt
    }

    fn producer(&self, id: ValueId) -> Option<(usize, &'g Node)> {
        let index = self.producers[id.index()]?.0 as usize;
        Some((index, &self.rewritten.graph.nodes[index]))
    }

    /// Is this the value that carries the earlier layers' work into its own?
    fn begins_layer(&self, id: ValueId) -> bool {
        let Some((_, node)) = self.producer(id) else { return false };
        let mut inputs = node.inputs.iter().map(|&v| self.rewritten.value(v));
        self.rewritten.value(id).class == Class::NONE && inputs.any(|v| v.slot.is_none() && v.layer != node.layer)
    }

    fn rebuild(&mut self, id: ValueId, index: usize, node: &'g Node) {
        let position = node.outputs.iter().position(|&o| o == id).expect("the producer makes it");
        let shortcut = node.op.rebuild(node, position).filter(|(_, inputs)| self.at_hand(inputs));
        // A shortcut makes the same outputs less the ones it starts from.
        let (shortcut, inputs, outputs) = match shortcut {
            Some((op, inputs)) => {
                let outputs: Vec<ValueId> = node.outputs.iter().copied().filter(|o| !inputs.contains(o)).collect();
                (Some(Box::new(op)), inputs, outputs)
            }
            None => (None, node.inputs.clone(), node.outputs.clone()),
        };
        let inputs = inputs.into_iter().map(|v| self.obtain(v)).collect();
        let outputs = outputs.into_iter().map(|o| self.copy(o)).collect();
        self.rewritten.runs.push(Run { node: index, again: true, shortcut, inputs, outputs });
    }

    fn at_hand(&self, inputs: &[ValueId]) -> bool {
        inputs.iter().all(|v| {
            self.found[v.index()] != Found::Nowhere
                || self.begins_layer(*v)
                || self.producers[v.index()].is_none()
                || self.rewritten.value(*v).slot.is_some()
        })
    }

    fn copy(&mut self, original: ValueId) -> ValueId {
        let copy = ValueId(self.rewritten.value_count() as u32);
        self.rewritten.copies.push(original);
        if self.found[original.index()] != Found::Kept {
            self.found[original.index()] = Found::Rebuilt(copy);
        }
        copy
    }
}
