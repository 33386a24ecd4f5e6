//! Pairs of answers: which rows are read as such, and what is left of those that are too long.

use plimsoll_data::{Content, DataError, Format, Options, OverLong, RowFormat, Tokenizer};
use serde_json::{Value, json};

use crate::fixtures::{Built, build, byte_tokenizer, plain_tokenizer, with_hint};

const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

fn chat_tokenizer() -> Tokenizer {
    let config = json!({"eos_token": "<|im_end|>", "chat_template": CHATML});
    byte_tokenizer(&["<|im_start|>", "<|im_end|>"], &config)
}

fn options(max_length: usize, over_long: OverLong) -> Options {
    Options { over_long, ..Options::new(Content::Pairs, max_length) }
}

/// Both sides of every pair as text.
fn shown(data: &Built, tokenizer: &Tokenizer) -> Vec<[String; 2]> {
    assert_eq!((data.group(), data.groups() * 2), (2, data.len()));
    assert_eq!(data.loss_tokens(), Some(0));
    let text = |tokens: &[u32]| tokenizer.decode(tokens, false).expect("decodes");
    let pair = |i: usize| data.get_group(i).map(|side| text(side.tokens)).collect::<Vec<_>>();
    (0..data.groups()).map(|i| pair(i).try_into().expect("two sides")).collect()
}

#[track_caller]
fn check(row: &Value, tokenizer: &Tokenizer, expected: [&str; 2]) {
    let data = build(std::slice::from_ref(row), tokenizer, &options(200, OverLong::Error)).expect("builds");
    assert_eq!(data.summary().format, RowFormat::Pairs);
    assert_eq!(shown(&data, tokenizer), [expected]);
}

#[test]
fn columns() {
    let plain = plain_tokenizer();
    let expected = ["Q: yes<|end|>", "Q: no<|end|>"];
    check(&json!({"prompt": "Q: ", "chosen": "yes", "rejected": "no"}), &plain, expected);
    check(&json!({"prompt": "Q: ", "chosen_response": "yes", "rejected_response": "no"}), &plain, expected);
    check(&json!({"question": "Q: ", "chosen": "yes", "rejected": "no"}), &plain, expected);
    check(&json!({"chosen": "Q: yes", "rejected": "Q: no"}), &plain, expected);
    // What other tasks would take the row for does not matter.
    check(&json!({"prompt": "Q: ", "chosen": "yes", "rejected": "no", "messages": [], "text": "t"}), &plain, expected);
}

#[test]
fn conversations() {
    let chat = chat_tokenizer();
    let turns = |answer: &str| json!([{"role": "user", "content": "Q"}, {"role": "assistant", "content": answer}]);
    let expected = [
        "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n",
        "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nno<|im_end|>\n",
    ];
    let answer = |text: &str| json!([{"role": "assistant", "content": text}]);
    check(&json!({"prompt": "Q", "chosen": "yes", "rejected": "no"}), &chat, expected);
    check(&json!({"chosen": turns("yes"), "rejected": turns("no")}), &chat, expected);
    check(&json!({"prompt": "Q", "chosen": turns("yes"), "rejected": turns("no")}), &chat, expected);
    check(&json!({"prompt": "Q", "chosen": answer("yes"), "rejected": answer("no")}), &chat, expected);
    let prompt = json!([{"role": "user", "content": "Q"}]);
    check(&json!({"prompt": prompt, "chosen": answer("yes"), "rejected": answer("no")}), &chat, expected);
    // Without a template of its own, a tokenizer gets the built-in one for conversations.
    let expected = [
        "<|im_start|>user\nQ<|end|>\n<|im_start|>assistant\nyes<|end|>\n",
        "<|im_start|>user\nQ<|end|>\n<|im_start|>assistant\nno<|end|>\n",
    ];
    check(&json!({"chosen": turns("yes"), "rejected": turns("no")}), &plain_tokenizer(), expected);
}

#[test]
fn the_prompt_is_cut_so_that_the_difference_survives() {
    let plain = plain_tokenizer();
    let rows = [
        json!({"prompt": "0123456789", "chosen": "abcd", "rejected": "xy"}),
        json!({"prompt": "0", "chosen": "same", "rejected": "same"}),
        json!({"prompt": "0", "chosen": "far too long an answer", "rejected": "xy"}),
        json!({"prompt": "01", "chosen": "a", "rejected": "b"}),
    ];
    let data = build(&rows, &plain, &options(8, OverLong::Truncate)).expect("builds");
    // Both sides lose the same tokens: three of the prompt's ten are left beside four letters and the end.
    assert_eq!(
        shown(&data, &plain),
        [["789abcd<|end|>", "789xy<|end|>"], ["01a<|end|>", "01b<|end|>"]].map(|p| p.map(str::to_owned))
    );
    let summary = data.summary();
    assert_eq!((summary.rows, summary.truncated, summary.skipped, summary.identical), (4, 1, 1, 1));

    let data = build(&rows, &plain, &options(8, OverLong::Skip)).expect("builds");
    assert_eq!((data.groups(), data.summary().skipped, data.summary().identical), (1, 2, 1));

    let error = build(&rows, &plain, &options(8, OverLong::Error)).expect_err("too long");
    assert!(matches!(error, DataError::TooLong { length: 15, max_length: 8, .. }), "{error}");
    let error = build(&rows[1..2], &plain, &options(8, OverLong::Error)).expect_err("nothing left");
    assert!(matches!(error, DataError::NoPairsLeft { rows: 1, identical: 1, .. }), "{error}");
}

#[test]
fn the_beginning_of_sequence_is_kept() {
    let template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}</s>{% endif %}{% endfor %}";
    let config = json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template});
    let tokenizer = byte_tokenizer(&["<s>", "</s>"], &config);
    let rows = [json!({"prompt": "0123456789", "chosen": "ab", "rejected": "x"})];
    let data = build(&rows, &tokenizer, &options(6, OverLong::Truncate)).expect("builds");
    assert_eq!(shown(&data, &tokenizer), [["<s>89ab</s>".to_owned(), "<s>89x</s>".to_owned()]]);
}

#[test]
fn rows_of_another_shape_are_refused() {
    let plain = plain_tokenizer();
    let says = |row: &Value, options: &Options, parts: &[&str]| {
        let message = with_hint(&build(std::slice::from_ref(row), &plain, options).expect_err("refused"));
        for part in parts {
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
    };
    let reward = options(50, OverLong::Error);
    let pair = json!({"prompt": "Q", "chosen": "yes", "rejected": "no"});
    says(
        &json!({"prompt": "Q", "response": "R"}),
        &reward,
        &["row 1", "the task compares two answers", "prompt-response", "`rejected`"],
    );
    says(&pair, &Options::new(Content::Answers, 50), &["row 1", "pairs of answers", "task: reward"]);
    let forced = Options { format: Format::As(RowFormat::Pairs), ..reward.clone() };
    says(&json!({"prompt": "Q", "chosen": "yes"}), &forced, &["format `pairs`", "`prompt`, `chosen`"]);
    says(&json!({"prompt": "Q", "chosen": "yes", "rejected": 3}), &reward, &["`rejected` is a number", "a string"]);
    says(&json!({"chosen": [{"role": "user"}], "rejected": []}), &reward, &["chosen[0].content"]);
}
