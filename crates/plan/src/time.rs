//! How long a graph takes on a device: a roofline per operator.

use std::collections::BTreeMap;

use plimsoll_graph::ops::{Dest, Linear, LinearKind, LossGrad, VocabLoss};
use plimsoll_graph::{Class, Cost, Graph, Io, Node, Op, OpRule, Role, Unit, Value};

use crate::{Backing, Buffer, DeviceProfile, Step};

/// Predicted time of one run of a graph.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Estimate {
    pub seconds: f64,
    /// Share of each limit: `matmul`, `attention`, `memory`.
    pub by_limit: BTreeMap<&'static str, f64>,
}

impl Estimate {
    pub fn bound_by(&self) -> &'static str {
        self.by_limit.iter().max_by(|a, b| a.1.total_cmp(b.1)).map_or("nothing", |(name, _)| name)
    }

    /// This estimate `times` over, then another.
    pub fn then(&self, times: f64, other: &Estimate) -> Estimate {
        let mut sum = other.clone();
        sum.seconds += self.seconds * times;
        for (limit, seconds) in &self.by_limit {
            *sum.by_limit.entry(limit).or_default() += seconds * times;
        }
        sum
    }
}

pub fn estimate(graph: &Graph, device: &DeviceProfile) -> Estimate {
    let mut total = Estimate::default();
    for node in &graph.nodes {
        let (limit, seconds) = node_seconds(graph, node, device);
        total.seconds += seconds;
        *total.by_limit.entry(limit).or_default() += seconds;
    }
    total
}

fn node_seconds(graph: &Graph, node: &Node, device: &DeviceProfile) -> (&'static str, f64) {
    operator_seconds(&node.op, &graph.io(node), device)
}

/// Work of a scheduled step with a full micro-batch, and the seconds it should take.
pub fn step_cost(step: &Step, device: &DeviceProfile) -> (Cost, f64) {
    let value = |b: &Buffer| Value {
        name: String::new(),
        shape: b.shape,
        dtype: b.dtype,
        role: Role::Activation,
        extent: b.extent,
        layer: None,
        class: Class::NONE,
        slot: b.slot,
    };
    let (inputs, outputs): (Vec<Value>, Vec<Value>) =
        (step.inputs.iter().map(value).collect(), step.outputs.iter().map(value).collect());
    let io = Io { inputs: inputs.iter().collect(), outputs: outputs.iter().collect() };
    let (_, seconds) = operator_seconds(&step.op, &io, device);
    (step.op.cost(&io), seconds)
}

/// The longer of computing and moving bytes, and which of them it is.
fn operator_seconds(op: &Op, io: &Io, device: &DeviceProfile) -> (&'static str, f64) {
    let (limit, seconds) = match op {
        Op::Linear(linear) => product_seconds(linear, io, device),
        Op::VocabLoss(loss) => loss_seconds(loss, io, device),
        _ => other_seconds(op, io, device),
    };
    (limit, seconds + device.launch_s)
}

fn longer(limit: &'static str, compute_s: f64, traffic_s: f64) -> (&'static str, f64) {
    if traffic_s > compute_s { ("memory", traffic_s) } else { (limit, compute_s) }
}

fn other_seconds(op: &Op, io: &Io, device: &DeviceProfile) -> (&'static str, f64) {
    let cost = op.cost(io);
    let traffic_s = cost.bytes / device.operator_bytes_per_s(op.name());
    let attention = |length, gradient| cost.flops / device.attention_rate(length, gradient);
    match (cost.unit, op) {
        (_, Op::Attention(op)) => longer("attention", attention(op.max_length, false), traffic_s),
        (_, Op::AttentionGrad(op)) => longer("attention", attention(op.0.max_length, true), traffic_s),
        (Unit::Matmul, _) => {
            let rows = io.inputs[0].shape.rows();
            let rate = device.product_rate(io.inputs[0].dtype, rows, [rows, usize::MAX, usize::MAX]);
            longer("matmul", cost.flops / rate, traffic_s)
        }
        _ => ("memory", traffic_s),
    }
}

/// A product with tokens. Those of adapters are so narrow that they are a matter of bytes.
fn product_seconds(op: &Linear, io: &Io, device: &DeviceProfile) -> (&'static str, f64) {
    let cost = op.cost(io);
    let (tokens, wide, out) = op.dims(&io.inputs);
    let dtype = io.inputs[0].dtype;
    let shape = match op.kind {
        LinearKind::Forward => [tokens, out, wide],
        LinearKind::InputGrad => [tokens, wide, out],
        LinearKind::WeightGrad => [out, wide, tokens],
    };
    let measured = device.measured.as_ref();
    if let (Some(measured), Some(name)) = (measured, narrow_name(op.kind, wide, out)) {
        return ("memory", product_bytes(op, io) / measured.bytes_per_s(name));
    }
    // Columns that a product leaves alone are not moved.
    let bytes = if measured.is_some() { product_bytes(op, io) } else { cost.bytes };
    let compute_s = cost.flops / device.product_rate(dtype, tokens, shape);
    longer("matmul", compute_s, bytes / device.memory_bytes_per_s)
}

/// What a product with tokens reads and writes.
pub fn product_bytes(op: &Linear, io: &Io) -> f64 {
    let (tokens, wide, out) = op.dims(&io.inputs);
    let size = io.inputs[0].dtype.bytes();
    let again = usize::from(op.dest == Dest::Accumulate);
    let bytes = match op.kind {
        LinearKind::Forward => size * (tokens * wide + out * wide + tokens * out * (1 + again)),
        LinearKind::InputGrad => size * (tokens * out + out * wide + tokens * wide * (1 + again)),
        LinearKind::WeightGrad => size * tokens * (wide + out) + 2 * io.outputs[0].bytes(),
    };
    bytes as f64
}

/// Columns up to which a side of a product is narrow.
const NARROW_MAX: usize = 64;

/// Under which name the rate of an adapter's product is measured; `None` for products that are no such.
pub fn narrow_name(kind: LinearKind, wide: usize, out: usize) -> Option<&'static str> {
    let (narrow, other) = (wide.min(out), wide.max(out));
    if narrow > NARROW_MAX || other < 4 * narrow {
        return None;
    }
    Some(match (kind, out < wide) {
        (LinearKind::Forward, true) => "linear_down",
        (LinearKind::Forward, false) => "linear_up",
        (LinearKind::InputGrad, true) => "linear_down_input_grad",
        (LinearKind::InputGrad, false) => "linear_up_input_grad",
        (LinearKind::WeightGrad, true) => "linear_down_weight_grad",
        (LinearKind::WeightGrad, false) => "linear_up_weight_grad",
    })
}

/// Products chunk by chunk, and between them passes over the logits, which no product hides.
fn loss_seconds(op: &VocabLoss, io: &Io, device: &DeviceProfile) -> (&'static str, f64) {
    let compute_s = loss_products_seconds(op, io, device);
    let traffic_s = match device.backing {
        Backing::Gpu => loss_bytes(op, io) / device.operator_bytes_per_s(op.name()),
        Backing::Host => 0.0,
    };
    ("matmul", compute_s + traffic_s)
}

pub fn loss_products_seconds(op: &VocabLoss, io: &Io, device: &DeviceProfile) -> f64 {
    let (tokens, dim) = (io.inputs[0].shape.rows(), io.inputs[0].shape.cols());
    let (words, dtype) = (io.inputs[1].shape.rows(), io.inputs[0].dtype);
    let rows = op.chunk_rows(tokens);
    let flops = 2.0 * (tokens * dim) as f64 * words as f64;
    let product =
        |shape| flops / device.product_rate(dtype, if device.measured.is_some() { rows } else { tokens }, shape);
    let logits = product([rows, words, dim]);
    match op.grad {
        None => logits,
        Some(LossGrad { weight: false }) => logits + product([rows, dim, words]),
        Some(LossGrad { weight: true }) => logits + product([rows, dim, words]) + product([words, dim, rows]),
    }
}

/// Logits are written and read as float32, twice for their gradient, which is written in the products' type.
pub fn loss_bytes(op: &VocabLoss, io: &Io) -> f64 {
    let logits = (io.inputs[0].shape.rows() * io.inputs[1].shape.rows()) as f64;
    let gradient = if op.grad.is_some() { 4 + io.inputs[0].dtype.bytes() } else { 0 };
    logits * (4 + 4 + gradient) as f64
}
