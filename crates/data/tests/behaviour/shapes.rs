//! Conversations in the ways tables hold them, and what a user is shown of them.

use std::path::Path;
use std::sync::Arc;

use plimsoll_data::{Content, Encoder, Format, Options, Place, Row, RowFormat, Sample, Tokenizer};
use serde_json::{Value, json};

use crate::fixtures::{byte_tokenizer, plain_tokenizer, with_hint};

fn row(columns: Value) -> Row {
    let Value::Object(columns) = columns else { panic!("no object") };
    Row { at: Place { file: Arc::from(Path::new("rows.jsonl")), row: 7 }, columns }
}

fn messages(columns: Value) -> (RowFormat, Vec<Value>, Value, Value) {
    let row = row(columns);
    let shape = RowFormat::detect(&row).expect("a shape");
    match shape.read(&row).expect("reads") {
        Sample::Messages { messages, tools, labels } => (shape, messages, tools, Value::Object(labels)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sharegpt_turns_become_messages() {
    let expected = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "How heavy?"}),
        json!({"role": "assistant", "content": "I ask."}),
        json!({"role": "tool", "content": "9 t", "name": "scale"}),
        json!({"role": "assistant", "content": "9 tons"}),
    ];
    let turns = json!([
        {"from": "system", "value": "Be brief."},
        {"from": "Human", "value": "How heavy?"},
        {"from": "gpt", "value": "I ask.", "weight": null},
        {"from": "observation", "value": "9 t", "name": "scale"},
        {"from": "assistant", "value": "9 tons"},
    ]);
    let (shape, got, ..) = messages(json!({"conversations": turns, "id": 3}));
    assert_eq!((shape, got.as_slice()), (RowFormat::Conversations, &expected[..]));
    // Role and content within, a list as text, a column for the system, another name.
    let (_, got, ..) = messages(json!({"conversations": expected}));
    assert_eq!(got, expected);
    let (_, got, ..) = messages(json!({"conversation": Value::from(expected.to_vec()).to_string()}));
    assert_eq!(got, expected);
    let (_, got, ..) = messages(json!({"conversations": expected[1..], "system": "Be brief."}));
    assert_eq!(got, expected);
    let (shape, got, ..) = messages(json!({"messages": expected, "conversations": [], "text": "flat"}));
    assert_eq!((shape, got.as_slice()), (RowFormat::Messages, &expected[..]));
}

#[test]
fn labels_and_tools_stay_with_the_conversation() {
    let turns = json!([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "auxiliary_labels": [1]}]);
    let labels = json!({"auxiliary_labels": [{"rank": 1, "score": 0.9}], "score": 4});
    let mut columns = json!({"conversations": turns, "tools": "[{\"name\": \"weigh\"}]"});
    columns.as_object_mut().expect("an object").extend(labels.as_object().expect("an object").clone());
    let (_, got, tools, kept) = messages(columns);
    assert_eq!(tools, json!([{"name": "weigh"}]));
    assert_eq!(kept, labels);
    assert_eq!(got[1], json!({"role": "assistant", "content": "b", "auxiliary_labels": [1]}));
}

#[test]
fn content_in_parts_is_one_text() {
    let parts = json!([{"type": "text", "text": "one"}, {"type": "text", "text": " two"}, " three"]);
    let (_, got, ..) = messages(json!({"messages": [{"role": "assistant", "content": parts}]}));
    assert_eq!(got[0]["content"], "one two three");
}

#[test]
fn what_is_wrong_with_a_turn_is_said() {
    let check = |columns: Value, parts: &[&str]| {
        let row = row(columns);
        let error = RowFormat::detect(&row).and_then(|shape| shape.read(&row)).expect_err("is bad");
        let message = with_hint(&error);
        assert!(error.is_bad_row(), "{message}");
        for part in parts.iter().chain(&["rows.jsonl, row 7", "hint: "]) {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    };
    check(json!({"conversations": [{"from": "parrot", "value": "x"}]}), &["`conversations[0].from`", "parrot"]);
    check(json!({"conversations": [{"from": "gpt", "value": 3}]}), &["`conversations[0].value` is a number"]);
    check(json!({"conversations": [{"from": "human", "value": "x"}]}), &["no assistant turn"]);
    check(json!({"conversations": []}), &["no assistant turn"]);
    check(
        json!({"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]}),
        &["`messages[0].content[0]`", "image"],
    );
    check(json!({"messages": [{"role": null, "content": "x"}]}), &["`messages[0].role` is null"]);
}

#[test]
fn detection_can_be_shown() {
    let check = |columns: Value, expected: &str| {
        let row = row(columns);
        assert_eq!(RowFormat::detect(&row).expect("a shape").explain(&row), expected);
    };
    check(json!({"text": "x", "id": 1}), "text: column text");
    check(
        json!({"instruction": "a", "input": "b", "output": "c"}),
        "prompt-response: columns instruction, input, output",
    );
    check(json!({"prompt": "a", "input": "b", "completion": "c"}), "prompt-response: columns prompt, completion");
    check(json!({"input": "b", "output": "c"}), "prompt-response: columns input, output");
    check(json!({"messages": [], "system": "s", "tools": null}), "messages: columns system, messages");
    check(json!({"conversations": []}), "conversations: column conversations");
    check(json!({"prompt": "p", "chosen": "a", "rejected": "b"}), "pairs: columns prompt, chosen, rejected");
    for name in Format::NAMES {
        assert!(name.parse::<Format>().is_ok(), "{name}");
    }
}

#[test]
fn a_preview_shows_what_is_learnt() {
    let check = |tokenizer: &Tokenizer, columns: Value, expected: &[(&str, bool)]| {
        let row = row(columns);
        let encoder =
            Encoder::new(tokenizer, RowFormat::detect(&row).expect("a shape"), &Options::new(Content::Answers, 64))
                .expect("encodes");
        let pieces = encoder.preview(&row).expect("previews");
        let got: Vec<(&str, bool)> = pieces[0].iter().map(|piece| (piece.text.as_str(), piece.learn)).collect();
        assert_eq!(got, expected);
    };
    let plain = plain_tokenizer();
    check(&plain, json!({"prompt": "2+2? ", "response": "4"}), &[("2+2? ", false), ("4<|end|>", true)]);
    let pair = json!({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]});
    let (head, tail) = ("<|im_start|>user\na<|end|>\n<|im_start|>assistant\n", "\n");
    check(&plain, pair, &[(head, false), ("b<|end|>", true), (tail, false)]);
}

#[test]
fn templates_are_chosen_by_name() {
    let config = json!({"eos_token": "<|end|>", "chat_template": [
        {"name": "default", "template": "own"}, {"name": "short", "template": "{{ messages[0].content }}"}]});
    let tokenizer = || byte_tokenizer(&["<|eot_id|>"], &config);
    let text = |choice: &str| {
        let tokenizer = tokenizer().with_template(choice).expect("is there");
        let template = tokenizer.chat_template().expect("a template");
        let messages = [json!({"role": "user", "content": " hi "}), json!({"role": "assistant", "content": "ho"})];
        template.render(&messages, &Value::Null, false).expect("renders")
    };
    assert_eq!(text("auto"), "own");
    assert_eq!(text("short"), " hi ");
    assert_eq!(text("zephyr"), "<|user|>\n hi <|end|>\n<|assistant|>\nho<|end|>\n");
    let headers = "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>\
        <|start_header_id|>assistant<|end_header_id|>\n\nho<|eot_id|>";
    assert_eq!(text("llama-3"), headers);
    let refused = |choice: &str| with_hint(&tokenizer().with_template(choice).err().expect("is refused"));
    assert!(refused("gemma").contains("<end_of_turn>"));
    assert!(refused("lama").contains("auto, default, short, chatml"));
    assert!(refused("no/such.jinja").contains("no/such.jinja"));
}
