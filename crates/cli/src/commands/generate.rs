//! `plimsoll generate`.

use std::io::{BufRead, IsTerminal, Read};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_run::config::{Source, load};
use plimsoll_run::{
    EncodedPrompt, Failure, Measured, Prompt, TextModel, TextSession, TextStream, read_prompts, visible, visible_lines,
};
use plimsoll_train::{Generated, Sampling};
use serde_json::{Value as Json, json};

use crate::args::GenerateArgs;
use crate::printer::Printer;
use crate::{interrupt, tables};

/// New tokens of an answer where nobody says.
const MAX_NEW: usize = 256;
/// Tokens of a conversation where nobody says and the model has more.
const CONTEXT: usize = 4096;
/// The same for models that read what is said apart from what they say, which has so many tokens too.
const CONTEXT_APART: usize = 512;
/// Prompts side by side at most.
const SIDE_BY_SIDE: usize = 16;
/// Prompts whose answers are waited for before they are printed, for each place.
const ROUNDS: usize = 8;

pub fn run(args: &GenerateArgs, printer: &Printer) -> Result<(), Failure> {
    let text = format!("model: {}\n", Json::from(args.model.as_str()));
    let resolved = load(Source::Embedded { name: "generate", text: &text }, &args.device.overrides(&args.template))?;
    let model = TextModel::open(&resolved, &args.model, args.adapter.as_deref())?;
    let sampling = sampling(args, &model.defaults)?;
    let max_new = args.max_new.unwrap_or(MAX_NEW);
    let given = given_prompts(args)?;
    let prompts =
        given.into_iter().flatten().map(|prompt| encode(args, &model, prompt)).collect::<Result<Vec<_>, _>>()?;
    let longest = prompts.iter().map(|prompt| prompt.tokens.len()).max();
    let context = context(args, &model, longest, max_new)?;
    let sequences = if longest.is_some() { prompts.len().min(SIDE_BY_SIDE) } else { 1 };
    let mut session = model.start(&resolved, context, sequences, args.device.paranoid)?;
    session.notes.iter().for_each(|note| printer.note(note));
    printer.note_tables(&tables::memory(&session.report, Measured::default()));
    let mut writer = Writer { args, model: &model, session: &mut session, sampling, max_new, printer };
    match longest {
        Some(_) => writer.answer_all(&prompts)?,
        None => writer.converse(context)?,
    }
    let measured = session.measured();
    printer.note_tables(&tables::memory(&session.report, measured));
    Ok(())
}

/// What the command line, a file or a pipe gives; `None` where prompts are typed.
fn given_prompts(args: &GenerateArgs) -> Result<Option<Vec<Prompt>>, Failure> {
    if let Some(text) = &args.prompt {
        return Ok(Some(vec![Prompt::Text(text.clone())]));
    }
    if let Some(file) = &args.prompt_file {
        return read_prompts(file).map(Some);
    }
    if args.interactive || args.chat || std::io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::bad_input(format!("the prompt on standard input cannot be read: {error}")))?;
    Ok(Some(vec![Prompt::Text(text.strip_suffix('\n').unwrap_or(&text).to_owned())]))
}

fn encode(args: &GenerateArgs, model: &TextModel, prompt: Prompt) -> Result<EncodedPrompt, Failure> {
    let prompt = if args.chat { prompt.as_conversation() } else { prompt };
    let encoded = model.encode(&prompt)?;
    if encoded.tokens.is_empty() {
        return Err(Failure::bad_input(
            "the prompt is empty, and the tokenizer begins no text with a token of its own",
        )
        .hint("give a prompt of at least one character"));
    }
    Ok(encoded)
}

/// The model's settings with those of the command line.
fn sampling(args: &GenerateArgs, defaults: &Sampling) -> Result<Sampling, Failure> {
    let within = |flag: &str, value: Option<f32>, allowed: bool, what: &str| match value {
        Some(value) if !allowed || !value.is_finite() => {
            Err(Failure::usage(format!("{flag} must be {what}, found {value}")))
        }
        value => Ok(value),
    };
    let temperature = args.temperature;
    let temperature = within("--temperature", temperature, temperature >= Some(0.0), "0 (greedy) or more")?;
    let top_p = within("--top-p", args.top_p, args.top_p.is_none_or(|p| p > 0.0 && p <= 1.0), "above 0 and at most 1")?;
    let penalty = args.repetition_penalty;
    let penalty = within("--repetition-penalty", penalty, penalty > Some(0.0), "above 0")?;
    // Whoever asks for a choice wants one.
    let chooses = args.top_p.is_some() || args.top_k.is_some();
    let otherwise = if chooses && defaults.temperature == 0.0 { 1.0 } else { defaults.temperature };
    Ok(Sampling {
        repetition_penalty: penalty.unwrap_or(defaults.repetition_penalty),
        temperature: temperature.unwrap_or(otherwise),
        top_k: args.top_k.map_or(defaults.top_k, |k| (k > 0).then_some(k)),
        top_p: top_p.unwrap_or(defaults.top_p),
        seed: args.seed,
    })
}

/// Tokens to plan for: what the prompts need, or what a conversation may have.
fn context(args: &GenerateArgs, model: &TextModel, longest: Option<usize>, max_new: usize) -> Result<usize, Failure> {
    let most = model.max_position();
    if let Some(context) = args.context.filter(|&context| context > most || context == 0) {
        return Err(Failure::usage(format!("--context is {context}; the model was made for 1 to {most} tokens")));
    }
    let usual = if model.reads_prompts_apart() { CONTEXT_APART } else { CONTEXT };
    let Some(longest) = longest else { return Ok(args.context.unwrap_or(usual.min(most))) };
    let available = args.context.unwrap_or(most);
    if longest > available {
        return Err(Failure::bad_input(format!("a prompt has {longest} tokens, more than the context of {available}"))
            .hint("shorten it, or choose a longer --context if the model was made for one"));
    }
    let needed = if model.reads_prompts_apart() { longest.max(max_new) } else { longest + max_new };
    Ok(needed.min(available))
}

struct Writer<'a> {
    args: &'a GenerateArgs,
    model: &'a TextModel,
    session: &'a mut TextSession,
    sampling: Sampling,
    max_new: usize,
    printer: &'a Printer,
}

impl Writer<'_> {
    /// Every prompt once. One alone is printed as it comes, several when they are done.
    fn answer_all(&mut self, prompts: &[EncodedPrompt]) -> Result<(), Failure> {
        let stop = interrupt::listen(self.printer.language());
        if let [prompt] = prompts {
            let stream = !self.printer.is_json();
            let answer = self.answer(&prompt.tokens, stream, stop)?;
            if self.printer.is_json() {
                self.print_json(prompt, &answer)?;
            }
            return self.finish(&[answer], stop);
        }
        let mut all = Vec::new();
        let mut heard = |_: usize, _: u32| stopped(stop);
        for wave in prompts.chunks(self.session.sequences() * ROUNDS) {
            let tokens: Vec<Vec<u32>> = wave.iter().map(|prompt| prompt.tokens.clone()).collect();
            // Each wave's texts draw numbers of their own.
            let sampling =
                Sampling { seed: self.sampling.seed.wrapping_add(all.len() as u64), ..self.sampling.clone() };
            let answers = self.session.generate(&tokens, &sampling, self.max_new, &mut heard)?;
            for (prompt, answer) in wave.iter().zip(&answers) {
                match self.printer.is_json() {
                    true => self.print_json(prompt, answer)?,
                    false => {
                        self.printer.remarked(&format!("> {}", visible(&prompt.text)));
                        self.printer.verbatim(visible_lines(&self.model.decode(&answer.tokens)?));
                    }
                }
            }
            all.extend(answers);
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        self.finish(&all, stop)
    }

    /// One prompt's answer; with `stream`, on stdout as it comes.
    fn answer(&mut self, tokens: &[u32], stream: bool, stop: &AtomicBool) -> Result<Generated, Failure> {
        let (model, printer) = (self.model, self.printer);
        let (mut text, mut failed) = (TextStream::default(), None);
        let mut heard = |_: usize, token: u32| {
            if stream {
                match text.push(token, |tokens| model.decode(tokens)) {
                    Ok(piece) => printer.piece(visible_lines(&piece)),
                    Err(error) => failed = Some(error),
                }
            }
            if failed.is_some() { ControlFlow::Break(()) } else { stopped(stop) }
        };
        let mut answers = self.session.generate(&[tokens.to_vec()], &self.sampling, self.max_new, &mut heard)?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        if stream {
            let rest = text.finish(|tokens| model.decode(tokens))?;
            printer.piece(format!("{}\n", visible_lines(&rest)));
        }
        Ok(answers.pop().unwrap_or_default())
    }

    fn print_json(&self, prompt: &EncodedPrompt, answer: &Generated) -> Result<(), Failure> {
        self.printer.json(&json!({
            "prompt": prompt.text,
            "text": self.model.decode(&answer.tokens)?,
            "tokens": answer.tokens,
            "tokens_per_s": answer.tokens.len() as f64 / answer.seconds.max(1e-9),
            "first_token_ms": answer.first_s * 1e3,
            "later_tokens_per_s": answer.tokens_per_s(),
        }));
        Ok(())
    }

    fn finish(&self, answers: &[Generated], stop: &AtomicBool) -> Result<(), Failure> {
        let tokens: usize = answers.iter().map(|answer| answer.tokens.len()).sum();
        let longest = answers.iter().map(|answer| answer.seconds).fold(0.0, f64::max);
        if answers.len() == 1 {
            self.printer.note(format!("{tokens} tokens, {:.1} tokens/s", tokens as f64 / longest.max(1e-9)));
        }
        match stop.load(Ordering::Relaxed) {
            true => Err(Failure::interrupted(format!("interrupted after {tokens} tokens"))),
            false => Ok(()),
        }
    }

    /// Prompts as they are typed; with `--chat`, each is the next turn of a conversation.
    fn converse(&mut self, context: usize) -> Result<(), Failure> {
        let mut history: Vec<Json> = Vec::new();
        if self.args.chat {
            self.printer.note("/clear forgets the conversation, an empty line or Ctrl-D ends it");
        }
        loop {
            self.printer.ask("> ");
            let mut line = String::new();
            let read = std::io::stdin().lock().read_line(&mut line);
            let read = read.map_err(|error| Failure::bad_input(format!("cannot read what is typed: {error}")))?;
            let typed = line.trim_end_matches(['\n', '\r']);
            if read == 0 || typed.is_empty() {
                return Ok(());
            }
            if self.args.chat && typed == "/clear" {
                history.clear();
                continue;
            }
            let said = json!({"role": "user", "content": typed});
            let prompt = match self.args.chat {
                true => Prompt::Messages(history.iter().cloned().chain([said.clone()]).collect()),
                false => Prompt::Text(typed.to_owned()),
            };
            let encoded = self.model.encode(&prompt)?;
            if encoded.tokens.len() >= context {
                let tokens = encoded.tokens.len();
                self.printer.warning(format!("{tokens} tokens do not fit the context of {context}"));
                self.printer.note("shorten it, /clear the conversation, or begin again with a longer --context");
                continue;
            }
            let stop = interrupt::listen(self.printer.language());
            let answer = self.answer(&encoded.tokens, !self.printer.is_json(), stop);
            // What is typed next is ended by Ctrl-C again.
            interrupt::ignore();
            let answer = answer?;
            if self.printer.is_json() {
                self.print_json(&encoded, &answer)?;
            }
            let text = self.model.decode(&answer.tokens)?;
            history.extend([said, json!({"role": "assistant", "content": text.trim()})]);
        }
    }
}

fn stopped(stop: &AtomicBool) -> ControlFlow<()> {
    if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
