//! The cache: made once, used again, made anew when it is not what it should be.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use plimsoll_data::{
    Amount, Content, DataError, Dataset, Feed, Options, OverLong, Progress, Swept, Tokenizer, sweep_cache,
};
use serde_json::json;

use crate::fed::{MAX_LENGTH, feed_options, numbered, source, write_files};
use crate::fixtures::{Folder, byte_tokenizer, plain_tokenizer, with_hint};

struct World {
    folder: Folder,
    files: Vec<String>,
}

impl World {
    fn new() -> Self {
        let folder = Folder::new();
        let files = write_files(&folder, "rows", &numbered(0, 400), 400);
        Self { folder, files }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("a/cache")
    }

    /// The dataset, and whether it had to be made.
    fn open_with(&self, tokenizer: &Tokenizer, options: &Options) -> (Dataset, bool) {
        let mut made = false;
        let mut observe = |progress: &Progress| made |= progress.rows > 0;
        let data = Dataset::cached(vec![source(&self.files)], tokenizer, options, &self.cache(), &mut observe);
        (data.expect("builds"), made)
    }

    fn open(&self) -> (Dataset, bool) {
        self.open_with(&plain_tokenizer(), &Options::new(Content::Answers, MAX_LENGTH))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.cache()).expect("a folder");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("readable").file_name().to_str().expect("UTF-8").to_owned()).collect();
        names.sort();
        names
    }

    fn file(&self) -> PathBuf {
        let names = self.names();
        assert_eq!(names.len(), 1, "{names:?}");
        self.cache().join(&names[0])
    }
}

#[test]
fn a_cache_is_made_once() {
    let world = World::new();
    let (first, made) = world.open();
    assert!(made && world.file().extension().is_some_and(|e| e == "tokens"));
    let (again, made) = world.open();
    assert!(!made);
    assert_eq!(first.first(usize::MAX).expect("readable"), again.first(usize::MAX).expect("readable"));
    assert_eq!((first.summary(), first.longest()), (again.summary(), again.longest()));
    assert_eq!(again.footprint().resident_bytes, 0);
}

#[test]
fn whatever_changes_the_content_makes_another_one() {
    let world = World::new();
    world.open();
    let options = Options::new(Content::Answers, MAX_LENGTH);
    let other_tokenizer = byte_tokenizer(&["<|more|>"], &json!({"eos_token": "<|end|>"}));
    let with_template = plain_tokenizer().with_template("chatml").expect("has an end of turn");
    for (tokenizer, options) in [
        (plain_tokenizer(), Options { max_length: 64, ..options.clone() }),
        (with_template, Options { max_length: 64, ..options.clone() }),
        (plain_tokenizer(), Options { max_length: 15, ..options.clone() }),
        (plain_tokenizer(), Options { over_long: OverLong::Skip, ..options.clone() }),
        (other_tokenizer, options.clone()),
    ] {
        assert!(world.open_with(&tokenizer, &options).1);
        assert!(!world.open_with(&tokenizer, &options).1);
    }
    // Threads change nothing.
    assert!(!world.open_with(&plain_tokenizer(), &Options { workers: 7, ..options.clone() }).1);
    assert_eq!(world.names().len(), 6);
    write_files(&world.folder, "rows", &numbered(5, 400), 400);
    let (data, made) = world.open();
    assert!(made && data.sequences() == Some(400));
}

#[test]
fn damage_that_shows_on_opening_has_it_made_again() {
    let world = World::new();
    let (data, _) = world.open();
    let expected = data.first(usize::MAX).expect("readable");
    let whole = fs::read(world.file()).expect("readable");
    let length = whole.len();
    let flip = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    for (what, bytes) in [
        ("nothing in it", Vec::new()),
        ("the header cut", whole[..100].to_vec()),
        ("the end cut", whole[..length - 1].to_vec()),
        ("something behind it", [&whole[..], b"x"].concat()),
        ("the magic", flip(3)),
        ("the header", flip(60)),
        ("the index", flip(length - 500)),
        ("its checksum", flip(length - 1)),
    ] {
        fs::write(world.file(), bytes).expect("writes");
        let (data, made) = world.open();
        assert!(made, "{what}");
        assert_eq!(data.first(usize::MAX).expect("readable"), expected, "{what}");
        assert_eq!(fs::read(world.file()).expect("readable"), whole, "{what}");
    }
}

#[test]
fn a_damaged_record_is_an_error_when_it_is_read_and_made_again_at_the_next_start() {
    let world = World::new();
    world.open();
    let mut bytes = fs::read(world.file()).expect("readable");
    bytes[4096 + 1000] ^= 1;
    fs::write(world.file(), bytes).expect("writes");
    let (data, made) = world.open();
    assert!(!made);
    let mut feed = Feed::start(&data, &feed_options(Amount::Sequences(400), 1)).expect("starts");
    feed.next_update().expect("plans: lengths are in the index");
    let error = std::iter::from_fn(|| feed.next_batch().transpose()).find_map(Result::err).expect("is found");
    let message = with_hint(&error);
    assert!(matches!(error, DataError::CacheDamaged { moved: true, .. }), "{message}");
    assert!(message.contains("start again"), "{message}");
    assert!(world.open().1);
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    let world = World::new();
    let (data, _) = world.open();
    let file = fs::OpenOptions::new().write(true).open(world.file()).expect("opens");
    file.set_len(5000).expect("shrinks");
    let error = data.first(usize::MAX).expect_err("gone");
    assert!(matches!(error, DataError::CacheDamaged { .. }), "{error}");
}

#[test]
fn runs_that_start_at_once_share_one() {
    let world = World::new();
    let made: usize = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..6).map(|_| scope.spawn(|| usize::from(world.open().1))).collect();
        runs.into_iter().map(|run| run.join().expect("runs")).sum()
    });
    assert_eq!(made, 1);
    world.file();
}

#[test]
fn what_a_killed_run_left_is_taken_over() {
    let world = World::new();
    world.open();
    let file = world.file();
    let half = fs::read(&file).expect("readable");
    fs::remove_file(&file).expect("removes");
    fs::write(file.with_extension("building"), &half[..half.len() / 2]).expect("writes");
    assert!(world.open().1);
    assert_eq!(world.file(), file);
}

#[test]
fn caches_that_nobody_uses_are_swept() {
    let world = World::new();
    world.open();
    let used = world.file();
    let options = Options::new(Content::Answers, 15);
    world.open_with(&plain_tokenizer(), &options);
    let age = |path: &Path, days: u64| {
        let then = SystemTime::now() - Duration::from_secs(days * 24 * 60 * 60);
        fs::File::options().write(true).open(path).expect("opens").set_modified(then).expect("is ours");
    };
    let other = world.names().into_iter().map(|name| world.cache().join(name)).find(|path| *path != used);
    let other = other.expect("a second one");
    let bytes = fs::metadata(&other).expect("is there").len();
    // Not ours: another name, or another content.
    for (name, content) in [("notes.txt", "x"), ("0123.tokens", "x")] {
        fs::write(world.cache().join(name), content).expect("writes");
        age(&world.cache().join(name), 100);
    }
    fs::copy(&other, world.cache().join("copy.tokens")).expect("copies");
    age(&world.cache().join("copy.tokens"), 100);
    age(&used, 100);
    age(&other, 29);
    // Whoever opens a cache uses it.
    assert!(!world.open().1);
    assert_eq!(sweep_cache(&world.cache()), Swept::default());
    age(&other, 31);
    assert_eq!(sweep_cache(&world.cache()), Swept { files: 1, bytes });
    assert!(!other.exists());
    assert_eq!(world.names().len(), 4, "{:?}", world.names());
    assert!(!world.open().1, "the one in use is there");
    assert_eq!(sweep_cache(&world.cache().join("not there")), Swept::default());
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let world = World::new();
    let in_the_way = world.folder.write("file", "x");
    let options = Options::new(Content::Answers, MAX_LENGTH);
    let result =
        Dataset::cached(vec![source(&world.files)], &plain_tokenizer(), &options, &in_the_way.join("c"), &mut |_| {});
    let message = with_hint(&result.expect_err("no folder"));
    assert!(message.contains("cannot write the tokenised data") && message.contains("hint:"), "{message}");
}
