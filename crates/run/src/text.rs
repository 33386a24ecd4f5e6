//! A model that writes: prompts to tokens, a plan for them on a device, tokens back to text.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use plimsoll_data::{DataError, Tokenizer};
use plimsoll_models::Recipe;
use plimsoll_plan::{DeviceProfile, Fixed, Goal, Pins, PlanError, Report};
use plimsoll_train::{
    DataMemory, Ending, Generated, Inference, Language, Prepared, Sampling, Seq2Seq, Session, Spec, TrainError,
    peak_resident_bytes, plan_inference, prepare_inference, resident_bytes,
};
use serde_json::Value as Json;

use crate::artifact::Artifact;
use crate::base;
use crate::budgets::{Capacity, capacity, held};
use crate::config::Resolved;
use crate::device::{self, Device, Present};
use crate::diagnostics::not_started;
use crate::failure::Failure;
use crate::note::Note;
use crate::prepare::Measured;
use crate::prompts::Prompt;
use crate::remedies::inference_remedies;
use crate::spec::compute;

/// A model with its tokenizer, and nothing allocated yet.
pub struct TextModel {
    artifact: Artifact,
    tokenizer: Tokenizer,
    /// As `generation_config.json` has it; greedy where it has nothing.
    pub defaults: Sampling,
    /// Tokens that end a text.
    stop: Vec<u32>,
}

/// A prompt as the model gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedPrompt {
    pub text: String,
    pub tokens: Vec<u32>,
}

/// A model in memory, planned for so many sequences side by side of so many tokens.
pub struct TextSession {
    session: Session,
    pub report: Report,
    pub notes: Vec<Note>,
    stop: Vec<u32>,
}

impl TextModel {
    /// The model at `path`, with the adapter at `adapter` or the one that is there.
    pub fn open(resolved: &Resolved, path: &str, adapter: Option<&Path>) -> Result<Self, Failure> {
        let artifact = Artifact::find(path, adapter)?;
        let folder = artifact.tokenizer_folder();
        let tokenizer = Tokenizer::from_folder(&folder)?.with_template(&resolved.run.data.template)?;
        let (size, model) = (tokenizer.vocab_size(), artifact.model.config.vocab_size);
        if size > model {
            return Err(TrainError::Vocabulary { tokenizer: size, model }.into());
        }
        let config = &artifact.model.config;
        if config.streams() > 1 && config.decoder_start.is_none() {
            return Err(Failure::bad_input(format!(
                "{} names no token that its texts begin with",
                artifact.model.name()
            ))
            .hint("set decoder_start_token_id in its config.json; most models of this kind begin with pad_token_id"));
        }
        let beside = artifact.model.folder().unwrap_or(Path::new(""));
        let settings = fs::read_to_string(beside.join("generation_config.json")).ok();
        let settings: Json = settings.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Json::Null);
        let mut stop: Vec<u32> = tokenizer.eos_id().into_iter().collect();
        for config in [&settings["eos_token_id"], &artifact.model.config.source["eos_token_id"]] {
            stop.extend(ids(config));
        }
        let end_of_turn = tokenizer.chat_template().and_then(|template| template.end_of_turn());
        stop.extend(end_of_turn.and_then(|text| tokenizer.token_id(text)));
        stop.sort_unstable();
        stop.dedup();
        Ok(Self { artifact, tokenizer, defaults: sampling_of(&settings), stop })
    }

    /// The most tokens the model was made for, prompt and answer together.
    pub fn max_position(&self) -> usize {
        self.artifact.model.config.max_position
    }

    /// Whether an encoder reads the prompts, so that they take nothing of the room for answers.
    pub fn reads_prompts_apart(&self) -> bool {
        self.artifact.model.config.streams() > 1
    }

    pub fn encode(&self, prompt: &Prompt) -> Result<EncodedPrompt, Failure> {
        match prompt {
            Prompt::Text(text) => {
                let mut tokens = self.tokenizer.encode(text, true)?;
                if self.reads_prompts_apart() {
                    return Ok(EncodedPrompt { text: text.clone(), tokens: self.ended(tokens) });
                }
                // Some tokenizers end every text, and this one is to go on.
                let ended = self.tokenizer.encode(text, false)?;
                if tokens.last() == self.tokenizer.eos_id().as_ref() && tokens.last() != ended.last() {
                    tokens.pop();
                }
                Ok(EncodedPrompt { text: text.clone(), tokens })
            }
            Prompt::Messages(messages) => {
                let template = self.tokenizer.chat_template().ok_or_else(|| {
                    Failure::bad_input(format!("{} has no chat template", self.tokenizer.origin()))
                        .hint("choose one with --template, such as --template chatml, or leave --chat away")
                })?;
                let text = template.render(messages, &Json::Null, true).map_err(|reason| {
                    Failure::bad_input(format!("the chat template of {} refuses: {reason}", self.tokenizer.origin()))
                })?;
                let tokens = self.tokenizer.encode(&text, false)?;
                Ok(EncodedPrompt { text, tokens: if self.reads_prompts_apart() { self.ended(tokens) } else { tokens } })
            }
        }
    }

    /// With an end, as sources have one in training.
    fn ended(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        tokens.extend(self.tokenizer.eos_id().filter(|eos| tokens.last() != Some(eos)));
        tokens
    }

    /// Without special tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, DataError> {
        self.tokenizer.decode(tokens, true)
    }

    /// Plans for texts of up to `context` tokens, as many side by side as fit and at most `sequences`, takes the memory and
    /// reads the weights.
    pub fn start(
        &self,
        resolved: &Resolved,
        context: usize,
        sequences: usize,
        paranoid: bool,
    ) -> Result<TextSession, Failure> {
        let Present { backend, device } = device::present(resolved, false)?;
        let lora = self.artifact.adapter.as_ref().map(|adapter| adapter.lora.clone());
        let mut spec = Spec {
            model: self.artifact.model.clone(),
            task: match self.artifact.model.config.decoder_start.filter(|_| self.reads_prompts_apart()) {
                Some(start) => Arc::new(Seq2Seq::new(start)),
                None => Arc::new(Language::sft()),
            },
            recipe: Recipe::forward_only(lora, compute(resolved, &device.profile)?),
            sequences: 1,
            tokens: None,
            max_length: context,
            goal: Goal::Fastest,
            pins: Pins::default(),
            seed: resolved.run.seed,
        };
        let capacity = capacity(resolved, &device);
        let (budgets, data) = (capacity.budgets, DataMemory::none());
        let inference = Inference::Generate { sequences };
        let plan = |spec: &Spec| plan_inference(spec, inference, &device.profile, budgets, beside(&device.profile));
        let fits = |spec: &Spec| plan(spec).map(|_| ());
        let base = base::of_inference(&mut spec, resolved, self.artifact.adapter.as_ref(), &device.profile, &fits)?;
        let prepared = prepare_inference(&spec, inference, backend, &device.profile, budgets, &data, paranoid);
        let Prepared { mut session, report, .. } =
            held(prepared, budgets).map_err(|error| refused(error, &spec, resolved, &device, &capacity))?;
        if let Some(adapter) = &self.artifact.adapter {
            session.load_adapters(&adapter.path)?;
        }
        let mut notes = device.notes;
        notes.extend(capacity.notes);
        notes.extend(base);
        Ok(TextSession { session, report, notes, stop: self.stop.clone() })
    }
}

impl TextSession {
    /// Sequences side by side.
    pub fn sequences(&self) -> usize {
        self.report.effective_batch.sequences
    }

    /// Continues each prompt; `heard` gets every token as it comes, with its prompt's number, and may end it all.
    pub fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        sampling: &Sampling,
        max_new: usize,
        heard: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, Failure> {
        let ending = Ending { stop: self.stop.clone(), max_new };
        Ok(self.session.generate(prompts, sampling, &ending, heard)?)
    }

    pub fn measured(&mut self) -> Measured {
        let gpu = self.session.executor().backend().used();
        Measured { host_bytes: Some(peak_resident_bytes()), gpu_bytes: gpu.map(|used| used.bytes) }
    }
}

/// Whether an id or a list of them.
fn ids(value: &Json) -> Vec<u32> {
    let one = |value: &Json| value.as_u64().and_then(|id| u32::try_from(id).ok());
    value.as_array().map_or_else(|| one(value).into_iter().collect(), |all| all.iter().filter_map(one).collect())
}

/// The settings a model comes with, which only hold where it says that it is sampled from.
fn sampling_of(settings: &Json) -> Sampling {
    let number = |key: &str, otherwise: f32| settings[key].as_f64().map_or(otherwise, |number| number as f32);
    let penalized = Sampling { repetition_penalty: number("repetition_penalty", 1.0), ..Sampling::GREEDY };
    if settings["do_sample"] != Json::Bool(true) {
        return penalized;
    }
    Sampling {
        temperature: number("temperature", 1.0),
        top_k: settings["top_k"].as_u64().filter(|&k| k > 0).map(|k| k as usize),
        top_p: number("top_p", 1.0),
        ..penalized
    }
}

/// Contexts are looked for in steps of so many tokens.
const CONTEXT_STEP: usize = 16;
/// Two processes of one program differ by so much.
const SLACK_BYTES: u64 = 4 << 20;

/// What a model that is started takes beside its plan.
pub(crate) fn beside(device: &DeviceProfile) -> Fixed {
    Fixed {
        gpu_context_bytes: device.context_bytes,
        host_process_bytes: resident_bytes() + SLACK_BYTES,
        host_data_bytes: 0,
    }
}

/// What does not fit is refused with the smallest budget that would do, and the longest context that fits this one.
fn refused(error: TrainError, spec: &Spec, resolved: &Resolved, device: &Device, capacity: &Capacity) -> Failure {
    let too_large = matches!(error, TrainError::Plan(PlanError::DoesNotFit { .. }));
    let mut failure = not_started(error, resolved, &device.profile, capacity);
    if !too_large {
        return failure;
    }
    let inference = Inference::Generate { sequences: 1 };
    for remedy in inference_remedies(spec, inference, &device.profile) {
        failure = failure.hint(remedy);
    }
    let fixed = beside(&device.profile);
    let fits = |steps: usize| {
        let spec = Spec { max_length: steps * CONTEXT_STEP, ..spec.clone() };
        let inference = Inference::Generate { sequences: 1 };
        plan_inference(&spec, inference, &device.profile, capacity.budgets, fixed).is_ok()
    };
    let (mut fitting, mut too_long) = (0, spec.max_length.div_ceil(CONTEXT_STEP));
    while too_long - fitting > 1 {
        let middle = (fitting + too_long) / 2;
        if fits(middle) { fitting = middle } else { too_long = middle }
    }
    match fitting * CONTEXT_STEP {
        0 => failure.hint("no context fits this budget: the weights alone are too large"),
        longest => failure.hint(format!("the longest context that fits is --context {longest}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_model_says_how_it_is_sampled_from() {
        let settings =
            json!({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [3, 7]});
        let expected = Sampling { temperature: 0.6, top_k: Some(20), top_p: 0.95, ..Sampling::GREEDY };
        assert_eq!(sampling_of(&settings), expected);
        assert_eq!(ids(&settings["eos_token_id"]), [3, 7]);
        assert_eq!(ids(&json!(5)), [5]);
        assert!(ids(&Json::Null).is_empty());
        let quiet = json!({"temperature": 0.6, "repetition_penalty": 1.2});
        assert_eq!(sampling_of(&quiet), Sampling { repetition_penalty: 1.2, ..Sampling::GREEDY });
        assert_eq!(sampling_of(&Json::Null), Sampling::GREEDY);
    }
}
