//! What reading holds is a planned figure: measured by counting every allocation while a file is read.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use plimsoll_data::Source;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

impl Counting {
    fn add(bytes: usize) {
        let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK.fetch_max(now, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator as it came; counting touches nothing of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size());
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        Self::add(size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A row, its line and what the reader needs to say where it is.
const ROW_BYTES: usize = 128 << 10;

/// Reads the file and holds what that took against the plan. `at_least`: of the planned bytes, so that a plan of too much
/// is found too; nothing where a library in C holds them, which nobody counts here.
fn check(path: &Path, rows: usize, at_least: f64) {
    let source = Source::open(&[path.to_str().expect("UTF-8")]).expect("opens");
    let planned = source.reading_bytes() as usize;
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    assert_eq!(source.all().filter(Result::is_ok).count(), rows);
    let used = PEAK.load(Ordering::Relaxed) - before;
    let name = path.file_name().expect("a name").display();
    assert!(used <= planned + ROW_BYTES, "{name}: {used} of {planned} planned");
    assert!(used as f64 >= at_least * planned as f64, "{name}: only {used} of {planned} planned");
}

fn write_parquet(folder: &Path, name: &str, texts: &[String], properties: WriterProperties) -> PathBuf {
    let schema =
        "message m { required binary prompt (UTF8); optional binary response (UTF8); required binary other (UTF8); }";
    let path = folder.join(name);
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let mut writer =
        SerializedFileWriter::new(File::create(&path).expect("creates"), schema, Arc::new(properties)).expect("opens");
    let values: Vec<ByteArray> = texts.iter().map(|text| ByteArray::from(text.as_str())).collect();
    let present = vec![1; values.len()];
    let mut group = writer.next_row_group().expect("a group");
    for levels in [None, Some(&present[..]), None] {
        let mut column = group.next_column().expect("opens").expect("a column");
        for (index, part) in values.chunks(100).enumerate() {
            let levels = levels.map(|levels| &levels[index * 100..index * 100 + part.len()]);
            column.typed::<ByteArrayType>().write_batch(part, levels, None).expect("writes");
        }
        column.close().expect("closes");
    }
    group.close().expect("closes");
    writer.close().expect("closes");
    path
}

/// One test: allocations of others would be counted with it.
#[test]
fn reading_holds_what_was_planned() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    // Distinct texts of about a kilobyte that pack to a third.
    let text = |i: usize| {
        (0..60)
            .map(|word| format!("word {:x} ", (i * 60 + word).wrapping_mul(2_654_435_761) % 65_536))
            .collect::<String>()
    };
    let texts: Vec<String> = (0..20_000).map(text).collect();

    let lines: String = texts.iter().map(|text| format!("{{\"text\": \"{text}\"}}\n")).collect();
    std::fs::write(path("rows.jsonl"), &lines).expect("writes");
    check(&path("rows.jsonl"), 20_000, 0.5);
    let table: String =
        std::iter::once("text\n".to_owned()).chain(texts.iter().map(|text| format!("{text}\n"))).collect();
    std::fs::write(path("rows.csv"), &table).expect("writes");
    check(&path("rows.csv"), 20_000, 0.5);
    let mut gzip = flate2::write::GzEncoder::new(
        File::create(path("rows.jsonl.gz")).expect("creates"),
        flate2::Compression::fast(),
    );
    gzip.write_all(lines.as_bytes()).and_then(|()| gzip.finish().map(drop)).expect("packs");
    check(&path("rows.jsonl.gz"), 20_000, 0.5);
    std::fs::write(path("rows.jsonl.zst"), zstd::encode_all(lines.as_bytes(), 3).expect("packs")).expect("writes");
    check(&path("rows.jsonl.zst"), 20_000, 0.0);

    let plain = |page: usize| WriterProperties::builder().set_dictionary_enabled(false).set_data_page_size_limit(page);
    for (name, properties) in [
        ("small.parquet", plain(64 << 10).set_compression(Compression::SNAPPY)),
        ("pages.parquet", plain(4 << 20).set_compression(Compression::SNAPPY)),
        ("one.parquet", plain(1 << 30).set_compression(Compression::SNAPPY)),
        ("raw.parquet", plain(8 << 20).set_compression(Compression::UNCOMPRESSED)),
        (
            "dictionary.parquet",
            WriterProperties::builder().set_compression(Compression::LZ4_RAW).set_dictionary_page_size_limit(1 << 30),
        ),
    ] {
        let file = write_parquet(folder.path(), name, &texts, properties.build());
        check(&file, 20_000, if name == "small.parquet" { 0.1 } else { 0.4 });
    }
}
