//! What is sent back.

use std::io::{self, Write};

#[derive(Debug, Clone, Default)]
pub struct Answer {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
    pub cookie: Option<String>,
}

/// Scripts and styles are those in the page itself; frames are plans from here.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      frame-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'";

impl Answer {
    pub fn html(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, kind: "text/html; charset=utf-8", body: body.into(), cookie: None }
    }

    pub fn json(value: &impl serde::Serialize) -> Self {
        let body = serde_json::to_vec(value).expect("plain data");
        Self { status: 200, kind: "application/json", body, cookie: None }
    }

    pub fn text(body: String) -> Self {
        Self { status: 200, kind: "text/plain; charset=utf-8", body: body.into_bytes(), cookie: None }
    }

    pub fn refusal(status: u16) -> Self {
        let body = format!("{status} {}\n", reason(status)).into_bytes();
        Self { status, kind: "text/plain; charset=utf-8", body, cookie: None }
    }

    pub fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let mut head = head(self.status, self.kind);
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
    head(200, "text/event-stream") + "\r\n"
}

fn head(status: u16, kind: &str) -> String {
    format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\nContent-Security-Policy: {POLICY}\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n\
         Connection: close\r\n",
        reason(status)
    )
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        505 => "HTTP Version Not Supported",
        _ => "Internal Server Error",
    }
}
