//! Templates by name, in the manner of the well-known families, for tokenizers that bring none.

use std::collections::BTreeMap;

use crate::error::DataError;

/// Names that `Tokenizer::with_template` knows beside a file and the tokenizer's own.
pub const BUILT_IN_TEMPLATES: [&str; 8] =
    ["chatml", "llama-3", "mistral", "zephyr", "alpaca", "gemma", "vicuna", "phi-3"];

const CHATML: &str = "{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.role == 'assistant' -%}
        {%- generation -%}{{- (message.content or '') + end_of_turn -}}{%- endgeneration -%}{{- '\\n' -}}
    {%- else -%}
        {{- (message.content or '') + end_of_turn + '\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

const LLAMA_3: &str = "{{- bos_token -}}
{%- for message in messages -%}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' -}}
    {%- if message.role == 'assistant' -%}
        {%- generation -%}{{- (message.content or '') | trim + end_of_turn -}}{%- endgeneration -%}
    {%- else -%}
        {{- (message.content or '') | trim + end_of_turn -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}";

const MISTRAL: &str = "{{- bos_token -}}
{%- set state = namespace(system='') -%}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {%- set state.system = (message.content | trim) + '\\n\\n' -%}
    {%- elif message.role == 'user' -%}
        {{- '[INST] ' + state.system + (message.content | trim) + ' [/INST]' -}}
        {%- set state.system = '' -%}
    {%- elif message.role == 'assistant' -%}
        {%- generation -%}{{- ' ' + ((message.content or '') | trim) + end_of_turn -}}{%- endgeneration -%}
    {%- else -%}
        {{- raise_exception('template mistral has no place for the role ' + message.role) -}}
    {%- endif -%}
{%- endfor -%}";

const ZEPHYR: &str = "{%- for message in messages -%}
    {{- '<|' + message.role + '|>\\n' -}}
    {%- if message.role == 'assistant' -%}
        {%- generation -%}{{- (message.content or '') + end_of_turn -}}{%- endgeneration -%}{{- '\\n' -}}
    {%- else -%}
        {{- (message.content or '') + end_of_turn + '\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}";

const ALPACA: &str = "{{- bos_token -}}
{%- if messages[0].role == 'system' -%}
    {{- messages[0].content + '\\n\\n' -}}
{%- else -%}
    {{- 'Below is an instruction that describes a task. Write a response that appropriately completes the request.\\n\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {{- '### Instruction:\\n' + message.content + '\\n\\n' -}}
    {%- elif message.role == 'assistant' -%}
        {{- '### Response:\\n' -}}
        {%- generation -%}{{- (message.content or '') + end_of_turn -}}{%- endgeneration -%}
        {%- if not loop.last -%}{{- '\\n\\n' -}}{%- endif -%}
    {%- elif not (message.role == 'system' and loop.first) -%}
        {{- raise_exception('template alpaca has no place for the role ' + message.role) -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '### Response:\\n' -}}{%- endif -%}";

const GEMMA: &str = "{{- bos_token -}}
{%- set state = namespace(system='') -%}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {%- set state.system = (message.content | trim) + '\\n\\n' -%}
    {%- elif message.role == 'user' -%}
        {{- '<start_of_turn>user\\n' + state.system + (message.content | trim) + end_of_turn + '\\n' -}}
        {%- set state.system = '' -%}
    {%- elif message.role == 'assistant' -%}
        {{- '<start_of_turn>model\\n' -}}
        {%- generation -%}{{- ((message.content or '') | trim) + end_of_turn -}}{%- endgeneration -%}{{- '\\n' -}}
    {%- else -%}
        {{- raise_exception('template gemma has no place for the role ' + message.role) -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}";

const VICUNA: &str = "{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {{- message.content + '\\n\\n' -}}
    {%- elif message.role == 'user' -%}
        {{- 'USER: ' + message.content + '\\n' -}}
    {%- elif message.role == 'assistant' -%}
        {{- 'ASSISTANT:' -}}
        {%- generation -%}{{- ' ' + (message.content or '') + end_of_turn -}}{%- endgeneration -%}{{- '\\n' -}}
    {%- else -%}
        {{- raise_exception('template vicuna has no place for the role ' + message.role) -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}";

/// A template on its own, for a tokenizer that ends sequences with `eos`: as Hugging Face runs it, without our variable.
pub(crate) fn built_in_source(name: &str, eos: &str) -> Result<String, DataError> {
    let specials = BTreeMap::from([("eos_token".to_owned(), eos.to_owned())]);
    let (source, specials) = prepare(name, &specials, |_| true)?;
    Ok(standing_alone(source, &specials))
}

/// What ends a turn in it, for the same tokenizer.
pub(crate) fn built_in_end(name: &str, eos: &str) -> Result<String, DataError> {
    let specials = BTreeMap::from([("eos_token".to_owned(), eos.to_owned())]);
    let (_, mut specials) = prepare(name, &specials, |_| true)?;
    Ok(specials.remove("end_of_turn").unwrap_or_default())
}

/// The source with our variable written out.
pub(super) fn standing_alone(source: &str, specials: &BTreeMap<String, String>) -> String {
    let end = specials.get("end_of_turn").map(String::as_str).unwrap_or_default();
    let quoted = format!("'{}'", end.replace('\\', "\\\\").replace('\'', "\\'"));
    source.replace("end_of_turn -}}", &format!("{quoted} -}}}}")).replace("end_of_turn +", &format!("{quoted} +"))
}

/// The source, and the specials with `end_of_turn` among them.
pub(super) fn prepare(
    name: &str,
    specials: &BTreeMap<String, String>,
    is_token: impl Fn(&str) -> bool,
) -> Result<(&'static str, BTreeMap<String, String>), DataError> {
    let eos = specials.get("eos_token").map(String::as_str);
    // ChatML's own end where the tokenizer has it; the others' ends are part of what they are.
    let chatml_end = if is_token("<|im_end|>") { Some("<|im_end|>") } else { eos };
    let (source, end) = match name {
        "chatml" => (CHATML, chatml_end),
        "llama-3" => (LLAMA_3, Some("<|eot_id|>")),
        "mistral" => (MISTRAL, eos),
        "zephyr" => (ZEPHYR, eos),
        "alpaca" => (ALPACA, eos),
        "gemma" => (GEMMA, Some("<end_of_turn>")),
        "vicuna" => (VICUNA, eos),
        // The same turns as Zephyr's, with an end of its own.
        "phi-3" => (ZEPHYR, Some("<|end|>")),
        _ => return Err(DataError::UnknownTemplate { name: name.to_owned(), known: BUILT_IN_TEMPLATES.join(", ") }),
    };
    let end = end.unwrap_or_default();
    if !is_token(end) {
        let end = if end.is_empty() { "the tokenizer's eos_token".to_owned() } else { end.to_owned() };
        return Err(DataError::NoEndOfTurn { name: name.to_owned(), end });
    }
    let mut specials = specials.clone();
    specials.insert("end_of_turn".to_owned(), end.to_owned());
    Ok((source, specials))
}
