//! Losses, metrics and gradients of tasks against PyTorch (`fixtures/make_tasks.py`), under any binning and plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_data::{Classes, Example, ExampleRef, NO_LOSS, NO_MARK};
use plimsoll_models::{Lora, ParameterKind, Targets};
use plimsoll_train::{
    Classification, Metrics, Preference, Ranking, RankingLoss, RankingSettings, Reward, Session, Task, TrainError,
};
use serde_json::Value as Json;

use crate::support::{fixture, json, recipe, session, tensors};

const MAX_LENGTH: usize = 24;
const SEQUENCES: usize = 6;

/// A case of the fixture, and how it is trained.
struct Case {
    name: &'static str,
    task: Arc<dyn Task>,
    expected: Json,
    /// Numbers of some tokens of each sequence.
    marks: Vec<Vec<(usize, f32)>>,
    labels: Vec<i32>,
    /// Whether the parts that the data learns are those behind the prompts.
    answers: bool,
}

fn numbers(list: &Json) -> Vec<f64> {
    list.as_array().expect("a list").iter().map(|n| n.as_f64().expect("a number")).collect()
}

fn number(value: &Json) -> f64 {
    value.as_f64().expect("a number")
}

fn cases() -> Json {
    json(&fixture("tasks").join("cases.json"))
}

/// Chosen and rejected in turn.
fn sequences() -> Vec<Vec<u32>> {
    let batch = json(&fixture("reward").join("batch.json"));
    let ids = |list: &Json| numbers(list).into_iter().map(|id| id as u32).collect();
    let pairs = batch["pairs"].as_array().expect("pairs").iter();
    pairs.flat_map(|pair| [ids(&pair["chosen"]), ids(&pair["rejected"])]).collect()
}

impl Case {
    fn new(name: &'static str, task: impl Task + 'static) -> Self {
        let expected = cases()[name].clone();
        Self { name, task: Arc::new(task), expected, marks: Vec::new(), labels: Vec::new(), answers: true }
    }

    fn dpo() -> Self {
        let settings = &cases()["dpo"];
        Self::new("dpo", Preference::dpo(number(&settings["beta"]), number(&settings["label_smoothing"])))
    }

    /// Every weight has grown since the model was asked.
    fn dpo_full() -> Self {
        let task = Self::dpo().task;
        Self { name: "dpo_full", expected: cases()["dpo_full"].clone(), task, ..Self::dpo() }
    }

    fn orpo() -> Self {
        Self::new("orpo", Preference::orpo(number(&cases()["orpo"]["lambda"])))
    }

    fn reward() -> Self {
        let case = Self::new("reward", Reward { centring: number(&cases()["reward"]["centring"]), margin: true });
        let last = sequences().into_iter().map(|sequence| sequence.len() - 1);
        let margins = numbers(&case.expected["margins"]);
        // The rejected sequence's number must not matter.
        let marks =
            last.enumerate().map(|(i, last)| vec![(last, if i % 2 == 0 { margins[i / 2] as f32 } else { 7.0 })]);
        Self { marks: marks.collect(), answers: false, ..case }
    }

    fn classification() -> Self {
        let case = Self::new("classification", Classification::new(&Classes::Count(3)).expect("three classes"));
        let labels = numbers(&case.expected["labels"]).into_iter().map(|label| label as i32).collect();
        Self { labels, answers: false, ..case }
    }

    fn ranking(name: &'static str, loss: RankingLoss) -> Self {
        let settings = &cases()[name];
        let settings = RankingSettings {
            loss,
            weight: number(&settings["weight"]),
            lm_weight: number(&settings["lm_weight"]),
            top: Some(number(&settings["top"]) as u32),
        };
        let case = Self::new(name, Ranking(settings));
        let marks = case.expected["marks"].as_array().expect("lists").iter();
        let marked = |of: &Json| -> Vec<(usize, f32)> {
            let (positions, relevances) = (numbers(&of[0]), numbers(&of[1]));
            positions.into_iter().zip(relevances).map(|(position, mark)| (position as usize, mark as f32)).collect()
        };
        Self { marks: marks.map(marked).collect(), ..case }
    }

    fn lora(&self) -> Option<Lora> {
        (self.name == "dpo").then(|| {
            let config = json(&fixture("qwen2").join("lora_init/adapter_config.json"));
            let (r, alpha) = (number(&config["r"]) as usize, number(&config["lora_alpha"]) as f32);
            Lora { r, alpha, dropout: 0.0, targets: Targets::AllLinear, rslora: false }
        })
    }

    fn session(&self, micro_batch_tokens: Option<usize>, recompute: &[(&str, usize)]) -> Session {
        let recompute: BTreeMap<String, usize> = recompute.iter().map(|(c, k)| ((*c).to_owned(), *k)).collect();
        let scored = !self.task.head().uses_vocabulary();
        let family = if scored { "reward" } else { "qwen2" };
        let folder = fixture(family);
        let mut session = session(family, recipe(self.lora()), SEQUENCES, MAX_LENGTH, |spec| {
            spec.task = self.task.clone();
            // The scores of another number of classes do not fit.
            spec.model.random = self.name == "classification";
            spec.pins.micro_batch_tokens = micro_batch_tokens;
            spec.pins.recompute = Some(recompute.clone());
        });
        if self.lora().is_some() {
            session.load_adapters(&folder.join("lora_init")).expect("adapters");
        }
        if self.name == "classification" {
            self.load_base(&mut session);
        }
        if self.name == "dpo_full" {
            self.grow(&mut session);
        }
        if let Some(head) = tensors(&fixture("tasks").join(format!("{}.safetensors", self.name))).get("head") {
            let parameter = session.parameters().iter().find(|p| p.kind == ParameterKind::Head).expect("a head");
            let slot = parameter.slot;
            session.executor().write_slot(slot, head).expect("of its shape");
        }
        session
    }

    fn grow(&self, session: &mut Session) {
        let examples = self.examples();
        let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
        let packed = session.pack(&views).expect("fits");
        session.keep_reference(&packed).expect("asked");
        for parameter in session.parameters().to_vec() {
            let mut values = vec![0f32; parameter.shape.elements()];
            session.executor().read_slot(parameter.slot, &mut values).expect("readable");
            values.iter_mut().for_each(|value| *value *= 1.0625);
            session.executor().write_slot(parameter.slot, &values).expect("of its shape");
        }
    }

    /// Everything but the head.
    fn load_base(&self, session: &mut Session) {
        let files = tensors(&fixture("reward").join("model/model.safetensors"));
        for parameter in session.parameters().to_vec().iter().filter(|p| p.kind == ParameterKind::Base) {
            let parts = parameter.tensors.iter().flat_map(|tensor| files[&tensor.name].iter().copied());
            let values: Vec<f32> = parts.collect();
            session.executor().write_slot(parameter.slot, &values).expect("of its shape");
        }
    }

    fn examples(&self) -> Vec<Example> {
        let prompts = numbers(&cases()["prompts"]);
        let example = |(index, tokens): (usize, Vec<u32>)| {
            let learnt = |position: usize| {
                self.answers && position + 1 < tokens.len() && position + 1 >= prompts[index] as usize
            };
            let targets = (0..tokens.len()).map(|p| if learnt(p) { tokens[p + 1].cast_signed() } else { NO_LOSS });
            let mut marks = vec![NO_MARK; if self.marks.is_empty() { 0 } else { tokens.len() }];
            for &(position, mark) in self.marks.get(index).into_iter().flatten() {
                marks[position] = mark;
            }
            let label = self.labels.get(index).copied();
            Example { targets: targets.collect(), tokens, marks, label, ..Example::default() }
        };
        sequences().into_iter().enumerate().map(example).collect()
    }

    fn update(&self, session: &mut Session, step: u64) -> (f64, Metrics) {
        let examples = self.examples();
        let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
        let packed = session.pack(&views).expect("fits");
        let result = session.update(&packed, step, 1e-3).expect("runs");
        (result.loss, result.metrics)
    }

    fn check(&self) {
        let wanted = number(&self.expected["loss"]);
        let close = |found: f64, expected: f64, tolerance: f64| {
            (found - expected).abs() <= tolerance * expected.abs().max(1e-3)
        };
        for tokens in [None, Some(2 * MAX_LENGTH), Some(4 * MAX_LENGTH + 5)] {
            let mut session = self.session(tokens, &[]);
            let (loss, metrics) = self.update(&mut session, 1);
            assert!(close(loss, wanted, 1e-5), "{}: {loss} instead of {wanted}", self.name);
            assert!(metrics.iter().count() > 0, "{} reports something", self.name);
            for (name, found) in metrics.iter() {
                let expected = number(&self.expected[name]);
                assert!(close(found, expected, 2e-5), "{}: {name} is {found} instead of {expected}", self.name);
            }
        }
        let mut session = self.session(None, &[]);
        let examples = self.examples();
        let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
        let packed = session.pack(&views).expect("fits");
        session.accumulate(&packed, 1).expect("runs");
        self.check_gradients(&session);
    }

    fn check_gradients(&self, session: &Session) {
        let expected = tensors(&fixture("tasks").join(format!("{}.safetensors", self.name)));
        let mut compared = 0;
        for parameter in session.parameters().iter().filter(|p| p.trainable) {
            let gradient = session.gradient(&parameter.name).expect("readable").expect("trained");
            let cols = parameter.shape.elements() / parameter.shape.rows();
            for part in &parameter.tensors {
                let Some(wanted) = expected.get(&part.name) else { continue };
                let found = &gradient[part.first_row * cols..][..part.shape.elements()];
                let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
                let size = norm(&mut wanted.iter().map(|&w| f64::from(w)));
                let off = norm(&mut found.iter().zip(wanted).map(|(&f, &w)| f64::from(f) - f64::from(w)));
                assert!(off <= 1e-4 * size, "{}: gradient of {} is off by {:.1e}", self.name, part.name, off / size);
                compared += 1;
            }
        }
        assert_eq!(compared, expected.keys().filter(|name| *name != "head").count(), "{}: all are compared", self.name);
    }
}

#[test]
fn dpo_follows_trl() {
    Case::dpo().check();
}

#[test]
fn dpo_follows_trl_where_everything_is_trained() {
    Case::dpo_full().check();
}

/// What was found before training is found again however sequences are binned; what was not asked about is refused.
#[test]
fn the_reference_is_the_model_as_it_was() {
    let case = Case::dpo_full();
    let mut session = session("qwen2", recipe(None), SEQUENCES, MAX_LENGTH, |spec| {
        spec.task = case.task.clone();
        spec.pins.micro_batch_tokens = Some(2 * MAX_LENGTH);
    });
    let examples = case.examples();
    let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
    let packed = session.pack(&views).expect("fits");
    session.keep_reference(&packed).expect("asked");
    let (loss, metrics) = case.update(&mut session, 1);
    assert!((loss - std::f64::consts::LN_2).abs() < 1e-7, "{loss}");
    assert!(metrics.get("margin").expect("counted").abs() < 1e-6);
    let (second, metrics) = case.update(&mut session, 2);
    assert!(second < loss && metrics.get("margin").expect("counted") > 0.0, "{second}");
    let turned: Vec<ExampleRef> = [2, 3, 0, 1, 4, 5].map(|index: usize| examples[index].view()).to_vec();
    session.pack(&turned).map(|update| session.update(&update, 3, 1e-3)).expect("fits").expect("known");
    let mut other = examples[0].clone();
    other.tokens[0] ^= 1;
    let update = session.pack(&[other.view(), examples[1].view()]).expect("fits");
    assert!(matches!(session.update(&update, 4, 1e-3), Err(TrainError::NoReference)));
}

#[test]
fn orpo_follows_the_paper() {
    Case::orpo().check();
}

#[test]
fn margins_and_centring_follow_trl() {
    Case::reward().check();
}

#[test]
fn classification_follows_transformers() {
    Case::classification().check();
}

#[test]
fn ranking_follows_pytorch() {
    Case::ranking("listmle", RankingLoss::ListMle).check();
    Case::ranking("listnet", RankingLoss::ListNet).check();
    Case::ranking("pairwise", RankingLoss::Pairwise).check();
}

/// The same bits whatever is computed twice, for one micro-batch size.
#[test]
fn the_plan_does_not_matter() {
    for case in [Case::dpo(), Case::dpo_full(), Case::orpo(), Case::ranking("listmle", RankingLoss::ListMle)] {
        let train = |recompute: &[(&str, usize)]| {
            let mut session = case.session(Some(2 * MAX_LENGTH), recompute);
            (1..=3).map(|step| case.update(&mut session, step).0).collect::<Vec<_>>()
        };
        let kept = train(&[]);
        assert_eq!(kept, train(&[("gate_up", 2), ("attn_norm", 1)]), "{}", case.name);
        assert_eq!(kept, train(&[("rotated", 2), ("attn_out", 2), ("mlp_norm", 2), ("mlp_act", 2)]), "{}", case.name);
    }
}

/// Before the first update the adapters add nothing: policy and reference are one.
#[test]
fn the_reference_is_the_model_without_its_adapters() {
    let case = Case::dpo();
    let mut session =
        session("qwen2", recipe(case.lora()), SEQUENCES, MAX_LENGTH, |spec| spec.task = case.task.clone());
    let (loss, metrics) = case.update(&mut session, 1);
    assert!((loss - std::f64::consts::LN_2).abs() < 1e-7, "{loss}");
    assert!(metrics.get("margin").expect("counted").abs() < 1e-7);
    let (second, metrics) = case.update(&mut session, 2);
    assert!(second < loss && metrics.get("margin").expect("counted") > 0.0, "{second}");
}
