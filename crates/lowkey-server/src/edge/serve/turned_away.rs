//! What a client is told if there is no place for it, in the protocol that it speaks.

use std::io;
use std::time::Duration;

use http::StatusCode;
use lowkey_api::{ApiError, Reason};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Cover;
use super::beginning::{Beginning, Protocol, begin};

/// How long a client may take to show which protocol it speaks.
const PATIENCE: Duration = Duration::from_millis(250);

/// HTTP/2's error for clients that ask too much.
const ENHANCE_YOUR_CALM: u32 = 0xb;

/// Tells a client that there are `limit` connections, and closes its own.
pub(super) async fn turn_away(stream: TcpStream, cover: &Cover, limit: usize) {
    let message = format!("this port has {limit} connections, as many as it may (--max-connections)");
    let told = async {
        match begin(stream, cover, PATIENCE).await {
            Beginning::Plain(protocol, mut io) | Beginning::Unencrypted(protocol, mut io) => {
                tell(&mut io, protocol, &message).await
            }
            Beginning::Encrypted(protocol, mut io, _) => tell(&mut io, protocol, &message).await,
            Beginning::Peer(protocol, mut io, _) => tell(&mut io, protocol, &message).await,
            Beginning::Unexpected(mut io) => tell(&mut io, Protocol::Http1, &message).await,
            Beginning::Over(_) => Ok(()),
        }
    };
    // A client that does not listen is not told.
    let _ = timeout(PATIENCE, told).await;
}

async fn tell(io: &mut (impl AsyncWrite + Unpin), protocol: Protocol, message: &str) -> io::Result<()> {
    let bytes = match protocol {
        Protocol::Http1 => http1(message),
        Protocol::Http2 => http2(message),
    };
    io.write_all(&bytes).await?;
    io.shutdown().await
}

fn http1(message: &str) -> Vec<u8> {
    let error = ApiError::new(Reason::LimitConnections, message);
    let status = StatusCode::from_u16(error.reason.http_status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let body = serde_json::to_string(&error).unwrap_or_default();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}\n",
        body.len() + 1
    )
    .into_bytes()
}

/// Settings, without which nothing may be said, and the farewell.
fn http2(message: &str) -> Vec<u8> {
    const FRAME_HEAD: usize = 9;
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    let message = format!("LIMIT_CONNECTIONS: {message}");
    let length = u32::try_from(8 + message.len()).unwrap_or_default();
    let mut bytes = vec![0, 0, 0, SETTINGS, 0, 0, 0, 0, 0];
    debug_assert_eq!(bytes.len(), FRAME_HEAD);
    bytes.extend_from_slice(&length.to_be_bytes()[1..]);
    bytes.extend_from_slice(&[GOAWAY, 0, 0, 0, 0, 0]);
    // No stream was taken in.
    bytes.extend_from_slice(&0_u32.to_be_bytes());
    bytes.extend_from_slice(&ENHANCE_YOUR_CALM.to_be_bytes());
    bytes.extend_from_slice(message.as_bytes());
    bytes
}
