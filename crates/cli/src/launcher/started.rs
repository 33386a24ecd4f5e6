//! Runs that were started from here, until they end.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_observe::dashboard::{Launched, Refused};

/// Runs that are remembered.
const LAUNCHED_MAX: usize = 50;
/// Of what a run said last.
const SAID_BYTES_MAX: u64 = 4 << 10;

#[derive(Default)]
pub struct Started {
    runs: Arc<Mutex<Vec<Launched>>>,
}

const POISONED: &str = "nobody panics while holding it";

impl Started {
    pub fn list(&self) -> Vec<Launched> {
        self.runs.lock().expect(POISONED).clone()
    }

    /// Starts a command that goes on whatever becomes of this process.
    pub fn spawn(&self, name: &str, mut command: Command) -> Result<(), Refused> {
        let failed = |error: io::Error| Refused::failed(format!("cannot start the run: {error}"));
        // What it says goes into a file, not into a pipe that would break with this process.
        let mut words = nameless_file().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(words.try_clone().map_err(failed)?);
        // In a group of its own: Ctrl-C here is meant for the dashboard.
        let mut child = command.process_group(0).spawn().map_err(failed)?;
        let runs = Arc::clone(&self.runs);
        let launched = Launched { name: name.to_owned(), ..Launched::default() };
        {
            let mut runs = runs.lock().expect(POISONED);
            runs.retain(|run| run.name != name);
            runs.push(launched);
            let excess = runs.len().saturating_sub(LAUNCHED_MAX);
            runs.drain(..excess);
        }
        let name = name.to_owned();
        // Somebody has to wait for it, or it would stay as a zombie.
        std::thread::spawn(move || {
            let code = child.wait().ok().and_then(|status| status.code()).unwrap_or(-1);
            let said = if code == 0 { String::new() } else { last_words(&mut words).unwrap_or_default() };
            let mut runs = runs.lock().expect(POISONED);
            if let Some(run) = runs.iter_mut().find(|run| run.name == name) {
                (run.code, run.said) = (Some(code), said);
            }
        });
        Ok(())
    }
}

/// A file that is gone with its last holder.
fn nameless_file() -> io::Result<File> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("plimsoll-{}-{count}", std::process::id()));
    // Appending, because the process that writes and the one that reads share a position.
    let file = File::options().read(true).append(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn last_words(file: &mut File) -> io::Result<String> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(SAID_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
