//! Memory limits of control groups, of the old kind and of the new.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The memory limit of a control group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    pub version: u32,
    pub limit_bytes: u64,
    /// Without what the kernel can drop at once.
    pub used_bytes: u64,
    /// Processes that were ended because the limit was reached.
    pub kills: u64,
}

/// What version 1 says where there is no limit is close to this.
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// The tightest limit over this process, `None` if there is none. `root` is where `/proc` and `/sys` are.
pub fn read_group(root: &Path) -> Option<Group> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let groups = own.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let layout = match controllers {
            "" => &UNIFIED,
            _ if controllers.split(',').any(|name| name == "memory") => &SEPARATE,
            _ => return None,
        };
        layout.tightest(root, path)
    });
    groups.min_by_key(|group| group.limit_bytes)
}

/// Where the figures stand.
struct Layout {
    version: u32,
    mount: &'static str,
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` with pages of files that nobody has used of late.
    droppable: &'static str,
    events: &'static str,
}

const UNIFIED: Layout = Layout {
    version: 2,
    mount: "sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    droppable: "inactive_file ",
    events: "memory.events",
};

const SEPARATE: Layout = Layout {
    version: 1,
    mount: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    droppable: "total_inactive_file ",
    events: "memory.oom_control",
};

impl Layout {
    /// The group and those it lies in all limit it. In a container the path may be that of the host, while what is mounted
    /// is the group itself.
    fn tightest(&self, root: &Path, path: &str) -> Option<Group> {
        let mount = root.join(self.mount);
        let inside = mount.join(path.trim_start_matches('/'));
        let mut folders: Vec<PathBuf> =
            inside.ancestors().take_while(|f| f.starts_with(&mount)).map(Path::to_owned).collect();
        if !folders.contains(&mount) {
            folders.push(mount);
        }
        folders.iter().filter_map(|folder| self.read(folder)).min_by_key(|group| group.limit_bytes)
    }

    fn read(&self, folder: &Path) -> Option<Group> {
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        // Not a number where it says `max`.
        let limit_bytes: u64 = text(self.limit).trim().parse().ok()?;
        if limit_bytes >= NO_LIMIT_BYTES {
            return None;
        }
        let used: u64 = text(self.used).trim().parse().unwrap_or(0);
        Some(Group {
            version: self.version,
            limit_bytes,
            used_bytes: used.saturating_sub(number(&text("memory.stat"), self.droppable)),
            kills: number(&text(self.events), "oom_kill "),
        })
    }
}

/// The number behind a key that begins a line.
fn number(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(own: &str, files: &[(&str, &str)], expected: Option<Group>) {
        let root = tempfile::tempdir().expect("a folder");
        for (name, text) in files.iter().chain(&[("proc/self/cgroup", own)]) {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("writable");
            fs::write(path, text).expect("writable");
        }
        assert_eq!(read_group(root.path()), expected);
    }

    #[test]
    fn the_tightest_of_nested_groups_counts() {
        let files = [
            ("sys/fs/cgroup/a/memory.max", "4096\n"),
            ("sys/fs/cgroup/a/memory.current", "3000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 1000\ninactive_file 500\n"),
            ("sys/fs/cgroup/a/memory.events", "low 0\noom 3\noom_kill 2\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ];
        check("0::/a/b\n", &files, Some(Group { version: 2, limit_bytes: 4096, used_bytes: 2500, kills: 2 }));
    }

    #[test]
    fn the_old_kind_is_read_too() {
        let files = [
            ("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "8192\n"),
            ("sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "8000\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let expected = Group { version: 1, limit_bytes: 8192, used_bytes: 8000, kills: 0 };
        check("5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n", &files, Some(expected));
    }

    #[test]
    fn in_a_container_the_mount_is_the_group() {
        let files = [("sys/fs/cgroup/memory.max", "100\n"), ("sys/fs/cgroup/memory.current", "10\n")];
        let expected = Group { version: 2, limit_bytes: 100, used_bytes: 10, kills: 0 };
        check("0::/../../kubepods/pod1\n", &files, Some(expected.clone()));
        check("0::/not/mounted/here\n", &files, Some(expected));
    }

    #[test]
    fn without_a_limit_there_is_none() {
        check("0::/\n", &[("sys/fs/cgroup/memory.max", "max\n")], None);
        check("", &[], None);
    }
}
