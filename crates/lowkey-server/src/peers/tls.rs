//! TLS between nodes: always mutual, with the nodes' own keys.
//!
//! A node shows its public key as it is (a raw public key, RFC 7250), and proves by the handshake that it has the private
//! half. There are no certificates, no names and no authority: whose key it is says the register of members, which holds
//! the hash of every member's key.
//!
//! - The caller knows whom it means to reach, and checks the key within the handshake: it says nothing to anybody else.
//! - The callee takes any key in the handshake, and compares it when the caller says who it is (`hello.rs`). So a caller
//!   that is refused is told why.
//!
//! Sessions are not resumed: every connection is proven anew.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lowkey_core::KeyHash;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, ClientConnection, Resumption};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::error::StartError;
use crate::node_key::{NodeKey, key_hash};

/// How long a handshake may take on the side that is called.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The first byte of every TLS connection, and of no HTTP request.
const TLS_HANDSHAKE: u8 = 0x16;
/// TLS wants a name. Nobody looks at it: a node is known by its key.
const SERVER_NAME: &str = "lowkey.invalid";

/// A node's side of every handshake.
pub(crate) struct PeerTls {
    certified: Arc<CertifiedKey>,
    provider: Arc<CryptoProvider>,
    acceptor: TlsAcceptor,
    /// The hash of this node's own key.
    pub(crate) own: KeyHash,
}

impl PeerTls {
    pub(crate) fn new(key: &NodeKey) -> Result<Self, StartError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let certified = Arc::clone(&key.certified);
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| StartError::Replica(format!("TLS between nodes cannot be set up: {error}")))?
            .with_client_cert_verifier(Arc::new(AnyKey(Arc::clone(&provider))))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&certified))));
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { certified, provider, acceptor: TlsAcceptor::from(Arc::new(config)), own: key.hash })
    }

    /// Lets a connection in: encrypted, if the caller begins so. Says which key the caller has.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<(PeerStream, Proof)> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 || first != [TLS_HANDSHAKE] {
            return Ok((PeerStream::Plain(stream), Proof(None)));
        }
        let accepted = timeout(HANDSHAKE_TIMEOUT, self.acceptor.accept(stream)).await;
        let stream = accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let keys = stream.get_ref().1.peer_certificates();
        let proof = keys.and_then(|keys| keys.first()).map(|key| key_hash(key));
        Ok((PeerStream::Encrypted(Box::new(stream.into())), Proof(proof)))
    }

    /// Encrypts a connection to a node that must have this key. Without one, any key is taken.
    pub(crate) async fn connect(&self, key: Option<KeyHash>, stream: TcpStream) -> io::Result<PeerStream> {
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned { key, provider: Arc::clone(&self.provider) }))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(
                &self.certified,
            ))));
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
        match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
            Ok(stream) => Ok(PeerStream::Encrypted(Box::new(stream.into()))),
            Err(error) if is_another_key(&error) => {
                Err(io::Error::other("the node there has another key than the one that is registered"))
            }
            Err(error) => Err(error),
        }
    }
}

impl std::fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerTls({})", self.own)
    }
}

/// The key that the other end of a connection has proven to have; none on a connection that is not encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proof(pub(crate) Option<KeyHash>);

/// A connection between nodes.
pub(crate) enum PeerStream {
    /// Of a member that has no key yet, or of somebody who is none.
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

impl PeerStream {
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Encrypted(stream) => stream.get_ref().0,
        }
    }

    /// The socket, and what encrypts, of the end that called.
    pub(super) fn into_parts(self) -> (TcpStream, Option<Box<ClientConnection>>) {
        match self {
            Self::Plain(stream) => (stream, None),
            Self::Encrypted(stream) => match *stream {
                TlsStream::Client(stream) => {
                    let (tcp, connection) = stream.into_inner();
                    (tcp, Some(Box::new(connection)))
                }
                TlsStream::Server(_) => unreachable!("only the end that called is taken apart"),
            },
        }
    }
}

macro_rules! delegate {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Self::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Self::Encrypted(stream) => {
                let $stream = Pin::new(stream.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for PeerStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, stream => stream.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

fn is_another_key(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    matches!(cause, Some(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)))
}

/// The caller's side: the callee must have this key.
#[derive(Debug)]
struct Pinned {
    key: Option<KeyHash>,
    provider: Arc<CryptoProvider>,
}

/// The callee's side: any key will do, as long as it is the caller's own.
#[derive(Debug)]
struct AnyKey(Arc<CryptoProvider>);

/// Checks that who shows a public key has the private one.
fn verify(
    provider: &CryptoProvider,
    message: &[u8],
    key: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let key = SubjectPublicKeyInfoDer::from(key.as_ref());
    verify_tls13_signature_with_raw_key(message, &key, signed, &provider.signature_verification_algorithms)
}

/// Only TLS 1.3 is spoken between nodes.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("nodes speak TLS 1.3".into()))
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.key {
            Some(expected) if expected != key_hash(key) => {
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(&self.provider, message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(&self.0, message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::node_key::tests::any_key;

    pub(crate) fn any_tls() -> PeerTls {
        PeerTls::new(&any_key()).unwrap()
    }

    /// A caller that expects a key, and the callee. What the callee says of the caller's key.
    async fn shake(caller: &PeerTls, expected: Option<KeyHash>, callee: &PeerTls) -> io::Result<Proof> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let accepted = async { callee.accept(listener.accept().await.unwrap().0).await };
        let (near, far) = tokio::join!(caller.connect(expected, dialled), accepted);
        let mut near = near?;
        let (mut far, proof) = far?;
        near.write_all(b"hello").await?;
        near.flush().await?;
        let mut heard = [0; 5];
        far.read_exact(&mut heard).await?;
        assert_eq!(&heard, b"hello");
        Ok(proof)
    }

    #[tokio::test]
    async fn both_ends_learn_the_others_key() {
        let (caller, callee) = (any_tls(), any_tls());
        for expected in [Some(callee.own), None] {
            assert_eq!(shake(&caller, expected, &callee).await.unwrap(), Proof(Some(caller.own)));
        }
    }

    #[tokio::test]
    async fn who_has_another_key_than_the_caller_expects_hears_nothing() {
        let (caller, callee) = (any_tls(), any_tls());
        let refused = shake(&caller, Some(any_tls().own), &callee).await.unwrap_err();
        assert!(refused.to_string().contains("another key"), "{refused}");
    }

    #[tokio::test]
    async fn a_public_key_without_the_private_one_proves_nothing() {
        let (caller, callee, other) = (any_tls(), any_tls(), any_key());
        let shown = CertifiedKey::new(other.certified.cert.clone(), Arc::clone(&caller.certified.key));
        let thief = PeerTls { certified: Arc::new(shown), ..any_tls() };
        assert!(shake(&thief, Some(callee.own), &callee).await.is_err());
    }

    #[tokio::test]
    async fn what_is_not_encrypted_proves_nothing_and_is_read_as_it_is() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut dialled = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        dialled.write_all(b"GET /").await.unwrap();
        let (mut far, proof) = any_tls().accept(listener.accept().await.unwrap().0).await.unwrap();
        let mut heard = [0; 5];
        far.read_exact(&mut heard).await.unwrap();
        assert_eq!((proof, &heard), (Proof(None), b"GET /"));
    }
}
