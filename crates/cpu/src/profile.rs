//! How fast this machine is, for the planner's cost model.

use std::time::{Duration, Instant};

use plimsoll_graph::ops::{Add, Attention, Heads, Linear};
use plimsoll_graph::{DType, Extent, GraphError, Io, Op, OpRule, Value};
use plimsoll_plan::Step;
use plimsoll_runtime::{Active, Backend, RuntimeError};

use crate::CpuBackend;
use crate::backend::device_error;
use crate::single_step::{lay_out, value};

/// Rates of all threads together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub matmul_flops_per_s: f64,
    pub attention_flops_per_s: f64,
    pub vector_bytes_per_s: f64,
}

/// Time given to each of the three.
const SPAN: Duration = Duration::from_millis(70);

/// Runs a product, an attention and a sum of typical shapes, a fifth of a second in all.
pub fn measure(threads: Option<usize>) -> Result<Rates, RuntimeError> {
    let tokens = |cols: usize| value(&[1024, cols], DType::F32, Extent::TOKENS);
    let weight = value(&[768, 512], DType::F32, Extent::Fixed);
    let heads = Heads { query: 4, kv: 4, head_dim: 64 };
    let attention = Attention::causal(heads, 0.125, None, 256);
    let boundaries = value(&[5], DType::I32, Extent::BOUNDARIES);
    let matmul = run(threads, Linear::forward().into(), &[tokens(512), weight], &[])?;
    let bounds: Vec<u8> = [0i32, 256, 512, 768, 1024].iter().flat_map(|b| b.to_ne_bytes()).collect();
    let qkv = tokens(heads.fused_cols());
    let attention = run(threads, attention.into(), &[qkv, boundaries], &[(1, &bounds)])?;
    let vector = run(threads, Add.into(), &[tokens(1536), tokens(1536)], &[])?;
    Ok(Rates {
        matmul_flops_per_s: matmul.flops / matmul.seconds,
        attention_flops_per_s: attention.flops / attention.seconds,
        vector_bytes_per_s: vector.bytes / vector.seconds,
    })
}

struct Timing {
    flops: f64,
    bytes: f64,
    /// Of the fastest run.
    seconds: f64,
}

fn run(threads: Option<usize>, op: Op, inputs: &[Value], contents: &[(usize, &[u8])]) -> Result<Timing, RuntimeError> {
    let graph_error = |error: GraphError| device_error(error.to_string());
    let mut backend = CpuBackend::new(threads);
    let (step, bytes) = lay_out(op, inputs, &backend.traits(), false).map_err(graph_error)?;
    backend.allocate(bytes)?;
    for &(index, bytes) in contents {
        backend.write(step.inputs[index].region, bytes)?;
    }
    let active = Active::one(inputs[0].shape.rows(), 4);
    backend.run(&step, active)?;
    let begin = Instant::now();
    let mut seconds = f64::INFINITY;
    while begin.elapsed() < SPAN {
        let start = Instant::now();
        backend.run(&step, active)?;
        seconds = seconds.min(start.elapsed().as_secs_f64());
    }
    let cost = cost(&step, inputs).map_err(graph_error)?;
    Ok(Timing { flops: cost.flops, bytes: cost.bytes, seconds })
}

fn cost(step: &Step, inputs: &[Value]) -> Result<plimsoll_graph::Cost, GraphError> {
    let inputs: Vec<&Value> = inputs.iter().collect();
    let outputs = step.op.outputs(&inputs)?;
    Ok(step.op.cost(&Io { inputs, outputs: outputs.iter().collect() }))
}
