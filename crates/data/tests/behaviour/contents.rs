//! Rows with a class, and rows with a source and a target.

use plimsoll_data::{
    Amount, BadRows, Classes, Content, DataError, Feed, Format, NO_LABEL, NO_LOSS, NO_MARK, Options, OverLong,
    RowFormat, Sources,
};
use serde_json::{Value, json};

use crate::fed::{
    CONTENTS, MAX_LENGTH, MODES, Mode, SOURCE_LENGTH, feed_options_for, make, options_for, rows_of, source, write_files,
};
use crate::fixtures::{Built, Folder, build, byte_tokenizer, plain_tokenizer, with_hint};

const START: u32 = 7;
const SEQ2SEQ: Content = Content::SourceTarget { decoder_start: START };

fn text(tokens: &[u32]) -> String {
    plain_tokenizer().decode(tokens, false).expect("decodes")
}

fn targets(data: &Built, index: usize) -> String {
    text(&data.get(index).targets.iter().map(|&t| t as u32).collect::<Vec<_>>())
}

#[test]
fn a_source_ends_and_a_target_begins_with_the_start() {
    let rows = [json!({"prompt": "ab", "response": "xyz"}), json!({"instruction": "c", "output": ""})];
    let data = build(&rows, &plain_tokenizer(), &Options::new(SEQ2SEQ, 16)).expect("builds");
    assert_eq!((data.streams(), data.group(), data.summary().format), (2, 1, RowFormat::PromptResponse));
    assert_eq!(text(data.get(0).source), "ab<|end|>");
    assert_eq!((data.get(0).tokens[0], text(&data.get(0).tokens[1..])), (START, "xyz".to_owned()));
    assert_eq!(targets(&data, 0), "xyz<|end|>");
    // An empty response is one that ends at once.
    assert_eq!((data.get(1).tokens, targets(&data, 1)), (&[START][..], "<|end|>".to_owned()));
    assert_eq!((data.total_tokens(), data.source_tokens(), data.loss_tokens()), (Some(5), Some(5), Some(5)));
    assert_eq!((data.longest(), data.longest_source()), (Some(4), Some(3)));
}

#[test]
fn each_stream_has_its_own_greatest_length() {
    let rows = [
        json!({"prompt": "0123456789", "response": "ab"}),
        json!({"prompt": "0", "response": "abcdefgh"}),
        json!({"prompt": "0", "response": "ab"}),
    ];
    let with = |over_long| {
        let options = Options { over_long, max_source_length: 5, ..Options::new(SEQ2SEQ, 4) };
        build(&rows, &plain_tokenizer(), &options)
    };
    let error = with(OverLong::Error).expect_err("too long");
    assert!(matches!(error, DataError::TooLong { length: 11, max_length: 5, .. }), "{error}");
    let skipped = with(OverLong::Skip).expect("builds");
    assert_eq!((skipped.len(), skipped.summary().skipped), (1, 2));
    let cut = with(OverLong::Truncate).expect("builds");
    assert_eq!((cut.len(), cut.summary().truncated), (3, 2));
    // A source that is cut still ends; an answer that is cut does not learn to.
    assert_eq!(text(cut.get(0).source), "0123<|end|>");
    assert_eq!((text(&cut.get(1).tokens[1..]), targets(&cut, 1)), ("abc".into(), "abcd".into()));
}

#[test]
fn what_has_no_source_or_no_end_is_refused() {
    let refuse = |row: &Value, parts: &[&str]| {
        let error = build(std::slice::from_ref(row), &plain_tokenizer(), &Options::new(SEQ2SEQ, 16));
        let message = with_hint(&error.expect_err("refused"));
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    };
    refuse(&json!({"text": "a"}), &["row 1", "the rows are text", "`response`"]);
    refuse(&json!({"prompt": "a", "chosen": "b", "rejected": "c"}), &["pairs of answers"]);
    let row = [json!({"prompt": "a", "response": "b"})];
    let error = build(&row, &byte_tokenizer(&[], &json!({})), &Options::new(SEQ2SEQ, 16)).expect_err("no end");
    assert!(matches!(error, DataError::NoEos { .. }), "{error}");
}

/// A start that only the model knows: wider than two bytes.
#[test]
fn a_start_beyond_the_tokenizer_survives() {
    let content = Content::SourceTarget { decoder_start: 70_000 };
    let data = build(&[json!({"prompt": "a", "response": "b"})], &plain_tokenizer(), &Options::new(content, 16));
    assert_eq!(data.expect("builds").get(0).tokens[0], 70_000);
}

/// The last token of what is compared has its number; all others have none.
#[test]
fn candidates_and_margins_are_marked() {
    let marked = |content: Content, row: serde_json::Value| {
        let data = build(&[row], &plain_tokenizer(), &Options::new(content, 256)).expect("builds");
        let example = data.get(0);
        let marks = example.marks.iter().enumerate().filter(|(_, mark)| **mark != NO_MARK);
        let until = |position: usize| text(&example.tokens[..=position]);
        marks.map(|(position, mark)| (until(position), *mark)).collect::<Vec<_>>()
    };
    let turn = |from: &str, value: &str| json!({"from": from, "value": value});
    let turns = [turn("human", "one or two"), turn("gpt", "one"), turn("human", "?"), turn("gpt", "two")];
    let found = marked(Content::Candidates, json!({"conversations": turns, "auxiliary_labels": [0.5, 2]}));
    assert_eq!(found.iter().map(|(_, mark)| *mark).collect::<Vec<_>>(), [0.5, 2.0]);
    assert!(found[0].0.contains("one") && !found[0].0.contains("?"), "{found:?}");
    assert!(found[1].0.contains("two<"), "the whole turn with its end: {found:?}");
    let texts = json!([{"text": "two", "relevance": 3}, {"text": "one", "relevance": 0}]);
    let found = marked(Content::Candidates, json!({"conversations": turns, "labels": texts}));
    assert!(found[0].0.ends_with("one or two") && found[1].0.ends_with("one"), "{found:?}");
    assert_eq!((found[0].1, found[1].1), (3.0, 0.0));
    let pair = json!({"prompt": "p", "chosen": "yes", "rejected": "no", "margin": 0.75});
    assert_eq!(marked(Content::PairsWithMargin, pair), [("pyes<|end|>".to_owned(), 0.75)]);
}

#[test]
fn classes_are_integers_or_names() {
    let rows = [
        json!({"text": "a", "label": 2}),
        json!({"text": "b", "labels": "no"}),
        json!({"text": "c", "class": 0, "score": 0.5}),
    ];
    let named = Options { classes: Classes::named(["yes", "no", "maybe"]), ..Options::new(Content::Labelled, 16) };
    let data = build(&rows, &plain_tokenizer(), &named).expect("builds");
    let labels: Vec<_> = (0..3).map(|i| data.get(i).label).collect();
    assert_eq!(labels, [Some(2), Some(1), Some(0)]);
    assert_eq!((text(data.get(0).tokens), data.loss_tokens()), ("a<|end|>".to_owned(), Some(0)));
    assert!(data.get(0).targets.iter().all(|&target| target == NO_LOSS));
}

#[test]
fn a_row_without_a_good_class_is_bad_and_named() {
    let good = |i: usize| json!({"text": format!("{i}"), "label": i % 3});
    let check = |row: Value, classes: Classes, part: &str| {
        let mut rows: Vec<Value> = (0..5).map(good).collect();
        rows.insert(2, row);
        let options = Options { classes, bad_rows: BadRows::Skip, ..Options::new(Content::Labelled, 16) };
        let data = build(&rows, &plain_tokenizer(), &options).expect("builds");
        assert_eq!((data.len(), data.summary().bad), (5, 1), "{part}");
        let named = &data.summary().bad_first[0];
        assert!(named.contains("row 3") && named.contains(part), "{named:?} does not say {part:?}");
    };
    check(json!({"text": "x"}), Classes::Any, "no column for a class");
    check(json!({"text": "x", "label": -1}), Classes::Any, "`label` is -1");
    check(json!({"text": "x", "label": 1.5}), Classes::Any, "`label` is 1.5");
    check(json!({"text": "x", "label": [1]}), Classes::Any, "`label` is a list");
    check(json!({"text": "x", "label": "no"}), Classes::Any, "the classes are not named");
    check(json!({"text": "x", "label": 3}), Classes::Count(3), "expected an integer from 0 to 2");
    check(json!({"text": "x", "label": 3_000_000_000u64}), Classes::Any, "expected an integer");
    let named = Classes::named(["a", "b", "c"]);
    check(json!({"text": "x", "label": "d"}), named.clone(), "unknown class `d`; expected one of a, b, c");
    check(json!({"text": "x", "label": 3}), named, "`label` is 3");
}

#[test]
fn what_is_classified_may_be_a_prompt_or_a_conversation() {
    let format = |row: Value| {
        let data = build(&[row], &plain_tokenizer(), &Options::new(Content::Labelled, 200)).expect("builds");
        (data.summary().format, text(data.get(0).tokens))
    };
    assert_eq!(format(json!({"prompt": "q", "label": 1})), (RowFormat::Prompt, "q<|end|>".into()));
    let both = json!({"prompt": "q", "response": "r", "label": 1});
    assert_eq!(format(both), (RowFormat::PromptResponse, "qr<|end|>".into()));
    // Nobody has to answer.
    let turns = json!([{"role": "user", "content": "q"}]);
    let (found, shown) = format(json!({"messages": turns, "label": 1}));
    assert_eq!(found, RowFormat::Messages);
    assert!(shown.contains("user\nq"), "{shown}");
    let error = build(&[json!({"messages": turns})], &plain_tokenizer(), &Options::new(Content::Answers, 200));
    assert!(matches!(error, Err(DataError::NoAnswer { .. })));
    let forced = Options { format: Format::As(RowFormat::Prompt), ..Options::new(Content::Answers, 200) };
    let error = build(&[json!({"prompt": "q"})], &plain_tokenizer(), &forced).expect_err("no response");
    assert!(matches!(error, DataError::NoResponse { .. }), "{error}");
}

#[test]
fn a_long_text_with_a_class_is_cut_left_out_or_refused() {
    let rows = [json!({"text": "abcdefgh", "label": 1}), json!({"text": "ab", "label": 0})];
    let with =
        |over_long| build(&rows, &plain_tokenizer(), &Options { over_long, ..Options::new(Content::Labelled, 4) });
    assert!(matches!(with(OverLong::Error), Err(DataError::TooLong { length: 9, max_length: 4, .. })));
    assert_eq!(with(OverLong::Skip).expect("builds").get(0).label, Some(0));
    let cut = with(OverLong::Truncate).expect("builds");
    assert_eq!((text(cut.get(0).tokens), cut.get(0).label), ("abcd".into(), Some(1)));
}

/// The classes and the lengths of both streams are part of what a cache is made from.
#[test]
fn caches_of_other_classes_and_lengths_are_others() {
    let folder = Folder::new();
    let mut made = 0;
    for (content, other) in [
        (Content::Labelled, Options { classes: Classes::Count(5), ..options_for(Content::Labelled) }),
        (SEQ2SEQ, Options { max_source_length: SOURCE_LENGTH + 1, ..options_for(SEQ2SEQ) }),
        (SEQ2SEQ, options_for(Content::SourceTarget { decoder_start: 8 })),
    ] {
        let files = write_files(&folder, "rows", &rows_of(content, 30), 30);
        for options in [options_for(content), other.clone(), options_for(content), other] {
            make(Mode::Cached, vec![source(&files)], &folder.path().join("cache"), &options).expect("builds");
        }
        made += 2;
        let found = std::fs::read_dir(folder.path().join("cache")).expect("a folder").count();
        assert!(found <= made, "{found} caches for {made}");
    }
}

/// On devices that compute whole shapes: the lease is filled up in place, and the next use of the slot knows nothing of it.
#[test]
fn leases_are_filled_up_on_the_ring() {
    for content in CONTENTS {
        let folder = Folder::new();
        let files = write_files(&folder, "rows", &rows_of(content, 60), 20);
        let data = make(Mode::Memory, vec![source(&files)], folder.path(), &options_for(content)).expect("builds");
        let mut options = feed_options_for(content, Amount::Sequences(12), 3);
        options.slots = 2;
        let filling = options.capacity.iter().zip(options.max_length.iter()).map(|(c, &m)| c.tokens.div_ceil(m));
        let sequences = 6 + content.group() * filling.max().expect("a stream");
        let mut lengths = options.max_length.iter();
        let shape = options.capacity.map(|stream| plimsoll_data::FillShape {
            tokens: stream.tokens,
            sequences,
            max_length: *lengths.next().unwrap_or(&MAX_LENGTH),
        });
        let mut feed = Feed::start(&data, &options).expect("starts");
        for _ in 0..8 {
            feed.next_update().expect("feeds");
            while let Some(mut batch) = feed.next_batch().expect("feeds") {
                let (own, loss) = (batch.sequences(), batch.loss_tokens());
                let places = |batch: &plimsoll_data::MicroBatch| {
                    batch.streams.iter().map(|s| (s.tokens.as_ptr(), s.cu_seqlens.as_ptr())).collect::<Vec<_>>()
                };
                let before = places(&batch);
                batch.fill_up(&shape, content.group());
                assert_eq!(places(&batch), before);
                assert!(own <= 6 && batch.loss_tokens() == loss);
                for (stream, shape) in batch.streams.iter().zip(shape.iter()) {
                    assert_eq!((stream.len(), stream.sequences()), (shape.tokens, sequences));
                }
                let filled = |label: &i32| *label == NO_LABEL;
                assert_eq!(
                    batch.labels.iter().filter(|l| filled(l)).count() + own * usize::from(content.has_labels()),
                    batch.labels.len()
                );
            }
        }
    }
}

/// Sampled to choose, shared with the rows held out: each row is in one of the two, once.
#[test]
fn training_and_held_out_rows_share_opened_sources() {
    use plimsoll_data::{HoldOut, Limits, choose};
    for content in CONTENTS {
        let folder = Folder::new();
        let files = write_files(&folder, "rows", &rows_of(content, 9000), 2500);
        let side = |held| Options { hold_out: Some(HoldOut { share: 0.1, seed: 5, held }), ..options_for(content) };
        let sources = Sources::open(vec![source(&files)], &side(false)).expect("opens");
        let (_, format, explained) = sources.formats().next().expect("one source");
        assert!(explained.starts_with(format.name()), "{explained}");
        let held = sources.held_out();
        let limits = Limits { host_bytes: 1 << 30, folder: folder.path() };
        let (sources, _) = choose(sources, &plain_tokenizer(), &side(false), &limits).expect("chooses");
        let train = make(Mode::Memory, sources, folder.path(), &side(false)).expect("builds");
        let held = make(Mode::Memory, held, folder.path(), &side(true)).expect("builds");
        // Groups, counts and their order are those of a pass without a sample.
        let plain = make(Mode::Memory, vec![source(&files)], folder.path(), &side(false)).expect("builds");
        assert_eq!(train.first(usize::MAX).expect("readable"), plain.first(usize::MAX).expect("readable"));
        assert_eq!(train.summary(), plain.summary());
        let cached = make(Mode::Cached, vec![source(&files)], folder.path(), &side(false)).expect("builds");
        assert_eq!(cached.first(usize::MAX).expect("readable"), plain.first(usize::MAX).expect("readable"));
        assert_eq!(cached.summary(), plain.summary());
        assert_eq!(train.summary().rows + held.summary().rows, 9000, "{content:?}");
    }
}

/// More than a sample, with rows that are bad before and behind its end: nothing is counted twice.
#[test]
fn what_a_sample_has_counted_is_not_counted_again() {
    let folder = Folder::new();
    for (content, bad) in [(Content::Text, json!({"text": 3})), (Content::Answers, json!({"prompt": "x"}))] {
        let mut rows = rows_of(content, 12_000);
        (0..12_000).step_by(401).for_each(|i| rows[i] = bad.clone());
        rows[0] = rows_of(content, 1).remove(0);
        let files = write_files(&folder, "rows", &rows, 5000);
        let options = Options { over_long: OverLong::Truncate, ..options_for(content) };
        let streamed = make(MODES[2], vec![source(&files)], folder.path(), &options).expect("opens");
        let counted = streamed.counted(&mut |_| {}).expect("counts");
        let cached = make(Mode::Cached, vec![source(&files)], folder.path(), &options).expect("builds");
        assert_eq!(cached.summary(), counted.summary());
        assert_eq!((cached.summary().rows, cached.summary().bad), (12_000, 29));
        assert_eq!((cached.sequences(), cached.total_tokens()), (counted.sequences(), counted.total_tokens()));
    }
}
