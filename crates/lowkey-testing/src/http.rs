//! Short questions to a node of one's own.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// A node that runs answers sooner. One that is cut off from the others may not.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// One request on a connection of its own: status and body, or nothing if there is no whole answer.
pub(crate) fn ask(port: u16, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(ANSWER_WAIT)).ok()?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// A text as a part of a query.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' => {
                escaped.push(char::from(byte))
            }
            _ => _ = write!(escaped, "%{byte:02X}"),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn what_means_something_in_a_query_is_escaped() {
        assert_eq!(escaped("a/b-1"), "a/b-1");
        assert_eq!(escaped("a b&c=ä"), "a%20b%26c%3D%C3%A4");
    }
}
