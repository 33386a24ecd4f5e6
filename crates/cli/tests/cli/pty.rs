//! The program on a pseudo-terminal: what it writes there, and what somebody types.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use crate::support::World;

/// The two ends of a terminal of so many columns.
fn terminal(columns: u16) -> (File, OwnedFd) {
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut ours, mut theirs) = (0, 0);
    // SAFETY: the two descriptors are written, the size is read, and neither a name nor settings are asked for.
    let opened = unsafe {
        libc::openpty(&raw mut ours, &raw mut theirs, std::ptr::null_mut(), std::ptr::null(), &raw const size)
    };
    assert_eq!(opened, 0, "a machine with pseudo-terminals");
    // SAFETY: both were just opened and belong to nobody else.
    unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

fn command(world: &World, args: &[&str], colour: bool) -> Command {
    let mut command = world.command(args);
    command.env("TERM", "xterm").env_remove("COLUMNS").env_remove("NO_COLOR");
    if !colour {
        command.env("NO_COLOR", "1");
    }
    command
}

/// All that the program writes to a terminal, without colours.
pub fn on_terminal(world: &World, columns: u16, args: &[&str]) -> String {
    written(world, columns, args, false)
}

/// All that the program writes to a terminal.
pub fn written(world: &World, columns: u16, args: &[&str], colour: bool) -> String {
    let (mut ours, theirs) = terminal(columns);
    let mut command = command(world, args, colour);
    command.stdin(Stdio::null()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
    let mut child = command.spawn().unwrap();
    // With it goes the last descriptor of the other end here, so that reading ends.
    drop(command);
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = ours.read(&mut piece) {
        all.extend_from_slice(&piece[..count]);
    }
    child.wait().unwrap();
    String::from_utf8_lossy(&all).replace("\r\n", "\n")
}

/// The lines that stay, without those that were drawn and taken away again.
pub fn lines(text: &str) -> Vec<&str> {
    text.lines().map(|line| line.rsplit("\x1b[2K").next().unwrap_or_default()).collect()
}

/// Somebody at a terminal.
pub struct Dialogue {
    ours: File,
    child: Child,
    /// All that was shown, and how much of it was looked at.
    pub shown: String,
    seen: usize,
}

/// A prompt that has not come by then never comes.
const PATIENCE_MS: i32 = 120_000;

impl Dialogue {
    pub fn begin(world: &World, args: &[&str], environment: &[(&str, &str)]) -> Self {
        let (ours, theirs) = terminal(100);
        let mut command = command(world, args, false);
        command.envs(environment.iter().copied());
        command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
        let child = command.spawn().unwrap();
        Self { ours, child, shown: String::new(), seen: 0 }
    }

    /// Waits until this stands behind what was looked at.
    #[track_caller]
    pub fn until(&mut self, part: &str) -> &mut Self {
        loop {
            if let Some(at) = self.shown[self.seen..].find(part) {
                self.seen += at + part.len();
                return self;
            }
            assert!(self.read(), "no `{part}` in: {}", self.shown);
        }
    }

    pub fn say(&mut self, keys: &str) -> &mut Self {
        self.ours.write_all(keys.as_bytes()).unwrap();
        self
    }

    /// Ctrl-C.
    pub fn interrupt(&mut self) -> &mut Self {
        // SAFETY: sends a signal to a process that was started here and not waited for yet.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGINT) };
        self
    }

    /// Its exit code; `None` where a signal ended it.
    pub fn end(&mut self) -> Option<i32> {
        while self.read() {}
        self.child.wait().unwrap().code()
    }

    /// Reads on, unless there is nothing more.
    fn read(&mut self) -> bool {
        let mut ready = libc::pollfd { fd: self.ours.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor that stays open, and the struct that describes it.
        let count = unsafe { libc::poll(&raw mut ready, 1, PATIENCE_MS) };
        assert_eq!(count, 1, "nothing more comes: {}", self.shown);
        let mut piece = [0; 4096];
        match self.ours.read(&mut piece) {
            Ok(count @ 1..) => {
                self.shown.push_str(&String::from_utf8_lossy(&piece[..count]));
                true
            }
            _ => false,
        }
    }
}
