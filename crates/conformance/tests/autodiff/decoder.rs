//! A small decoder as a forward graph, in the variants that models come in.

use plimsoll_conformance::{Data, Random, Tensor};
use plimsoll_graph::ops::*;
use plimsoll_graph::{Class, DType, Extent, Graph, Op, Role, Slot, SlotTable, ValueId};
use plimsoll_runtime::Active;

const VOCAB: usize = 13;
const DIM: usize = 8;
const FFN: usize = 6;
const HEADS: Heads = Heads { query: 4, kv: 2, head_dim: 4 };
const ROWS: usize = 12;
const LENGTHS: [usize; 4] = [5, 1, 2, 1];
/// How full the micro-batch is.
pub const ACTIVE: Active = Active::one(9, 4);

/// A forward graph and what its slots hold.
pub struct Model {
    pub graph: Graph,
    pub slots: SlotTable,
    random: Random,
    pub content: Vec<(ValueId, Tensor)>,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self { graph: Graph::new(), slots: SlotTable::default(), random: Random::new(seed), content: Vec::new() }
    }

    fn slot(&mut self, name: &str, role: Role, tensor: Tensor) -> ValueId {
        let (shape, dtype, extent) = (tensor.shape, tensor.dtype(), tensor.extent);
        let id = self
            .slots
            .add(Slot { name: name.to_owned(), shape, storage: dtype.into(), role, extent, layer: None })
            .expect("small");
        let value = self.graph.slot(&self.slots, id).expect("small");
        self.content.push((value, tensor));
        value
    }

    /// Around one for norms (rank 1), small for matrices.
    fn parameter(&mut self, name: &str, shape: &[usize]) -> ValueId {
        let mut tensor = self.random.fixed(shape);
        if let (Data::F32(data), 1) = (&mut tensor.data, shape.len()) {
            data.iter_mut().for_each(|x| *x = 1.0 + 0.5 * *x);
        }
        let role = if name.ends_with(".A") || name.ends_with(".B") { Role::Adapter } else { Role::Weight };
        self.slot(name, role, tensor)
    }

    fn apply(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> ValueId {
        self.graph.apply(op, inputs, "", Class::NONE).expect("a valid operator")
    }

    /// For operators that save something behind their result.
    fn apply_all<const N: usize>(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> [ValueId; N] {
        let outputs = self.graph.apply_all(op, inputs, &[("", Class::NONE); N]).expect("a valid operator");
        outputs.try_into().expect("as many as named")
    }

    pub fn named(&self, name: &str) -> ValueId {
        let slot = self.slots.find(name).unwrap_or_else(|| panic!("no slot {name}"));
        self.content.iter().map(|(v, _)| *v).find(|v| self.graph.value(*v).slot == Some(slot)).expect("in the graph")
    }

    pub fn all_weights(&self) -> Vec<ValueId> {
        self.content.iter().map(|(v, _)| *v).filter(|v| self.graph.value(*v).role == Role::Weight).collect()
    }
}

#[derive(Clone, Copy)]
pub struct Lora {
    pub rank: usize,
    pub p: f32,
}

#[derive(Clone, Copy)]
pub struct Options {
    pub layers: usize,
    pub bias: bool,
    /// Queries, keys and values by three products into one row.
    pub split_qkv: bool,
    pub qk_norm: bool,
    /// Norms with mean and bias, except where they take in the residual sum.
    pub layer_norm: bool,
    /// What is added to the weights of norms.
    pub norm_offset: f32,
    /// Columns of each head that turn with the position.
    pub rotated: usize,
    pub window: Option<usize>,
    /// The residual sum as part of the next norm, or of the product before it.
    pub fused_residual: bool,
    pub gated: bool,
    pub activation: Activation,
    pub embed_dropout: bool,
    pub tied: bool,
    pub softcap: Option<f32>,
    /// Tokens of different weight, and their likelihoods beside the loss.
    pub weighted: bool,
    /// So many classes for each sequence in place of one score; with `score`.
    pub classes: Option<usize>,
    pub lora: Option<Lora>,
    /// A score for each sequence instead of a distribution over words.
    pub score: bool,
    /// Every row is computed to the end, though only those of last tokens are scored.
    pub all_rows: bool,
}

pub const PLAIN: Options = Options {
    layers: 1,
    bias: false,
    split_qkv: false,
    qk_norm: false,
    layer_norm: false,
    norm_offset: 0.0,
    rotated: HEADS.head_dim,
    window: None,
    fused_residual: false,
    gated: true,
    activation: Activation::Silu,
    embed_dropout: false,
    tied: false,
    softcap: None,
    weighted: false,
    classes: None,
    lora: None,
    score: false,
    all_rows: false,
};

/// What every layer reads beside its weights.
#[derive(Clone, Copy)]
struct Inputs {
    positions: ValueId,
    table: ValueId,
    boundaries: ValueId,
    row_ids: ValueId,
    key: ValueId,
}

/// A small decoder with its loss. Weights are slots named as they are used.
pub fn decoder(options: Options, seed: u64) -> Model {
    let mut m = Model::new(seed);
    let tokens = m.random.token_ints(ROWS, VOCAB);
    let tokens = m.slot("tokens", Role::Input, tokens);
    let positions = Tensor::token_ints(vec![0, 1, 2, 3, 4, 0, 0, 1, 0, 0, 0, 0]);
    let table = m.random.fixed(&[5, options.rotated]);
    let row_ids = Tensor::row_ids((0..ROWS as u32).map(|i| 100 + 7 * i).collect());
    let inputs = Inputs {
        positions: m.slot("positions", Role::Input, positions),
        table: m.slot("rope", Role::Input, table),
        boundaries: m.slot("boundaries", Role::Input, Tensor::boundaries(&LENGTHS, 5)),
        row_ids: m.slot("row_ids", Role::Input, row_ids),
        key: m.slot("key", Role::Input, Tensor::rng_key([3, 1, 4, 1])),
    };
    let embedding = m.parameter("embedding", &[VOCAB, DIM]);
    let mut x = m.apply(Embed { dtype: DType::F32, scale: 1.0, padding: None }, &[embedding, tokens]);
    if options.embed_dropout {
        x = m.apply(Dropout { p: 0.25, site: 1000 }, &[x, inputs.row_ids, inputs.key]);
    }
    for layer in 0..options.layers {
        x = decoder_layer(&mut m, options, layer, x, &inputs);
    }
    let hidden = norm(&mut m, options, "final_norm", x);
    let hidden = match options.score && options.all_rows {
        true => m.apply(LastRows, &[hidden, inputs.boundaries]),
        false => hidden,
    };
    let scale = m.slot("scale", Role::Input, Tensor::fixed(&[1], vec![1.0 / 7.0]));
    let loss = m.slot("loss", Role::Loss, Tensor::new(&[1], Extent::Fixed, Data::F64(vec![0.0])));
    if options.score {
        sequence_loss(&mut m, options, [hidden, inputs.boundaries, scale, loss]);
        return m;
    }
    let head = if options.tied { embedding } else { m.parameter("head", &[VOCAB, DIM]) };
    let targets = m.slot("targets", Role::Input, Tensor::token_ints(vec![4, -100, 0, 12, 7, 7, -100, 3, 1, 5, 5, 5]));
    let op = VocabLoss::new(options.softcap, 2);
    if options.weighted {
        let weights = (0..ROWS).map(|row| [1.5, 0.0, -0.75, 1.0, 0.25][row % 5]).collect();
        let weights = m.slot("weights", Role::Input, Tensor::new(&[ROWS], Extent::TOKENS, Data::F32(weights)));
        let op = VocabLoss { weights: true, nll: true, ..op };
        m.apply_all::<2>(op, &[hidden, head, targets, scale, loss, weights]);
    } else {
        m.apply(op, &[hidden, head, targets, scale, loss]);
    }
    m
}

/// Over pairs of sequences, or over their classes.
fn sequence_loss(m: &mut Model, options: Options, [hidden, boundaries, scale, loss]: [ValueId; 4]) {
    let weight = m.parameter("score", &[options.classes.unwrap_or(1), DIM]);
    let zeros = |len: usize| Tensor::new(&[len], Extent::Fixed, Data::F64(vec![0.0; len]));
    if let Some(classes) = options.classes {
        let labels = [0, -1, classes as i32 - 1, 1, 0].to_vec();
        let labels = m.slot("labels", Role::Input, Tensor::new(&[labels.len()], Extent::SEQUENCES, Data::I32(labels)));
        let stats = m.slot("stats", Role::Loss, zeros(CLASS_STATS));
        m.apply_all::<2>(ClassLoss { grad: None }, &[hidden, weight, labels, scale, loss, stats]);
    } else {
        let stats = m.slot("stats", Role::Loss, zeros(PAIR_STATS));
        m.apply_all::<2>(PairLoss { grad: None }, &[hidden, weight, boundaries, scale, loss, stats]);
    }
}

/// A norm by itself, with its parameters.
fn norm(m: &mut Model, options: Options, name: &str, x: ValueId) -> ValueId {
    let weight = m.parameter(name, &[DIM]);
    if options.layer_norm {
        let bias = m.parameter(&format!("{name}_bias"), &[DIM]);
        let [normed, _mean, _rstd] = m.apply_all(LayerNorm { eps: 1e-3, weight: true, bias: true }, &[x, weight, bias]);
        return normed;
    }
    let op = RmsNorm { offset: options.norm_offset, ..RmsNorm::new(1e-3) };
    let [normed, _rstd] = m.apply_all(op, &[x, weight]);
    normed
}

fn decoder_layer(m: &mut Model, options: Options, layer: usize, x: ValueId, inputs: &Inputs) -> ValueId {
    let name = |part: &str| format!("{part}.{layer}");
    m.graph.set_layer(Some(layer as u32));
    let normed = norm(m, options, &name("attention_norm"), x);
    let mut qkv = project_qkv(m, options, layer, normed, inputs);
    if options.qk_norm {
        let weights =
            [m.parameter(&name("q_norm"), &[HEADS.head_dim]), m.parameter(&name("k_norm"), &[HEADS.head_dim])];
        let op = HeadNorm { offset: options.norm_offset, ..HeadNorm::new(HEADS, 1e-3) };
        [qkv, _] = m.apply_all(op, &[qkv, weights[0], weights[1]]);
    }
    let op = Rope { rotated: options.rotated, ..Rope::new(HEADS) };
    let qkv = m.apply(op, &[qkv, inputs.table, inputs.positions]);
    let op = Attention::causal(HEADS, 0.6, options.window, 5);
    let [attended, _lse] = m.apply_all(op, &[qkv, inputs.boundaries]);
    if options.score && !options.all_rows && layer + 1 == options.layers {
        // From here on only the last tokens count, and what is dropped of them is what would be dropped of all.
        let [x, attended, row_ids] =
            [x, attended, inputs.row_ids].map(|rows| m.apply(LastRows, &[rows, inputs.boundaries]));
        return rest_of_layer(m, options, layer, [x, attended], &Inputs { row_ids, ..*inputs });
    }
    rest_of_layer(m, options, layer, [x, attended], inputs)
}

/// What a layer does to each row by itself: the projection of what attention found, and the MLP.
fn rest_of_layer(
    m: &mut Model,
    options: Options,
    layer: usize,
    [x, attended]: [ValueId; 2],
    inputs: &Inputs,
) -> ValueId {
    let name = |part: &str| format!("{part}.{layer}");
    let (x, normed) = if options.fused_residual {
        let weight = m.parameter(&name("mlp_norm"), &[DIM]);
        let op = RmsNorm { offset: options.norm_offset, residual: true, ..RmsNorm::new(1e-3) };
        let out = linear(m, options, &name("o"), attended, DIM, None, inputs);
        let [x, normed, _rstd] = m.apply_all(op, &[x, out, weight]);
        (x, normed)
    } else {
        let x = linear(m, options, &name("o"), attended, DIM, Some(x), inputs);
        let normed = norm(m, options, &name("mlp_norm"), x);
        (x, normed)
    };
    let activated = if options.gated {
        gated(m, options, &name("gate_up"), normed, inputs)
    } else {
        let up = linear(m, options, &name("up"), normed, FFN, None, inputs);
        m.apply(Pointwise(options.activation), &[up])
    };
    if options.fused_residual {
        let down = onto_adapters(m, options, &name("down"), activated, DIM, inputs);
        m.apply(Add, &[x, down])
    } else {
        linear(m, options, &name("down"), activated, DIM, Some(x), inputs)
    }
}

/// The gated activation behind a product that is added onto what its adapters give.
fn gated(m: &mut Model, options: Options, name: &str, x: ValueId, inputs: &Inputs) -> ValueId {
    let weight = m.parameter(name, &[2 * FFN, DIM]);
    let gate_up = match options.lora {
        None => m.apply(Linear::forward(), &[x, weight]),
        Some(Lora { rank, p }) => {
            let blocks = halves(2 * FFN);
            let (low_rank, b) = low_rank_rows(m, name, x, (blocks.len(), rank, 2 * FFN), p, inputs);
            let adapted = m.apply(AdapterUp(Adapters { alpha: 0.7, blocks, total: 2 * FFN }), &[low_rank, b]);
            m.apply(Linear { dest: Dest::Accumulate, ..Linear::forward() }, &[x, weight, adapted])
        }
    };
    m.apply(Gated::new(options.activation), &[gate_up])
}

/// The columns of two adapters side by side.
fn halves(out: usize) -> Vec<Columns> {
    vec![Columns { start: 0, len: out / 2 }, Columns { start: out / 2, len: out - out / 2 }]
}

/// The low-rank rows of so many adapters of a rank, and their second matrices with so many rows in all.
fn low_rank_rows(
    m: &mut Model,
    name: &str,
    x: ValueId,
    (count, rank, out): (usize, usize, usize),
    p: f32,
    inputs: &Inputs,
) -> (ValueId, ValueId) {
    let features = m.graph.value(x).shape.cols();
    let a = m.parameter(&format!("{name}.A"), &[count * rank, features]);
    let b = m.parameter(&format!("{name}.B"), &[out, rank]);
    let site = m.slots.len() as u32;
    let down = Linear { alpha: 0.5, dropout: Some(InnerDropout { p, site }), ..Linear::forward() };
    (m.apply(down, &[x, a, inputs.row_ids, inputs.key]), b)
}

/// A product, added to `onto` if given, with its adapter behind it.
fn linear(
    m: &mut Model,
    options: Options,
    name: &str,
    x: ValueId,
    out: usize,
    onto: Option<ValueId>,
    inputs: &Inputs,
) -> ValueId {
    let features = m.graph.value(x).shape.cols();
    let weight = m.parameter(name, &[out, features]);
    let dest = if onto.is_some() { Dest::Accumulate } else { Dest::Fresh };
    let y = m.apply(Linear { dest, ..Linear::forward() }, &[&[x, weight], onto.as_slice()].concat());
    adapt(m, options, name, x, y, out, None, inputs)
}

/// A product added to what its adapter gives, as models have it: backward, the adapter is the last to give its share.
fn onto_adapters(m: &mut Model, options: Options, name: &str, x: ValueId, out: usize, inputs: &Inputs) -> ValueId {
    let Some(Lora { rank, p }) = options.lora else { return linear(m, options, name, x, out, None, inputs) };
    let blocks = vec![Columns { start: 0, len: out }];
    let (low_rank, b) = low_rank_rows(m, name, x, (1, rank, out), p, inputs);
    let adapted = m.apply(AdapterUp(Adapters { alpha: 0.7, blocks, total: out }), &[low_rank, b]);
    let features = m.graph.value(x).shape.cols();
    let weight = m.parameter(name, &[out, features]);
    m.apply(Linear { dest: Dest::Accumulate, ..Linear::forward() }, &[x, weight, adapted])
}

/// Adds `α·drop(x)·Aᵀ·Bᵀ` to (some columns of) `y`.
fn adapt(
    m: &mut Model,
    options: Options,
    name: &str,
    x: ValueId,
    y: ValueId,
    out: usize,
    cols: Option<Cols>,
    inputs: &Inputs,
) -> ValueId {
    let Some(Lora { rank, p }) = options.lora else { return y };
    // Where a row is not shared with other products, as two adapters side by side.
    let blocks = match cols {
        Some(_) => vec![Columns { start: 0, len: out }],
        None => halves(out),
    };
    let (small, b) = low_rank_rows(m, name, x, (blocks.len(), rank, out), p, inputs);
    if cols.is_some() {
        return m.apply(Linear { dest: Dest::Accumulate, cols, ..Linear::forward() }, &[small, b, y]);
    }
    let adapted = m.apply(AdapterUp(Adapters { alpha: 0.7, blocks, total: out }), &[small, b]);
    m.apply(Add, &[y, adapted])
}

fn project_qkv(m: &mut Model, options: Options, layer: usize, x: ValueId, inputs: &Inputs) -> ValueId {
    let total = HEADS.fused_cols();
    if !options.split_qkv {
        let name = format!("qkv.{layer}");
        let weight = m.parameter(&name, &[total, DIM]);
        let bias = options.bias.then(|| m.parameter(&format!("qkv_bias.{layer}"), &[total]));
        let op = Linear { bias: options.bias, ..Linear::forward() };
        let qkv = m.apply(op, &[&[x, weight], bias.as_slice()].concat());
        return adapt(m, options, &name, x, qkv, total, None, inputs);
    }
    let (q, kv) = (HEADS.query_cols(), HEADS.kv * HEADS.head_dim);
    let mut qkv: Option<ValueId> = None;
    for (part, start, len) in [("q", 0, q), ("k", q, kv), ("v", q + kv, kv)] {
        let name = format!("{part}.{layer}");
        let weight = m.parameter(&name, &[len, DIM]);
        let bias = options.bias.then(|| m.parameter(&format!("{part}_bias.{layer}"), &[len]));
        let cols = Some(Cols { start, len, total });
        let dest = if qkv.is_some() { Dest::Overwrite } else { Dest::Fresh };
        let op = Linear { bias: options.bias, dest, cols, ..Linear::forward() };
        let y = m.apply(op, &[&[x, weight], bias.as_slice(), qkv.as_slice()].concat());
        qkv = Some(adapt(m, options, &name, x, y, len, cols, inputs));
    }
    qkv.expect("three products")
}
