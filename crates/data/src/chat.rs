//! Chat templates: Jinja as Hugging Face runs it, rendered to text.

mod jinja;

use std::collections::BTreeMap;

use minijinja::value::Serde;
use minijinja::{Environment, context};
use serde_json::Value;

use crate::error::DataError;
use crate::shape::as_conversation;

const NAME: &str = "chat";

/// Turns in the manner of ChatML, for tokenizers that bring no template. The end of a turn is `end_token`.
const FALLBACK: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + end_token + '\\n' }}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// A compiled template. Rendering is a pure function of the conversation: the date is taken once, here, so that all
/// rows of a run agree.
pub struct ChatTemplate {
    environment: Environment<'static>,
    end_of_turn: Option<String>,
}

impl ChatTemplate {
    /// `specials`: tokens by the name a template knows them by (`bos_token`, `eos_token`, …).
    pub fn new(origin: &str, source: &str, specials: &BTreeMap<String, String>) -> Result<Self, DataError> {
        let mut environment = jinja::environment(std::time::SystemTime::now());
        for (name, token) in specials {
            environment.add_global(name.clone(), token.clone());
        }
        environment
            .add_template_owned(NAME, jinja::without_generation_tags(source))
            .map_err(|error| DataError::BadTemplate { origin: origin.to_owned(), reason: jinja::reason(&error) })?;
        let mut template = Self { environment, end_of_turn: None };
        template.end_of_turn = template.probe_end_of_turn();
        Ok(template)
    }

    /// The built-in template; `end_token` is what the tokenizer stops at.
    pub fn fallback(end_token: &str) -> Result<Self, DataError> {
        let tokens = BTreeMap::from([("end_token".to_owned(), end_token.to_owned())]);
        Self::new("Plimsoll's built-in template", FALLBACK, &tokens)
    }

    /// The error is the template's or Jinja's reason; the caller knows which row it belongs to.
    pub fn render(&self, messages: &[Value], tools: &Value, add_generation_prompt: bool) -> Result<String, String> {
        let render = || {
            // Absent is not none in Jinja: templates ask `tools is not none`, so the two are always given.
            self.environment.get_template(NAME)?.render(context! {
                messages => Serde(messages),
                tools => Serde(tools),
                documents => (),
                add_generation_prompt,
            })
        };
        render().map_err(|error| jinja::reason(&error))
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
