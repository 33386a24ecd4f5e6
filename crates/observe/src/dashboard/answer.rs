//! What is sent back.

use std::io::{self, Write};

#[derive(Debug, Clone, Default)]
pub struct Answer {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
    cookie: Option<String>,
    policy: Option<&'static str>,
}

/// Scripts and styles are those in the page itself; frames are plans from here.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      frame-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'";
/// Of what lies in a run's folder, which may come from anywhere: it draws, and has no part in what this page may do.
const SANDBOX: &str = "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; \
                       script-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'";

impl Answer {
    pub fn html(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, kind: "text/html; charset=utf-8", body: body.into(), ..Self::default() }
    }

    /// A page that was found in a run's folder.
    pub fn foreign_html(body: Vec<u8>) -> Self {
        Self { policy: Some(SANDBOX), ..Self::html(body) }
    }

    pub fn json(value: &impl serde::Serialize) -> Self {
        Self::json_with(200, value)
    }

    pub fn json_with(status: u16, value: &impl serde::Serialize) -> Self {
        let body = serde_json::to_vec(value).expect("plain data");
        Self { status, kind: "application/json", body, ..Self::default() }
    }

    pub fn text(body: String) -> Self {
        Self { status: 200, kind: "text/plain; charset=utf-8", body: body.into_bytes(), ..Self::default() }
    }

    pub fn refusal(status: u16) -> Self {
        let body = format!("{status} {}\n", reason(status)).into_bytes();
        Self { status, kind: "text/plain; charset=utf-8", body, ..Self::default() }
    }

    pub fn with_cookie(mut self, cookie: String) -> Self {
        self.cookie = Some(cookie);
        self
    }

    pub fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let mut head = head(self.status, self.kind, self.policy.unwrap_or(POLICY));
        if let Some(cookie) = &self.cookie {
            head += &format!("Set-Cookie: {cookie}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n", self.body.len());
        stream.write_all(head.as_bytes())?;
        stream.write_all(&self.body)?;
        stream.flush()
    }
}

/// The head of an answer whose end is not known yet, with the empty line behind it.
pub fn stream_head() -> String {
    head(200, "text/event-stream", POLICY) + "\r\n"
}

fn head(status: u16, kind: &str, policy: &str) -> String {
    format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\nContent-Security-Policy: {policy}\r\n\
         X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n\
         Connection: close\r\n",
        reason(status)
    )
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        505 => "HTTP Version Not Supported",
        _ => "Internal Server Error",
    }
}
