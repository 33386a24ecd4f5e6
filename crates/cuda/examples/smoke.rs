//! A first look at a card: one product and one loss against plain sums on the host, then the rate
//! of a large product. `cargo run --release -p plimsoll-cuda --example smoke`

#![expect(clippy::print_stdout, reason = "prints its findings")]

use std::error::Error;
use std::process::ExitCode;

use plimsoll_cuda::CudaBackend;
use plimsoll_graph::ops::{Linear, LossGrad, VocabLoss};
use plimsoll_graph::{Alias, Class, DType, Extent, Io, Op, OpRule, Phase, Role, Shape, Value, ValueId};
use plimsoll_plan::{Buffer, Lane, Place, Region, Step};
use plimsoll_runtime::{Active, Backend};

const GIB: f64 = (1u64 << 30) as f64;
const ALIGNMENT: usize = 256;
const TIMED_RUNS: usize = 20;

fn main() -> ExitCode {
    match look() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn look() -> Result<(), Box<dyn Error>> {
    let mut cuda = CudaBackend::new(0)?;
    let memory = cuda.memory()?;
    let (free, total) = (memory.free_bytes as f64 / GIB, memory.total_bytes as f64 / GIB);
    println!(
        "{} ({:?}, {} SMs), {free:.2} of {total:.2} GiB free",
        cuda.name(),
        cuda.compute_capability(),
        cuda.sm_count()
    );
    cuda.allocate(1 << 30)?;
    println!("after the arena of 1 GiB: {:.2} GiB free", cuda.memory()?.free_bytes as f64 / GIB);
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        println!("linear {}: relative error {:.2e}", dtype.name(), linear(&mut cuda, dtype)?);
        let (loss, gradient) = loss(&mut cuda, dtype)?;
        println!("vocab_loss {}: relative error {loss:.2e}, of d_hidden {gradient:.2e}", dtype.name());
    }
    for picked in [false, true] {
        let (first, median) = rate(&mut cuda, 4096, picked)?;
        let label = if picked { "picked by timing" } else { "heuristic's first" };
        println!("4096 x 4096 x 4096 bf16, {label}: {median:.0} TFLOP/s (first run {first:.2} ms)");
    }
    Ok(())
}

/// Numbers that look random and are the same every time, in [-1, 1).
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A number as it is after being stored, and its bytes.
fn stored(x: f32, dtype: DType) -> (f32, Vec<u8>) {
    match dtype {
        DType::F32 => (x, x.to_le_bytes().to_vec()),
        DType::BF16 => {
            let bits = (x.to_bits() + 0x7fff + ((x.to_bits() >> 16) & 1)) >> 16;
            (f32::from_bits(bits << 16), (bits as u16).to_le_bytes().to_vec())
        }
        // The numbers used here are normal in f16, so that cutting the mantissa is all there is to it.
        _ => {
            let bits = x.to_bits() & 0xffff_e000;
            if x.abs() < 1e-4 {
                return (0.0, vec![0, 0]);
            }
            let exponent = ((bits >> 23) & 0xff) as i32 - 127 + 15;
            let half = ((bits >> 16) & 0x8000) | ((exponent as u32) << 10) | ((bits >> 13) & 0x3ff);
            (f32::from_bits(bits), (half as u16).to_le_bytes().to_vec())
        }
    }
}

fn loaded(bytes: &[u8], dtype: DType) -> Vec<f64> {
    let pairs = || bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]])));
    match dtype {
        DType::F32 => bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect(),
        DType::BF16 => pairs().map(|bits| f64::from(f32::from_bits(bits << 16))).collect(),
        _ => pairs().map(from_half).collect(),
    }
}

fn from_half(bits: u32) -> f64 {
    let (exponent, mantissa) = ((bits >> 10) & 31, f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 => f64::NAN,
        _ => (1024.0 + mantissa) * 2f64.powi(exponent as i32 - 25),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

/// Random input of a type: as the card will see it, and its bytes.
fn input(count: usize, seed: u32, dtype: DType) -> (Vec<f64>, Vec<u8>) {
    let stored: Vec<(f32, Vec<u8>)> = numbers(count, seed).into_iter().map(|x| stored(x, dtype)).collect();
    (stored.iter().map(|(x, _)| f64::from(*x)).collect(), stored.into_iter().flat_map(|(_, bytes)| bytes).collect())
}

fn value(shape: &[usize], dtype: DType, extent: Extent) -> Value {
    Value {
        name: String::new(),
        shape: Shape::new(shape),
        dtype,
        role: Role::Input,
        extent,
        layer: None,
        class: Class::NONE,
        slot: None,
    }
}

/// Inputs, outputs and workspace one behind another; outputs take an input's place only where they must.
fn lay_out(op: Op, inputs: &[Value], cuda: &CudaBackend) -> Result<Step, Box<dyn Error>> {
    let references: Vec<&Value> = inputs.iter().collect();
    let outputs = op.outputs(&references)?;
    let mut end = 0;
    let mut place = |bytes: usize| {
        let region = Region { place: Place::Device, offset: end, bytes };
        end = (end + bytes).next_multiple_of(ALIGNMENT);
        region
    };
    let buffer = |index: usize, value: &Value, region| Buffer {
        value: ValueId(index as u32),
        slot: None,
        region,
        shape: value.shape,
        dtype: value.dtype,
        extent: value.extent,
    };
    let placed: Vec<Buffer> = inputs.iter().enumerate().map(|(i, v)| buffer(i, v, place(v.bytes()))).collect();
    let mut results = Vec::new();
    for (index, value) in outputs.iter().enumerate() {
        let shared = op.aliases().into_iter().find_map(|alias| match alias {
            Alias::Must { output, input } if output == index => Some(placed[input].region),
            _ => None,
        });
        results.push(buffer(inputs.len() + index, value, shared.unwrap_or_else(|| place(value.bytes()))));
    }
    let io = Io { inputs: references, outputs: outputs.iter().collect() };
    let workspace = op.workspace_bytes(&io, &cuda.target());
    let workspace = (workspace > 0).then(|| place(workspace));
    Ok(Step {
        op,
        inputs: placed,
        outputs: results,
        workspace,
        lane: Lane::Compute,
        phase: Phase::Forward,
        layer: None,
        after: Vec::new(),
        frees: Vec::new(),
    })
}

/// ‖got − want‖ / ‖want‖.
fn error(got: &[f64], want: &[f64]) -> f64 {
    let squares = |differences: &mut dyn Iterator<Item = f64>| differences.map(|d| d * d).sum::<f64>().sqrt();
    squares(&mut got.iter().zip(want).map(|(g, w)| g - w)) / squares(&mut want.iter().copied())
}

fn run(cuda: &mut CudaBackend, step: &Step, contents: &[&[u8]], tokens: usize) -> Result<(), Box<dyn Error>> {
    for output in &step.outputs {
        cuda.fill(output.region, 0xff)?;
    }
    for (buffer, bytes) in step.inputs.iter().zip(contents) {
        cuda.write(buffer.region, bytes)?;
    }
    cuda.run(step, Active { tokens, sequences: 1 })?;
    cuda.synchronize()?;
    Ok(())
}

fn output(cuda: &CudaBackend, step: &Step, index: usize) -> Result<Vec<f64>, Box<dyn Error>> {
    let buffer = step.outputs[index];
    let mut bytes = vec![0; buffer.region.bytes];
    cuda.read(buffer.region, &mut bytes)?;
    Ok(loaded(&bytes, buffer.dtype))
}

fn linear(cuda: &mut CudaBackend, dtype: DType) -> Result<f64, Box<dyn Error>> {
    let (rows, depth, cols) = (70, 96, 48);
    let ((x, x_bytes), (w, w_bytes)) = (input(rows * depth, 1, dtype), input(cols * depth, 2, dtype));
    let (bias, bias_bytes) = input(cols, 3, dtype);
    let inputs = [
        value(&[rows, depth], dtype, Extent::Tokens),
        value(&[cols, depth], dtype, Extent::Fixed),
        value(&[cols], dtype, Extent::Fixed),
    ];
    let op = Linear { alpha: 0.5, bias: true, ..Linear::forward() };
    let step = lay_out(op.into(), &inputs, cuda)?;
    run(cuda, &step, &[&x_bytes, &w_bytes, &bias_bytes], rows)?;
    let dot = |row: usize, col: usize| (0..depth).map(|k| x[row * depth + k] * w[col * depth + k]).sum::<f64>();
    let want: Vec<f64> = (0..rows * cols).map(|i| 0.5 * dot(i / cols, i % cols) + bias[i % cols]).collect();
    Ok(error(&output(cuda, &step, 0)?, &want))
}

/// Errors of the loss and of the hidden states' gradient.
fn loss(cuda: &mut CudaBackend, dtype: DType) -> Result<(f64, f64), Box<dyn Error>> {
    let (rows, dim, vocabulary, scale) = (37, 64, 1000, 0.25f32);
    let ((h, h_bytes), (w, w_bytes)) = (input(rows * dim, 4, dtype), input(vocabulary * dim, 5, dtype));
    // Every fifth row bears no loss.
    let targets: Vec<i32> = (0..rows as i32).map(|row| if row % 5 == 4 { -1 } else { row * 26 }).collect();
    let target_bytes: Vec<u8> = targets.iter().flat_map(|t| t.to_le_bytes()).collect();
    let inputs = [
        value(&[rows, dim], dtype, Extent::Tokens),
        value(&[vocabulary, dim], dtype, Extent::Fixed),
        value(&[rows], DType::I32, Extent::Tokens),
        value(&[1], DType::F32, Extent::Fixed),
        value(&[1], DType::F64, Extent::Fixed),
    ];
    let op = VocabLoss { softcap: Some(20.0), chunks: 2, grad: Some(LossGrad { weight: false }) };
    let step = lay_out(op.into(), &inputs, cuda)?;
    let zero = 0f64.to_le_bytes();
    run(cuda, &step, &[&h_bytes, &w_bytes, &target_bytes, &scale.to_le_bytes(), &zero], rows)?;
    let mut bytes = [0; 8];
    cuda.read(step.outputs[0].region, &mut bytes)?;

    let (mut total, mut d_hidden) = (0.0, vec![0.0; rows * dim]);
    for (row, &target) in targets.iter().enumerate().filter(|(_, target)| **target >= 0) {
        let logit = |v: usize| (0..dim).map(|k| h[row * dim + k] * w[v * dim + k]).sum::<f64>();
        let bends: Vec<f64> = (0..vocabulary).map(|v| (logit(v) / 20.0).tanh()).collect();
        let sum: f64 = bends.iter().map(|bend| (20.0 * bend).exp()).sum();
        total += sum.ln() - 20.0 * bends[target as usize];
        for (v, bend) in bends.iter().enumerate() {
            let share = (20.0 * bend).exp() / sum - f64::from(u8::from(v == target as usize));
            let slope = f64::from(scale) * share * (1.0 - bend * bend);
            (0..dim).for_each(|k| d_hidden[row * dim + k] += slope * w[v * dim + k]);
        }
    }
    let want = f64::from(scale) * total;
    Ok(((f64::from_le_bytes(bytes) - want).abs() / want, error(&output(cuda, &step, 1)?, &d_hidden)))
}

/// Milliseconds of the first run, and TFLOP/s of the median one, for a square product.
fn rate(cuda: &mut CudaBackend, side: usize, pick: bool) -> Result<(f32, f64), Box<dyn Error>> {
    let inputs = [value(&[side, side], DType::BF16, Extent::Tokens), value(&[side, side], DType::BF16, Extent::Fixed)];
    let step = lay_out(Linear::forward().into(), &inputs, cuda)?;
    let (_, bytes) = input(side * side, 6, DType::BF16);
    step.inputs.iter().try_for_each(|buffer| cuda.write(buffer.region, &bytes))?;
    let active = Active { tokens: side, sequences: 1 };
    if pick {
        cuda.pick_algorithms(std::slice::from_ref(&step), active)?;
    }
    let mut times: Vec<f64> = (0..=TIMED_RUNS).map(|_| cuda.run_timed(&step, active)).collect::<Result<_, _>>()?;
    let first = times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(((first * 1e3) as f32, 2.0 * (side as f64).powi(3) / times[TIMED_RUNS / 2] / 1e12))
}
