//! Whatever fails while something is written, its old content or its new one is there, and nothing half-written.

use std::fs;
use std::io;
use std::path::Path;

use plimsoll_files::fault::{Fault, count, inject};
use plimsoll_files::{NewFolder, link, publish, remove_folder, sum_file, write};

const ERRORS: [i32; 3] = [libc::ENOSPC, libc::EIO, libc::EROFS];

fn folder_with(path: &Path, content: &str) -> io::Result<()> {
    let folder = NewFolder::create(path)?;
    folder.write("one", content.as_bytes())?;
    folder.write("two", content.as_bytes())?;
    folder.replace(path)
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .expect("a folder")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

/// Tries every fault at every operation of `replace`, each time over the same old content.
fn check(old: impl Fn(&Path), replace: impl Fn(&Path) -> io::Result<()>, read: impl Fn(&Path) -> Option<String>) {
    let run = |fault: Option<(Fault, u64)>| {
        let here = tempfile::tempdir().expect("a folder");
        let path = here.path().join("thing");
        old(&path);
        let (result, operations) = match fault {
            Some((fault, at)) => inject(fault, at, || replace(&path)),
            None => count(|| replace(&path)),
        };
        // A lasting fault may hold back what cleans up, too; sweeping is what the next process does.
        plimsoll_files::sweep(here.path());
        let rest: Vec<String> = names(here.path()).into_iter().filter(|name| name != "thing").collect();
        assert_eq!(rest, Vec::<String>::new(), "{fault:?}");
        (result.map_err(|error| error.raw_os_error()), operations, read(&path))
    };
    let (whole, operations, content) = run(None);
    assert_eq!((whole, content.as_deref()), (Ok(()), Some("new")));
    assert!(operations >= 2);
    for number in ERRORS {
        for fault in [Fault::Lasting(number), Fault::Once(number)] {
            for at in 0..operations {
                let (result, _, content) = run(Some((fault, at)));
                match result {
                    Ok(()) => assert_eq!(content.as_deref(), Some("new"), "{fault:?} at {at}"),
                    Err(seen) => {
                        assert_eq!(seen, Some(number), "{fault:?} at {at}");
                        assert!(
                            matches!(content.as_deref(), None | Some("old" | "new")),
                            "{fault:?} at {at}: {content:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn files() {
    let old = |path: &Path| fs::write(path, "old").expect("writable");
    let read = |path: &Path| Some(fs::read_to_string(path).expect("always there"));
    check(old, |path| write(path, b"new"), read);
    check(old, |path| publish(path, b"new"), read);
    check(
        |path| std::os::unix::fs::symlink("old", path).expect("links"),
        |path| link(path, Path::new("new")),
        |path| Some(fs::read_link(path).expect("always there").to_str().expect("UTF-8").to_owned()),
    );
}

/// A folder is replaced by two renames, so it may be gone, but it is never mixed or half.
#[test]
fn folders() {
    let read = |path: &Path| {
        if !path.exists() {
            return None;
        }
        assert_eq!(names(path), ["one", "two"]);
        let content = |name: &str| fs::read_to_string(path.join(name)).expect("readable");
        assert_eq!(content("one"), content("two"));
        Some(content("one"))
    };
    check(|path| folder_with(path, "old").expect("writable"), |path| folder_with(path, "new"), read);
    check(|_| {}, |path| folder_with(path, "new"), read);
    let here = tempfile::tempdir().expect("a folder");
    let path = here.path().join("thing");
    folder_with(&path, "old").expect("writable");
    let second = NewFolder::create(&path).expect("writable");
    assert!(second.commit(&path).is_err(), "a folder with something in it is not replaced unasked");
    assert_eq!(read(&path).as_deref(), Some("old"));
    remove_folder(&path).expect("ours");
    assert!(names(here.path()).is_empty());
}

#[test]
fn what_was_written_is_what_is_summed() {
    let here = tempfile::tempdir().expect("a folder");
    let path = here.path().join("thing");
    let content: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
    let folder = NewFolder::create(&path).expect("writable");
    let written = folder.write("data", &content).expect("writable");
    folder.commit(&path).expect("writable");
    assert_eq!(written.bytes, content.len() as u64);
    assert_eq!(sum_file(&path.join("data")).expect("readable"), written);
    let mut other = content;
    other[2_999_999] ^= 1;
    fs::write(path.join("data"), other).expect("writable");
    assert_ne!(sum_file(&path.join("data")).expect("readable"), written);
}
