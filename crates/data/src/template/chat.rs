//! Chat templates: Jinja as Hugging Face runs it, rendered to text, with the answers marked where the template does so.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use minijinja::machinery::{CodeGenerator, Instructions, eval, make_string_output, parse};
use minijinja::value::{Serde, Value as Made};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, context};
use serde_json::Value;

use super::{built_in, jinja, limits, made};
use crate::error::DataError;
use crate::format::as_conversation;
use crate::tokenize::fingerprint;

const NAME: &str = "chat";
/// The compiler counts columns in sixteen bits, and one more where it reports an error.
const LINE_BYTES_MAX: usize = 65_000;

/// A compiled template. Rendering is a pure function of the conversation: the date is taken once, here, so that all
/// rows of a run agree.
pub struct ChatTemplate {
    environment: Environment<'static>,
    program: Program,
    end_of_turn: Option<String>,
    marks_answers: bool,
    /// As Hugging Face runs it.
    source: String,
    fingerprint: u128,
}

/// Instructions, with the operators counted.
struct Program {
    instructions: Instructions<'static>,
    blocks: BTreeMap<&'static str, Instructions<'static>>,
    fuel: u64,
    /// What the instructions borrow; the last field, because fields are dropped in order.
    _source: Arc<str>,
}

impl Program {
    fn compile(source: String) -> Result<Self, Error> {
        if source.split('\n').any(|line| line.len() > LINE_BYTES_MAX) {
            let message = format!("a line has more than {LINE_BYTES_MAX} bytes");
            return Err(Error::new(ErrorKind::SyntaxError, message));
        }
        made::check_constants(&source, jinja::syntax())?;
        let owned: Arc<str> = source.into();
        // SAFETY: instructions borrow their source. It does not move, lives as long as they do, beside them, and is dropped
        // behind them; nothing of it gets out of here but as copies.
        let source: &'static str = unsafe { &*std::ptr::from_ref::<str>(&owned) };
        let parsed = parse(source, NAME, jinja::syntax())?;
        let mut generator = CodeGenerator::new(NAME, source);
        generator.compile_stmt(&parsed);
        let (mut instructions, mut blocks) = generator.finish();
        let all = std::iter::once(&mut instructions).chain(blocks.values_mut());
        let longest = all.map(made::count_operators).max().unwrap_or(0);
        Ok(Self { instructions, blocks, fuel: limits::fuel(longest), _source: owned })
    }

    fn run(&self, environment: &Environment<'static>, values: Made) -> Result<String, Error> {
        made::begin();
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        eval(environment, &self.instructions, values, &self.blocks, &mut out, AutoEscape::None)?;
        drop(out);
        Ok(text)
    }
}

/// A conversation as text. `answers`: what lies in `{% generation %}` blocks, as bytes of the text; `None` if the
/// template has no such block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    pub text: String,
    pub answers: Option<Vec<Range<usize>>>,
}

impl ChatTemplate {
    /// `specials`: tokens by the name a template knows them by (`bos_token`, `eos_token`, …).
    pub fn new(origin: &str, source: &str, specials: &BTreeMap<String, String>) -> Result<Self, DataError> {
        let mut environment = jinja::environment(SystemTime::now());
        for (name, token) in specials {
            environment.add_global(name.clone(), token.clone());
        }
        let tokens = specials.iter().flat_map(|(name, token)| [name.as_str(), token.as_str()]);
        let fingerprint = fingerprint([source].into_iter().chain(tokens).map(str::as_bytes));
        let (marked, marks_answers) = jinja::with_generation_marks(source);
        let program = Program::compile(marked)
            .map_err(|error| DataError::BadTemplate { origin: origin.to_owned(), reason: jinja::reason(&error) })?;
        environment.set_fuel(Some(program.fuel));
        let source = source.to_owned();
        let mut template = Self { environment, program, end_of_turn: None, marks_answers, source, fingerprint };
        template.end_of_turn = template.probe_end_of_turn();
        Ok(template)
    }

    /// Takes another time for the present: what a template writes with the date of today in it is another text tomorrow.
    pub(crate) fn set_now(&mut self, now: SystemTime) {
        jinja::set_now(&mut self.environment, now);
    }

    /// One of `BUILT_IN_TEMPLATES`. `is_token` says whether a text is one token of the tokenizer: the end of a turn must
    /// be, or the model could not stop at it.
    pub fn built_in(
        name: &str,
        specials: &BTreeMap<String, String>,
        is_token: impl Fn(&str) -> bool,
    ) -> Result<Self, DataError> {
        let (source, specials) = built_in::prepare(name, specials, is_token)?;
        let mut template = Self::new(&format!("Plimsoll's template {name}"), source, &specials)?;
        template.source = built_in::standing_alone(source, &specials);
        Ok(template)
    }

    /// Bounded in steps and in bytes, whatever the template. The error is the template's or Jinja's reason; the caller
    /// knows which row it belongs to.
    pub fn render(&self, messages: &[Value], tools: &Value, add_generation_prompt: bool) -> Result<String, String> {
        self.render_marked(messages, tools, add_generation_prompt).map(|rendered| rendered.text)
    }

    pub fn render_marked(
        &self,
        messages: &[Value],
        tools: &Value,
        add_generation_prompt: bool,
    ) -> Result<Rendered, String> {
        if self.marks_answers && (messages.iter().any(jinja::holds_marks) || jinja::holds_marks(tools)) {
            return Err("the text holds U+FDD0 or U+FDD1, which are not characters".to_owned());
        }
        // Absent is not none in Jinja: templates ask `tools is not none`, so the two are always given.
        let values = context! {
            messages => Serde(messages),
            tools => Serde(tools),
            documents => (),
            add_generation_prompt,
        };
        let text = self.program.run(&self.environment, values).map_err(|error| jinja::reason(&error))?;
        if !self.marks_answers {
            return Ok(Rendered { text, answers: None });
        }
        let (text, answers) = jinja::take_marks(&text);
        Ok(Rendered { text, answers: Some(answers) })
    }

    /// As Hugging Face runs it: to be kept beside a model that was trained with it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Of what it was made from: its source and the tokens it knows.
    pub(crate) fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    /// The text with which the assistant ends a turn (`<|im_end|>`, `</s>`), if the template has one.
    pub fn end_of_turn(&self) -> Option<&str> {
        self.end_of_turn.as_deref()
    }

    /// What a template writes after an answer is found by rendering one. White space behind the marker is the
    /// template's own and not for the model to produce.
    fn probe_end_of_turn(&self) -> Option<String> {
        const ANSWER: &str = "plimsoll-answer";
        let text = self.render(&as_conversation("question", ANSWER), &Value::Null, false).ok()?;
        let marker = text.rsplit_once(ANSWER)?.1.trim_end();
        (!marker.is_empty()).then(|| marker.to_owned())
    }
}
