//! What reads files that come from elsewhere. Each target takes any bytes and may refuse them, but neither panic nor take
//! more memory than it says.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_data::{BUILT_IN_TEMPLATES, Source, Tokenizer, quickstart};
use plimsoll_graph::Shape;
use plimsoll_models::Architecture;
use plimsoll_run::config::{self, Overrides};
use plimsoll_runtime::weights::Checkpoint;
use plimsoll_train::{AdapterFolder, Resume};
use serde_json::{Value, json};

pub struct Target {
    pub name: &'static str,
    /// Most memory held for one input, in MiB.
    pub mib_max: usize,
    pub seeds: fn() -> Vec<Vec<u8>>,
    pub words: &'static [&'static [u8]],
    pub read: fn(&Path, &[u8]),
}

const JSON_WORDS: &[&[u8]] =
    &[b"null", b"[", b"{", b"\"", b"\\u0000", b"\\ud800", b",", b"1e999", b"true", b"[[[[[[[["];
const YAML_WORDS: &[&[u8]] = &[
    b"&a [*a, *a]",
    b"*a",
    b": ",
    b"\n  ",
    b"!!binary x",
    b"{a: ",
    b"- ",
    b"|\n",
    b"? ",
    b"'",
    b"<<: *a",
    b"# ",
    b"\t",
];
const TEMPLATE_WORDS: &[&[u8]] = &[
    b"{% for m in messages %}",
    b"{% endfor %}",
    b"{{ ",
    b" }}",
    b" ~ ",
    b" + ",
    b" * ",
    b" | tojson(indent=9)",
    b" | join",
    b" | replace('a', messages)",
    b"range(99999)",
    b"{% set x = x ~ x %}",
    b"{% set ns.x = ns.x + ns.x %}",
    b"{% macro a(b) %}",
    b"{% endmacro %}",
    b"{{ a(a) }}",
    b" | list",
    b"messages",
    b"loop.previtem",
    b"{% generation %}",
    b"{% endgeneration %}",
    b"**",
    b"[::-1]",
    b" | map('upper')",
    b"namespace(x=1)",
    b"{% set x %}",
    b"{% endset %}",
    b"caller()",
    b"{% call a() %}",
];

/// Every kind of file there is.
pub const TARGETS: [Target; 15] = [
    Target { name: "run.yaml", mib_max: 64, seeds: run_files, words: YAML_WORDS, read: run_file },
    Target { name: "config.json", mib_max: 64, seeds: model_configs, words: JSON_WORDS, read: model_config },
    Target {
        name: "adapter_config.json",
        mib_max: 16,
        seeds: adapter_configs,
        words: JSON_WORDS,
        read: adapter_config,
    },
    Target { name: "model.safetensors", mib_max: 16, seeds: weights, words: JSON_WORDS, read: weight_file },
    Target { name: "model.safetensors.index.json", mib_max: 16, seeds: indexes, words: JSON_WORDS, read: weight_index },
    Target { name: "tokenizer.json", mib_max: 256, seeds: tokenizers, words: JSON_WORDS, read: tokenizer },
    Target {
        name: "tokenizer_config.json",
        mib_max: 64,
        seeds: tokenizer_configs,
        words: JSON_WORDS,
        read: tokenizer_config,
    },
    Target { name: "chat_template.jinja", mib_max: 1024, seeds: templates, words: TEMPLATE_WORDS, read: template },
    Target { name: "manifest.json", mib_max: 16, seeds: manifests, words: JSON_WORDS, read: manifest },
    Target { name: "rows.jsonl", mib_max: 32, seeds: rows, words: JSON_WORDS, read: jsonl },
    Target { name: "rows.json", mib_max: 32, seeds: rows, words: JSON_WORDS, read: json_rows },
    Target { name: "rows.csv", mib_max: 32, seeds: tables, words: &[b"\"", b"\"\"", b",", b"\r\n", b"\n"], read: csv },
    // Two columns, each with a dictionary and a page of 256 MiB, and what is small beside them.
    Target { name: "rows.parquet", mib_max: 1040, seeds: parquet, words: &[], read: parquet_rows },
    Target { name: "rows.arrow", mib_max: 256, seeds: arrow, words: &[], read: arrow_rows },
    Target { name: "rows.jsonl.zst", mib_max: 256, seeds: packed, words: &[], read: packed_rows },
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn files(names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().map(|name| fs::read(fixture(name)).expect(name)).collect()
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn run_files() -> Vec<Vec<u8>> {
    let examples = ["r0-nanochat", "r1-t5-chat", "r2-t5-low-host", "r3-ranking", "r4-reward"];
    examples.iter().map(|name| fs::read(fixture(&format!("../examples/{name}.yaml"))).expect(name)).collect()
}

fn run_file(folder: &Path, bytes: &[u8]) {
    let path = folder.join("run.yaml");
    fs::write(&path, bytes).expect("writable");
    let Ok(resolved) = config::load(config::Source::File(&path), &Overrides::default()) else { return };
    // What a run is resolved to is the same run again.
    fs::write(&path, resolved.to_yaml()).expect("writable");
    if let Err(failure) = config::load(config::Source::File(&path), &Overrides::default()) {
        panic!("it reads its own run file no more: {failure}");
    }
}

const FAMILIES: [&str; 8] = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "nanochat", "t5", "mt5"];

fn model_configs() -> Vec<Vec<u8>> {
    FAMILIES
        .iter()
        .map(|family| fs::read(fixture(&format!("parity/{family}/model/config.json"))).expect("there"))
        .collect()
}

fn model_config(_: &Path, bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(model) = Architecture::from_json(text) {
        assert!(model.parameter_count() > 0 && !model.linear_layers().is_empty());
    }
}

fn adapter_configs() -> Vec<Vec<u8>> {
    files(&["parity/llama/lora_init/adapter_config.json", "parity/reward/lora_init/adapter_config.json"])
}

fn adapter_config(folder: &Path, bytes: &[u8]) {
    fs::write(folder.join("adapter_config.json"), bytes).expect("writable");
    if let Ok(adapter) = AdapterFolder::open(folder) {
        let _ = adapter.lora.scale();
    }
}

fn weights() -> Vec<Vec<u8>> {
    let adapters =
        ["parity/llama/lora_init/adapter_model.safetensors", "parity/mistral/lora_init/adapter_model.safetensors"];
    let few_bits = ["formats/nf4.safetensors", "formats/int8.safetensors", "formats/fp8.safetensors"];
    files(&[&adapters[..], &few_bits].concat())
}

fn weight_file(folder: &Path, bytes: &[u8]) {
    fs::write(folder.join("model.safetensors"), bytes).expect("writable");
    read_weights(folder);
}

fn read_weights(folder: &Path) {
    let Ok(files) = Checkpoint::open(folder, "model") else { return };
    let names: Vec<String> = files.names().map(str::to_owned).collect();
    for name in &names {
        let _ = (files.dtype(name), files.differ(name, &names[0]));
        // As a model would ask for it: of four bits, the file's shape is that of the codes.
        let of_file = files.info(name).map(|info| info.shape.clone()).filter(|shape| shape.len() <= 4);
        for dims in of_file.into_iter().chain([vec![128, 128], vec![64, 256], vec![96, 64]]) {
            let shape = Shape::new(&dims);
            let elements = shape.checked_elements().filter(|&elements| elements <= 1 << 17);
            if let (Some(elements), Ok(())) = (elements, files.check(name, &shape)) {
                let _ = files.read(name, &shape, 0, &mut vec![0.0; elements]);
            }
        }
    }
}

fn indexes() -> Vec<Vec<u8>> {
    files(&["parity/llama/model/model.safetensors.index.json"])
}

fn weight_index(folder: &Path, bytes: &[u8]) {
    fs::write(folder.join("model.safetensors.index.json"), bytes).expect("writable");
    read_weights(folder);
}

fn tokenizers() -> Vec<Vec<u8>> {
    let mut all = files(&["chat/bytes/tokenizer.json", "chat/pieces/tokenizer.json", "chat/unigram/tokenizer.json"]);
    all.push(plain_tokenizer());
    all
}

fn plain_tokenizer() -> Vec<u8> {
    quickstart::tokenizer_files()[0].1.clone().into()
}

fn tokenizer(_: &Path, bytes: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_bytes("tokenizer.json", bytes, None) {
        use_tokenizer(&tokenizer);
    }
}

fn use_tokenizer(tokenizer: &Tokenizer) {
    for text in ["", " The cat's 12 mats\n\n", "\u{1f600}\u{301}\0 <s>"] {
        if let Ok(encoded) = tokenizer.encode_with_offsets(text, true) {
            assert!(encoded.offsets.iter().all(|(from, to)| from <= to && *to <= text.len()), "{:?}", encoded.offsets);
            let _ = tokenizer.decode(&encoded.ids, false);
        }
    }
}

fn tokenizer_configs() -> Vec<Vec<u8>> {
    files(&["chat/bytes/tokenizer_config.json", "chat/unigram/tokenizer_config.json"])
}

fn tokenizer_config(_: &Path, bytes: &[u8]) {
    let Ok(config) = std::str::from_utf8(bytes) else { return };
    if let Ok(tokenizer) = Tokenizer::from_bytes("tokenizer.json", &plain_tokenizer(), Some(config)) {
        use_tokenizer(&tokenizer);
    }
}

fn templates() -> Vec<Vec<u8>> {
    texts(&[
        "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}{% generation %}\
         {{- message.content + '<|im_end|>' }}{% endgeneration %}{%- endfor %}",
        "{% set ns = namespace(x='ab', l=[]) %}{% for m in messages[1:] %}{% set ns.x = ns.x ~ m['content'] | trim %}\
         {% set ns.l = ns.l + [m] %}{% endfor %}{{ ns.x }}{{ ns.l | tojson(indent=2) }}",
        "{% macro turn(m, n=2) %}{{ m.role | upper }}: {{ (m.content or '').split('a') | join('-') }}{% endmacro %}\
         {% for m in messages if m.role != 'system' %}{{ turn(m) }}{% if not loop.last %}, {% endif %}{% endfor %}",
        "{% if tools is not none and tools | length > 0 %}{% for t in tools | map(attribute='name') | list %}{{ '-' * 3 }}\
         {{ t | replace('x', 'yy') }}{% endfor %}{% else %}{{ raise_exception('no') }}{% endif %}{{ strftime_now('%Y') }}",
    ])
}

fn template(_: &Path, bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let config = json!({"eos_token": "<|end|>", "chat_template": source}).to_string();
    let Ok(tokenizer) = Tokenizer::from_bytes("tokenizer.json", &plain_tokenizer(), Some(&config)) else { return };
    let messages = [
        json!({"role": "system", "content": "a".repeat(1000)}),
        json!({"role": "user", "content": "b a"}),
        json!({"role": "assistant", "content": null, "tool_calls": [{"name": "f", "arguments": {"x": [1, 2.5]}}]}),
    ];
    let template = tokenizer.chat_template().expect("it was given one");
    for tools in [Value::Null, json!([{"name": "x"}])] {
        if let Ok(rendered) = template.render_marked(&messages, &tools, true) {
            let spans = rendered.answers.unwrap_or_default();
            assert!(spans.iter().all(|span| rendered.text.get(span.clone()).is_some()), "{spans:?}");
        }
    }
    assert!(BUILT_IN_TEMPLATES.contains(&"chatml"));
}

fn manifests() -> Vec<Vec<u8>> {
    texts(&[r#"{"format":1,"files":{"a":{"bytes":1,"xxh3_128":"00"},"b/c":{"bytes":0,"xxh3_128":""}},"checksum":"0"}"#])
}

fn manifest(folder: &Path, bytes: &[u8]) {
    let step = folder.join("checkpoints/step-1");
    fs::create_dir_all(&step).expect("writable");
    fs::write(step.join("manifest.json"), bytes).expect("writable");
    assert!(Resume::find(folder).is_err(), "nothing belongs to it");
}

fn rows() -> Vec<Vec<u8>> {
    texts(&[
        "{\"text\": \"a\\u00e9\"}\n{\"prompt\": \"b\", \"response\": \"c\"}\n",
        "[{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"d\"}]}]}, {\"text\": null}]",
        "{\"data\": [{\"conversations\": \"[{\\\"from\\\": \\\"human\\\", \\\"value\\\": \\\"e\\\"}]\"}]}",
    ])
}

fn tables() -> Vec<Vec<u8>> {
    texts(&["prompt,response\na,\"b, \"\"c\"\"\nd\"\ne,f\n", "text\r\n\"x\r\ny\"\r\nz\r\n"])
}

fn parquet() -> Vec<Vec<u8>> {
    files(&["parquet/plain.parquet", "parquet/delta.parquet", "parquet/nested.parquet"])
}

fn arrow() -> Vec<Vec<u8>> {
    files(&["arrow/plain.feather", "arrow/lz4.arrow", "arrow/zstd.arrow", "arrow/stream.arrow"])
}

fn packed() -> Vec<Vec<u8>> {
    files(&["packed/rows.jsonl.zst"])
}

fn jsonl(folder: &Path, bytes: &[u8]) {
    read_rows(folder, "rows.jsonl", bytes);
}

fn json_rows(folder: &Path, bytes: &[u8]) {
    read_rows(folder, "rows.json", bytes);
}

fn csv(folder: &Path, bytes: &[u8]) {
    read_rows(folder, "rows.csv", bytes);
}

fn parquet_rows(folder: &Path, bytes: &[u8]) {
    read_rows(folder, "rows.parquet", bytes);
}

fn arrow_rows(folder: &Path, bytes: &[u8]) {
    read_rows(folder, "rows.arrow", bytes);
}

fn packed_rows(folder: &Path, bytes: &[u8]) {
    read_rows(folder, "rows.jsonl.zst", bytes);
}

/// Nulls cost nothing, so that a few bytes can stand for any number of rows; that many are looked at.
const ROWS_MAX: usize = 20_000;

fn read_rows(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    fs::write(&path, bytes).expect("writable");
    if let Ok(source) = Source::open(&[path.to_str().expect("UTF-8")]) {
        let _ = source.reading_bytes();
        let _ = source.all().take(ROWS_MAX).filter(Result::is_ok).count();
    }
}
