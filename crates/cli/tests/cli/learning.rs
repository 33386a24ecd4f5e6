//! The small examples that write text learn it: their own run files, on data of the same kind as `make_data.sh` makes.

use std::path::Path;

use serde_json::json;

use crate::support::World;

const WORDS: [&str; 10] = ["bow", "keel", "mast", "rope", "sail", "tide", "wind", "anchor", "harbour", "rudder"];

/// Numbers that seem drawn, the same every time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound) as usize
    }
}

/// Each word is followed by the next of the list.
fn sentence(draw: &mut Draw) -> String {
    let (first, count) = (draw.below(10), 4 + draw.below(5));
    (0..count).map(|step| WORDS[(first + step) % WORDS.len()]).collect::<Vec<_>>().join(" ")
}

fn example(world: &World, name: &str, train: &[String], eval: &[String]) -> serde_json::Value {
    for (name, rows) in [("train.jsonl", train), ("eval.jsonl", eval)] {
        world.write(name, rows.concat());
    }
    for (name, text) in plimsoll_data::quickstart::tokenizer_files() {
        world.write(&format!("tokenizer/{name}"), text);
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/small").join(name);
    let settings = ["data.train=train.jsonl", "data.eval=eval.jsonl", "data.tokenizer=tokenizer"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let args = ["train", file.to_str().unwrap(), "--device", "cpu", "--out", "out", "--json", "--quiet"];
    let said = world.run(&args.into_iter().chain(settings).collect::<Vec<_>>()).ok().json();
    let metrics = world.metrics("out");
    let first = metrics.iter().find_map(|line| line.get("eval")).expect("evaluated before the first update");
    json!({"before": first, "after": said["eval"]})
}

/// Bits per byte of a model that knows how often each byte comes and nothing else.
fn unigram(train: &[String], eval: &[String]) -> f64 {
    let mut counts = [0f64; 256];
    train.iter().flat_map(|text| text.bytes()).for_each(|byte| counts[byte as usize] += 1.0);
    // The end of each text is a token, too.
    let total = counts.iter().sum::<f64>() + train.len() as f64;
    let bits: f64 = eval.iter().flat_map(|text| text.bytes()).map(|byte| (total / counts[byte as usize]).log2()).sum();
    bits / eval.iter().map(String::len).sum::<usize>() as f64
}

#[test]
fn nanochat_halves_what_a_unigram_model_needs() {
    let mut draw = Draw(5);
    let texts: Vec<String> = (0..2100).map(|_| sentence(&mut draw)).collect();
    let (eval, train) = texts.split_at(100);
    let rows = |texts: &[String]| texts.iter().map(|text| format!("{}\n", json!({"text": text}))).collect::<Vec<_>>();
    let world = World::bare("");
    let found = example(&world, "r0-nanochat.yaml", &rows(train), &rows(eval));
    let bits = |when: &str| found[when]["bits_per_byte"].as_f64().expect("reported");
    let limit = unigram(train, eval) / 2.0;
    assert!(bits("after") < limit && bits("before") > limit, "{found}, a unigram model {}", 2.0 * limit);
}

#[test]
fn t5_turns_words_round() {
    let mut draw = Draw(7);
    let rows: Vec<String> = (0..4100)
        .map(|_| {
            let letters: Vec<&str> = (0..4 + draw.below(2)).map(|_| &"abcdefgh"[draw.below(8)..][..1]).collect();
            let turned: Vec<&str> = letters.iter().rev().copied().collect();
            format!("{}\n", json!({"prompt": letters.join(" "), "response": turned.join(" ")}))
        })
        .collect();
    // What is held out was never seen.
    let (eval, train) = rows.split_at(100);
    let train: Vec<String> = train.iter().filter(|row| !eval.contains(row)).cloned().collect();
    let world = World::bare("");
    let found = example(&world, "r1-t5-chat.yaml", &train, eval);
    let bleu = |when: &str| found[when]["bleu"].as_f64().expect("reported");
    assert!(bleu("after") > 60.0 && bleu("before") < 20.0, "{found}");
}
