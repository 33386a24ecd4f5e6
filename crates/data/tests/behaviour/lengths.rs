//! How long examples are and what happens to those that are too long.

use plimsoll_data::{Content, DataError, NO_LOSS, Options, OverLong};
use serde_json::{Value, json};

use crate::fixtures::{Built, build, byte_tokenizer, plain_tokenizer, shown, with_hint};

fn pretrain(texts: &[&str], max_length: usize) -> Built {
    let rows: Vec<Value> = texts.iter().map(|text| json!({"text": text})).collect();
    let options = Options::new(Content::Text, max_length);
    build(&rows, &plain_tokenizer(), &options).expect("builds")
}

#[test]
fn pretraining_cuts_one_stream_into_equal_sequences() {
    // 3 + 1, 5 + 1, 2 + 1 tokens.
    let data = pretrain(&["abc", "defgh", "ij"], 4);
    let tokenizer = plain_tokenizer();
    let texts: Vec<_> = (0..data.len()).map(|i| shown(&tokenizer, data.get(i))).collect();
    assert_eq!(texts[0], ("abc<|end|>".into(), vec!["bc<|end|>d".into()]));
    assert_eq!(texts[1], ("defg".into(), vec!["efgh".into()]));
    assert_eq!(texts[2], ("h<|end|>ij".into(), vec!["<|end|>ij<|end|>".into()]));
    assert_eq!((data.len(), data.total_tokens(), data.loss_tokens()), (3, Some(12), Some(12)));
    assert_eq!(data.summary().tail_tokens, 1);
    assert_eq!(data.summary().rows, 3);
}

#[test]
fn a_last_full_sequence_counts_and_a_lone_short_one_too() {
    let full = pretrain(&["abcdefg"], 4);
    assert_eq!((full.len(), full.summary().tail_tokens), (2, 0));
    assert_eq!(full.get(1).targets[3], NO_LOSS);

    let short = pretrain(&["abc"], 100);
    assert_eq!((short.len(), short.longest(), short.loss_tokens()), (1, Some(4), Some(3)));
}

#[test]
fn texts_begin_as_the_tokenizer_wants() {
    // A post-processor that puts <|user|> (here: the beginning) before every text.
    let [(_, text), _] = plimsoll_data::quickstart::tokenizer_files();
    let mut json: Value = serde_json::from_str(&text).expect("is JSON");
    json["post_processor"] = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|user|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|user|>": {"id": "<|user|>", "ids": [1], "tokens": ["<|user|>"]}}});
    let config = json!({"eos_token": {"content": "<|end|>"}, "bos_token": "<|user|>"}).to_string();
    let bytes = json.to_string();
    let tokenizer = plimsoll_data::Tokenizer::from_bytes("t", bytes.as_bytes(), Some(&config)).expect("loads");
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (Some(1), Some(3)));

    let rows = [json!({"text": "ab"}), json!({"text": "c"})];
    let data = build(&rows, &tokenizer, &Options::new(Content::Text, 7)).expect("builds");
    assert_eq!(shown(&tokenizer, data.get(0)).0, "<|user|>ab<|end|><|user|>c<|end|>");

    let pair = [json!({"prompt": "a", "response": "b"})];
    let data = build(&pair, &tokenizer, &Options::new(Content::Answers, 7)).expect("builds");
    let expected = ("<|user|>ab<|end|>".to_owned(), vec!["b<|end|>".to_owned()]);
    assert_eq!(shown(&tokenizer, data.get(0)), expected);
}

#[test]
fn a_tokenizer_without_an_end_is_refused() {
    let tokenizer = byte_tokenizer(&[], &json!({}));
    for row in [json!({"text": "x"}), json!({"prompt": "x", "response": "y"})] {
        let error = build(&[row], &tokenizer, &Options::new(Content::Answers, 9)).expect_err("no end");
        assert!(matches!(error, DataError::NoEos { .. }), "{error}");
    }
}

#[test]
fn over_long_rows_are_an_error_cut_or_left_out() {
    let tokenizer = plain_tokenizer();
    let rows = [
        json!({"prompt": "ab", "response": "cd"}),
        json!({"prompt": "abc", "response": "defghi"}),
        json!({"prompt": "a long prompt", "response": "x"}),
    ];
    let with = |over_long| {
        let options = Options { over_long, ..Options::new(Content::Answers, 6) };
        build(&rows, &tokenizer, &options)
    };
    let message = with_hint(&with(OverLong::Error).expect_err("too long"));
    for part in ["rows.jsonl, row 2", "10 tokens", "max_length = 6", "truncate"] {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }

    let skipped = with(OverLong::Skip).expect("builds");
    assert_eq!((skipped.len(), skipped.summary().skipped), (1, 2));

    // The third row keeps no answer and is left out.
    let cut = with(OverLong::Truncate).expect("builds");
    assert_eq!((cut.len(), cut.summary().truncated, cut.summary().skipped), (2, 1, 1));
    assert_eq!(shown(&tokenizer, cut.get(1)), ("abcdef".into(), vec!["def".into()]));

    let options = Options { over_long: OverLong::Skip, ..Options::new(Content::Answers, 2) };
    let error = build(&rows, &tokenizer, &options).expect_err("nothing left");
    assert!(matches!(error, DataError::NothingLeft { rows: 3, .. }), "{error}");
    let error = build(&rows, &tokenizer, &Options::new(Content::Answers, 0)).expect_err("no room");
    assert!(matches!(error, DataError::MaxLength { .. }), "{error}");
}

#[test]
fn order_is_kept_across_chunks_and_threads_and_memory_is_told() {
    let rows: Vec<Value> =
        (0..3000).map(|i| json!({"prompt": format!("{i}?"), "response": format!("{}", i * 2)})).collect();
    let tokenizer = plain_tokenizer();
    let data = build(&rows, &tokenizer, &Options::new(Content::Answers, 32)).expect("builds");
    assert_eq!(data.len(), 3000);
    for i in [0, 1, 1023, 1024, 2999] {
        let (text, learnt) = shown(&tokenizer, data.get(i));
        assert_eq!(text, format!("{i}?{}<|end|>", i * 2));
        assert_eq!(learnt, [format!("{}<|end|>", i * 2)]);
    }
    // Two bytes a token, 24 an entry, and the runs of the loss.
    let tokens = data.total_tokens().expect("counted");
    let least = 2 * tokens + 24 * 3000;
    assert!(
        (least..=least + 4 * 3000).contains(&data.footprint().resident_bytes),
        "{} of {least}",
        data.footprint().resident_bytes
    );
}
