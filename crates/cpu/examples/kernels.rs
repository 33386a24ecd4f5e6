//! Prints how fast each kernel runs at the shapes of a small decoder.
//!
//! ```text
//! cargo run --release -p plimsoll-cpu --example kernels [-- FILTER [THREADS]]
//! ```
//!
//! "wall" is the fastest run; "per core" divides the work by the processor time that all threads
//! used, which other programs on the machine disturb less.

#![expect(clippy::print_stdout, reason = "it is what the example is for")]

use std::time::Instant;

use plimsoll_cpu::CpuBackend;
use plimsoll_cpu::single_step::{lay_out, value};
use plimsoll_graph::ops::*;
use plimsoll_graph::{DType, Extent, Io, Op, OpRule, Value, Work};
use plimsoll_runtime::{Active, Backend};

/// A decoder's shapes at one micro-batch.
struct Model {
    name: &'static str,
    tokens: usize,
    length: usize,
    dim: usize,
    heads: usize,
    ffn: usize,
    vocabulary: usize,
}

const MODELS: [Model; 2] = [
    Model { name: "S", tokens: 2048, length: 256, dim: 384, heads: 6, ffn: 1024, vocabulary: 4096 },
    Model { name: "M", tokens: 1024, length: 256, dim: 768, heads: 12, ffn: 2048, vocabulary: 8192 },
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filter = arguments.first().map_or("", String::as_str);
    let threads = arguments.get(1).and_then(|t| t.parse().ok());
    println!("{:<44} {:>9} {:>15} {:>15}", "kernel", "ms", "wall", "per core");
    for model in &MODELS {
        for (name, op, inputs) in cases(model) {
            let name = format!("{} {name}", model.name);
            if name.contains(filter) {
                bench(&name, op, &inputs, model, threads);
            }
        }
    }
}

fn cases(m: &Model) -> Vec<(String, Op, Vec<Value>)> {
    let rows = |cols: usize| value(&[m.tokens, cols], DType::F32, Extent::TOKENS);
    let fixed = |shape: &[usize]| value(shape, DType::F32, Extent::Fixed);
    let ids = || value(&[m.tokens], DType::I32, Extent::TOKENS);
    let boundaries = || value(&[m.tokens / m.length + 1], DType::I32, Extent::BOUNDARIES);
    let heads = Heads { query: m.heads, kv: m.heads, head_dim: m.dim / m.heads };
    let mut cases: Vec<(String, Op, Vec<Value>)> = Vec::new();
    for (out, input) in
        [(3 * m.dim, m.dim), (2 * m.ffn, m.dim), (m.dim, m.ffn), (m.dim, m.dim), (16, m.dim), (m.dim, 16)]
    {
        let weight = || fixed(&[out, input]);
        let form = |kind, dest| Op::from(Linear { kind, dest, ..Linear::forward() });
        let shape = format!("{} x {out} x {input}", m.tokens);
        let forward = vec![rows(input), weight()];
        cases.push((format!("linear {shape}"), form(LinearKind::Forward, Dest::Fresh), forward));
        let input_grad = vec![rows(out), weight()];
        cases.push((format!("linear input grad {shape}"), form(LinearKind::InputGrad, Dest::Fresh), input_grad));
        let weight_grad = vec![rows(out), rows(input), weight()];
        cases.push((
            format!("linear weight grad {shape}"),
            form(LinearKind::WeightGrad, Dest::Accumulate),
            weight_grad,
        ));
    }
    let attention = Attention::causal(heads, 0.125, None, m.length);
    let (qkv, out) = (rows(heads.fused_cols()), rows(m.dim));
    let grad_inputs = vec![qkv.clone(), out.clone(), rows(m.heads), out.clone(), boundaries()];
    let mut add = |name: &str, op: Op, inputs: Vec<Value>| cases.push((name.to_owned(), op, inputs));
    add("attention", attention.clone().into(), vec![qkv.clone(), boundaries()]);
    add("attention grad", AttentionGrad(attention).into(), grad_inputs);
    add(
        "add + rms norm",
        RmsNorm { residual: true, ..RmsNorm::new(1e-5) }.into(),
        vec![rows(m.dim), rows(m.dim), fixed(&[m.dim])],
    );
    let grad = RmsNormGrad { weight: true, offset: 0.0, weight_grad: true, accumulate: true };
    add(
        "rms norm grad",
        grad.into(),
        vec![rows(m.dim), rows(1), rows(m.dim), fixed(&[m.dim]), rows(m.dim), fixed(&[m.dim])],
    );
    add(
        "head norm",
        HeadNorm::new(heads, 1e-5).into(),
        vec![qkv.clone(), fixed(&[heads.head_dim]), fixed(&[heads.head_dim])],
    );
    add("rope", Rope::new(heads).into(), vec![qkv, fixed(&[m.length, heads.head_dim]), ids()]);
    for (name, activation) in
        [("silu", Activation::Silu), ("gelu", Activation::Gelu), ("gelu tanh", Activation::GeluTanh)]
    {
        add(&format!("gated {name}"), Gated::new(activation).into(), vec![rows(2 * m.ffn)]);
        add(&format!("gated {name} grad"), GatedGrad::new(activation).into(), vec![rows(2 * m.ffn), rows(m.ffn)]);
    }
    add(
        "embed",
        Embed { dtype: DType::F32, scale: 1.0, padding: None }.into(),
        vec![fixed(&[m.vocabulary, m.dim]), ids()],
    );
    add(
        "embed grad",
        EmbedGrad { scale: 1.0, padding: None }.into(),
        vec![rows(m.dim), ids(), fixed(&[m.vocabulary, m.dim])],
    );
    add("add", Add.into(), vec![rows(m.dim), rows(m.dim)]);
    add(
        "dropout",
        Dropout { p: 0.1, site: 1 }.into(),
        vec![rows(m.dim), ids(), value(&[4], DType::U32, Extent::Fixed)],
    );
    let head =
        || vec![rows(m.dim), fixed(&[m.vocabulary, m.dim]), ids(), fixed(&[1]), value(&[1], DType::F64, Extent::Fixed)];
    add("vocab loss", VocabLoss::new(None, 4).into(), head());
    let grad = Some(LossGrad { weight: true });
    let inputs = [head(), vec![fixed(&[m.vocabulary, m.dim])]].concat();
    add("vocab loss + grads", VocabLoss { grad, ..VocabLoss::new(None, 4) }.into(), inputs);
    let parameter = || fixed(&[m.vocabulary, m.dim]);
    add(
        "global norm",
        GlobalNorm { max_norm: Some(1.0), scaled: false }.into(),
        vec![fixed(&[2]), parameter(), parameter()],
    );
    let adamw = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, master: false };
    add("adamw", adamw.into(), vec![parameter(), parameter(), parameter(), parameter(), fixed(&[4]), fixed(&[2])]);
    cases
}

fn bench(name: &str, op: Op, inputs: &[Value], model: &Model, threads: Option<usize>) {
    let mut backend = CpuBackend::new(threads);
    let (step, bytes) = lay_out(op.clone(), inputs, &backend.traits(), true).expect("the shapes agree");
    backend.allocate(bytes).expect("enough memory");
    let mut state = 1u32;
    for buffer in &step.inputs {
        let contents: Vec<u8> = match buffer.dtype() {
            DType::I32 if buffer.extent == Extent::BOUNDARIES => {
                (0..buffer.shape.rows()).flat_map(|i| ((i * model.length) as i32).to_ne_bytes()).collect()
            }
            DType::I32 => (0..buffer.shape.rows()).flat_map(|i| ((i % model.length) as i32).to_ne_bytes()).collect(),
            DType::F64 => vec![0; 8],
            _ => {
                let mut draw = || {
                    state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
                    (state >> 8) as f32 / (1 << 24) as f32
                };
                (0..buffer.shape.elements()).flat_map(|_| (0.1 * draw() + 0.01).to_ne_bytes()).collect()
            }
        };
        backend.write(buffer.region, &contents).expect("inside the arena");
    }
    let active = Active::one(model.tokens, model.tokens / model.length);
    let mut go = || backend.run(&step, active).expect("a valid step");
    go();
    let (begin, cpu_begin) = (Instant::now(), cpu_seconds());
    let (mut runs, mut best) = (0, f64::INFINITY);
    while runs < 3 || begin.elapsed().as_secs_f64() < 0.25 {
        let start = Instant::now();
        go();
        best = best.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    let cpu = (cpu_seconds() - cpu_begin) / f64::from(runs);
    let references: Vec<&Value> = inputs.iter().collect();
    let outputs = op.outputs(&references).expect("the shapes agree");
    let io = Io { inputs: references, outputs: outputs.iter().collect() };
    let (cost, moves) = (op.cost(&io), matches!(op.work(&io)[0], Work::Memory { .. }));
    let (work, unit) = if moves { (cost.bytes, "GB/s") } else { (cost.flops, "GFLOP/s") };
    let rate = |seconds: f64| format!("{:.1} {unit}", work / seconds / 1e9);
    println!("{name:<44} {:>9.3} {:>15} {:>15}", best * 1e3, rate(best), rate(cpu));
}

/// Processor time of all threads so far.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
