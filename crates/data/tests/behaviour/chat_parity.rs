//! The ids and masks of Hugging Face transformers, for tokenizers and templates of every manner
//! (`fixtures/make_chat.py`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::{Content, EncodedRow, Encoder, Format, Masked, Options, Place, Row, RowFormat, Tokenizer};
use serde_json::{Map, Value};

use crate::fixtures::Folder;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/chat")
}

fn encode(tokenizer: &Tokenizer, messages: &Value) -> Result<Masked, String> {
    let columns = Map::from_iter([("messages".to_owned(), messages.clone())]);
    let row = Row { at: Place { file: Arc::from(Path::new("row")), row: 1 }, columns };
    let shape = Format::Auto.resolve(&row).expect("a shape");
    assert_eq!(shape, RowFormat::Messages);
    let encoder = Encoder::new(tokenizer, shape, &Options::new(Content::Answers, 2048)).expect("encodes");
    match encoder.encode(&row) {
        Ok(EncodedRow::One(masked)) => Ok(masked),
        Ok(_) => panic!("no pair"),
        Err(error) => Err(error.to_string()),
    }
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("ids")
}

fn expected_mask(case: &Value) -> Vec<bool> {
    ids(&case["mask"]).into_iter().map(|bit| bit == 1).collect()
}

/// Where several tokens stand for an answer's last character (its bytes), transformers marks only the first of them. We
/// mark them all: the model has to produce every one.
fn check_mask(tokenizer: &Tokenizer, case: &Value, got: &Masked, what: &str) {
    let expected = expected_mask(case);
    if got.learn == expected {
        return;
    }
    let text = case["text"].as_str().expect("a text");
    let offsets = tokenizer.encode_with_offsets(text, false).expect("encodes").offsets;
    for i in 0..expected.len() {
        let same_character = i > 0 && got.learn[i - 1] && offsets[i] == offsets[i - 1];
        assert!(got.learn[i] == expected[i] || (got.learn[i] && same_character), "{what}: token {i}");
    }
}

fn without_tags(template: &str) -> String {
    let tags = ["{% generation %}", "{% endgeneration %}", "{%- generation %}", "{%- endgeneration %}"];
    tags.iter().fold(template.to_owned(), |text, tag| {
        text.replace(tag, &tag.replace("endgeneration", "endif").replace("generation", "if true"))
    })
}

#[test]
fn ids_and_masks_are_those_of_transformers() {
    let text = std::fs::read_to_string(fixtures().join("cases.json")).expect("the fixture");
    let data: Value = serde_json::from_str(&text).expect("JSON");
    let folder = Folder::new();
    let (mut checked, mut by_prefix) = (0, 0);
    for case in data["cases"].as_array().expect("cases") {
        let name = case["tokenizer"].as_str().expect("a name");
        let load = || Tokenizer::from_folder(fixtures().join(name)).expect("loads");
        if let Some(plain) = case["plain"].as_str() {
            assert_eq!(load().encode(plain, true).expect("encodes"), ids(&case["ids"]), "{name}: {plain:?}");
            let offsets = load().encode_with_offsets(plain, true).expect("encodes");
            assert_eq!(offsets.ids, ids(&case["ids"]), "{name}: {plain:?}");
            continue;
        }
        let messages = &data["conversations"][case["conversation"].as_str().expect("a name")];
        let (label, tokenizer, plain) = match case["built_in"].as_str() {
            Some(built_in) => (built_in, load().with_template(built_in).expect("is there"), None),
            None => {
                let label = case["template"].as_str().expect("a name");
                let template = data["templates"][label].as_str().expect("a template");
                let path = folder.write("t.jinja", template);
                let bare = folder.write("bare.jinja", without_tags(template));
                let choose = |path: PathBuf| load().with_template(path.to_str().expect("UTF-8")).expect("compiles");
                (label, choose(path), Some(choose(bare)))
            }
        };
        let what = format!("{name}, {label}, {}", case["conversation"]);
        let got = encode(&tokenizer, messages);
        if let Some(reason) = case["refused"].as_str() {
            assert!(got.expect_err(&what).contains(reason), "{what}");
            continue;
        }
        let got = got.expect(&what);
        assert_eq!(got.tokens, ids(&case["ids"]), "{what}");
        check_mask(&tokenizer, case, &got, &what);
        checked += 1;
        // Where a template has no such tags, the answers are found by rendering prefixes: the same ones.
        if let Some(bare) = plain
            && label != "lines"
        {
            assert_eq!(encode(&bare, messages).expect(&what), got, "{what}, without tags");
            by_prefix += 1;
        }
    }
    assert!(checked > 100 && by_prefix > 30, "{checked} {by_prefix}");
}
