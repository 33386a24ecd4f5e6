//! The little of HTTP/1.1 that is read: the head of a request, and a body of known length behind a POST.

use std::io::{self, Read};

/// Nothing a browser sends here is longer.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Nor is what the page posts.
const BODY_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Method {
    #[default]
    Get,
    Post,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    pub method: Method,
    pub path: String,
    pub body: Vec<u8>,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
}

impl Request {
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// By its name in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether a header is there more than once: then readers could differ in which of them counts.
    pub fn repeats(&self, name: &str) -> bool {
        self.headers.iter().filter(|(known, _)| known == name).count() > 1
    }

    pub fn cookie(&self, name: &str) -> Option<&str> {
        let cookies = self.header("cookie")?.split(';');
        cookies.filter_map(|cookie| cookie.trim().split_once('=')).find(|(known, _)| *known == name).map(|(_, v)| v)
    }
}

/// Reads a request, or says with which status it is refused.
pub fn read_request(stream: &mut impl Read) -> io::Result<Result<Request, u16>> {
    let mut read = Vec::new();
    let mut piece = [0; 2048];
    let mut more = |read: &mut Vec<u8>| match stream.read(&mut piece)? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        length => {
            read.extend_from_slice(&piece[..length]);
            Ok(())
        }
    };
    let end = loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if read.len() > HEAD_BYTES_MAX {
            return Ok(Err(431));
        }
        more(&mut read)?;
    };
    let body = read.split_off(end + 4);
    let mut request = match std::str::from_utf8(&read[..end]).map_err(|_| 400).and_then(parse) {
        Ok(request) => request,
        Err(status) => return Ok(Err(status)),
    };
    let length = match body_length(&request) {
        Ok(length) => length,
        Err(status) => return Ok(Err(status)),
    };
    request.body = body;
    while request.body.len() < length {
        more(&mut request.body)?;
    }
    // What follows would be another request; each connection has one.
    request.body.truncate(length);
    Ok(Ok(request))
}

/// Where it ends must be said in one way only: proxies and servers have differed over two.
fn body_length(request: &Request) -> Result<usize, u16> {
    if request.header("transfer-encoding").is_some() {
        return Err(501);
    }
    match (request.method, request.header("content-length")) {
        (Method::Get, None) => Ok(0),
        (Method::Get, Some(length)) => {
            if length == "0" {
                Ok(0)
            } else {
                Err(400)
            }
        }
        (Method::Post, None) => Err(411),
        (Method::Post, Some(_)) if request.repeats("content-length") => Err(400),
        (Method::Post, Some(length)) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            length.parse().ok().filter(|length| *length <= BODY_BYTES_MAX).ok_or(413)
        }
        (Method::Post, Some(_)) => Err(400),
    }
}

fn parse(head: &str) -> Result<Request, u16> {
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) = (first.next(), first.next(), first.next(), first.next())
    else {
        return Err(400);
    };
    if !version.starts_with("HTTP/1.") {
        return Err(505);
    }
    let method = match method {
        "GET" => Method::Get,
        "POST" => Method::Post,
        _ => return Err(405),
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = pairs.map(|(name, value)| Some((name.to_owned(), decoded(value)?)));
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    });
    Ok(Request {
        method,
        path: path.to_owned(),
        body: Vec::new(),
        query: query.collect::<Option<_>>().ok_or(400u16)?,
        headers: headers.collect::<Option<_>>().ok_or(400u16)?,
    })
}

/// Text with `%2F` and the like put back; `None` if it is not text.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                bytes.push((high * 16 + low) as u8);
            }
            b'+' => bytes.push(b' '),
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Request, u16> {
        read_request(&mut text.as_bytes()).expect("a whole head")
    }

    #[test]
    fn requests_are_taken_apart() {
        let request =
            read("GET /api/log?run=a%20b%2Fc&x HTTP/1.1\r\nHost: here\r\nCookie: a=1; t=2\r\n\r\n").expect("fine");
        assert_eq!(
            (request.path.as_str(), request.query("run"), request.query("x")),
            ("/api/log", Some("a b/c"), Some(""))
        );
        assert_eq!((request.header("host"), request.cookie("t"), request.cookie("b")), (Some("here"), Some("2"), None));
    }

    #[test]
    fn bodies_have_the_length_that_is_said() {
        let post = |head: &str| read(&format!("POST /x HTTP/1.1\r\n{head}\r\n\r\n{{\"a\": 1}} and more"));
        let request = post("Content-Length: 8").expect("fine");
        assert_eq!((request.method, request.body.as_slice()), (Method::Post, b"{\"a\": 1}".as_slice()));
        for (head, status) in [
            ("Host: here", 411),
            ("Content-Length: -1", 400),
            ("Content-Length: 8\r\nContent-Length: 9", 400),
            ("Content-Length: 8\r\nTransfer-Encoding: chunked", 501),
            ("Content-Length: 65537", 413),
            ("Content-Length: 99999999999999999999999", 413),
        ] {
            assert_eq!(post(head), Err(status), "{head}");
        }
        assert_eq!(read("GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), Err(400));
        let short = "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab";
        assert!(read_request(&mut short.as_bytes()).is_err(), "the client went away");
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert_eq!(read("PUT / HTTP/1.1\r\n\r\n"), Err(405));
        assert_eq!(read("GET /\r\n\r\n"), Err(400));
        assert_eq!(read("GET / HTTP/2\r\n\r\n"), Err(505));
        assert_eq!(read("GET /?run=%zz HTTP/1.1\r\n\r\n"), Err(400));
        assert_eq!(read("GET / HTTP/1.1\r\nno colon\r\n\r\n"), Err(400));
        assert_eq!(read(&format!("GET /{} HTTP/1.1\r\n", "a".repeat(HEAD_BYTES_MAX + 4096))), Err(431));
        assert!(read_request(&mut "GET / HT".as_bytes()).is_err(), "the client went away");
    }
}
