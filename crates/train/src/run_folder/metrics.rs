//! `metrics.jsonl`: a line for every update and evaluation, each exactly once.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use plimsoll_files::ops;
use serde::Deserialize;

/// The file, and what could not be written to it yet.
pub(super) struct MetricsFile {
    file: File,
    /// Of whole lines.
    bytes: u64,
    pending: String,
}

/// Lines beyond this are lost while a disk refuses them.
const PENDING_BYTES_MAX: usize = 1 << 20;

#[derive(Deserialize)]
struct Line {
    step: u64,
}

impl MetricsFile {
    /// Opens it with the lines up to an update; those behind belong to updates that are done again.
    pub fn open(path: &Path, step: u64) -> io::Result<Self> {
        let file = ops::append(path)?;
        let bytes = lines_up_to(path, step)?;
        ops::set_len(&file, bytes)?;
        ops::sync(&file)?;
        Ok(Self { file, bytes, pending: String::new() })
    }

    /// Appends a line. Where that fails nothing of it stays in the file, and it is tried again with the next one.
    pub fn append(&mut self, line: &str) -> io::Result<()> {
        if self.pending.len() + line.len() < PENDING_BYTES_MAX {
            self.pending.push_str(line);
            self.pending.push('\n');
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Err(error) = ops::write_all(&mut self.file, self.pending.as_bytes()) {
            // Not through the layer of faults: making a file shorter takes no space.
            self.file.set_len(self.bytes)?;
            return Err(error);
        }
        self.bytes += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Waits until all lines are on the disk: a checkpoint must not come without them.
    pub fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        ops::sync(&self.file)
    }
}

/// Bytes of the whole lines at the beginning that belong to updates up to `step`.
fn lines_up_to(path: &Path, step: u64) -> io::Result<u64> {
    let mut reader = BufReader::new(File::open(path)?);
    let (mut bytes, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)? as u64;
        // A line without an end was being written when the process was killed.
        let kept = line.ends_with(b"\n")
            && serde_json::from_slice::<Line>(&line).is_ok_and(|line| step > 0 && line.step <= step);
        if !kept {
            return Ok(bytes);
        }
        bytes += read;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_files::fault::{Fault, inject};

    fn line(step: u64) -> String {
        format!("{{\"step\":{step},\"loss\":0.5}}")
    }

    #[test]
    fn lines_behind_the_update_and_torn_ones_go() {
        let here = tempfile::tempdir().expect("a folder");
        let path = here.path().join("metrics.jsonl");
        let text: String = [0, 1, 2, 2, 3].map(|step| line(step) + "\n").concat();
        for (step, kept) in [(0, 0), (1, 2), (2, 4), (3, 5), (9, 5)] {
            std::fs::write(&path, format!("{text}{{\"step\":3,\"lo")).expect("writable");
            let mut metrics = MetricsFile::open(&path, step).expect("readable");
            metrics.append(&line(step + 1)).expect("writable");
            let found = std::fs::read_to_string(&path).expect("readable");
            let expected: String = text.lines().take(kept).map(|l| format!("{l}\n")).collect();
            assert_eq!(found, format!("{expected}{}\n", line(step + 1)), "{step}");
        }
    }

    #[test]
    fn a_full_disk_delays_lines_and_tears_none() {
        let here = tempfile::tempdir().expect("a folder");
        let path = here.path().join("metrics.jsonl");
        let mut metrics = MetricsFile::open(&path, 0).expect("writable");
        metrics.append(&line(1)).expect("writable");
        for step in 2..4 {
            let (result, _) = inject(Fault::Once(libc::ENOSPC), 0, || metrics.append(&line(step)));
            assert_eq!(result.expect_err("no space").raw_os_error(), Some(libc::ENOSPC));
            assert_eq!(std::fs::read_to_string(&path).expect("readable"), line(1) + "\n");
        }
        metrics.append(&line(4)).expect("writable again");
        let expected: String = (1..5).map(|step| line(step) + "\n").collect();
        assert_eq!(std::fs::read_to_string(&path).expect("readable"), expected);
    }
}
