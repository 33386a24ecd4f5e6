//! The weights that adapters stand beside, known again by what their files hold: adapters mean nothing on others.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use plimsoll_files::Checksum;
use plimsoll_runtime::weights::Checkpoint;
use serde::{Deserialize, Serialize};

use crate::TrainError;

/// Each weight file's mark, by name; none where the weights were drawn from the seed. When files were written does not
/// matter: a copy of a model is the same model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct BaseMark(BTreeMap<String, FileMark>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileMark {
    bytes: u64,
    /// Over all of a small file, over pieces of a large one.
    xxh3_128: String,
}

/// How the base differs from what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseChange {
    /// The weight file, where it is about one.
    pub file: Option<String>,
    pub what: &'static str,
}

/// Files up to this size are read whole.
const WHOLE_BYTES: u64 = 64 << 20;
/// Of larger ones, so many pieces of this size, evenly from the beginning to the end. Training changes all of a model, so
/// other weights are other pieces.
const PIECES: u64 = 256;
const PIECE_BYTES: u64 = 64 << 10;

impl BaseMark {
    /// Of the weight files of a model; without any, of weights that are drawn.
    pub fn of(checkpoint: Option<&Checkpoint>) -> Result<Self, TrainError> {
        let mut marks = BTreeMap::new();
        for (path, file) in checkpoint.into_iter().flat_map(Checkpoint::files) {
            let mark = mark(file).map_err(|source| TrainError::Read { path: path.to_owned(), source })?;
            marks.insert(name(path), mark);
        }
        Ok(Self(marks))
    }

    /// What of the base is another one now.
    pub fn change(&self, now: &Self) -> Option<BaseChange> {
        if self.0.is_empty() != now.0.is_empty() {
            let what =
                if now.0.is_empty() { "they are drawn from the seed now" } else { "they were drawn from the seed" };
            return Some(BaseChange { file: None, what });
        }
        let what = |was: Option<&FileMark>, is: Option<&FileMark>| match (was, is) {
            (Some(_), None) => "it is gone",
            (None, Some(_)) => "it was not there",
            (Some(was), Some(is)) if was.bytes != is.bytes => "it has another size",
            _ => "it has other content",
        };
        let name = self.0.keys().chain(now.0.keys()).find(|name| self.0.get(*name) != now.0.get(*name))?;
        Some(BaseChange { file: Some(name.clone()), what: what(self.0.get(name), now.0.get(name)) })
    }
}

impl fmt::Display for BaseChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{file}: {}", self.what),
            None => f.write_str(self.what),
        }
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn mark(file: &File) -> io::Result<FileMark> {
    let bytes = file.metadata()?.len();
    let mut sum = Checksum::default();
    let mut piece = vec![0; PIECE_BYTES as usize];
    let mut add = |at: u64| {
        let piece = &mut piece[..PIECE_BYTES.min(bytes - at) as usize];
        file.read_exact_at(piece, at)?;
        sum.update(piece);
        io::Result::Ok(())
    };
    if bytes <= WHOLE_BYTES {
        (0..bytes).step_by(PIECE_BYTES as usize).try_for_each(&mut add)?;
    } else {
        let last = bytes - PIECE_BYTES;
        (0..PIECES)
            .try_for_each(|index| add((u128::from(last) * u128::from(index) / u128::from(PIECES - 1)) as u64))?;
    }
    Ok(FileMark { bytes, xxh3_128: format!("{:032x}", sum.finish().xxh3) })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn every_byte_of_a_small_file_counts() {
        let content: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let mark_of = |content: &[u8]| {
            let mut file = tempfile::tempfile().expect("writable");
            file.write_all(content).expect("writable");
            mark(&file).expect("readable")
        };
        let whole = mark_of(&content);
        assert_eq!(whole, mark_of(&content));
        for at in [0, 65_535, 65_536, 131_000, 199_999] {
            let mut other = content.clone();
            other[at] ^= 1;
            assert_ne!(whole, mark_of(&other), "{at}");
        }
        assert_ne!(whole, mark_of(&content[..199_999]));
    }

    #[test]
    fn a_large_file_is_sampled_from_its_first_to_its_last_byte() {
        let file = tempfile::tempfile().expect("writable");
        let bytes = WHOLE_BYTES + 12_345;
        file.set_len(bytes).expect("sparse");
        let whole = mark(&file).expect("readable");
        for at in [0, PIECE_BYTES - 1, bytes / 2, bytes - 1] {
            // In the middle, more than lies between two pieces.
            let run = if at == bytes / 2 { (bytes / PIECES) as usize } else { 1 };
            let at = at.min(bytes - run as u64);
            file.write_all_at(&vec![1; run], at).expect("writable");
            assert_ne!(whole, mark(&file).expect("readable"), "{at}");
            file.write_all_at(&vec![0; run], at).expect("writable");
        }
        assert_eq!(whole, mark(&file).expect("readable"));
    }

    #[test]
    fn a_change_is_named() {
        let mark = |bytes, sum: &str| FileMark { bytes, xxh3_128: sum.to_owned() };
        let base = |files: &[(&str, FileMark)]| {
            BaseMark(files.iter().map(|(name, mark)| ((*name).to_owned(), mark.clone())).collect())
        };
        let was = base(&[("a", mark(1, "x")), ("b", mark(2, "y"))]);
        let check = |now: &BaseMark, expected: Option<&str>| {
            assert_eq!(was.change(now).map(|change| change.to_string()).as_deref(), expected);
        };
        check(&was, None);
        check(&base(&[("a", mark(1, "z")), ("b", mark(2, "y"))]), Some("a: it has other content"));
        check(&base(&[("a", mark(1, "x")), ("b", mark(3, "z"))]), Some("b: it has another size"));
        check(&base(&[("a", mark(1, "x"))]), Some("b: it is gone"));
        check(&base(&[("a", mark(1, "x")), ("b", mark(2, "y")), ("c", mark(0, ""))]), Some("c: it was not there"));
        check(&BaseMark::default(), Some("they are drawn from the seed now"));
    }
}
