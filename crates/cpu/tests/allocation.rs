//! Running a step takes no memory but the arena.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_cpu::CpuBackend;
use plimsoll_cpu::single_step::{lay_out, value};
use plimsoll_graph::ops::*;
use plimsoll_graph::{DType, Extent, Op, Value};
use plimsoll_runtime::{Active, Backend};

/// The system's allocator, counting.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const TOKENS: usize = 1024;
const THREADS: usize = 2;
/// A block of the queue in which threads are handed tasks; many fit one block.
const QUEUE_BYTES: usize = 8 << 10;

/// Most heap memory in use while the step runs, above what was in use before.
fn peak(backend: &mut CpuBackend, op: impl Into<Op>, inputs: &[Value]) -> usize {
    let (step, bytes) = lay_out(op.into(), inputs, &backend.traits(), true).unwrap();
    backend.allocate(bytes).unwrap();
    let active = Active::one(TOKENS, 0);
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    backend.run(&step, active).unwrap();
    PEAK.load(Ordering::Relaxed) - before
}

/// A backend whose threads have come up, which takes memory of theirs. It serves for all steps,
/// because threads also take some when they go.
fn started() -> CpuBackend {
    let mut backend = CpuBackend::new(Some(THREADS));
    for _ in 0..20 {
        peak(&mut backend, Add, &[rows(512), rows(512)]);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    backend
}

fn rows(cols: usize) -> Value {
    value(&[TOKENS, cols], DType::F32, Extent::TOKENS)
}

fn fixed(shape: &[usize]) -> Value {
    value(shape, DType::F32, Extent::Fixed)
}

/// One test, because the count is the whole process's.
#[test]
fn steps_allocate_nothing_that_grows() {
    let heads = Heads { query: 4, kv: 2, head_dim: 64 };
    let attention = Attention::causal(heads, 0.1, None, 256);
    let boundaries = value(&[5], DType::I32, Extent::BOUNDARIES);
    let ids = value(&[TOKENS], DType::I32, Extent::TOKENS);
    let key = value(&[4], DType::U32, Extent::Fixed);
    let adamw = AdamW { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.0, master: false };
    let parameter = || fixed(&[1024, 512]);
    let norm = RmsNormGrad { weight: true, offset: 0.0, weight_grad: true, accumulate: false };
    let blocks = vec![Columns { start: 0, len: 512 }, Columns { start: 512, len: 512 }];
    let adapters = Some(Adapters { alpha: 0.5, blocks, total: 1024 });
    let small: Vec<(Op, Vec<Value>)> = vec![
        (Add.into(), vec![rows(512), rows(512)]),
        (Gated::new(Activation::Silu).into(), vec![rows(1024)]),
        (Gated { activation: Activation::Silu, adapters }.into(), vec![rows(1024), rows(32), fixed(&[1024, 16])]),
        (norm.into(), vec![rows(512), rows(1), rows(512), fixed(&[512]), fixed(&[512])]),
        (attention.into(), vec![rows(heads.fused_cols()), boundaries]),
        (Dropout { p: 0.1, site: 1 }.into(), vec![rows(512), ids, key]),
        (GlobalNorm { max_norm: None, scaled: false }.into(), vec![fixed(&[2]), parameter(), parameter()]),
        (adamw.into(), vec![parameter(), parameter(), parameter(), parameter(), fixed(&[4]), fixed(&[2])]),
    ];
    let mut backend = started();
    for (op, inputs) in small {
        let peak = peak(&mut backend, op.clone(), &inputs);
        assert!(peak <= QUEUE_BYTES, "{op:?} took {peak} bytes");
    }
    for (out, input) in [(2304, 768), (8192, 512), (512, 8192), (16, 512)] {
        let kinds = [LinearKind::Forward, LinearKind::InputGrad, LinearKind::WeightGrad];
        for kind in kinds {
            let (inputs, dest) = match kind {
                LinearKind::Forward => (vec![rows(input), fixed(&[out, input])], Dest::Fresh),
                LinearKind::InputGrad => (vec![rows(out), fixed(&[out, input])], Dest::Fresh),
                LinearKind::WeightGrad => (vec![rows(out), rows(input), fixed(&[out, input])], Dest::Accumulate),
            };
            let peak = peak(&mut backend, Linear { kind, dest, ..Linear::forward() }, &inputs);
            assert!(peak <= QUEUE_BYTES, "{kind:?} {out} x {input} took {peak} bytes");
        }
    }
}
