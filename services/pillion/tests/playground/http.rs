//! The least of an HTTP client: a request as it is written, and the whole answer.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_mins(1);

/// An answer with its headers.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.headers.lines().filter_map(|line| line.split_once(':'));
        let mut found = lines.filter(|(found, _)| found.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.trim())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Sends a request; `headers` are lines with their ends, among them the host.
pub(crate) fn send(address: &str, line: &str, headers: &str, body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    let head = format!("{line} HTTP/1.1\r\n{headers}{length}connection: close\r\n\r\n");
    // A server that has seen enough may answer and close before all is written.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let (mut bytes, mut piece) = (Vec::new(), [0; 16 * 1024]);
    // Not every server closes when it is asked to: an answer ends where it says that it ends.
    while !is_whole(&bytes) {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
        }
    }
    let end = end_of_head(&bytes).unwrap_or_else(|| panic!("no answer to {line}"));
    let headers = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = headers.split_whitespace().nth(1).unwrap().parse().unwrap();
    let is_chunked = headers.to_ascii_lowercase().contains("transfer-encoding");
    assert!(!is_chunked, "this client takes whole bodies only: {headers}");
    Answer { status, headers, body: bytes[end + 4..].to_vec() }
}

/// Where the head of an answer ends.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n")
}

fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = end_of_head(bytes) else { return false };
    let text = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    length.is_some_and(|length| bytes.len() >= end + 4 + length)
}
