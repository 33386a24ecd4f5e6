//! Which tokens bear loss, for the chat templates of the model families.

use plimsoll_data::{Content, DataError, Options, Tokenizer};
use serde_json::{Value, json};

use crate::fixtures::{build, byte_tokenizer, plain_tokenizer, shown, tokenizer_with_merges};

/// Qwen 2.5's manner.
const CHATML: &str = "{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}";

/// Llama 3's: a beginning, headers, content trimmed.
const HEADERS: &str = "{{- bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + \
    '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

/// Mistral's: no generation prompt, roles must alternate.
const INST: &str = "{{ bos_token }}{% for message in messages %}\
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate!') }}{% endif %}\
    {% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}\
    {% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}";

/// Qwen 3's: thoughts stay only with the last answer.
const THINKING: &str = "{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.last %}
            {%- set content = '<think>\\n\\n</think>\\n\\n' + content %}
        {%- endif %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}";

const SPECIALS: [&str; 6] =
    ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>"];

fn chat_tokenizer(template: &str) -> Tokenizer {
    let config = json!({"bos_token": "<s>", "eos_token": "<|end|>", "chat_template": template});
    byte_tokenizer(&SPECIALS, &config)
}

fn dialogue() -> Value {
    json!({"messages": [
        {"role": "user", "content": "May she sail?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Now? "},
        {"role": "assistant", "content": "At noon."},
    ]})
}

fn check(tokenizer: &Tokenizer, row: Value, text: &str, learnt: &[&str]) {
    let data = build(&[row], tokenizer, &Options::new(Content::Answers, 400)).expect("builds");
    let (got_text, got_learnt) = shown(tokenizer, data.get(0));
    assert_eq!(got_text, text);
    assert_eq!(got_learnt, learnt);
}

#[test]
fn answers_and_their_ends_are_learnt_in_every_manner() {
    check(
        &chat_tokenizer(CHATML),
        dialogue(),
        "<|im_start|>user\nMay she sail?<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n\
         <|im_start|>user\nNow? <|im_end|>\n<|im_start|>assistant\nAt noon.<|im_end|>\n",
        &["Yes.<|im_end|>", "At noon.<|im_end|>"],
    );
    check(
        &chat_tokenizer(HEADERS),
        dialogue(),
        "<s><|start_header_id|>user<|end_header_id|>\n\nMay she sail?<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\nYes.<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nNow?<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\nAt noon.<|eot_id|>",
        &["Yes.<|eot_id|>", "At noon.<|eot_id|>"],
    );
    check(
        &chat_tokenizer(INST),
        dialogue(),
        "<s>[INST] May she sail? [/INST] Yes.<|end|>[INST] Now?  [/INST] At noon.<|end|>",
        &[" Yes.<|end|>", " At noon.<|end|>"],
    );
    check(
        &chat_tokenizer(THINKING),
        dialogue(),
        "<|im_start|>user\nMay she sail?<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n\
         <|im_start|>user\nNow? <|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nAt noon.<|im_end|>\n",
        &["Yes.<|im_end|>", "<think>\n\n</think>\n\nAt noon.<|im_end|>"],
    );
}

#[test]
fn pairs_become_conversations_where_there_is_a_template() {
    check(
        &chat_tokenizer(CHATML),
        json!({"prompt": "2+2?", "response": "4"}),
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n",
        &["4<|im_end|>"],
    );
}

#[test]
fn without_a_template_turns_are_chatml_that_ends_with_the_tokenizers_end() {
    check(
        &plain_tokenizer(),
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}),
        "<|im_start|>user\na<|end|>\n<|im_start|>assistant\nb<|end|>\n",
        &["b<|end|>"],
    );
}

#[test]
fn a_token_across_the_boundary_is_learnt() {
    // "Total: " + "61" meet inside one token, " 6".
    let config = json!({"eos_token": "<|end|>"});
    let tokenizer = tokenizer_with_merges(&[], &[("Ġ", "6")], &config);
    let row = json!({"prompt": "Total: ", "response": "61"});
    check(&tokenizer, row, "Total: 61<|end|>", &[" 61<|end|>"]);
}

#[test]
fn generation_tags_and_tools_pass_through() {
    let template = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}\
        {% if m.role == 'assistant' %}<|im_start|>{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\
        {% else %}{{ m.content }}{% endif %}{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>{% endif %}";
    let mut row = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    check(&chat_tokenizer(template), row.clone(), "a<|im_start|>b<|im_end|>", &["b<|im_end|>"]);
    row["tools"] = json!([{"name": "weigh"}]);
    let text = "[{\"name\": \"weigh\"}]a<|im_start|>b<|im_end|>";
    check(&chat_tokenizer(template), row, text, &["b<|im_end|>"]);
}

#[test]
fn what_a_template_cannot_take_is_said_with_the_row() {
    let options = Options::new(Content::Answers, 400);
    let bad = json!({"messages": [{"role": "assistant", "content": "first"}]});
    let error = build(&[dialogue(), bad], &chat_tokenizer(INST), &options).expect_err("refused");
    let message = error.to_string();
    assert!(message.contains("row 2") && message.contains("Roles must alternate!"), "{message}");

    // A template that counts the turns at its beginning changes what was already there.
    let counting = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}";
    let error = build(&[dialogue()], &chat_tokenizer(counting), &options).expect_err("rewrites");
    assert!(matches!(error, DataError::NotIncremental { turn: 2, .. }), "{error}");
}
