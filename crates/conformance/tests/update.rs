//! A whole update at once: the norm over some three hundred gradients of odd sizes and a step of each
//! parameter, as a schedule, recorded, and step by step. The same bits each time, near the textbook's.

use plimsoll_conformance::reference::{Array, NoDropout, evaluate};
use plimsoll_conformance::{F32_ELEMENTWISE, Random, backends, compare};
use plimsoll_graph::ops::{AdamW, GlobalNorm, Lion, Sgd};
use plimsoll_graph::{Class, DType, Extent, Io, Op, OpRule, Phase, Role, ScheduleId, Shape, SlotId, Value, ValueId};
use plimsoll_plan::lifetimes::ALIGNMENT;
use plimsoll_plan::{Buffer, Lane, Place, Region, Step};
use plimsoll_runtime::{Active, Backend};

const ACTIVE: Active = Active::one(0, 0);
const TENSORS: usize = 300;
/// Between buffers lies as much as this, so that a stray write is seen.
const GUARD_BYTES: usize = 64;

/// The types of a training run, and its rule for a tensor; rules may differ from tensor to tensor.
struct Case {
    name: &'static str,
    p: DType,
    g: DType,
    state: DType,
    rule: fn(usize) -> Op,
    lengths: Vec<usize>,
}

/// An arena being laid out, with what is in it at the start.
struct Layout {
    image: Vec<u8>,
    workspace: Option<Region>,
    steps: Vec<Step>,
}

fn value(len: usize, dtype: DType) -> Value {
    Value {
        name: String::new(),
        shape: Shape::new(&[len]),
        storage: dtype.into(),
        role: Role::Activation,
        extent: Extent::Fixed,
        layer: None,
        class: Class::NONE,
        slot: None,
    }
}

/// Numbers as their type stores them; 16-bit ones are cut off, the case's numbers are what is left.
fn stored(numbers: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::BF16 => numbers.iter().flat_map(|x| x.to_le_bytes()[2..].to_vec()).collect(),
        other => panic!("no case has {}", other.name()),
    }
}

/// How many states an update has, and whether there is a master copy.
fn states_of(op: &Op) -> (usize, bool) {
    match op {
        Op::AdamW(op) => (2, op.master),
        Op::Sgd(op) => (usize::from(op.momentum != 0.0), op.master),
        Op::Lion(op) => (1, op.master),
        other => panic!("{} is no update", other.name()),
    }
}

fn numbers_of(image: &[u8], buffer: &Buffer) -> Array {
    let bytes = &image[buffer.region.offset..buffer.region.end()];
    let data = match buffer.dtype() {
        DType::F32 => bytes.as_chunks().0.iter().map(|&x| f64::from(f32::from_le_bytes(x))).collect(),
        _ => bytes.as_chunks().0.iter().map(|&[a, b]| f64::from(f32::from_le_bytes([0, 0, a, b]))).collect(),
    };
    Array::new(buffer.shape.dims(), data)
}

impl Layout {
    fn place(&mut self, bytes: usize) -> Region {
        let offset = (self.image.len() + GUARD_BYTES).next_multiple_of(ALIGNMENT);
        self.image.resize(offset + bytes, 0xA5);
        Region { place: Place::Device, offset, bytes }
    }

    fn buffer(&mut self, numbers: &[f32], dtype: DType) -> Buffer {
        let bytes = stored(numbers, dtype);
        let region = self.place(bytes.len());
        self.image[region.offset..].copy_from_slice(&bytes);
        let shape = Shape::new(&[numbers.len()]);
        Buffer { value: ValueId(0), slot: None, region, shape, storage: dtype.into(), extent: Extent::Fixed }
    }

    fn push(&mut self, op: Op, inputs: Vec<Buffer>, outputs: Vec<Buffer>, workspace: Option<Region>) {
        let (lane, phase) = (Lane::Compute, Phase::Update);
        let (after, frees) = (Vec::new(), Vec::new());
        self.steps.push(Step { op, inputs, outputs, workspace, lane, phase, layer: None, after, frees });
    }

    /// The update's schedule for a backend: the norm, then a step for each tensor.
    fn new(case: &Case, backend: &dyn Backend) -> Self {
        let random = &mut Random::new(case.lengths.len() as u64);
        let mut layout = Self { image: Vec::new(), workspace: None, steps: Vec::new() };
        let hyper = layout.buffer(&[0.01, 0.19, 0.002, 2.0], DType::F32);
        let clip = layout.buffer(&[f32::NAN; 2], DType::F32);
        let (mut gradients, mut updates) = (Vec::new(), Vec::new());
        for (tensor, &len) in case.lengths.iter().enumerate() {
            let op = (case.rule)(tensor);
            let start = random.floats(len, 1.0);
            let mut p = layout.buffer(&start, case.p);
            p.slot = Some(SlotId(1000 + tensor as u32));
            let g = layout.buffer(&random.floats(len, 1.0), case.g);
            let (states, master) = states_of(&op);
            let mut state: Vec<Buffer> = Vec::new();
            for index in 0..states {
                // The second moment is positive.
                let numbers = random.floats(len, 0.5).into_iter().map(|x| if index == 0 { x } else { x.abs() });
                state.push(layout.buffer(&numbers.collect::<Vec<_>>(), case.state));
            }
            let master: Vec<Buffer> = master.then(|| layout.buffer(&start, DType::F32)).into_iter().collect();
            let outputs = [&[p, g], state.as_slice(), &master].concat();
            // `hyper` and `clip` lie between what is updated, where the operator takes them.
            let mut inputs = outputs.clone();
            let shared = op.shared_numbers().expect("an update");
            inputs.splice(shared.start..shared.start, [hyper, clip]);
            gradients.push(g);
            updates.push((op, inputs, outputs));
        }
        layout.push_norm(clip, &gradients, backend);
        for (op, inputs, outputs) in updates {
            layout.push(op, inputs, outputs, None);
        }
        layout.place(0);
        layout
    }

    fn push_norm(&mut self, clip: Buffer, gradients: &[Buffer], backend: &dyn Backend) {
        let op: Op = GlobalNorm { max_norm: Some(2.0), scaled: false }.into();
        let inputs = [&[clip], gradients].concat();
        let values: Vec<Value> = inputs.iter().map(|b| value(b.shape.elements(), b.dtype())).collect();
        let io = Io { inputs: values.iter().collect(), outputs: vec![&values[0]] };
        let scratch = self.place(op.workspace_bytes(&io, &backend.traits()));
        self.image[scratch.offset..].fill(0xFF);
        self.workspace = Some(scratch);
        self.push(op, inputs, vec![clip], Some(scratch));
    }

    /// The arena after `run` on the image, without what was scratch.
    fn after(&self, backend: &mut dyn Backend, run: impl FnOnce(&mut dyn Backend)) -> Vec<u8> {
        let whole = Region { place: Place::Device, offset: 0, bytes: self.image.len() };
        backend.write(whole, &self.image).expect("written");
        run(backend);
        backend.synchronize().expect("synchronized");
        let mut image = vec![0; self.image.len()];
        backend.read(whole, &mut image).expect("read");
        if let Some(scratch) = self.workspace {
            image[scratch.offset..scratch.end()].fill(0);
        }
        image
    }

    /// Compares with the textbook in f64, every step from the numbers before it.
    fn check_numbers(&self, place: &str, image: &[u8]) {
        let mut clip = Array::new(&[2], vec![0.0; 2]);
        for (index, step) in self.steps.iter().enumerate() {
            let mut inputs: Vec<Array> = step.inputs.iter().map(|b| numbers_of(&self.image, b)).collect();
            if let Some(shared) = step.op.shared_numbers() {
                inputs[shared.end - 1] = clip.clone();
            }
            let expected = evaluate(&step.op, &inputs.iter().collect::<Vec<_>>(), &mut NoDropout);
            if index == 0 {
                clip = expected[0].clone();
            }
            for (output, (buffer, want)) in step.outputs.iter().zip(&expected).enumerate() {
                let got = numbers_of(image, buffer);
                let fault = match buffer.dtype() {
                    DType::F32 => compare(&got, want, F32_ELEMENTWISE).err(),
                    _ => no_neighbour(&got, want),
                };
                if let Some(fault) = fault {
                    panic!("{place}: output {output} of step {index}, {}: {fault}", step.op.name());
                }
            }
        }
    }
}

/// Numbers of bfloat16 may be either neighbour of the exact one; the first that is neither.
fn no_neighbour(got: &Array, want: &Array) -> Option<String> {
    // A NaN is near nothing.
    let near = |g: f64, w: f64| (g - w).abs() <= w.abs() / 128.0 + F32_ELEMENTWISE * (1.0 + w.abs());
    got.data.iter().zip(&want.data).find(|&(&g, &w)| !near(g, w)).map(|(g, w)| format!("{g} is no neighbour of {w}"))
}

fn check(case: &Case, mut backend: Box<dyn Backend>) {
    let place = format!("{} on {} ({} workers)", case.name, backend.name(), backend.traits().workers);
    let backend = backend.as_mut();
    let layout = Layout::new(case, backend);
    backend.allocate(layout.image.len()).expect("an arena");
    let apart = layout.after(backend, |backend| {
        for step in &layout.steps {
            backend.run(step, ACTIVE).unwrap_or_else(|error| panic!("{place}: {error}"));
        }
    });
    layout.check_numbers(&place, &apart);
    assert_ne!(apart[..], layout.image[..], "{place}: something happened");
    // Where schedules are recorded: as it comes, while it is recorded, from the recording.
    for time in 0..3 {
        let together = layout.after(backend, |backend| {
            let ran = backend.run_schedule(Some(ScheduleId::UPDATE), &layout.steps, ACTIVE);
            ran.unwrap_or_else(|error| panic!("{place}: {error}"));
        });
        let differs = apart.iter().zip(&together).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{place}: the schedule, run {time}, has other bits than its steps");
    }
}

fn odd_lengths(seed: u64) -> Vec<usize> {
    let random = &mut Random::new(seed);
    let mut lengths: Vec<usize> = (0..TENSORS).map(|_| 1 + random.below(3000)).collect();
    // Around what a thread, a block and a part of the norm have, and well beyond.
    let edges = [1, 7, 8, 9, 2047, 2048, 2049, 4095, 4096, 4097, 8193, 16_383, 16_384, 16_385, 32_769, 70_001];
    for (index, edge) in edges.into_iter().enumerate() {
        lengths[index * 17] = edge;
    }
    lengths
}

/// Tensors of two kinds in turns, as where norms and biases do not decay.
fn decay(tensor: usize) -> f32 {
    if tensor.is_multiple_of(3) { 0.0 } else { 0.1 }
}

fn adamw(tensor: usize, master: bool) -> Op {
    AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: decay(tensor), master }.into()
}

fn sgd(tensor: usize, momentum: f32) -> Op {
    Sgd { momentum, weight_decay: decay(tensor), master: false }.into()
}

fn lion(tensor: usize) -> Op {
    Lion { beta1: 0.9, beta2: 0.99, weight_decay: decay(tensor), master: false }.into()
}

#[test]
fn updates_in_float32() {
    let types = |name, rule, lengths| Case { name, p: DType::F32, g: DType::F32, state: DType::F32, rule, lengths };
    // The last gradient has more parts than are planned for one, if they had the usual length.
    let with_a_long_one = [odd_lengths(2), vec![4_300_001]].concat();
    let cases = [
        types("AdamW", |tensor| adamw(tensor, false), odd_lengths(1)),
        types("SGD", |tensor| sgd(tensor, 0.0), with_a_long_one),
        types("SGD with momentum", |tensor| sgd(tensor, 0.9), odd_lengths(3)),
        types("Lion", lion, odd_lengths(5)),
        types("one tensor", |tensor| adamw(tensor, false), vec![5]),
    ];
    for case in &cases {
        for backend in backends() {
            check(case, backend);
        }
    }
}

/// Only cards train in sixteen bits, where rounding draws by lot: the lots are each tensor's own.
#[test]
fn updates_in_bfloat16() {
    let (f32, bf16) = (DType::F32, DType::BF16);
    let types = |name, p, g, state, rule| Case { name, p, g, state, rule, lengths: odd_lengths(4) };
    let cases = [
        types("AdamW in bfloat16", bf16, bf16, bf16, |tensor| adamw(tensor, false)),
        types("AdamW on float32 gradients", bf16, f32, bf16, |tensor| adamw(tensor, false)),
        types("AdamW with a master", bf16, bf16, f32, |tensor| adamw(tensor, true)),
        types("SGD in bfloat16", bf16, bf16, bf16, |tensor| sgd(tensor, 0.9)),
        types("Lion in bfloat16", bf16, bf16, bf16, lion),
    ];
    for case in &cases {
        let cards = backends().into_iter().filter(|backend| backend.used().is_some());
        cards.for_each(|card| check(case, card));
    }
}
