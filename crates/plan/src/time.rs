//! How long a graph takes on a device: a roofline per operator.

use std::collections::BTreeMap;

use plimsoll_graph::{Class, Cost, DType, Graph, Io, Node, OpRule, Role, Unit, Value};

use crate::{Buffer, DeviceProfile, Step};

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
    let io = graph.io(node);
    let dtype = io.inputs[0].dtype;
    roofline(&node.op.cost(&io), io.inputs[0].shape.rows(), dtype, device)
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
    let cost = step.op.cost(&Io { inputs: inputs.iter().collect(), outputs: outputs.iter().collect() });
    let (_, seconds) = roofline(&cost, inputs[0].shape.rows(), inputs[0].dtype, device);
    (cost, seconds)
}

/// The longer of computing and moving bytes, and which of them it is.
fn roofline(cost: &Cost, rows: usize, dtype: DType, device: &DeviceProfile) -> (&'static str, f64) {
    let traffic_s = cost.bytes / device.memory_bytes_per_s;
    let (limit, compute_s) = match cost.unit {
        Unit::Matmul => {
            let tokens = rows as f64;
            let rate = device.matmul_flops_per_s(dtype) * tokens / (tokens + device.half_rate_tokens);
            ("matmul", cost.flops / rate)
        }
        Unit::Attention => ("attention", cost.flops / device.attention_flops_per_s),
        Unit::Vector => ("memory", 0.0),
    };
    if traffic_s > compute_s { ("memory", traffic_s + device.launch_s) } else { (limit, compute_s + device.launch_s) }
}
