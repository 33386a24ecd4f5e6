//! How wide a terminal is.

use std::io::IsTerminal;
use std::os::fd::{AsFd, AsRawFd};

/// Of a terminal that does not say.
const WIDTH: usize = 80;

/// In columns; `None` where the stream is no terminal.
pub fn width(stream: impl AsFd) -> Option<usize> {
    let stream = stream.as_fd();
    if !stream.is_terminal() {
        return None;
    }
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open while it is borrowed, and TIOCGWINSZ writes one `winsize`, which outlives the call.
    let answer = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    Some(if answer == 0 && size.ws_col > 0 { usize::from(size.ws_col) } else { WIDTH })
}
