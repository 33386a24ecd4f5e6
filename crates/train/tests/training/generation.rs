//! Text against Hugging Face's greedy generation, token by token, and the same text under every plan. The fixtures are made
//! by `fixtures/make_generation.py`.

use std::ops::ControlFlow;

use plimsoll_data::{Example, ExampleRef};
use plimsoll_graph::{DType, Role, ScheduleId};
use plimsoll_models::{Lora, Recipe, Targets};
use plimsoll_plan::{Budgets, PlanError};
use plimsoll_train::{
    DataMemory, Ending, Generated, Inference, Model, Prepared, Sampling, Session, Spec, TrainError, prepare_inference,
};

use crate::support::{device, fixture, json, on_cuda, recipe, session, spec};

const FAMILIES: [&str; 9] = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "nanochat", "t5", "t5_untied", "mt5"];
/// Those with an encoder: of more layers than their decoder has, with an untied head and a gated activation, and mT5.
const SOURCED: [&str; 3] = ["t5", "t5_untied", "mt5"];
const NEW_TOKENS: usize = 24;
/// Of the longest prompt and its text.
const LENGTH: usize = 54;

/// What transformers generates after each prompt.
struct Reference {
    sampling: Sampling,
    prompts: Vec<Vec<u32>>,
    full: Vec<Vec<u32>>,
    lora: Vec<Vec<u32>>,
}

fn reference(family: &str) -> Reference {
    let file = json(&fixture(family).join("generation.json"));
    let lists = |name: &str| serde_json::from_value(file[name].clone()).expect("lists of tokens");
    let repetition_penalty = file["repetition_penalty"].as_f64().expect("a number") as f32;
    let sampling = Sampling { repetition_penalty, ..Sampling::GREEDY };
    Reference { sampling, prompts: lists("prompts"), full: lists("full"), lora: lists("lora") }
}

fn adapter(family: &str) -> Lora {
    let config = json(&fixture(family).join("lora_init/adapter_config.json"));
    Lora {
        r: config["r"].as_u64().expect("r") as usize,
        alpha: config["lora_alpha"].as_f64().expect("alpha") as f32,
        dropout: 0.0,
        targets: Targets::AllLinear,
        rslora: config["use_rslora"].as_bool().unwrap_or(false),
    }
}

fn inference_spec(family: &str, lora: Option<Lora>, max_length: usize) -> Spec {
    let model = Model::find(fixture(family).join("model").to_str().expect("UTF-8")).expect("a model folder");
    spec(model, Recipe::forward_only(lora, DType::F32), 1, max_length)
}

/// So many sequences side by side, in as many bytes of host memory.
fn start(spec: &Spec, sequences: usize, host_bytes: u64, paranoid: bool) -> Result<Prepared, TrainError> {
    let (backend, device) = device();
    let budgets = Budgets { gpu_bytes: 8 << 30, host_bytes };
    let inference = Inference::Generate { sequences };
    prepare_inference(spec, inference, backend, &device, budgets, &DataMemory::none(), paranoid)
}

fn generate(session: &mut Session, sampling: &Sampling, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let ending = Ending { stop: Vec::new(), max_new: NEW_TOKENS };
    let all = session.generate(prompts, sampling, &ending, &mut |_, _| ControlFlow::Continue(()));
    all.expect("generates").into_iter().map(|text| text.tokens).collect()
}

/// Alone, side by side with others of other lengths, and with prompts that wait for a place.
#[test]
fn greedy_text_is_that_of_transformers() {
    for family in FAMILIES {
        let expected = reference(family);
        for sequences in [1, 3, 5] {
            let spec = inference_spec(family, None, LENGTH);
            let mut session = start(&spec, sequences, 8 << 30, sequences == 3 && !on_cuda()).expect("fits").session;
            assert_eq!(
                generate(&mut session, &expected.sampling, &expected.prompts),
                expected.full,
                "{family}, {sequences} side by side"
            );
        }
    }
}

/// The base keeps its weights: the adapter works beside it.
#[test]
fn an_adapter_needs_no_merging() {
    for family in FAMILIES {
        let expected = reference(family);
        let spec = inference_spec(family, Some(adapter(family)), LENGTH);
        let mut session = start(&spec, 2, 8 << 30, false).expect("fits").session;
        session.load_adapters(&fixture(family).join("lora_init")).expect("adapters");
        assert_eq!(generate(&mut session, &expected.sampling, &expected.prompts), expected.lora, "{family}");
    }
}

/// A session that trains generates in the memory of its micro-steps, and trains on as if it had not.
#[test]
fn samples_during_training_are_the_same_text() {
    for family in FAMILIES {
        let expected = reference(family);
        let [with, without] = [true, false].map(|samples| {
            let mut session = session(family, recipe(None), 6, LENGTH, |_| {});
            if samples {
                let sampled = generate(&mut session, &expected.sampling, &expected.prompts);
                assert_eq!(sampled, expected.full, "{family}");
            }
            let sourced = SOURCED.contains(&family);
            let text = |(tokens, prompt): (&Vec<u32>, &Vec<u32>)| Example {
                tokens: tokens.clone(),
                targets: tokens.iter().map(|&token| token.cast_signed()).collect(),
                source: if sourced { prompt.clone() } else { Vec::new() },
                ..Example::default()
            };
            let examples: Vec<Example> = expected.full.iter().zip(&expected.prompts).map(text).collect();
            let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
            let update = session.pack(&views).expect("fits");
            [1, 2].map(|step| session.update(&update, step, 1e-3).expect("runs").loss.to_bits())
        });
        assert_eq!(with, without, "{family}");
    }
}

/// With as much memory as it likes, then with so little that the micro-batch is a smaller one. Other tests of this process
/// take and return memory meanwhile, so that is looked for.
fn in_large_and_small_parts(spec: &Spec) -> [Prepared; 2] {
    const STEP_BYTES: u64 = 64 << 10;
    let large = start(spec, 1, 8 << 30, false).expect("fits");
    let mut host_bytes = large.report.host.planned_bytes - STEP_BYTES;
    for _ in 0..10_000 {
        match start(spec, 1, host_bytes, false) {
            Ok(small) if small.report.micro_batch_tokens < large.report.micro_batch_tokens => return [large, small],
            Ok(_) if !on_cuda() => host_bytes -= STEP_BYTES,
            Ok(small) => return [large, small],
            Err(_) => host_bytes += 3 * STEP_BYTES,
        }
    }
    panic!("no budget takes a smaller micro-batch than {}", large.report.micro_batch_tokens)
}

/// Prompts are taken in 512 tokens at a time and in fewer, with places of other sizes each time.
#[test]
fn long_prompts_come_in_parts() {
    let prompt: Vec<u32> = (0..500).map(|i| 3 + (i * i + 7 * i) % 120).collect();
    for family in ["mistral", "gemma2"] {
        let sessions = in_large_and_small_parts(&inference_spec(family, None, 560));
        let [large, small] = sessions
            .map(|mut prepared| generate(&mut prepared.session, &Sampling::GREEDY, std::slice::from_ref(&prompt)));
        assert_eq!(large, small, "{family}");
    }
}

fn sampled(session: &mut Session, prompts: &[Vec<u32>], seed: u64) -> Vec<Vec<u32>> {
    let sampling = Sampling { temperature: 1.0, top_k: Some(40), top_p: 0.9, repetition_penalty: 1.1, seed };
    generate(session, &sampling, prompts)
}

/// In whatever company, and again.
#[test]
fn a_seed_is_a_text() {
    for family in ["llama", "t5_untied"] {
        let prompts = reference(family).prompts;
        let spec = inference_spec(family, None, LENGTH);
        let mut texts = Vec::new();
        for sequences in [1, 4] {
            let mut session = start(&spec, sequences, 8 << 30, false).expect("fits").session;
            texts.extend([1, 1, 2].map(|seed| sampled(&mut session, &prompts, seed)));
        }
        assert!(texts[0] == texts[1] && texts[0] == texts[3] && texts[0] == texts[4], "{family}");
        assert!(texts[0] != texts[2] && texts[2] == texts[5], "{family}");
    }
}

/// The logits of the last step of a text, as bits.
fn last_logits(session: &mut Session, prompts: &[Vec<u32>], prompt: usize) -> Vec<u32> {
    let ending = Ending { stop: Vec::new(), max_new: NEW_TOKENS };
    let mut count = 0;
    // The step in which this text gets its last token is the last one of all.
    let mut until_last = |of: usize, _| {
        count += usize::from(of == prompt);
        if count == NEW_TOKENS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    session.generate(prompts, &Sampling::GREEDY, &ending, &mut until_last).expect("generates");
    let results = session.executor().results(ScheduleId::DECODE)[0];
    let mut logits = vec![0f32; results.shape.elements()];
    session.executor().read_result(&results, &mut logits).expect("readable");
    logits[prompt * results.shape.cols()..][..results.shape.cols()].iter().map(|logit| logit.to_bits()).collect()
}

/// Alone or with others that are read and that write at the same time, in a program that only generates and in one that
/// trains, with sources read one by one and together. On a card, products of other numbers of rows may be summed otherwise
/// by the library; there the text is what stays.
#[test]
fn company_and_plans_do_not_show_in_the_bits() {
    for family in SOURCED {
        let prompts = reference(family).prompts;
        let spec = inference_spec(family, None, LENGTH);
        for prompt in [0, 3] {
            let own = std::slice::from_ref(&prompts[prompt]);
            if on_cuda() {
                let [alone, together] = [1, 5].map(|count| start(&spec, count, 8 << 30, false).expect("fits").session);
                let mut trains = session(family, recipe(None), 6, LENGTH, |_| {});
                let text = |session: &mut Session, prompts: &[Vec<u32>], at: usize| {
                    generate(session, &Sampling::GREEDY, prompts).swap_remove(at)
                };
                let expected = text(&mut { alone }, own, 0);
                assert_eq!(text(&mut { together }, &prompts, prompt), expected, "{family}, prompt {prompt}");
                assert_eq!(text(&mut trains, own, 0), expected, "{family}, prompt {prompt}, while training");
                continue;
            }
            let mut alone = start(&spec, 1, 8 << 30, false).expect("fits").session;
            let expected = last_logits(&mut alone, own, 0);
            assert!(expected.iter().any(|&bits| bits != 0));
            let mut together = start(&spec, 5, 8 << 30, false).expect("fits").session;
            assert_eq!(last_logits(&mut together, &prompts, prompt), expected, "{family}, prompt {prompt}");
            let mut trains = session(family, recipe(None), 6, LENGTH, |_| {});
            assert_eq!(last_logits(&mut trains, own, 0), expected, "{family}, prompt {prompt}, while training");
        }
    }
}

/// Of models with an encoder, prompts and texts each have the planned length; an encoder that reads nothing says nothing.
#[test]
fn sources_have_a_length_of_their_own() {
    let Reference { sampling, prompts, full, .. } = reference("t5_untied");
    let mut session = start(&inference_spec("t5_untied", None, 30), 2, 8 << 30, false).expect("fits").session;
    let found = generate(&mut session, &sampling, &[vec![], prompts[3].clone(), prompts[0].clone()]);
    assert!(found[0].is_empty());
    assert_eq!((&found[1], &found[2]), (&full[3], &full[0]), "30 tokens of 30 are read, and 24 of 30 written");
    let ending = Ending { stop: Vec::new(), max_new: 100 };
    let long = session.generate(&prompts[..1], &sampling, &ending, &mut |_, _| ControlFlow::Continue(()));
    assert_eq!(long.expect("generates")[0].tokens.len(), 30);
    let refused = session.generate(&[vec![5; 31]], &sampling, &ending, &mut |_, _| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(TrainError::LongPrompt { tokens: 31, longest: 30 })), "{refused:?}");
}

#[test]
fn texts_end_at_stop_tokens_and_when_told_to() {
    let Reference { prompts, full, .. } = reference("qwen3");
    let mut session = start(&inference_spec("qwen3", None, LENGTH), 5, 8 << 30, false).expect("fits").session;
    let stop = vec![full[1][5], full[3][9]];
    let ending = Ending { stop: stop.clone(), max_new: NEW_TOKENS };
    let mut heard = vec![Vec::new(); prompts.len()];
    let mut hear = |prompt: usize, token| {
        heard[prompt].push(token);
        ControlFlow::Continue(())
    };
    let texts = session.generate(&prompts, &Sampling::GREEDY, &ending, &mut hear).expect("generates");
    for (text, whole) in texts.iter().zip(&full) {
        let end = whole.iter().position(|token| stop.contains(token)).map_or(whole.len(), |at| at + 1);
        assert_eq!(text.tokens, whole[..end]);
    }
    assert!(texts[1].tokens.len() <= 6 && texts[3].tokens.len() <= 10);
    assert_eq!(heard, texts.iter().map(|text: &Generated| text.tokens.clone()).collect::<Vec<_>>());

    let mut count = 0;
    let mut stop_at_seven = |_, _| {
        count += 1;
        if count == 7 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let ending = Ending { stop: Vec::new(), max_new: NEW_TOKENS };
    let texts = session.generate(&prompts, &Sampling::GREEDY, &ending, &mut stop_at_seven).expect("generates");
    assert_eq!(texts.iter().map(|text| text.tokens.len()).sum::<usize>(), 7);
}

/// An empty prompt has no next token; one that is too long is refused; the last position there is is used.
#[test]
fn prompts_of_every_length() {
    let Reference { prompts, full, .. } = reference("llama");
    let mut session = start(&inference_spec("llama", None, 32), 2, 8 << 30, false).expect("fits").session;
    let found = generate(&mut session, &Sampling::GREEDY, &[vec![], prompts[3].clone(), prompts[0].clone()]);
    assert!(found[0].is_empty());
    assert_eq!(found[1], full[3][..3], "30 tokens of 32, and one more that nothing follows");
    assert_eq!(found[2], full[0]);
    let long = vec![5; 33];
    let refused = session.generate(&[long], &Sampling::GREEDY, &Ending { stop: vec![], max_new: 1 }, &mut |_, _| {
        ControlFlow::Continue(())
    });
    assert!(matches!(refused, Err(TrainError::LongPrompt { tokens: 33, longest: 32 })), "{refused:?}");
}

/// What is planned is what there is, and far less than training takes; what does not fit is refused with what would.
#[test]
fn generating_is_planned() {
    let spec = inference_spec("llama", None, LENGTH);
    let mut prepared = start(&spec, 4, 8 << 30, false).expect("fits");
    let plan = prepared.session.executor().plan();
    let cached: usize =
        plan.slots.iter().filter(|(_, slot)| slot.role == Role::Cache).map(|(_, slot)| slot.bytes()).sum();
    // Four sequences, 54 positions, two layers, keys and values of two heads of 8.
    assert_eq!(cached, 4 * 54 * 2 * 2 * 16 * 4);
    // Three layers of a decoder, each with a cache of its own tokens and one of the source's, of four heads of 8.
    let mut sourced = start(&inference_spec("t5", None, LENGTH), 4, 8 << 30, false).expect("fits");
    let slots = sourced.session.executor().plan().slots.clone();
    let caches = slots.iter().filter(|(_, slot)| slot.role == Role::Cache);
    assert_eq!(caches.map(|(_, slot)| slot.bytes()).sum::<usize>(), 4 * 54 * 3 * 2 * 2 * 32 * 4);
    assert!(plan.slots.iter().all(|(_, slot)| !matches!(slot.role, Role::Gradient)));
    if on_cuda() {
        return;
    }
    let Err(TrainError::Plan(PlanError::DoesNotFit { needed_bytes, .. })) = start(&spec, 4, 1 << 20, false) else {
        panic!("a MiB is enough");
    };
    // The process may take a little more when it is measured again.
    let mut smallest = start(&spec, 4, needed_bytes + (8 << 20), false).expect("fits");
    let expected = reference("llama");
    assert_eq!(generate(&mut smallest.session, &Sampling::GREEDY, &expected.prompts), expected.full);
}

/// A window bounds the cache, however long the texts are.
#[test]
fn a_window_bounds_the_cache() {
    let cached = |family: &str, length: usize| -> usize {
        let mut prepared = start(&inference_spec(family, None, length), 1, 8 << 30, false).expect("fits");
        let slots = prepared.session.executor().plan().slots.clone();
        slots.iter().filter(|(_, slot)| slot.role == Role::Cache).map(|(_, slot)| slot.shape.rows()).sum()
    };
    assert_eq!(cached("mistral", 1000), 2 * (512 + 6));
    assert_eq!(cached("gemma2", 1000), 512 + 6 + 1000);
    assert_eq!(cached("llama", 1000), 2 * 1000);
}
