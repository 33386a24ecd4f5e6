//! Streams: bounded blocks, resumed by reading one of them again.

use plimsoll_data::{Amount, Content, DataError, Options, OverLong};
use serde_json::{Value, json};

use crate::fed::{MAX_LENGTH, Mode, feed_options, make, numbered, source, take, write_files};
use crate::fixtures::Folder;

#[test]
fn a_buffer_that_holds_too_little_is_refused() {
    let folder = Folder::new();
    let files = write_files(&folder, "rows", &numbered(0, 10), 10);
    let options = Options::new(Content::Answers, MAX_LENGTH);
    let error = make(Mode::Streamed(1000), vec![source(&files)], folder.path(), &options).expect_err("too small");
    let DataError::StreamBuffer { needed, .. } = error else { panic!("{error}") };
    make(Mode::Streamed(needed), vec![source(&files)], folder.path(), &options).expect("the hint helps");
}

/// The order of units is shuffled too, or a stream would begin every epoch with the first file.
#[test]
fn epochs_begin_with_different_files() {
    let folder = Folder::new();
    let files = write_files(&folder, "rows", &numbered(100, 400), 20);
    let options = Options::new(Content::Answers, MAX_LENGTH);
    let data = make(Mode::Streamed(4000), vec![source(&files)], folder.path(), &options).expect("builds");
    let (seen, _) = take(&data, &feed_options(Amount::Sequences(20), 1), 1, 60);
    let begins: Vec<_> = seen.chunks(400).map(|epoch| epoch[0].clone()).collect();
    assert_eq!(begins.len(), 3);
    assert!(begins[0] != begins[1] && begins[1] != begins[2], "{begins:?}");
}

/// A text of many sequences goes across blocks without a token lost.
#[test]
fn a_long_text_crosses_blocks() {
    let text: String = (0..3000).map(|i| format!("{i} ")).collect();
    let rows: Vec<Value> = vec![json!({"text": text}), json!({"text": "short"}), json!({"text": text})];
    let folder = Folder::new();
    let files = write_files(&folder, "rows", &rows, 2);
    let options = Options::new(Content::Text, MAX_LENGTH);
    let of = |mode| make(mode, vec![source(&files)], folder.path(), &options).expect("builds");
    let memory = of(Mode::Memory).first(usize::MAX).expect("readable");
    assert!(memory.len() > 1500);
    assert_eq!(of(Mode::Streamed(5000)).first(usize::MAX).expect("readable"), memory);
}

/// Nothing is known before it is read, so the error comes when it is.
#[test]
fn what_is_wrong_with_a_row_ends_the_feed() {
    let folder = Folder::new();
    let mut rows = numbered(0, 300);
    rows[250] = json!({"prompt": "x".repeat(40), "response": "y"});
    let files = write_files(&folder, "rows", &rows, 300);
    let options = Options::new(Content::Answers, MAX_LENGTH);
    let data = make(Mode::Streamed(4000), vec![source(&files)], folder.path(), &options).expect("opens");
    let error = data.first(usize::MAX).expect_err("too long");
    assert!(error.to_string().contains("row 251"), "{error}");
    let skipping = Options { over_long: OverLong::Skip, ..options.clone() };
    let data = make(Mode::Streamed(4000), vec![source(&files)], folder.path(), &skipping).expect("opens");
    assert_eq!(data.first(usize::MAX).expect("readable").len(), 299);
}

#[test]
fn a_stream_with_nothing_in_it_says_so() {
    let folder = Folder::new();
    let files = write_files(&folder, "rows", &[json!({"prompt": "x".repeat(40), "response": "y"})], 1);
    let options = Options { over_long: OverLong::Skip, ..Options::new(Content::Answers, MAX_LENGTH) };
    let data = make(Mode::Streamed(4000), vec![source(&files)], folder.path(), &options).expect("opens");
    assert!(matches!(data.first(1), Err(DataError::NothingLeft { rows: 1, .. })));
}
