//! What the kernel tells of another process.

use std::fs;
use std::path::Path;

use super::Process;
use super::host::kibibytes;

/// Longer command lines are cut.
const COMMAND_CHARS_MAX: usize = 200;

/// A process by its number, read under `root`; `None` if there is none, or it is not ours to see.
pub fn read_process(root: &Path, pid: u32) -> Option<Process> {
    let folder = root.join("proc").join(pid.to_string());
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let command = fs::read(folder.join("cmdline")).unwrap_or_default();
    let words = command.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    let uid = field("Uid:").and_then(|ids| ids.split_whitespace().next()).unwrap_or_default();
    Some(Process {
        pid,
        name: field("Name:").unwrap_or_default().to_owned(),
        user: user_name(root, uid).unwrap_or_else(|| uid.to_owned()),
        command: words.join(" ").chars().take(COMMAND_CHARS_MAX).collect(),
        host_bytes: kibibytes(&status, "VmRSS:").unwrap_or(0),
        swapped_bytes: kibibytes(&status, "VmSwap:").unwrap_or(0),
        ..Process::default()
    })
}

/// The name of whoever runs this process, or their number.
pub fn read_user(root: &Path) -> String {
    read_process(root, std::process::id()).map(|process| process.user).unwrap_or_default()
}

fn user_name(root: &Path, uid: &str) -> Option<String> {
    let users = fs::read_to_string(root.join("etc/passwd")).ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    })
}

/// Processor seconds it has taken so far.
pub(super) fn cpu_seconds(root: &Path, pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(root.join("proc").join(pid.to_string()).join("stat")).ok()?;
    // Its name, in parentheses, may hold blanks and parentheses itself.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map_while(|field| field.parse::<u64>().ok());
    Some((times.next()? + times.next()?) as f64 / ticks_per_second())
}

pub(super) fn ticks_per_second() -> f64 {
    // SAFETY: asks for a constant of the system.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 { ticks as f64 } else { 100.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_described() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("proc/42");
        fs::create_dir_all(&folder).expect("writable");
        fs::create_dir_all(root.path().join("etc")).expect("writable");
        fs::write(root.path().join("etc/passwd"), "root:x:0:0::/:\nann:x:1000:1000::/home/ann:\n").expect("writable");
        fs::write(folder.join("status"), "Name:\tpython3\nUid:\t1000\t1000\nVmRSS:\t2048 kB\nVmSwap:\t4 kB\n")
            .expect("writable");
        fs::write(folder.join("cmdline"), b"python3\0train.py\0--lr\x001e-4\0").expect("writable");
        let stat = format!("42 (a (b) c) R 1 {} 300 200 0 0", "0 ".repeat(9));
        fs::write(folder.join("stat"), stat).expect("writable");
        let found = read_process(root.path(), 42).expect("there");
        assert_eq!((&*found.name, &*found.user, &*found.command), ("python3", "ann", "python3 train.py --lr 1e-4"));
        assert_eq!((found.host_bytes, found.swapped_bytes), (2 << 20, 4 << 10));
        assert_eq!(cpu_seconds(root.path(), 42), Some(500.0 / ticks_per_second()));
        assert_eq!(read_process(root.path(), 43), None);
    }

    #[test]
    fn this_process_is_there() {
        let found = read_process(Path::new("/"), std::process::id()).expect("running");
        assert!(found.host_bytes > 0 && !found.command.is_empty());
    }
}
