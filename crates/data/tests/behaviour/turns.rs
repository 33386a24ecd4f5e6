//! Which turns are learnt: weights, instructions and earlier turns in columns of their own, quoted answers, calls of tools.

use plimsoll_data::{Content, DataError, Encoder, Options, Place, Row, RowFormat, Tokenizer};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

use crate::fixtures::{byte_tokenizer, plain_tokenizer, with_hint};

fn row(columns: Value) -> Row {
    let Value::Object(columns) = columns else { panic!("no object") };
    Row { at: Place { file: Arc::from(Path::new("rows.jsonl")), row: 7 }, columns }
}

/// What is learnt of the row, run by run, of the preferred side of a pair.
fn learnt(tokenizer: &Tokenizer, content: Content, columns: Value) -> Result<Vec<String>, DataError> {
    let row = row(columns);
    let options = Options::new(content, 4096);
    let format = content.row_format(options.format, &row)?;
    let pieces = Encoder::new(tokenizer, format, &options)?.preview(&row)?;
    Ok(pieces[0].iter().filter(|piece| piece.learn).map(|piece| piece.text.clone()).collect())
}

fn whole(tokenizer: &Tokenizer, content: Content, columns: Value) -> String {
    let row = row(columns);
    let options = Options::new(content, 4096);
    let format = content.row_format(options.format, &row).expect("a format");
    let pieces = Encoder::new(tokenizer, format, &options).expect("encodes").preview(&row).expect("previews");
    pieces[0].iter().map(|piece| piece.text.as_str()).collect()
}

/// One that marks its answers, one that does not, and one that writes calls.
fn templates() -> [Tokenizer; 2] {
    let bare = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}\
        {% if m.tool_calls %}[{{ m.tool_calls[0].function.name }}]{% endif %}<|end|>{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}";
    let config = json!({"eos_token": "<|end|>", "chat_template": bare});
    [plain_tokenizer().with_template("chatml").expect("is there"), byte_tokenizer(&[], &config)]
}

fn turn(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

#[test]
fn turns_of_weight_0_are_not_learnt() {
    let weighted = |content: &str, weight: Value| json!({"role": "assistant", "content": content, "weight": weight});
    for tokenizer in templates() {
        let rows =
            |a, b| json!({"messages": [turn("user", "q"), weighted("one", a), turn("user", "r"), weighted("two", b)]});
        let check = |columns: Value, expected: &[&str]| {
            assert_eq!(learnt(&tokenizer, Content::Answers, columns).expect("encodes"), expected);
        };
        check(rows(json!(1), json!(null)), &["one<|end|>", "two<|end|>"]);
        check(rows(json!(0), json!(1)), &["two<|end|>"]);
        check(rows(json!(1.0), json!(0.0)), &["one<|end|>"]);
        let none = learnt(&tokenizer, Content::Answers, rows(json!(0), json!(0))).expect_err("nothing to learn");
        assert!(matches!(none, DataError::NoAnswer { .. }) && none.is_bad_row(), "{none}");
        let half = learnt(&tokenizer, Content::Answers, rows(json!(0.5), json!(1))).expect_err("no such weight");
        assert!(half.to_string().contains("`messages[1].weight` is a number, expected 0 or 1"), "{half}");
    }
}

#[test]
fn instructions_and_earlier_turns_come_before_the_question() {
    let columns = json!({"instruction": "now", "input": "that", "output": "yes", "system": "be brief",
        "history": [["first", "one"], ["second", "two"]]});
    for tokenizer in templates() {
        let learns = learnt(&tokenizer, Content::Answers, columns.clone()).expect("encodes");
        assert_eq!(learns, ["one<|end|>", "two<|end|>", "yes<|end|>"]);
        let text = whole(&tokenizer, Content::Answers, columns.clone());
        let order: Vec<usize> = ["be brief", "first", "one", "second", "two", "now\n\nthat", "yes"]
            .map(|part| text.find(part).unwrap_or_else(|| panic!("{part:?} is not in {text:?}")))
            .to_vec();
        assert!(order.is_sorted(), "{text}");
        let empty = json!({"prompt": "p", "response": "r", "system": " ", "history": []});
        assert_eq!(learnt(&tokenizer, Content::Answers, empty).expect("encodes"), ["r<|end|>"]);
    }
    let refused = |columns: Value| {
        let error = learnt(&plain_tokenizer(), Content::Answers, columns).expect_err("refused");
        assert!(error.is_bad_row(), "{error}");
        with_hint(&error)
    };
    assert!(refused(columns).contains("data.template"));
    assert!(refused(json!({"prompt": "p", "response": "r", "history": [["one"]]})).contains("`history[0]`"));
    assert!(refused(json!({"prompt": "p", "response": "r", "system": 3})).contains("`system` is a number"));
}

#[test]
fn prompts_and_completions_may_be_lists_of_turns() {
    let prompt = json!([turn("user", "a"), turn("assistant", "quoted"), turn("user", "b")]);
    let completion = json!([turn("assistant", "c")]);
    for tokenizer in templates().into_iter().chain([plain_tokenizer()]) {
        let check = |columns: Value| {
            assert_eq!(learnt(&tokenizer, Content::Answers, columns).expect("encodes"), ["c<|end|>"]);
        };
        check(json!({"prompt": prompt, "completion": completion, "system": "brief"}));
        check(json!({"prompt": prompt, "completion": "c"}));
        check(json!({"prompt": "b", "completion": completion}));
    }
    let pair = json!({"prompt": prompt, "chosen": completion, "rejected": [turn("assistant", "d")]});
    let text = whole(&plain_tokenizer(), Content::Pairs, pair);
    assert!(text.contains("quoted<|end|>") && text.ends_with("<|im_start|>assistant\nc<|end|>\n"), "{text}");
    let row = row(json!({"prompt": prompt, "completion": completion}));
    let format = RowFormat::detect(&row).expect("a format");
    assert_eq!(format.explain(&row), "prompt-messages: columns prompt, completion");
}

#[test]
fn pairs_have_inputs_instructions_and_earlier_turns_too() {
    let columns = json!({"instruction": "i", "input": "x", "chosen": "c", "rejected": "d", "system": "s", "history": [["a", "b"]]});
    for tokenizer in templates() {
        let text = whole(&tokenizer, Content::Pairs, columns.clone());
        let order: Vec<Option<usize>> =
            ["s<|end|>", "a<|end|>", "b<|end|>", "i\n\nx<|end|>", "c<|end|>"].map(|part| text.find(part)).to_vec();
        assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{text}");
    }
    // What may be called is written in pairs too.
    let writes_tools = "{% for t in tools or [] %}[{{ t.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>\
        {{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let tokenizer = byte_tokenizer(&[], &json!({"eos_token": "<|end|>", "chat_template": writes_tools}));
    let tools = json!([{"name": "weigh"}]);
    let text =
        whole(&tokenizer, Content::Pairs, json!({"prompt": "i", "chosen": "c", "rejected": "d", "tools": tools}));
    assert_eq!(text, "[weigh]<user>i<|end|><assistant>c<|end|>");
    // The same beside lists of turns, and before prompts that are lists.
    let turns = |answer: &str| json!([turn("user", "i"), turn("assistant", answer)]);
    let prompt = json!([turn("user", "i")]);
    let (system, history) = ("s", json!([["a", "b"]]));
    for (content, columns) in [
        (Content::Pairs, json!({"chosen": turns("c"), "rejected": turns("d"), "system": system, "history": history})),
        (
            Content::Pairs,
            json!({"prompt": prompt, "chosen": [turn("assistant", "c")], "rejected": [turn("assistant", "d")],
                "system": system, "history": history}),
        ),
        (Content::Answers, json!({"prompt": prompt, "completion": "c", "system": system, "history": history})),
    ] {
        let text = whole(&plain_tokenizer(), content, columns);
        let order: Vec<Option<usize>> =
            ["s<|end|>", "a<|end|>", "b<|end|>", "i<|end|>", "c<|end|>"].map(|part| text.find(part)).to_vec();
        assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{text}");
    }
    let text = whole(
        &plain_tokenizer(),
        Content::Pairs,
        json!({"instruction": "i", "input": "x", "chosen": "c", "rejected": "d"}),
    );
    assert_eq!(text, "i\n\nxc<|end|>");
}

/// A template that does not write a call would teach the model to say nothing.
#[test]
fn calls_are_learnt_as_the_template_writes_them_or_refused() {
    let call = json!([{"type": "function", "function": {"name": "weigh", "arguments": {"what": "ship"}}}]);
    let messages =
        |call: Value| json!({"messages": [turn("user", "q"), call, turn("tool", "9 t"), turn("assistant", "nine")]});
    let [chatml, writes] = templates();
    let with_calls = || messages(json!({"role": "assistant", "tool_calls": call}));
    assert_eq!(learnt(&writes, Content::Answers, with_calls()).expect("encodes"), ["[weigh]<|end|>", "nine<|end|>"]);
    let old = || {
        messages(json!({"role": "assistant", "content": null, "function_call": {"name": "weigh", "arguments": "{}"}}))
    };
    for (tokenizer, columns, key) in
        [(&chatml, with_calls(), "tool_calls"), (&chatml, old(), "function_call"), (&writes, old(), "function_call")]
    {
        let error = learnt(tokenizer, Content::Answers, columns).expect_err("not written");
        assert!(matches!(error, DataError::NotRendered { .. }) && error.is_bad_row(), "{error}");
        assert!(error.to_string().contains(key), "{error}");
    }
    // As text, a call is an answer like any other.
    let sharegpt =
        json!({"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "weigh()"}]});
    assert_eq!(learnt(&chatml, Content::Answers, sharegpt).expect("encodes"), ["weigh()<|end|>"]);
}

#[test]
fn what_comes_from_data_never_reaches_a_terminal_raw() {
    let refuses = json!({"eos_token": "<|end|>", "chat_template": "{{ raise_exception(messages[0].content) }}"});
    let refuses = byte_tokenizer(&[], &refuses);
    let evil = "\u{1b}[2Jgone\u{9b}1m\r";
    for columns in [
        json!({ evil: 1 }),
        json!({"messages": [{"role": "assistant", "content": evil}]}),
        json!({"messages": [{"role": "assistant", "content": {evil: 1}}]}),
        json!({"conversations": [{"from": evil, "value": "x"}]}),
        json!({"messages": [{"role": "assistant", "content": [{"type": evil}]}]}),
    ] {
        let message = learnt(&refuses, Content::Answers, columns).expect_err("refused").to_string();
        assert!(!message.chars().any(|c| c.is_control() && c != '\n'), "{message:?}");
    }
}
