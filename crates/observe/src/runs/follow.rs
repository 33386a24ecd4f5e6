//! A growing file of lines, read a piece at a time.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::ObserveError;

/// Gives every line once, when it is whole. A file that became shorter was written anew and is read from its start.
pub struct Follower {
    path: PathBuf,
    offset: u64,
    /// The beginning of a line whose end is not written yet.
    partial: Vec<u8>,
}

impl Follower {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), offset: 0, partial: Vec::new() }
    }

    /// Passes over all but about the last `bytes` of the file, from where a line begins.
    pub fn skip_to_last(&mut self, bytes: u64) -> Result<(), ObserveError> {
        let Some(mut file) = self.open()? else { return Ok(()) };
        let length = file.metadata().map_err(|e| self.error(e))?.len();
        let start = length.saturating_sub(bytes);
        if start == 0 {
            return Ok(());
        }
        // One byte earlier, so that a line which begins just there is whole.
        file.seek(SeekFrom::Start(start - 1)).map_err(|e| self.error(e))?;
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).map_err(|e| self.error(e))?;
        let line = rest.iter().position(|&byte| byte == b'\n').map_or(rest.len(), |end| end + 1);
        self.offset = start - 1 + line as u64;
        Ok(())
    }

    /// Whether the file was begun anew since the last look: what was read of it is no longer there.
    pub fn was_rewritten(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|data| data.len() < self.offset + self.partial.len() as u64)
    }

    /// The lines that have been finished since the last call. A file that is not there yet has none.
    pub fn read(&mut self, mut line: impl FnMut(&str)) -> Result<(), ObserveError> {
        if self.was_rewritten() {
            (self.offset, self.partial) = (0, Vec::new());
        }
        let Some(mut file) = self.open()? else { return Ok(()) };
        file.seek(SeekFrom::Start(self.offset + self.partial.len() as u64)).map_err(|e| self.error(e))?;
        let mut text = std::mem::take(&mut self.partial);
        file.read_to_end(&mut text).map_err(|e| self.error(e))?;
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        for bytes in text[..whole].split(|&byte| byte == b'\n') {
            if !bytes.is_empty() {
                line(&String::from_utf8_lossy(bytes));
            }
        }
        self.offset += whole as u64;
        self.partial = text.split_off(whole);
        Ok(())
    }

    /// What stands behind the last whole line.
    pub fn partial(&self) -> String {
        String::from_utf8_lossy(&self.partial).into_owned()
    }

    fn open(&self) -> Result<Option<File>, ObserveError> {
        match File::open(&self.path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.error(error)),
        }
    }

    fn error(&self, error: std::io::Error) -> ObserveError {
        ObserveError::io(&self.path, error)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use super::*;

    fn lines(follower: &mut Follower) -> Vec<String> {
        let mut lines = Vec::new();
        follower.read(|line| lines.push(line.to_owned())).expect("readable");
        lines
    }

    #[test]
    fn each_line_comes_once_and_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log.txt");
        let mut follower = Follower::new(&path);
        assert!(lines(&mut follower).is_empty());
        fs::write(&path, "one\ntw").expect("writable");
        assert_eq!(lines(&mut follower), ["one"]);
        assert_eq!(follower.partial(), "tw");
        let mut file = OpenOptions::new().append(true).open(&path).expect("there");
        file.write_all(b"o\n\nthree\n").expect("writable");
        assert_eq!(lines(&mut follower), ["two", "three"]);
        assert!(lines(&mut follower).is_empty());
        fs::write(&path, "anew\n").expect("writable");
        assert!(follower.was_rewritten());
        assert_eq!(lines(&mut follower), ["anew"]);
    }

    #[test]
    fn the_end_of_a_long_file_begins_with_a_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log.txt");
        fs::write(&path, (0..1000).map(|n| format!("line {n}\n")).collect::<String>()).expect("writable");
        // "line 999\n" has nine bytes: 18 are exactly two lines, 19 are two and a piece.
        for (bytes, expected) in [(18, 2), (19, 2), (27, 3), (1 << 20, 1000)] {
            let mut follower = Follower::new(&path);
            follower.skip_to_last(bytes).expect("readable");
            let found = lines(&mut follower);
            assert_eq!(found.len(), expected, "{bytes}");
            assert_eq!(found.last().map(String::as_str), Some("line 999"));
        }
    }
}
