//! How a connection begins: which protocol it speaks, and whether it is encrypted.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::Cover;
use crate::edge::tls::{Encrypted, Tls, handshake, is_client_hello};
use crate::peers::tls::{PeerStream, PeerTls, Proof};

/// The beginning of every HTTP/2 connection, and of no HTTP/1 request.
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long a TLS handshake may take. It is a few small messages, so this is generous.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// What came of the first bytes.
pub(super) enum Beginning {
    /// As the port wants it: without encryption.
    Plain(Protocol, Rewound<TcpStream>),
    /// As the port wants it: with encryption.
    Encrypted(Protocol, Rewound<Box<TlsStream<TcpStream>>>, Holder),
    /// On the peers' port. It may still be one without encryption: `hello.rs` decides.
    Peer(Protocol, Rewound<PeerStream>, Proof),
    /// Not encrypted, on a port that wants encryption.
    Unencrypted(Protocol, Rewound<TcpStream>),
    /// Encrypted, on a port without encryption. The answer is one that clients recognise as plain HTTP.
    Unexpected(Rewound<TcpStream>),
    /// Nobody to talk to. If there is something to do about it, that is here.
    Over(Option<&'static str>),
}

/// What the certificate of a client says; empty without one.
pub(super) struct Holder {
    pub(super) chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    pub(super) names: Option<crate::edge::CertificateNames>,
}

/// Takes in a connection, until it is clear how to talk to it. Each of its steps ends within `patience`.
pub(super) async fn begin(stream: TcpStream, cover: &Cover, patience: Duration) -> Beginning {
    let tls = match cover {
        Cover::Peers(tls) => return peer(stream, tls, patience).await,
        Cover::Clients(tls) => Some(tls),
        Cover::None => None,
    };
    let Ok(Ok(is_tls)) = timeout(patience, is_client_hello(&stream)).await else {
        return Beginning::Over(None);
    };
    match (tls, is_tls) {
        (Some(tls), true) => encrypted(stream, tls, patience).await,
        (None, true) => match timeout(patience, read_beginning(stream)).await {
            Ok(Ok((_, io))) => Beginning::Unexpected(io),
            _ => Beginning::Over(None),
        },
        (tls, false) => match timeout(patience, read_beginning(stream)).await {
            Ok(Ok((protocol, io))) if tls.is_some() => Beginning::Unencrypted(protocol, io),
            Ok(Ok((protocol, io))) => Beginning::Plain(protocol, io),
            _ => Beginning::Over(None),
        },
    }
}

async fn peer(stream: TcpStream, tls: &PeerTls, patience: Duration) -> Beginning {
    let begun = async {
        let (stream, proof) = tls.accept(stream).await?;
        let (protocol, io) = read_beginning(stream).await?;
        io::Result::Ok((protocol, io, proof))
    };
    match timeout(patience, begun).await {
        Ok(Ok((protocol, io, proof))) => Beginning::Peer(protocol, io, proof),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a connection ended before it began");
            Beginning::Over(None)
        }
        // Silent.
        Err(_) => Beginning::Over(None),
    }
}

async fn encrypted(stream: TcpStream, tls: &Tls, patience: Duration) -> Beginning {
    let Encrypted { stream, chain, names } =
        match timeout(patience.min(HANDSHAKE_TIME), handshake(tls, stream)).await {
            Ok(Ok(encrypted)) => encrypted,
            Ok(Err(failed)) => {
                tracing::debug!(error = %failed.error, "a TLS handshake failed");
                return Beginning::Over(failed.advice);
            }
            Err(_) => return Beginning::Over(None),
        };
    match timeout(patience, read_beginning(Box::new(stream))).await {
        Ok(Ok((protocol, io))) => Beginning::Encrypted(protocol, io, Holder { chain, names }),
        // With TLS 1.3 a client hears only now that it is refused, or says only now that it refuses.
        _ => Beginning::Over(None),
    }
}

/// Reads until the protocol is clear. The returned stream yields these bytes again. The builder could
/// detect the protocol by itself, but would wait for ever.
pub(super) async fn read_beginning<I>(mut io: I) -> io::Result<(Protocol, Rewound<I>)>
where
    I: AsyncRead + Unpin,
{
    let mut beginning = Vec::with_capacity(HTTP2_PREFACE.len());
    let protocol = loop {
        let wanted = (HTTP2_PREFACE.len() - beginning.len()) as u64;
        let count = (&mut io).take(wanted).read_buf(&mut beginning).await?;
        if !HTTP2_PREFACE.starts_with(&beginning) || count == 0 {
            break Protocol::Http1;
        }
        if beginning.len() == HTTP2_PREFACE.len() {
            break Protocol::Http2;
        }
    };
    Ok((protocol, Rewound { beginning, taken: 0, io }))
}

/// A stream whose beginning was read, and is read again.
pub(super) struct Rewound<I> {
    beginning: Vec<u8>,
    /// How much of the beginning was read again: `<= beginning.len()`.
    taken: usize,
    io: I,
}

impl<I: AsyncRead + Unpin> AsyncRead for Rewound<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let rest = &this.beginning[this.taken..];
        if rest.is_empty() {
            return Pin::new(&mut this.io).poll_read(cx, buffer);
        }
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        this.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Rewound<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
