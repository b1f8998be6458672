//! As much of PostgreSQL's protocol as it takes to ask a prepared statement with one number, and to hear yes or no.
//!
//! A message is a letter, its length with the length's own four bytes, and its body; only the first has no letter.
//! Numbers are big-endian, texts end with a zero.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::system::BenchProblem;

/// Version 3.0.
const PROTOCOL: i32 = 3 << 16;
/// A whole number of eight bytes.
const INT8: i32 = 20;
const BINARY: i16 = 1;
/// More than any message that is expected.
const LENGTH_MAX: usize = 1 << 20;

/// One connection, with which locks are taken: they are gone when it is.
pub(super) struct PostgresConnection {
    stream: BufReader<TcpStream>,
}

/// A message that has come.
struct Message {
    kind: u8,
    body: Vec<u8>,
}

impl PostgresConnection {
    /// Connects as somebody who needs no password.
    pub(super) async fn open(address: &str, user: &str, database: &str) -> Result<Self, BenchProblem> {
        let stream = TcpStream::connect(address).await.map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        let mut connection = Self { stream: BufReader::new(stream) };
        connection.send(&startup(user, database)).await?;
        connection.until_ready().await?;
        Ok(connection)
    }

    /// Prepares a statement that takes one number, under a name.
    pub(super) async fn prepare(&mut self, name: &str, statement: &str) -> Result<(), BenchProblem> {
        self.send(&[prepare(name, statement), sync()].concat()).await?;
        self.until_ready().await.map(|_| ())
    }

    /// Asks a prepared statement that gives one truth value.
    pub(super) async fn ask(&mut self, name: &str, number: i64) -> Result<bool, BenchProblem> {
        self.send(&[bind(name, number), execute(), sync()].concat()).await?;
        match self.until_ready().await?.as_deref() {
            // One column, of one byte.
            Some([0, 1, 0, 0, 0, 1, truth]) => Ok(*truth != 0),
            _ => Err(BenchProblem::failed("postgres: an answer that is neither yes nor no")),
        }
    }

    /// Reads on until it is our turn again; gives the last row that came.
    async fn until_ready(&mut self) -> Result<Option<Vec<u8>>, BenchProblem> {
        let (mut row, mut refusal) = (None, None);
        loop {
            let Some(Message { kind, body }) = self.receive().await? else {
                // Whoever is not let in hears why, and nothing more.
                let why = refusal.unwrap_or_else(|| "postgres has closed the connection".to_owned());
                return Err(BenchProblem::failed(why));
            };
            match kind {
                b'D' => row = Some(body),
                b'E' => refusal = Some(said(&body)),
                b'R' if body != [0; 4] => return Err(BenchProblem::failed("postgres asks for a password")),
                b'Z' => return refusal.map_or(Ok(row), |said| Err(BenchProblem::failed(said))),
                _ => {}
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), BenchProblem> {
        self.stream.get_mut().write_all(bytes).await.map_err(broken)
    }

    /// Nothing if the connection has ended.
    async fn receive(&mut self) -> Result<Option<Message>, BenchProblem> {
        if self.stream.fill_buf().await.map_err(broken)?.is_empty() {
            return Ok(None);
        }
        let kind = self.stream.read_u8().await.map_err(broken)?;
        let length = self.stream.read_i32().await.map_err(broken)?;
        let length = usize::try_from(length).ok().and_then(|length| length.checked_sub(4));
        let Some(length) = length.filter(|length| *length <= LENGTH_MAX) else {
            return Err(BenchProblem::failed("postgres: a message of no sensible length"));
        };
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.map_err(broken)?;
        Ok(Some(Message { kind, body }))
    }
}

fn broken(error: std::io::Error) -> BenchProblem {
    BenchProblem::failed(format!("postgres: {error}"))
}

/// What an error says for people: the field `M`.
fn said(body: &[u8]) -> String {
    let mut fields = body.split(|byte| *byte == 0);
    let message = fields.find_map(|field| field.strip_prefix(b"M")).unwrap_or(b"an error without words");
    format!("postgres: {}", String::from_utf8_lossy(message))
}

fn startup(user: &str, database: &str) -> Vec<u8> {
    let mut body = PROTOCOL.to_be_bytes().to_vec();
    for word in ["user", user, "database", database, ""] {
        body.extend(text(word));
    }
    with_length(&body)
}

fn prepare(name: &str, statement: &str) -> Vec<u8> {
    let types = [&1_i16.to_be_bytes()[..], &INT8.to_be_bytes()].concat();
    message(b'P', &[text(name), text(statement), types].concat())
}

/// Gives a statement its number, and wants the answer in bytes, not in words.
fn bind(name: &str, number: i64) -> Vec<u8> {
    let mut body = [text(""), text(name)].concat();
    for short in [1, BINARY, 1] {
        body.extend(short.to_be_bytes());
    }
    body.extend(8_i32.to_be_bytes());
    body.extend(number.to_be_bytes());
    for short in [1, BINARY] {
        body.extend(short.to_be_bytes());
    }
    message(b'B', &body)
}

/// All rows.
fn execute() -> Vec<u8> {
    message(b'E', &[text(""), 0_i32.to_be_bytes().to_vec()].concat())
}

fn sync() -> Vec<u8> {
    message(b'S', &[])
}

fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [vec![kind], with_length(body)].concat()
}

fn with_length(body: &[u8]) -> Vec<u8> {
    let length = i32::try_from(body.len() + 4).unwrap_or(i32::MAX);
    [&length.to_be_bytes()[..], body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_message_has_a_length_and_no_letter() {
        let bytes = startup("me", "db");
        assert_eq!(bytes[..8], [0, 0, 0, 29, 0, 3, 0, 0]);
        assert_eq!(&bytes[8..], b"user\0me\0database\0db\0\0");
    }

    #[test]
    fn a_statement_is_asked_with_a_number_in_bytes() {
        let bytes = bind("try", 7);
        let expected = [
            &[b'B', 0, 0, 0, 31, 0][..],
            b"try\0",
            &[0, 1, 0, 1, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 1, 0, 1],
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(execute(), [b'E', 0, 0, 0, 9, 0, 0, 0, 0, 0]);
        assert_eq!(sync(), [b'S', 0, 0, 0, 4]);
    }

    #[test]
    fn an_error_is_told_in_its_words() {
        assert_eq!(said(b"SFATAL\0C53300\0Mtoo many clients\0\0"), "postgres: too many clients");
    }
}
