//! Plans for adapters beside a base in few bits, on cards that the model would not fit into otherwise.

mod decoders;

use decoders::Vocabulary;
use plimsoll_graph::{DType, Streams, WeightFormat};
use plimsoll_models::{Built, Lora, Recipe, Targets, build, preset};
use plimsoll_plan::{
    Budgets, Chosen, DeviceProfile, Fixed, Goal, Pins, PlanError, Request, Variant, known_device, plan,
};

const GIB: u64 = 1 << 30;

/// What is planned: so many sequences of so many tokens, in updates of their own.
#[derive(Clone, Copy)]
struct Run {
    model: &'static str,
    r: usize,
    sequences: usize,
    length: usize,
}

const MISTRAL: Run = Run { model: "mistral-7b", r: 16, sequences: 4, length: 2048 };

fn plan_of(
    run: Run,
    base: Option<WeightFormat>,
    device: &DeviceProfile,
    gpu_bytes: u64,
    goal: Goal,
) -> Result<Chosen<Built>, PlanError> {
    let model = preset(run.model).expect("a preset").expect("valid");
    let lora = Lora { r: run.r, alpha: 32.0, dropout: 0.0, targets: Targets::AllLinear, rslora: false };
    let fp8_products = base == Some(WeightFormat::E4m3) && device.traits.multiplies_codes;
    let recipe =
        Recipe { lora: Some(lora), compute: DType::BF16, master: true, base, fp8_products, ..decoders::full() };
    let build = |v: Variant| Ok(build(&model, &Vocabulary, &recipe, v.batch, v.chunks).expect("a valid program"));
    plan(&Request {
        build: &build,
        sequences: run.sequences,
        tokens: None,
        group: 1,
        max_length: Streams::one(run.length),
        chunked_loss: true,
        update_in_backward: Err("gradients are clipped".to_owned()),
        device,
        budgets: Budgets { gpu_bytes, host_bytes: 16 * GIB },
        fixed: Fixed { gpu_context_bytes: device.context_bytes, host_process_bytes: 512 << 20, host_data_bytes: 0 },
        goal,
        pins: Pins::default(),
    })
}

/// On the whole of a card from the table.
fn on(card: &str, run: Run, base: Option<WeightFormat>) -> Result<Chosen<Built>, PlanError> {
    let device = known_device(card).expect("in the table");
    let chosen = plan_of(run, base, &device, device.memory_bytes, Goal::Fastest)?;
    let planned = chosen.report.gpu.planned_bytes;
    assert!(planned <= device.memory_bytes, "{card}: {planned} bytes of {}", device.memory_bytes);
    assert_eq!(planned, chosen.report.gpu.categories.total());
    Ok(chosen)
}

#[test]
fn mistral_in_nf4_takes_seven_gib() {
    let device = known_device("H200").expect("in the table");
    let chosen = plan_of(MISTRAL, Some(WeightFormat::Nf4), &device, 7 * GIB, Goal::Fastest).expect("fits");
    let report = &chosen.report;
    assert!(report.gpu.planned_bytes <= 7 * GIB);
    assert_eq!(report.accumulation * report.micro_batch_tokens, 4 * 2048);
}

/// Weights are what their formats say: projections in few bits, embedding and head in sixteen.
#[test]
fn weights_take_what_their_format_says() {
    let device = known_device("H200").expect("in the table");
    let weights = |base| {
        let chosen = plan_of(MISTRAL, base, &device, 80 * GIB, Goal::Fastest).expect("fits");
        chosen.report.gpu.categories.weights as f64
    };
    // Of a layer: q and o, k and v, gate and up and down; rows of each.
    let (square, narrow, wide) = (4096.0 * 4096.0, 1024.0 * 4096.0, 14_336.0 * 4096.0);
    let projections = 32.0 * (2.0 * square + 2.0 * narrow + 3.0 * wide);
    let rows = 32.0 * (4096.0 + 2.0 * 1024.0 + 4096.0 + 2.0 * 14_336.0 + 4096.0);
    let whole = weights(None);
    for (format, bytes) in [
        (WeightFormat::Nf4, projections / 2.0 + projections / 64.0 + projections / 64.0 / 256.0 * 8.0),
        (WeightFormat::Int8, projections + 4.0 * rows),
        (WeightFormat::E4m3, projections + 4.0 * rows),
    ] {
        let (found, expected) = (weights(Some(format)), whole - 2.0 * projections + bytes);
        assert!((found / expected - 1.0).abs() < 1e-3, "{format:?}: {found}, not {expected}");
    }
}

/// The cards that most people have, and models of seven and eight billion parameters: the most bits that each holds.
#[test]
fn models_of_seven_and_eight_billion_fit_common_cards() {
    let run = |model| Run { model, r: 16, sequences: 4, length: 2048 };
    let (nf4, int8) = (Some(WeightFormat::Nf4), Some(WeightFormat::Int8));
    for (card, model, fits, refused) in [
        ("RTX 3060", "mistral-7b", &[nf4, int8][..], &[None][..]),
        ("RTX 3060", "llama-3.1-8b", &[nf4, int8], &[None]),
        ("RTX 4060 Ti 16GB", "mistral-7b", &[nf4, int8, None], &[]),
        ("RTX 4060 Ti 16GB", "llama-3.1-8b", &[nf4, int8], &[None]),
        ("RTX 4090", "mistral-7b", &[nf4, int8, None], &[]),
        ("RTX 4090", "llama-3.1-8b", &[nf4, int8, None], &[]),
    ] {
        for &base in fits {
            let chosen =
                on(card, run(model), base).unwrap_or_else(|error| panic!("{card}, {model}, {base:?}: {error}"));
            let report = chosen.report;
            assert_eq!(report.accumulation * report.micro_batch_tokens, 4 * 2048);
        }
        for &base in refused {
            let refusal = on(card, run(model), base).map(|chosen| chosen.report.gpu.planned_bytes);
            assert!(matches!(refusal, Err(PlanError::DoesNotFit { .. })), "{card}, {model}, {base:?}: {refusal:?}");
        }
    }
}

/// Fewer bits never take more memory; decoding them takes time; codes that are multiplied as they are save it.
#[test]
fn formats_trade_memory_for_time() {
    let device = known_device("H200").expect("in the table");
    let of = |base| plan_of(MISTRAL, base, &device, 139 * GIB, Goal::Fastest).expect("fits").report;
    let [whole, fp8, int8, nf4] =
        [None, Some(WeightFormat::E4m3), Some(WeightFormat::Int8), Some(WeightFormat::Nf4)].map(of);
    assert!(nf4.gpu.categories.weights < int8.gpu.categories.weights);
    assert!(int8.gpu.categories.weights < whole.gpu.categories.weights);
    let speed = |report: &plimsoll_plan::Report| report.predicted.tokens_per_s;
    assert!(speed(&int8) < speed(&whole) && speed(&nf4) < speed(&whole), "weights are decoded twice an update");
    assert!(speed(&int8) > 0.9 * speed(&whole), "which costs little beside products of so many rows");
    assert!(speed(&fp8) > 1.15 * speed(&whole), "{} beside {}", speed(&fp8), speed(&whole));
}

/// Sixteen thousand tokens of one sequence: what an MLP makes of them exists a chunk at a time, and only where the memory
/// for all of it is not there.
#[test]
fn mlps_of_long_sequences_work_in_chunks() {
    let run = Run { model: "llama-3.1-8b", r: 32, sequences: 1, length: 16_384 };
    let device = known_device("H200").expect("in the table");
    let at = |gpu_bytes, goal| plan_of(run, Some(WeightFormat::Nf4), &device, gpu_bytes, goal).expect("fits").report;
    let (tight, free) = (at(12 * GIB + GIB / 2, Goal::Fastest), at(40 * GIB, Goal::Fastest));
    assert!(tight.gpu.planned_bytes <= 12 * GIB + GIB / 2 && tight.mlp_chunks > 1, "{tight:?}");
    assert_eq!((tight.micro_batch_tokens, tight.accumulation, free.mlp_chunks), (16_384, 1, 1));
    assert!(tight.predicted.tokens_per_s < free.predicted.tokens_per_s);
}
