//! Runs in a browser on this machine: curves as they grow, plans, two runs beside each other, and a form to start one from.
//! It reads run folders, hands what is to be done to a [`Launcher`], listens on the loopback address alone, and answers
//! nobody without the token that it makes at start.

mod access;
mod actions;
mod answer;
mod launcher;
mod request;
mod routes;
mod spoken;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use plimsoll_speech::Language;

use crate::ObserveError;
use access::Access;
use answer::Answer;
pub use launcher::{Card, Choices, Draft, Launched, Launcher, Model, ModelKind, Planned, Refused};
use request::{Method, Request, read_request};

/// Browsers hold a few each; more at once is somebody's mistake.
const CONNECTIONS_MAX: usize = 64;
/// For a request to arrive and for an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(10);

/// A listening dashboard.
pub struct Dashboard {
    listener: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    /// The folder of the runs.
    runs: PathBuf,
    launcher: Box<dyn Launcher>,
    access: Access,
    /// Of the page, unless somebody asks for another.
    language: Language,
    connections: AtomicUsize,
}

impl Dashboard {
    /// Listens on 127.0.0.1; on a free port if `port` is 0.
    pub fn bind(runs: &Path, port: u16, launcher: Box<dyn Launcher>, language: Language) -> Result<Self, ObserveError> {
        let failed = |e| ObserveError::io(Path::new(&format!("127.0.0.1:{port}")), e);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let access = Access::new(port)?;
        let shared = Shared { runs: runs.to_owned(), launcher, access, language, connections: AtomicUsize::new(0) };
        Ok(Self { listener, shared: Arc::new(shared) })
    }

    /// What to open, token included.
    pub fn address(&self) -> String {
        self.shared.access.address()
    }

    /// Answers until the process ends.
    pub fn serve(&self) -> Result<(), ObserveError> {
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => self.take(stream, peer),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Out of file descriptors for a moment, or a client that was gone at once.
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn take(&self, stream: TcpStream, peer: SocketAddr) {
        if !peer.ip().is_loopback() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        if shared.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        std::thread::spawn(move || {
            // A client that goes away in the middle concerns nobody.
            let _ = shared.converse(stream);
            shared.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

impl Shared {
    fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let request = match read_request(&mut stream)? {
            Ok(request) => request,
            Err(status) => return Answer::refusal(status).write(&mut stream),
        };
        if let Err(status) = self.access.check(&request) {
            return Answer::refusal(status).write(&mut stream);
        }
        let language = request.query("lang").and_then(Language::named).unwrap_or(self.language);
        let answer = match (request.method, request.path.as_str()) {
            (Method::Get, "/api/events") => return routes::stream(&self.runs, &request, &mut stream),
            (Method::Get, "/") => routes::page(self.access.token(), language).with_cookie(self.access.cookie()),
            (Method::Get, _) => {
                let launcher = &*self.launcher;
                actions::look(launcher, &request, language)
                    .unwrap_or_else(|| routes::answer(&self.runs, &request, language))
            }
            (Method::Post, _) => actions::act(&*self.launcher, &self.runs, &request, language),
        };
        answer.write(&mut stream)
    }
}
