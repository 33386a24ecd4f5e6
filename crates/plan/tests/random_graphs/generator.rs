//! Random training programs out of the real operators: odd sizes, values read by many, tied and
//! frozen weights, classes and layers for recompute, results in unlucky places.

use plimsoll_graph::ops::{
    Activation, AdamW, Add, Attention, Cols, Dest, Dropout, Embed, Gated, GlobalNorm, HYPER_LEN, HeadNorm, Heads,
    InnerDropout, LastLogits, Linear, Pointwise, RmsNorm, Rope, Sgd, VocabLoss,
};
use plimsoll_graph::{
    BackendTraits, BatchShape, Cadence, Class, DType, Extent, Graph, Op, Phase, Program, Role, ScheduleGraph,
    ScheduleId, Shape, Slot, SlotId, SlotTable, StreamId, StreamShape, ValueId, differentiate,
};
use plimsoll_plan::Drops;
use plimsoll_plan::recompute::droppable;
use proptest::collection::vec;
use proptest::prelude::*;

const CLASSES: [Class; 5] = [Class::NONE, Class("a"), Class("b"), Class("c"), Class("d")];
const HEADS: Heads = Heads { query: 2, kv: 1, head_dim: 2 };
const SEQUENCES: usize = 2;

/// Everything that is random about a program; shrinks to small ones.
#[derive(Debug, Clone)]
pub struct Sketch {
    tokens: usize,
    width: usize,
    vocabulary: usize,
    layers: u32,
    dtype: DType,
    draws: Vec<Draw>,
    /// Sums up everything that has the model's width before the loss.
    gathers: bool,
    tied: bool,
    /// Bit of each parameter, in the order in which they appear.
    trainable: u32,
    extra_slots: Vec<usize>,
    results: Vec<u8>,
    /// The host also reads what the last node reads.
    keeps_last_input: bool,
    drops: [u8; 4],
    adamw: bool,
    pub traits: BackendTraits,
    /// Decides how the plan is tampered with.
    pub seed: u64,
}

/// One more operator: its kind, where its operands come from, and its variants.
#[derive(Debug, Clone, Copy)]
struct Draw {
    kind: u8,
    first: u8,
    second: u8,
    class: u8,
    flags: u8,
}

impl Draw {
    fn flag(&self, bit: u8) -> bool {
        self.flags >> bit & 1 == 1
    }

    fn activation(&self) -> Activation {
        if self.flag(0) { Activation::Silu } else { Activation::Relu2 }
    }
}

prop_compose! {
    fn draw()(kind in 0u8..10, first: u8, second: u8, class: u8, flags: u8) -> Draw {
        Draw { kind, first, second, class, flags }
    }
}

prop_compose! {
    pub fn sketches()(
        (tokens, width, vocabulary, layers) in (2usize..10, prop::sample::select(vec![4usize, 6, 8, 24]), 3usize..12, 1u32..4),
        dtype in prop::sample::select(vec![DType::F32, DType::BF16]),
        draws in vec(draw(), 2..12),
        (gathers, tied, adamw, keeps_last_input) in (any::<bool>(), any::<bool>(), any::<bool>(), prop::bool::weighted(0.2)),
        trainable: u32,
        extra_slots in vec(0usize..700, 0..4),
        results in vec(any::<u8>(), 0..3),
        drops: [u8; 4],
        (workers, matmul_workspace_bytes) in (1usize..3, prop::sample::select(vec![0usize, 300])),
        seed: u64,
    ) -> Sketch {
        let traits = BackendTraits { workers, partial_rows: 0, matmul_workspace_bytes, multiplies_codes: false };
        Sketch {
            tokens, width, vocabulary, layers, dtype, draws, gathers, tied, trainable, extra_slots, results,
            keeps_last_input, drops, adamw, traits, seed,
        }
    }
}

impl Sketch {
    pub fn program(&self) -> Program {
        let mut builder = Builder::new(self);
        let evaluate = builder.loss();
        let sample = builder.sample();
        let mut micro_step = builder.loss();
        let trained: Vec<SlotId> = builder.parameters.iter().copied().filter(|&p| self.trains(&builder, p)).collect();
        let values: Vec<ValueId> =
            trained.iter().map(|&p| micro_step.slot(&builder.slots, p).expect("small")).collect();
        let grads = differentiate(&mut micro_step, &mut builder.slots, &values, DType::F32).expect("differentiable");
        self.choose_results(&mut micro_step);
        let update = builder.update(&trained, &grads);
        for (index, &bytes) in self.extra_slots.iter().enumerate() {
            builder.add(&format!("extra{index}"), &[bytes], DType::U8, Role::Input, Extent::Fixed);
        }
        let batch = BatchShape::one(StreamShape { tokens: self.tokens, sequences: SEQUENCES, max_length: self.tokens });
        let schedule = |graph, cadence| ScheduleGraph { graph, cadence, recorded: true };
        let schedules = [
            (ScheduleId::MICRO_STEP, schedule(micro_step, Cadence::MicroBatch)),
            (ScheduleId::UPDATE, schedule(update, Cadence::Update)),
            (ScheduleId::EVALUATE, schedule(evaluate, Cadence::Aside)),
            (ScheduleId::DECODE, schedule(sample, Cadence::Aside)),
        ];
        Program { batch, slots: builder.slots, schedules: schedules.into() }
    }

    fn trains(&self, builder: &Builder, parameter: SlotId) -> bool {
        // The norms of queries and keys can only be trained together.
        let name = &*builder.slots.get(parameter).name;
        let decides = if name == "k_norm" { builder.slots.find("q_norm") } else { Some(parameter) };
        let index = builder.parameters.iter().position(|p| Some(*p) == decides).expect("registered");
        self.trainable >> (index % 32) & 1 == 1
    }

    /// Any value may be one that the host wants to see.
    fn choose_results(&self, graph: &mut Graph) {
        let made: Vec<ValueId> = graph.nodes.iter().flat_map(|n| n.outputs.clone()).collect();
        let mut results: Vec<ValueId> = self.results.iter().map(|&r| made[r as usize % made.len()]).collect();
        let last = graph.nodes.last().expect("a loss at least");
        if self.keeps_last_input && made.contains(&last.inputs[0]) {
            results.push(last.inputs[0]);
        }
        // A slot's older versions are gone by the end.
        results.retain(|&v| graph.value(v).slot.is_none());
        graph.results = results;
    }

    pub fn drops(&self, graph: &Graph) -> Drops {
        let classes = droppable(graph);
        let counts =
            classes.iter().zip(self.drops).map(|((&class, layers), k)| (class, k as usize % (layers.len() + 1)));
        Drops::of(counts)
    }
}

struct Builder<'s> {
    sketch: &'s Sketch,
    slots: SlotTable,
    parameters: Vec<SlotId>,
}

/// A forward graph under construction.
struct Forward {
    graph: Graph,
    /// Values a later operator may read.
    pool: Vec<ValueId>,
}

impl Forward {
    fn cols(&self, value: ValueId) -> usize {
        self.graph.value(value).shape.cols()
    }

    /// The newest value half of the time, any other one else.
    fn pick(&self, dice: u8) -> ValueId {
        let back = if dice < 128 { 0 } else { dice as usize % self.pool.len() };
        self.pool[self.pool.len() - 1 - back]
    }

    /// A value as wide as another, perhaps that one itself.
    fn pick_like(&self, value: ValueId, dice: u8) -> ValueId {
        let alike: Vec<ValueId> = self.pool.iter().copied().filter(|&v| self.cols(v) == self.cols(value)).collect();
        alike[dice as usize % alike.len()]
    }

    fn push(&mut self, op: impl Into<Op>, inputs: &[ValueId], classes: &[Class]) -> ValueId {
        let label = format!("n{}", self.graph.nodes.len());
        let names: Vec<(&str, Class)> = classes.iter().map(|&c| (&*label, c)).collect();
        let made = self.graph.apply_all(op, inputs, &names).expect("a valid operator");
        let rows = made.iter().copied().filter(|&v| self.graph.value(v).shape.rank() == 2);
        // Per-token statistics are of no use as operands.
        self.pool.extend(rows.filter(|&v| self.graph.value(v).class != STATISTICS));
        made[0]
    }
}

const STATISTICS: Class = Class("statistics");

impl<'s> Builder<'s> {
    fn new(sketch: &'s Sketch) -> Self {
        let mut builder = Self { sketch, slots: SlotTable::default(), parameters: Vec::new() };
        let n = sketch.tokens;
        for (name, dims, dtype, extent) in [
            ("tokens", &[n][..], DType::I32, Extent::TOKENS),
            ("targets", &[n], DType::I32, Extent::TOKENS),
            ("positions", &[n], DType::I32, Extent::TOKENS),
            ("row_ids", &[n], DType::I32, Extent::TOKENS),
            ("boundaries", &[SEQUENCES + 1], DType::I32, Extent::Boundaries(StreamId::MAIN)),
            ("loss_scale", &[1], DType::F32, Extent::Fixed),
            ("loss", &[1], DType::F64, Extent::Fixed),
            ("rng_key", &[4], DType::U32, Extent::Fixed),
            ("rotary", &[n, HEADS.head_dim], DType::F32, Extent::Fixed),
            ("hyper", &[HYPER_LEN], DType::F32, Extent::Fixed),
            ("clip", &[2], DType::F32, Extent::Fixed),
        ] {
            builder.add(name, dims, dtype, Role::Input, extent);
        }
        builder
    }

    fn add(&mut self, name: &str, dims: &[usize], dtype: DType, role: Role, extent: Extent) -> SlotId {
        let shape = Shape::new(dims);
        self.slots
            .add(Slot { name: name.to_owned(), shape, storage: dtype.into(), role, extent, layer: None })
            .expect("small")
    }

    fn input(&self, graph: &mut Graph, name: &str) -> ValueId {
        graph.slot(&self.slots, self.slots.find(name).expect("registered")).expect("small")
    }

    /// The parameter of that name, registered at its first use.
    fn parameter(&mut self, graph: &mut Graph, name: &str, dims: &[usize]) -> ValueId {
        let slot = self.slots.find(name).unwrap_or_else(|| {
            let slot = self.add(name, dims, self.sketch.dtype, Role::Weight, Extent::Fixed);
            self.parameters.push(slot);
            slot
        });
        graph.slot(&self.slots, slot).expect("small")
    }

    fn hidden(&mut self) -> (Graph, ValueId) {
        let Sketch { width, vocabulary, layers, dtype, .. } = *self.sketch;
        let mut forward = Forward { graph: Graph::new(), pool: Vec::new() };
        let table = self.parameter(&mut forward.graph, "table", &[vocabulary, width]);
        let tokens = self.input(&mut forward.graph, "tokens");
        forward.push(Embed { dtype, scale: 1.0, padding: None }, &[table, tokens], &[Class("a")]);
        let draws = &self.sketch.draws;
        for (index, draw) in draws.iter().enumerate() {
            forward.graph.set_layer(Some(index as u32 * layers / draws.len() as u32));
            self.operator(&mut forward, index, draw);
        }
        forward.graph.set_layer(None);
        let mut hidden = forward.pool[forward.pool.len() - 1];
        if forward.cols(hidden) != width {
            let dims = [width, forward.cols(hidden)];
            let weight = self.parameter(&mut forward.graph, "last", &dims);
            hidden = forward.push(Linear::forward(), &[hidden, weight], &[Class::NONE]);
        }
        if self.sketch.gathers {
            for value in forward.pool.clone() {
                if forward.cols(value) == width && value != hidden {
                    hidden = forward.push(Add, &[hidden, value], &[Class::NONE]);
                }
            }
        }
        (forward.graph, hidden)
    }

    fn operator(&mut self, forward: &mut Forward, index: usize, draw: &Draw) {
        let class = CLASSES[draw.class as usize % CLASSES.len()];
        let x = forward.pick(draw.first);
        let eps = 1e-6;
        match draw.kind {
            0 | 1 => self.linear(forward, index, draw, x, class),
            2 => self.linear_into(forward, index, draw, x, class),
            3 => {
                let y = forward.pick_like(x, draw.second);
                forward.push(Add, &[x, y], &[class]);
            }
            4 => {
                let weight = draw.flag(0);
                let mut operands = vec![x];
                if weight {
                    operands.push(self.norm_weight(forward, x));
                }
                forward.push(RmsNorm { weight, ..RmsNorm::new(eps) }, &operands, &[class, STATISTICS]);
            }
            5 => {
                let weight = draw.flag(0);
                let mut operands = vec![x, forward.pick_like(x, draw.second)];
                if weight {
                    operands.push(self.norm_weight(forward, x));
                }
                let classes = [CLASSES[draw.second as usize % CLASSES.len()], class, STATISTICS];
                forward.push(RmsNorm { weight, residual: true, ..RmsNorm::new(eps) }, &operands, &classes);
            }
            6 if forward.cols(x).is_multiple_of(2) => {
                forward.push(Gated::new(draw.activation()), &[x], &[class]);
            }
            6 | 7 => {
                forward.push(Pointwise(draw.activation()), &[x], &[class]);
            }
            8 => {
                let operands =
                    [x, self.input(&mut forward.graph, "row_ids"), self.input(&mut forward.graph, "rng_key")];
                forward.push(Dropout { p: 0.1, site: index as u32 }, &operands, &[class]);
            }
            _ => self.attention(forward, index, draw, x, class),
        }
    }

    fn norm_weight(&mut self, forward: &mut Forward, x: ValueId) -> ValueId {
        let cols = forward.cols(x);
        self.parameter(&mut forward.graph, &format!("norm{cols}"), &[cols])
    }

    fn linear(&mut self, forward: &mut Forward, index: usize, draw: &Draw, x: ValueId, class: Class) {
        let out = [self.sketch.width, 3, HEADS.fused_cols(), 12][draw.second as usize % 4];
        let dims = [out, forward.cols(x)];
        // Weights of one shape are sometimes the same weight.
        let name = if draw.flag(0) { format!("shared{dims:?}") } else { format!("weight{index}") };
        let mut operands = vec![x, self.parameter(&mut forward.graph, &name, &dims)];
        if draw.flag(1) {
            operands.push(self.parameter(&mut forward.graph, &format!("bias{index}"), &[out]));
        }
        let dropout = draw.flag(2).then_some(InnerDropout { p: 0.1, site: index as u32 });
        if dropout.is_some() {
            operands.extend(["row_ids", "rng_key"].map(|name| self.input(&mut forward.graph, name)));
        }
        forward.push(Linear { bias: draw.flag(1), dropout, ..Linear::forward() }, &operands, &[class]);
    }

    fn linear_into(&mut self, forward: &mut Forward, index: usize, draw: &Draw, x: ValueId, class: Class) {
        let dest = forward.pick(draw.second);
        let total = forward.cols(dest);
        let cols = (draw.flag(0) && total > 1).then(|| Cols { start: total / 2, len: total - total / 2, total });
        let dims = [cols.map_or(total, |c| c.len), forward.cols(x)];
        let weight = self.parameter(&mut forward.graph, &format!("weight{index}"), &dims);
        let kind = if cols.is_some() && draw.flag(1) { Dest::Overwrite } else { Dest::Accumulate };
        let op = Linear { alpha: 0.5, dest: kind, cols, ..Linear::forward() };
        forward.push(op, &[x, weight, dest], &[class]);
    }

    fn attention(&mut self, forward: &mut Forward, index: usize, draw: &Draw, x: ValueId, class: Class) {
        let dims = [HEADS.fused_cols(), forward.cols(x)];
        let weight = self.parameter(&mut forward.graph, &format!("qkv{index}"), &dims);
        let mut qkv = forward.push(Linear::forward(), &[x, weight], &[Class("b")]);
        if draw.flag(0) {
            let weights = ["q_norm", "k_norm"].map(|name| self.parameter(&mut forward.graph, name, &[HEADS.head_dim]));
            let op = HeadNorm::new(HEADS, 1e-6);
            qkv = forward.push(op, &[qkv, weights[0], weights[1]], &[Class("c"), STATISTICS]);
        }
        let [table, positions, boundaries] =
            ["rotary", "positions", "boundaries"].map(|name| self.input(&mut forward.graph, name));
        let rotated = forward.push(Rope::new(HEADS), &[qkv, table, positions], &[Class("d")]);
        let op = Attention::causal(HEADS, 0.7, None, self.sketch.tokens);
        forward.push(op, &[rotated, boundaries], &[class, STATISTICS]);
    }

    fn head(&mut self, graph: &mut Graph) -> ValueId {
        let name = if self.sketch.tied { "table" } else { "head" };
        self.parameter(graph, name, &[self.sketch.vocabulary, self.sketch.width])
    }

    fn loss(&mut self) -> Graph {
        let (mut graph, hidden) = self.hidden();
        let head = self.head(&mut graph);
        let [targets, scale, loss] = ["targets", "loss_scale", "loss"].map(|name| self.input(&mut graph, name));
        let op = VocabLoss::new(None, 2);
        graph.apply(op, &[hidden, head, targets, scale, loss], "loss", Class::NONE).expect("valid");
        graph
    }

    fn sample(&mut self) -> Graph {
        let (mut graph, hidden) = self.hidden();
        let operands = [hidden, self.head(&mut graph), self.input(&mut graph, "boundaries")];
        let op = LastLogits { softcap: None, sequences: SEQUENCES };
        let logits = graph.apply(op, &operands, "logits", Class::NONE).expect("valid");
        graph.results.push(logits);
        graph
    }

    fn update(&mut self, trained: &[SlotId], grads: &[SlotId]) -> Graph {
        let mut graph = Graph::new();
        graph.set_phase(Phase::Update);
        let mut operands = vec![self.input(&mut graph, "clip")];
        operands.extend(grads.iter().map(|&g| graph.slot(&self.slots, g).expect("small")));
        let clip =
            graph.apply(GlobalNorm { max_norm: None, scaled: false }, &operands, "clip", Class::NONE).expect("valid");
        let hyper = self.input(&mut graph, "hyper");
        for (&parameter, &grad) in trained.iter().zip(grads) {
            let Slot { name, shape, .. } = self.slots.get(parameter).clone();
            let moments: &[&str] = if self.sketch.adamw { &["m", "v"] } else { &["m"] };
            let moments: Vec<ValueId> = moments
                .iter()
                .map(|kind| {
                    let slot = self.add(
                        &format!("{kind}:{name}"),
                        shape.dims(),
                        DType::F32,
                        Role::OptimizerState,
                        Extent::Fixed,
                    );
                    graph.slot(&self.slots, slot).expect("small")
                })
                .collect();
            let [weight, grad] = [parameter, grad].map(|slot| graph.slot(&self.slots, slot).expect("small"));
            if self.sketch.adamw {
                let op = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, master: false };
                let operands = [weight, grad, moments[0], moments[1], hyper, clip];
                graph.apply_all(op, &operands, &[("", Class::NONE); 4]).expect("valid");
            } else {
                let op = Sgd { momentum: 0.9, weight_decay: 0.0, master: false };
                graph.apply_all(op, &[weight, grad, hyper, clip, moments[0]], &[("", Class::NONE); 3]).expect("valid");
            }
        }
        graph
    }
}
