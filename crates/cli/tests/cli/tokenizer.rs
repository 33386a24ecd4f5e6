//! `tokenizer train`.

use plimsoll_data::Tokenizer;

use crate::support::{Refusal, World, refused_in, rows};

fn world() -> World {
    let world = World::bare("");
    world.write("data/a.jsonl", rows());
    world.write("data/b.txt", "The draught is measured at the line.\n\nThe line is the line.\n");
    world
}

#[test]
fn a_folder_becomes_a_tokenizer_that_loads() {
    let world = world();
    let args = ["tokenizer", "train", "--data", "data/a.jsonl", "--out", "new/tokenizer", "--vocab-size", "300"];
    let said = world.run(&[&args[..], &["--special", "<tool>", "--template", "chatml"]].concat()).ok();
    assert_eq!(said.stdout, "new/tokenizer: 273 tokens from 24 rows, 266 B of text, 62 distinct words\n");
    assert_eq!(world.names("new/tokenizer"), ["tokenizer.json", "tokenizer_config.json"]);
    let tokenizer = Tokenizer::from_folder(world.path("new/tokenizer")).expect("loads");
    assert_eq!(tokenizer.vocab_size(), 273);
    assert_eq!(tokenizer.token_id("<tool>"), Some(3));
    assert!(tokenizer.chat_template().is_some());

    refused_in(
        &world,
        &Refusal {
            args: &args,
            code: 2,
            expected: "error: new/tokenizer/tokenizer.json already exists\n\
                hint: choose another folder with --out, or overwrite it with --force\n",
        },
    );
    world.run(&[&args[..], &["--force"]].concat()).ok();
}

#[test]
fn results_as_json_and_a_warning_where_there_is_too_little_text() {
    let world = world();
    let args = ["tokenizer", "train", "--data", "data/b.txt", "--out", "t", "--kind", "unigram", "--vocab-size", "900"];
    let said = world.run(&[&args[..], &["--json"]].concat()).ok();
    let json = said.json();
    assert_eq!((&json["rows"], &json["text_bytes"]), (&2.into(), &57.into()), "{json}");
    let size = json["vocab_size"].as_u64().expect("a number");
    assert!(size < 900, "{json}");
    let warning = format!("warning: the text yields only {size} tokens, fewer than the 900 requested\n");
    assert_eq!(said.stderr, warning);
}

#[test]
fn refusals() {
    let check = |more: &[&str], code: i32, expected: &str| {
        let args = [&["tokenizer", "train", "--out", "t", "--data"], more].concat();
        refused_in(&world(), &Refusal { args: &args, code, expected });
    };
    check(
        &["none.jsonl"],
        4,
        "error: cannot read none.jsonl: No such file or directory (os error 2)\nhint: check the path under `data:`\n",
    );
    check(
        &["data/a.jsonl", "--vocab-size", "200"],
        2,
        "error: cannot train a tokenizer: a vocabulary of 200 leaves no room: bytes, letters and special tokens alone \
         are 257\nhint: give more text, or ask for another size or kind of vocabulary\n",
    );
    check(
        &["data/a.jsonl", "--template", "lama"],
        2,
        "error: unknown chat template `lama`\n\
         hint: known are chatml, llama-3, mistral, zephyr, alpaca, gemma, vicuna, phi-3; or give the path of a .jinja file\n",
    );
    check(
        &["data/a.jsonl", "--limit", "plenty"],
        2,
        "error: --limit must be a size, not `plenty`\nhint: for example `2GiB` or `500MiB`\n",
    );
}
