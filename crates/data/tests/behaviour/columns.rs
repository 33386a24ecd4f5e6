//! Lists of files of several formats, and columns that are called otherwise.

use plimsoll_data::{ColumnNames, Content, DataError, HoldOut, Options, Sources};
use serde_json::json;

use crate::fed::{MAX_LENGTH, MODES, make, source};
use crate::fixtures::{Folder, plain_tokenizer, shown};

/// Every file is read as what it is, in every storage mode, and the division goes through all of them.
#[test]
fn a_list_of_files_of_several_formats_is_read_whole() {
    let folder = Folder::new();
    let lines =
        |row: &dyn Fn(usize) -> serde_json::Value| -> String { (0..40).map(|i| format!("{}\n", row(i))).collect() };
    let turns = |i: usize| json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": format!("m{i}")}]);
    let files = [
        folder.write("a.jsonl", lines(&|i| json!({"prompt": "p", "response": format!("r{i}")}))),
        folder.write("b.jsonl", lines(&|i| json!({"messages": turns(i)}))),
        folder.write("c.txt", "one\n\ntwo\n\nthree\n"),
        folder.write("d.jsonl", lines(&|i| json!({"question": "q", "answer": format!("a{i}")}))),
    ];
    let options = Options::new(Content::Answers, 4 * MAX_LENGTH + 20);
    let opened = Sources::open(vec![source(&files)], &options).expect("opens");
    let formats: Vec<_> = opened.formats().map(|(name, _, explained)| (name, explained.to_owned())).collect();
    assert_eq!(formats.len(), 3, "{formats:?}");
    assert!(formats[1].0.ends_with("b.jsonl") && formats[1].1 == "messages: column messages", "{formats:?}");
    for mode in MODES {
        let mode = if let crate::fed::Mode::Streamed(_) = mode { crate::fed::Mode::Streamed(100_000) } else { mode };
        let data = make(mode, vec![source(&files)], folder.path(), &options).expect("opens");
        let data = data.counted(&mut |_| {}).expect("counts");
        assert_eq!((data.summary().rows, data.summary().bad, data.sequences()), (123, 0, Some(123)), "{mode:?}");
        let held = Options { hold_out: Some(HoldOut { share: 0.1, seed: 1, held: true }), ..options.clone() };
        let held = make(mode, vec![source(&files)], folder.path(), &held).expect("opens");
        let rows = held.counted(&mut |_| {}).expect("counts").summary().rows;
        assert!((12..=13).contains(&rows), "{rows}");
    }
    let texts: Vec<String> = {
        let data = make(MODES[0], vec![source(&files)], folder.path(), &options).expect("opens");
        data.first(200).expect("reads").iter().map(|e| shown(&plain_tokenizer(), e.view()).0).collect()
    };
    assert_eq!(
        (texts[0].as_str(), texts[80].as_str(), texts[122].as_str()),
        ("pr0<|end|>", "one<|end|>", "qa39<|end|>")
    );
    assert!(texts[40].contains("<|im_start|>assistant\nm0<|end|>"), "{}", texts[40]);
}

#[test]
fn columns_may_be_called_otherwise() {
    let folder = Folder::new();
    let files =
        [folder.jsonl(&[json!({"frage": "f", "antwort": "a", "prompt": "no"}), json!({"frage": "g", "antwort": "b"})])];
    let named = |pairs: &[(&str, &str)]| Options {
        columns: ColumnNames::new(pairs.iter().copied()).expect("known"),
        ..Options::new(Content::Answers, MAX_LENGTH)
    };
    for mode in MODES {
        let data =
            make(mode, vec![source(&files)], folder.path(), &named(&[("prompt", "frage"), ("response", "antwort")]));
        let examples = data.expect("opens").first(9).expect("reads");
        let texts: Vec<_> = examples.iter().map(|e| shown(&plain_tokenizer(), e.view()).0).collect();
        assert_eq!(texts, ["fa<|end|>", "gb<|end|>"], "{mode:?}");
    }
    let error =
        make(MODES[0], vec![source(&files)], folder.path(), &named(&[("prompt", "Frage"), ("response", "antwort")]));
    let error = error.expect_err("no such column");
    assert!(matches!(&error, DataError::NoSuchColumn { own, .. } if own == "Frage"), "{error}");
    assert!(error.to_string().contains("`antwort`, `frage`"), "{error}");
}
