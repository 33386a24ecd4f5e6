//! What a card's driver takes besides the arena, step by step, and what was measured of the card.
//! `cargo run --release -p plimsoll-cuda --example footprint [ORDINAL]`

#![expect(clippy::print_stdout, reason = "prints its findings")]

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use plimsoll_cuda::CudaBackend;
use plimsoll_graph::ScheduleId;
use plimsoll_graph::ops::{Add, Linear};
use plimsoll_graph::{DType, Extent, Op};
use plimsoll_plan::Step;
use plimsoll_runtime::single_step::{lay_out, value};
use plimsoll_runtime::{Active, Backend};

const MIB: f64 = (1 << 20) as f64;
const ARENA_BYTES: usize = 1 << 30;

fn main() -> ExitCode {
    match look() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what is in use and how it has changed.
struct Steps {
    last: f64,
}

impl Steps {
    fn show(&mut self, what: &str, bytes: u64, seconds: Option<f64>) {
        let mib = bytes as f64 / MIB;
        let took = seconds.map_or(String::new(), |seconds| format!("{seconds:8.3} s"));
        println!("{what:<40} {mib:10.2} MiB {:+10.2} MiB {took}", mib - self.last);
        self.last = mib;
    }
}

fn step(cuda: &CudaBackend, op: Op, rows: usize, cols: usize, second: (usize, Extent)) -> Result<Step, Box<dyn Error>> {
    let inputs = [value(&[rows, cols], DType::BF16, Extent::TOKENS), value(&[second.0, cols], DType::BF16, second.1)];
    Ok(lay_out(op, &inputs, &cuda.traits(), true)?.0)
}

fn look() -> Result<(), Box<dyn Error>> {
    let ordinal = std::env::args().nth(1).map_or(Ok(0), |ordinal| ordinal.parse())?;
    let began = Instant::now();
    let mut cuda = CudaBackend::new(ordinal)?;
    let memory = cuda.memory()?;
    let (name, driver) = (cuda.name().to_owned(), cuda.driver_version().unwrap_or_else(|| "unknown".into()));
    println!("{name}, driver {driver}, taken in {:.3} s", began.elapsed().as_secs_f64());
    println!("{:.2} of {:.2} MiB free", memory.free_bytes as f64 / MIB, memory.total_bytes as f64 / MIB);
    println!("others: {:?}", cuda.others());
    let used = |cuda: &CudaBackend| cuda.used().ok_or("the driver tells nothing");
    println!("counted by {}", used(&cuda)?.counted.name());
    let mut steps = Steps { last: 0.0 };
    for (what, bytes) in cuda.footprint().to_vec() {
        steps.show(what, bytes, None);
    }
    let began = Instant::now();
    let profile = cuda.profile(true)?;
    steps.show("after measuring the card", used(&cuda)?.bytes, Some(began.elapsed().as_secs_f64()));
    let began = Instant::now();
    cuda.allocate(ARENA_BYTES)?;
    steps.show("arena of 1024 MiB, staging", used(&cuda)?.bytes, Some(began.elapsed().as_secs_f64()));
    let product = step(&cuda, Linear::forward().into(), 4096, 4096, (4096, Extent::Fixed))?;
    cuda.run(&product, Active::one(4096, 1))?;
    cuda.synchronize()?;
    steps.show("a product", used(&cuda)?.bytes, None);
    let sum = step(&cuda, Add.into(), 8, 8, (8, Extent::TOKENS))?;
    for (index, nodes) in [100, 1000, 3000, 10_000].into_iter().enumerate() {
        let many = vec![sum.clone(); nodes];
        // Each number of sequences is another recording; the second run records.
        let active = Active::one(8, index);
        let began = Instant::now();
        for _ in 0..3 {
            cuda.run_schedule(Some(ScheduleId::MICRO_STEP), &many, active)?;
            cuda.synchronize()?;
        }
        steps.show(&format!("{nodes} kernels recorded"), used(&cuda)?.bytes, Some(began.elapsed().as_secs_f64()));
    }
    println!("{:#?}", profile.rates);
    println!("kept in {:?}", profile.file);
    Ok(())
}
