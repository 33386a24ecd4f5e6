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
    check("{{ messages[0].content * 4000000000000 }}", "makes values of more than 268435456 bytes");
    check("{% for i in range(9999) %}{{ messages[0].content }}{% endfor %}", "more than 134217728 bytes");
    // Doubled until the memory is full, in every way there is.
    let doubled =
        |step: &str| format!("{{% set n = namespace(s='ab', l=[1]) %}}{{% for i in range(99) %}}{step}{{% endfor %}}");
    for step in [
        "{% set n.s = n.s ~ n.s %}",
        "{% set n.s = n.s + n.s %}",
        "{% set n.s = n.s | replace('', n.s) %}",
        "{% set n.s = n.s.replace('a', n.s) %}",
        "{% set n.s = [n.s, n.s] | join %}",
        "{% set n.s = n.s.join([n.s, n.s]) %}",
        "{% set n.l = n.l + n.l %}",
        "{% set n.l = n.l * 2 %}",
        "{% set n.l = n.l + (([messages[0].content | upper] * 999) | map('lower') | list) %}",
    ] {
        check(&doubled(step), "makes values of more than 268435456 bytes");
    }
    check(&doubled("{% set n.s = n.s * 2 %}"), "too large");
    check(&doubled("{% set x %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = x %}"), "writes more than 134217728 bytes");
    // A list of lists that are the same costs nothing until it is printed.
    check(&(doubled("{% set n.l = [n.l, n.l] %}") + "{{ n.l }}"), "makes values of");
    check(&(doubled("{% set n.l = [n.l, n.l] %}") + "{{ n.l | tojson }}"), "makes values of");
    check(&(doubled("{% set n.l = [n.l, n.l] %}") + "{{ n.l ~ 'x' }}"), "makes values of");
    let long = "x\n".repeat(1 << 19);
    let raw = format!("{{% set x %}}{{% for i in range(99999) %}}{long}{{% endfor %}}{{% endset %}}");
    check(&raw, "too many steps");
    assert_eq!(render("{% for i in range(99999) %}{{ 'x' }}{% endfor %}").expect("renders").len(), 99_999);
}

/// Products of constants are made while a template is compiled.
#[test]
fn what_compiling_a_template_costs_is_bounded() {
    let folder = Folder::new();
    for source in
        ["{{ 'a' * 99999999 }}", "{{ ('a' * 9999) * 9999 }}", "{{ 'ab' * (9999 * 9999) }}", "{{ [1] * 10 ** 8 }}"]
    {
        let path = folder.write("constant.jinja", source);
        let refused =
            plain_tokenizer().with_template(path.to_str().expect("UTF-8")).err().expect("is refused").to_string();
        assert!(refused.contains("a product of constants is too large"), "{source}: {refused}");
    }
    let path = folder.write(
        "products.jinja",
        "{{ '-' * 40 }}{{ 'ab' * (messages | length + 1) * 2 }}{{ 3 * 4 + 2 ** 3 }}{{ 1.5 + 2 }}",
    );
    let tokenizer = plain_tokenizer().with_template(path.to_str().expect("UTF-8")).expect("a template");
    let text = tokenizer.chat_template().expect("a template").render(&[json!({})], &Value::Null, false);
    assert_eq!(text, Ok(format!("{}abababab203.5", "-".repeat(40))));
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
