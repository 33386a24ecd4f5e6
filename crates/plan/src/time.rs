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
    (limit, seconds + launch_seconds(op, device))
}

/// Tensors that a GPU updates in one launch.
const UPDATES_PER_LAUNCH: f64 = 72.0;

fn launch_seconds(op: &Op, device: &DeviceProfile) -> f64 {
    match (op, device.backing) {
        (Op::AdamW(_) | Op::Sgd(_), Backing::Gpu) => device.launch_s / UPDATES_PER_LAUNCH,
        _ => device.launch_s,
    }
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
        // So narrow that they are a matter of bytes.
        (_, Op::AdapterUp(_) | Op::AdapterUpGrad(_)) if device.measured.is_some() => ("memory", traffic_s),
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
    (out < wide).then_some(match kind {
        LinearKind::Forward => "linear_down",
        LinearKind::InputGrad => "linear_down_input_grad",
        LinearKind::WeightGrad => "linear_down_weight_grad",
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use plimsoll_graph::ops::Add;
    use plimsoll_graph::{DType, Extent, Shape};

    use super::*;
    use crate::{AttentionRate, CardRates, ProductGrid, Sustained};

    const LAUNCH_S: f64 = 2e-6;

    fn device() -> DeviceProfile {
        let rates = |rate: f64| ProductGrid {
            rows: vec![256, 4096],
            cols: vec![1024],
            inner: vec![1024],
            flops_per_s: vec![rate / 2.0, rate],
        };
        let operators = [("add", 2e12), ("linear_down", 1e12), ("vocab_loss", 4e12)];
        let rates = CardRates {
            products16: rates(500e12),
            products32: rates(40e12),
            attention: vec![AttentionRate { length: 512, forward_flops_per_s: 2e14, gradient_flops_per_s: 1e14 }],
            operators: operators.into_iter().map(|(name, rate)| (name.to_owned(), rate)).collect::<BTreeMap<_, _>>(),
            copy_bytes_per_s: 2e12,
            to_device_bytes_per_s: 5e10,
            from_device_bytes_per_s: 4e10,
            launch_s: LAUNCH_S,
            late_bytes: 0,
            recorded_bytes_per_launch: 1024.0,
            kept: Sustained {
                products_flops_per_s: 500e12,
                attention_share: 1.0,
                moving_share: 1.0,
                rates: BTreeMap::new(),
            },
        };
        DeviceProfile::unknown_gpu().with_measured(Arc::new(rates))
    }

    fn value(dims: &[usize], dtype: DType) -> Value {
        Value {
            name: String::new(),
            shape: Shape::new(dims),
            dtype,
            role: Role::Activation,
            extent: Extent::Fixed,
            layer: None,
            class: Class::NONE,
            slot: None,
        }
    }

    /// Seconds of an operator on inputs of these shapes, without the launch.
    fn seconds(op: impl Into<Op>, inputs: &[Value]) -> (&'static str, f64) {
        let op = op.into();
        let inputs: Vec<&Value> = inputs.iter().collect();
        let outputs = op.outputs(&inputs).expect("shapes agree");
        let io = Io { inputs, outputs: outputs.iter().collect() };
        let (limit, seconds) = operator_seconds(&op, &io, &device());
        (limit, seconds - LAUNCH_S)
    }

    #[track_caller]
    fn check(found: (&'static str, f64), limit: &str, expected_s: f64) {
        assert_eq!(found.0, limit);
        assert!((found.1 / expected_s - 1.0).abs() < 1e-6, "{} s, not {expected_s}", found.1);
    }

    #[test]
    fn measured_rates_go_by_shape_and_type() {
        let product = |rows, dtype| [value(&[rows, 8192], dtype), value(&[8192, 8192], dtype)];
        let flops = |rows: f64| 2.0 * rows * 8192.0 * 8192.0;
        check(seconds(Linear::forward(), &product(4096, DType::BF16)), "matmul", flops(4096.0) / 500e12);
        check(seconds(Linear::forward(), &product(4096, DType::F32)), "matmul", flops(4096.0) / 40e12);
        // Halfway on a logarithmic scale between 256 and 4096.
        check(
            seconds(Linear::forward(), &product(1024, DType::BF16)),
            "matmul",
            flops(1024.0) / (500e12 / 2f64.sqrt()),
        );
    }

    #[test]
    fn narrow_products_and_sums_go_by_their_bytes() {
        let tokens = || value(&[4096, 4096], DType::BF16);
        let wide = 4096.0 * 4096.0 * 2.0;
        check(seconds(Add, &[tokens(), tokens()]), "memory", 3.0 * wide / 2e12);
        let narrow = 2.0 * 4096.0 * 16.0 * 2.0;
        let down = seconds(Linear::forward(), &[tokens(), value(&[16, 4096], DType::BF16)]);
        check(down, "memory", (wide + narrow) / 1e12);
    }

    /// Twice the products, one after another, and the passes over the logits on top of them.
    #[test]
    fn the_loss_is_products_and_passes() {
        let op = VocabLoss { softcap: None, chunks: 1, grad: Some(LossGrad { weight: false }) };
        let inputs = [
            value(&[4096, 1024], DType::BF16),
            value(&[32_000, 1024], DType::BF16),
            value(&[4096], DType::I32),
            value(&[1], DType::F32),
            value(&[1], DType::F64),
        ];
        let logits = 4096.0 * 32_000.0;
        check(seconds(op, &inputs), "matmul", 2.0 * 2.0 * logits * 1024.0 / 500e12 + logits * 14.0 / 4e12);
    }
}
