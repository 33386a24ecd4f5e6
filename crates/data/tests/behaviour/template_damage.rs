//! Templates with something wrong in them: an error or a text, never a panic.

use plimsoll_data::{BUILT_IN_TEMPLATES, DataError, Tokenizer};
use serde_json::{Value, json};

use crate::fixtures::{Folder, byte_tokenizer, plain_tokenizer};

const QWEN: &str = "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}\
    {% generation %}{{- message.content + '<|im_end|>' }}{% endgeneration %}{%- endfor %}\
    {%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}{{ tools | tojson(indent=2) }}";

#[test]
fn no_damage_makes_a_template_panic() {
    let folder = Folder::new();
    let messages =
        [json!({"role": "user", "content": "a"}), json!({"role": "assistant", "content": null, "tool_calls": []})];
    for cut in 0..QWEN.len() {
        for source in [
            QWEN[..cut].to_owned(),
            QWEN[cut..].to_owned(),
            format!("{}{}", &QWEN[..cut], &QWEN[(cut + 2).min(QWEN.len())..]),
            format!("{}%}}{{%{}", &QWEN[..cut], &QWEN[cut..]),
            format!("{}{{{{9**9", &QWEN[..cut]),
        ] {
            let path = folder.write("t.jinja", &source);
            if let Ok(tokenizer) = plain_tokenizer().with_template(path.to_str().expect("UTF-8")) {
                let template = tokenizer.chat_template().expect("a template");
                for tools in [Value::Null, json!([{"name": "x"}])] {
                    let rendered = template.render_marked(&messages, &tools, true);
                    assert!(
                        rendered.is_err() || rendered.is_ok_and(|r| r.answers.is_none_or(|a| a.len() < 9)),
                        "{source}"
                    );
                }
            }
        }
    }
}

#[test]
fn nesting_without_end_is_refused() {
    let folder = Folder::new();
    for source in ["{{ (".repeat(20_000), "{% if true %}".repeat(20_000), format!("{{{{ {} }}}}", "[".repeat(50_000))] {
        let path = folder.write("deep.jinja", source);
        let refused = plain_tokenizer().with_template(path.to_str().expect("UTF-8")).err().expect("is refused");
        assert!(matches!(refused, DataError::BadTemplate { .. }), "{refused}");
    }
}

/// A template comes with a model from anywhere: it must neither run without end nor fill the memory.
#[test]
fn what_a_template_costs_is_bounded() {
    let render = |source: &str| {
        let config = json!({"eos_token": "<|end|>", "chat_template": source});
        let tokenizer = byte_tokenizer(&[], &config);
        let messages = [json!({"role": "user", "content": "a".repeat(100_000)})];
        tokenizer.chat_template().expect("a template").render(&messages, &Value::Null, false)
    };
    let check = |source: &str, reason: &str| {
        let error = render(source).expect_err("too much");
        assert!(error.contains(reason), "{source}: {error}");
    };
    let nested = "{% for i in range(99999) %}".repeat(4) + &"{% endfor %}".repeat(4);
    check(&nested, "too many steps");
    check("{{ messages | tojson(indent=4000000000000) }}", "4000000000000");
    check("{{ 'a\nb' | indent(4000000000000) }}", "4000000000000");
    check("{{ 'a' | indent(width=4000000000000) }}", "4000000000000");
    check("{{ [1] | batch(4000000000000, 0) | list }}", "4000000000000");
    check("{{ [1] | slice(4000000000000) | list }}", "4000000000000");
    check("{{ '%4000000000000d' | format(1) }}", "width");
    check("{{ '%*d' | format(4000000000000, 1) }}", "width");
    check("{{ '{:>4000000000000}'.format(1) }}", "width");
    check("{{ '{:{}}'.format(1, 4000000000000) }}", "width");
    check("{{ 'a' * 4000000000000 }}", "too large");
    check("{% for i in range(9999) %}{{ messages[0].content }}{% endfor %}", "more than 134217728 bytes");
    assert_eq!(render("{% for i in range(99999) %}{{ 'x' }}{% endfor %}").expect("renders").len(), 99_999);
}

#[test]
fn tokens_that_only_the_configuration_lists_are_never_split() {
    let config = json!({"eos_token": "<|end|>", "added_tokens_decoder": {
        "260": {"content": "<new>", "special": true}, "261": {"content": "<also>", "normalized": false}}});
    let tokenizer = byte_tokenizer(&[], &config);
    assert_eq!(tokenizer.encode("a<new><also>b", false).expect("encodes")[1..3], [260, 261]);
    assert_eq!(tokenizer.vocab_size(), 262);
    let (_, text) = &plimsoll_data::quickstart::tokenizer_files()[0];
    let wrong = json!({"added_tokens_decoder": {"900": {"content": "<new>"}}}).to_string();
    let error = Tokenizer::from_bytes("x", text.as_bytes(), Some(&wrong)).err().expect("is refused").to_string();
    assert!(error.contains("<new>") && error.contains("900"), "{error}");
    assert!(BUILT_IN_TEMPLATES.contains(&"chatml"));
}
