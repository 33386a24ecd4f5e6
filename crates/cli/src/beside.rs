//! A dashboard beside a run: a process of its own, which reads the run's folder. What it takes is none of the run's memory,
//! and it only gets processor time that nobody else wants.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use plimsoll_run::Failure;
use plimsoll_speech::Language;

/// The dashboard of this run, until it is dropped.
pub struct Page {
    child: Child,
    /// What to open, token included.
    pub address: String,
}

/// As far back in the queue for processors as one can go.
const NICENESS: libc::c_int = 19;

impl Page {
    pub fn open(run: &Path, language: Language) -> io::Result<Self> {
        let runs = run.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("dashboard").arg(format!("--beside={}", std::process::id())).arg("--").arg(runs);
        command.env(Language::VARIABLE, language.code());
        // In a group of its own: Ctrl-C is meant for the run, whose end is still to be seen.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line)?;
        let name = run.file_name().map_or_else(String::new, |name| percent_encoded(&name.to_string_lossy()));
        let page = Self { child, address: format!("{}#run={name}", line.trim_end()) };
        // Nothing came if it could not listen; dropped, it is waited for.
        if line.is_empty() { Err(io::Error::other("it could not be started")) } else { Ok(page) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // It holds nothing that would have to be put in order.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Text that stands for itself wherever it is put in an address.
fn percent_encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// Makes this process end with the one it stands beside, however that ends, and give way to it.
pub fn attach(pid: u32) -> Result<(), Failure> {
    // SAFETY: asks for a signal when the parent ends; no memory is involved.
    let asked = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong) };
    // It may have ended before that.
    if asked != 0 || std::os::unix::process::parent_id() != pid {
        return Err(Failure::failed("the run that this dashboard belongs to has ended"));
    }
    // SAFETY: changes a number of this process. Without it, the dashboard works as well.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_runs_stand_in_addresses() {
        assert_eq!(percent_encoded("a-1.b_2"), "a-1.b_2");
        assert_eq!(percent_encoded("a b#ä/"), "a%20b%23%C3%A4%2F");
    }
}
