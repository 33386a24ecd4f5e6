//! How long a graph takes on a device: a roofline per operator.

use std::collections::BTreeMap;

use plimsoll_graph::{Class, Cost, Graph, Io, Op, OpRule, Product, Role, Value, Work};

use crate::{Backing, Buffer, DeviceProfile, Step};

/// Predicted time of one run of a graph.
#[derive(Debug, Clone, Default)]
pub struct Estimate {
    pub seconds: f64,
    /// Seconds of each limit: `matmul`, `attention`, `memory`, `launch`.
    by_limit: Vec<(&'static str, f64)>,
}

impl Estimate {
    pub fn bound_by(&self) -> &'static str {
        self.shares().into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("nothing", |(name, _)| name)
    }

    /// Share of the time, by limit.
    pub fn shares(&self) -> BTreeMap<&'static str, f64> {
        let sorted: BTreeMap<&'static str, f64> = self.by_limit.iter().copied().collect();
        let all: f64 = sorted.values().sum();
        sorted.into_iter().map(|(limit, seconds)| (limit, seconds / all.max(f64::MIN_POSITIVE))).collect()
    }

    /// This estimate `times` over, then another.
    pub fn then(&self, times: f64, other: &Estimate) -> Estimate {
        let mut sum = other.clone();
        sum.seconds += self.seconds * times;
        for &(limit, seconds) in &self.by_limit {
            *sum.of_limit(limit) += seconds * times;
        }
        sum
    }

    /// Then one more part.
    pub(crate) fn add(&mut self, (limit, seconds): (&'static str, f64)) {
        self.seconds += seconds;
        *self.of_limit(limit) += seconds;
    }

    fn of_limit(&mut self, limit: &'static str) -> &mut f64 {
        let known = self.by_limit.iter().position(|(name, _)| *name == limit);
        let index = known.unwrap_or(self.by_limit.len());
        if known.is_none() {
            self.by_limit.push((limit, 0.0));
        }
        &mut self.by_limit[index].1
    }
}

pub fn estimate(graph: &Graph, device: &DeviceProfile) -> Estimate {
    let mut total = Estimate::default();
    for node in &graph.nodes {
        operator_seconds(&node.op, &graph.io(node), device).into_iter().for_each(|part| total.add(part));
    }
    total
}

/// Work of a scheduled step with a full micro-batch, and the seconds it should take.
pub fn step_cost(step: &Step, device: &DeviceProfile) -> (Cost, f64) {
    let value = |b: &Buffer| Value {
        name: String::new(),
        shape: b.shape,
        storage: b.storage,
        role: Role::Activation,
        extent: b.extent,
        layer: None,
        class: Class::NONE,
        slot: b.slot,
    };
    let (inputs, outputs): (Vec<Value>, Vec<Value>) =
        (step.inputs.iter().map(value).collect(), step.outputs.iter().map(value).collect());
    let io = Io { inputs: inputs.iter().collect(), outputs: outputs.iter().collect() };
    let seconds = operator_seconds(&step.op, &io, device).iter().map(|(_, seconds)| seconds).sum();
    (step.op.cost(&io), seconds)
}

/// The parts of an operator, one behind another, each with what limits it.
pub(crate) fn operator_seconds(op: &Op, io: &Io, device: &DeviceProfile) -> Vec<(&'static str, f64)> {
    let name = op.rate_name(io);
    let mut parts: Vec<_> = op.work(io).iter().map(|work| work_seconds(work, name, device)).collect();
    parts.push(("launch", launch_seconds(op, device)));
    parts
}

/// Updates of many tensors share a launch on a GPU.
fn launch_seconds(op: &Op, device: &DeviceProfile) -> f64 {
    match device.backing {
        Backing::Gpu => device.launch_s / op.tensors_per_launch() as f64,
        Backing::Host => device.launch_s,
    }
}

/// The longer of computing and moving bytes, and which of them it is.
pub fn work_seconds(work: &Work, operator: &str, device: &DeviceProfile) -> (&'static str, f64) {
    let longer =
        |limit, compute_s, traffic_s| if traffic_s > compute_s { ("memory", traffic_s) } else { (limit, compute_s) };
    match *work {
        Work::Memory { bytes, .. } => ("memory", bytes / device.operator_bytes_per_s(operator)),
        Work::Attention { flops, bytes, length, key_rows, gradient, plain } => {
            let few_keys = device.measured.as_ref().filter(|_| gradient && plain);
            let waiting = few_keys.map_or(1.0, |rates| rates.waiting_for_keys(key_rows));
            let compute_s = flops / device.attention_rate(length, gradient, plain) * waiting;
            longer("attention", compute_s, bytes / device.operator_bytes_per_s(operator))
        }
        Work::Product(Product { flops, bytes, dtype, shape, tokens, low_rank }) => {
            if let (Some(measured), Some(name)) = (&device.measured, low_rank) {
                return ("memory", bytes / measured.bytes_per_s(name));
            }
            let compute_s = flops / device.product_rate(dtype, tokens, shape);
            longer("matmul", compute_s, bytes / device.memory_bytes_per_s)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use plimsoll_graph::ops::{AdamW, Add, CODED_UPDATE, HYPER_LEN, Linear, Lion, LossGrad, VocabLoss};
    use plimsoll_graph::{DType, Extent, Shape, StateStorage, WeightFormat};

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
        let operators =
            [("add", 2e12), ("linear_down", 1e12), ("vocab_loss", 4e12), ("adamw", 3e12), (CODED_UPDATE, 1.5e12)];
        let rates = CardRates {
            products16: rates(500e12),
            products32: rates(40e12),
            products8: Some(rates(900e12)),
            attention: vec![AttentionRate { length: 512, forward_flops_per_s: 2e14, gradient_flops_per_s: 1e14 }],
            operators: operators.into_iter().map(|(name, rate)| (name.to_owned(), rate)).collect::<BTreeMap<_, _>>(),
            copy_bytes_per_s: 2e12,
            to_device_bytes_per_s: 5e10,
            from_device_bytes_per_s: 4e10,
            launch_s: LAUNCH_S,
            late_bytes: 0,
            multiprocessors: 0,
            recorded_bytes_per_launch: 1024.0,
            sustained: Sustained {
                products_flops_per_s: 500e12,
                products8_flops_per_s: Some(900e12),
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
            storage: dtype.into(),
            role: Role::Activation,
            extent: Extent::Fixed,
            layer: None,
            class: Class::NONE,
            slot: None,
        }
    }

    /// Seconds of an operator on inputs of these shapes without the launch, and what limits its longest part.
    fn seconds(op: impl Into<Op>, inputs: &[Value]) -> (&'static str, f64) {
        let op = op.into();
        let inputs: Vec<&Value> = inputs.iter().collect();
        let outputs = op.outputs(&inputs).expect("shapes agree");
        let io = Io { inputs, outputs: outputs.iter().collect() };
        let parts = operator_seconds(&op, &io, &device());
        let longest = parts.iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("at least the launch");
        (longest.0, parts.iter().filter(|part| part.0 != "launch").map(|part| part.1).sum())
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

    /// A weight in few bits is decoded before it is multiplied; codes are multiplied by rows that are rounded first.
    #[test]
    fn weights_in_few_bits_cost_a_pass_before_the_product() {
        let weight = |format: WeightFormat| {
            let whole = value(&[8192, 8192], DType::BF16);
            let storage = format.storage(DType::BF16, &[whole.shape]).expect("whole blocks");
            [value(&[4096, 8192], DType::BF16), Value { storage, ..whole }]
        };
        let (flops, elements, rows) = (2.0 * 4096.0 * 8192.0 * 8192.0, 8192.0 * 8192.0, 4096.0 * 8192.0);
        let stored = |format| weight(format)[1].bytes() as f64;
        for format in [WeightFormat::Nf4, WeightFormat::Int8, WeightFormat::E4m3] {
            let expected_s = flops / 500e12 + (stored(format) + 2.0 * elements) / 2e12;
            check(seconds(Linear::forward(), &weight(format)), "matmul", expected_s);
        }
        let fp8 = Linear { fp8: true, ..Linear::forward() };
        check(seconds(fp8, &weight(WeightFormat::E4m3)), "matmul", flops / 900e12 + 3.0 * rows / 2e12);
    }

    #[test]
    fn low_rank_products_and_sums_go_by_their_bytes() {
        let tokens = || value(&[4096, 4096], DType::BF16);
        let wide = 4096.0 * 4096.0 * 2.0;
        check(seconds(Add, &[tokens(), tokens()]), "memory", 3.0 * wide / 2e12);
        let low_rank = 2.0 * 4096.0 * 16.0 * 2.0;
        let down = seconds(Linear::forward(), &[tokens(), value(&[16, 4096], DType::BF16)]);
        check(down, "memory", (wide + low_rank) / 1e12);
    }

    /// States in eight bits are fewer bytes, which take longer each, under any rule.
    #[test]
    fn updates_with_coded_states_have_a_rate_of_their_own() {
        let len = 1 << 20;
        let tensor = |dtype| value(&[len], dtype);
        let state = |storage: StateStorage, signed: bool| {
            let state =
                if signed { storage.signed("", Shape::new(&[len])) } else { storage.unsigned("", Shape::new(&[len])) };
            Value { storage: state.storage, ..tensor(DType::F32) }
        };
        let numbers = || [value(&[HYPER_LEN], DType::F32), value(&[2], DType::F32)];
        let of_numbers = (HYPER_LEN + 2) as f64 * 4.0;
        let adamw = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, master: false };
        let lion = Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.0, master: false };
        let pair = || vec![tensor(DType::BF16), tensor(DType::BF16)];
        let (codes, elements) = (len as f64 * (1.0 + 4.0 / 256.0), len as f64);
        for (storage, bytes, rate) in
            [(StateStorage::Bfloat16, 2.0 * elements, 3e12), (StateStorage::Int8, codes, 1.5e12)]
        {
            let inputs = [pair(), vec![state(storage, true), state(storage, false)], numbers().to_vec()].concat();
            check(
                seconds(adamw.clone(), &inputs),
                "memory",
                (2.0 * (4.0 * elements + 2.0 * bytes) + of_numbers) / rate,
            );
        }
        let inputs = [pair(), vec![state(StateStorage::Int8, true)], numbers().to_vec()].concat();
        check(seconds(lion, &inputs), "memory", (2.0 * (4.0 * elements + codes) + of_numbers) / 1.5e12);
    }

    /// Twice the products, one after another, and the passes over the logits on top of them.
    #[test]
    fn the_loss_is_products_and_passes() {
        let op = VocabLoss { grad: Some(LossGrad { weight: false }), ..VocabLoss::new(None, 1) };
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
