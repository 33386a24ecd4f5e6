//! Running one operator on random inputs.

use plimsoll_cpu::CpuBackend;
use plimsoll_cpu::single_step::lay_out;
use plimsoll_graph::{DType, Op, Value};
use plimsoll_plan::Step;
use plimsoll_runtime::{Active, Backend};

/// What an input holds.
#[derive(Clone)]
pub enum Fill {
    Random,
    Floats(Vec<f32>),
    Ints(Vec<i32>),
    Double(f64),
    /// As it lies in memory.
    Bytes(Vec<u8>),
}

pub struct Case {
    pub op: Op,
    pub inputs: Vec<(Value, Fill)>,
    pub active: Active,
}

pub struct Outcome {
    /// What the float inputs held.
    pub inputs: Vec<Vec<f32>>,
    /// Bytes of the outputs' active rows.
    pub outputs: Vec<Vec<u8>>,
}

impl Outcome {
    pub fn floats(&self, output: usize) -> Vec<f32> {
        self.outputs[output].chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
    }

    pub fn double(&self, output: usize) -> f64 {
        f64::from_ne_bytes(self.outputs[output][..8].try_into().unwrap())
    }
}

/// Numbers between -1 and 1 that depend on the seed alone.
pub fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Runs the case on a fresh backend whose arena starts out as NaN.
pub fn run(case: &Case, threads: usize, in_place: bool) -> Outcome {
    let mut backend = CpuBackend::new(Some(threads));
    let values: Vec<Value> = case.inputs.iter().map(|(v, _)| v.clone()).collect();
    let (step, bytes) = lay_out(case.op.clone(), &values, &backend.traits(), in_place).unwrap();
    backend.allocate(bytes).unwrap();
    let whole = plimsoll_plan::Region { place: plimsoll_plan::Place::Device, offset: 0, bytes };
    backend.write(whole, &vec![0xff; bytes]).unwrap();
    let mut inputs = Vec::new();
    for (index, (value, fill)) in case.inputs.iter().enumerate() {
        let floats = match fill {
            Fill::Random => random(value.shape.elements(), index as u64 + 1),
            Fill::Floats(floats) => floats.clone(),
            _ => Vec::new(),
        };
        let bytes: Vec<u8> = match fill {
            Fill::Ints(ints) => ints.iter().flat_map(|i| i.to_ne_bytes()).collect(),
            Fill::Double(double) => double.to_ne_bytes().to_vec(),
            Fill::Bytes(bytes) => bytes.clone(),
            _ => floats.iter().flat_map(|f| f.to_ne_bytes()).collect(),
        };
        backend.write(step.inputs[index].region, &bytes).unwrap();
        inputs.push(floats);
    }
    backend.run(&step, case.active).unwrap();
    Outcome { inputs, outputs: read_outputs(&backend, &step, case.active) }
}

fn read_outputs(backend: &CpuBackend, step: &Step, active: Active) -> Vec<Vec<u8>> {
    let read = |buffer: &plimsoll_plan::Buffer| {
        let element = if buffer.dtype() == DType::F64 { 8 } else { 4 };
        let mut bytes = vec![0; active.rows(buffer) * buffer.shape.cols() * element];
        backend.read(buffer.region, &mut bytes).unwrap();
        bytes
    };
    step.outputs.iter().map(read).collect()
}
