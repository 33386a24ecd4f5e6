//! Who may ask. Other users of this machine and pages of other sites can reach the port; neither knows the token, and the
//! latter are also known by the names they ask under. A browser sends a cookie with whatever any page of this host asks,
//! so where something is done, the token must stand in a header, which only our own page can put there.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::request::{Method, Request};
use crate::ObserveError;

const TOKEN_BYTES: usize = 16;
/// Where the page puts the token when it asks for something to be done.
const TOKEN_HEADER: &str = "x-plimsoll-token";
const RANDOM: &str = "/dev/urandom";

pub struct Access {
    port: u16,
    token: String,
}

impl Access {
    pub fn new(port: u16) -> Result<Self, ObserveError> {
        let mut bytes = [0; TOKEN_BYTES];
        File::open(RANDOM)
            .and_then(|mut file| file.read_exact(&mut bytes))
            .map_err(|e| ObserveError::io(Path::new(RANDOM), e))?;
        Ok(Self { port, token: bytes.iter().map(|byte| format!("{byte:02x}")).collect() })
    }

    /// For the page, which is only given to who knows it.
    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/?token={}", self.port, self.token)
    }

    /// Cookies are shared by all ports of a host, so the name has the port in it.
    fn cookie_name(&self) -> String {
        format!("plimsoll_{}", self.port)
    }

    /// So that the page's own requests need no token in their address.
    pub fn cookie(&self) -> String {
        format!("{}={}; HttpOnly; SameSite=Strict; Path=/", self.cookie_name(), self.token)
    }

    /// The status with which a request is refused, if it is.
    pub fn check(&self, request: &Request) -> Result<(), u16> {
        let hosts = [format!("127.0.0.1:{}", self.port), format!("localhost:{}", self.port)];
        // A page whose name was made to point here asks under that name.
        let host = request.header("host").filter(|host| hosts.iter().any(|known| known == host));
        if host.is_none() || request.repeats("host") {
            return Err(421);
        }
        let own = |origin: &str| hosts.iter().any(|host| origin.strip_prefix("http://") == Some(host));
        if request.header("origin").is_some_and(|origin| !own(origin)) || request.repeats("origin") {
            return Err(403);
        }
        // Pages of other ports of this host are of the same site.
        if request.header("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none")) {
            return Err(403);
        }
        let given = match request.method {
            Method::Get => request.query("token").or_else(|| request.cookie(&self.cookie_name())),
            Method::Post if request.header("content-type") != Some("application/json") => return Err(415),
            Method::Post => request.header(TOKEN_HEADER).filter(|_| !request.repeats(TOKEN_HEADER)),
        };
        if given.is_some_and(|given| equal(given, &self.token)) { Ok(()) } else { Err(401) }
    }
}

/// In a time that does not tell how much of it was right.
fn equal(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}
