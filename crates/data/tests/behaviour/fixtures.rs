//! Files and tokenizers that the tests make for themselves.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use plimsoll_data::{DataError, Dataset, Example, ExampleRef, NO_LOSS, Options, Row, Source, Tokenizer, quickstart};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder that goes when the test ends.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).expect("writes");
        path
    }

    /// One JSON value per line.
    pub fn jsonl(&self, rows: &[Value]) -> PathBuf {
        let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
        self.write("rows.jsonl", lines.join("\n"))
    }
}

/// Bytes as tokens, with `specials` added, and `config` as its tokenizer_config.json.
pub fn byte_tokenizer(specials: &[&str], config: &Value) -> Tokenizer {
    tokenizer_with_merges(specials, &[], config)
}

/// `merges` join two byte symbols each (a space is written `Ġ`).
pub fn tokenizer_with_merges(specials: &[&str], merges: &[(&str, &str)], config: &Value) -> Tokenizer {
    let [(_, text), _] = quickstart::tokenizer_files();
    let mut json: Value = serde_json::from_str(&text).expect("is JSON");
    let mut next = 260;
    for token in specials {
        let entry = json!({"id": next, "content": token, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true});
        json["added_tokens"].as_array_mut().expect("a list").push(entry);
        json["model"]["vocab"][*token] = json!(next);
        next += 1;
    }
    for (left, right) in merges {
        json["model"]["vocab"][format!("{left}{right}")] = json!(next);
        json["model"]["merges"].as_array_mut().expect("a list").push(json!([left, right]));
        next += 1;
    }
    let config = config.to_string();
    Tokenizer::from_bytes("test", json.to_string().as_bytes(), Some(&config)).expect("loads")
}

/// The tokenizer most tests use: bytes, `<|end|>` ends, no template.
pub fn plain_tokenizer() -> Tokenizer {
    byte_tokenizer(&[], &json!({"eos_token": "<|end|>"}))
}

/// A dataset with all its examples at hand.
#[derive(Debug)]
pub struct Built {
    pub data: Dataset,
    examples: Vec<Example>,
}

impl Built {
    pub fn new(data: Dataset) -> Result<Self, DataError> {
        let examples = data.first(usize::MAX)?;
        Ok(Self { data, examples })
    }

    pub fn len(&self) -> usize {
        self.examples.len()
    }

    pub fn get(&self, index: usize) -> ExampleRef<'_> {
        self.examples[index].view()
    }

    pub fn groups(&self) -> usize {
        self.len() / self.data.group()
    }

    pub fn get_group(&self, index: usize) -> impl Iterator<Item = ExampleRef<'_>> {
        let group = self.data.group();
        self.examples[index * group..(index + 1) * group].iter().map(Example::view)
    }
}

impl std::ops::Deref for Built {
    type Target = Dataset;

    fn deref(&self) -> &Dataset {
        &self.data
    }
}

pub fn build(rows: &[Value], tokenizer: &Tokenizer, options: &Options) -> Result<Built, DataError> {
    let folder = Folder::new();
    Built::new(Dataset::from_files(&[folder.jsonl(rows)], tokenizer, options)?)
}

/// The whole text, and the pieces of it that are learnt, each run of targets as one piece.
pub fn shown(tokenizer: &Tokenizer, example: ExampleRef<'_>) -> (String, Vec<String>) {
    let decode = |ids: &[u32]| tokenizer.decode(ids, false).expect("decodes");
    let runs = example.targets.split(|&target| target == NO_LOSS);
    let learnt = runs
        .filter(|run| !run.is_empty())
        .map(|run| decode(&run.iter().map(|&t| t as u32).collect::<Vec<_>>()))
        .collect();
    (decode(example.tokens), learnt)
}

pub fn open(files: &[impl AsRef<Path>]) -> Result<Source, DataError> {
    let names: Vec<&str> = files.iter().map(|file| file.as_ref().to_str().expect("UTF-8")).collect();
    Source::open(&names)
}

/// The message of the first error while reading.
pub fn read_error(path: &Path) -> String {
    let rows = open(&[path]).and_then(|source| source.all().collect::<Result<Vec<Row>, _>>());
    with_hint(&rows.expect_err("is an error"))
}

/// An error as a person sees it: what is wrong, and what to do about it.
pub fn with_hint(error: &DataError) -> String {
    format!("{error}\nhint: {}", error.hint().expect("something can be done about it"))
}

/// A column of a row group: values, definition levels, repetition levels.
pub type Column<'a> = (&'a [&'a str], &'a [i16], Option<&'a [i16]>);

pub fn write_parquet(path: &Path, schema: &str, groups: &[Vec<Column<'_>>], codec: Compression) {
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let properties = WriterProperties::builder().set_compression(codec).build();
    let file = File::create(path).expect("creates");
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).expect("opens");
    for columns in groups {
        let mut group = writer.next_row_group().expect("a group");
        for (values, definitions, repetitions) in columns {
            let values: Vec<ByteArray> = values.iter().map(|v| ByteArray::from(*v)).collect();
            let mut column = group.next_column().expect("opens").expect("a column");
            column.typed::<ByteArrayType>().write_batch(&values, Some(definitions), *repetitions).expect("writes");
            column.close().expect("closes");
        }
        group.close().expect("closes");
    }
    writer.close().expect("closes");
}

pub fn gzip(content: impl AsRef<[u8]>) -> Vec<u8> {
    use std::io::Write;
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    writer.write_all(content.as_ref()).expect("packs");
    writer.finish().expect("packs")
}

pub fn zstd(content: impl AsRef<[u8]>) -> Vec<u8> {
    zstd::encode_all(content.as_ref(), 3).expect("packs")
}
