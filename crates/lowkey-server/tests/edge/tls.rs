//! Encrypted ports: who gets in, what the others are told, and files that change.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::routing::get;
use axum::{Extension, Router};
use lowkey_api::v1::GetStatusRequest;
use lowkey_api::{ApiError, Reason};
use lowkey_server::edge::CertificateNames;
use lowkey_server::edge::serve::{ServeLimits, serve};
use lowkey_server::edge::tls::{Tls, TlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
    date_time_ymd,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Code;

use crate::support::{Answer, Edge, exchange, soon, until};

const ALIVE: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// A certificate and its key, as PEM.
struct Pair {
    certificate: String,
    key: String,
}

/// A CA.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn sign(&self, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }

    fn node(&self) -> Pair {
        self.sign(|_| {})
    }

    fn client(&self, name: &str) -> Pair {
        self.sign(|params| params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap())])
    }

    /// Connects as `client`, or without a certificate.
    fn trusted_by(&self, client: Option<&Pair>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        Arc::new(match client {
            None => builder.with_no_client_auth(),
            Some(Pair { certificate, key }) => {
                let chain =
                    CertificateDer::pem_slice_iter(certificate.as_bytes()).map(Result::unwrap).collect();
                builder
                    .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
                    .unwrap()
            }
        })
    }
}

/// The files of a node.
struct Folder(TempDir);

impl Folder {
    fn new(pair: &Pair, client_ca: Option<&Ca>) -> (Self, Arc<Tls>) {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.put(pair);
        if let Some(ca) = client_ca {
            folder.put_client_ca(&ca.certificate);
        }
        let files = TlsFiles {
            certificate: folder.path("node.pem"),
            key: folder.path("node-key.pem"),
            client_ca: client_ca.map(|_| folder.path("client-ca.pem")),
        };
        let tls = Arc::new(Tls::read(files).unwrap());
        (folder, tls)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        Path::join(self.0.path(), name)
    }

    fn put(&self, Pair { certificate, key }: &Pair) {
        std::fs::write(self.path("node.pem"), certificate).unwrap();
        std::fs::write(self.path("node-key.pem"), key).unwrap();
    }

    fn put_client_ca(&self, certificate: &str) {
        std::fs::write(self.path("client-ca.pem"), certificate).unwrap();
    }
}

async fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::clone(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// Asks over HTTP/1 and TLS. An error is one of the connection.
async fn ask(address: SocketAddr, config: &Arc<ClientConfig>, request: &str) -> io::Result<Answer> {
    soon(async {
        let mut stream = connect(address, config).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(Answer::parse(&text))
    })
    .await
}

/// What the client's TLS says about a refusal.
fn words(outcome: io::Result<Answer>) -> String {
    outcome.expect_err("it must be refused").to_string()
}

#[tokio::test]
async fn with_a_client_ca_only_holders_of_its_certificates_get_in() {
    let (ca, other) = (Ca::new("ours"), Ca::new("theirs"));
    let (_folder, tls) = Folder::new(&ca.node(), Some(&ca));
    let edge = Edge::encrypted(ServeLimits::default(), &tls).await;
    for address in [edge.http, edge.grpc] {
        let ask = |client: Option<Pair>| {
            let config = ca.trusted_by(client.as_ref());
            async move { ask(address, &config, ALIVE).await }
        };
        assert!(ask(Some(ca.client("billing"))).await.is_ok());
        assert!(words(ask(None).await).contains("CertificateRequired"));
        assert!(words(ask(Some(other.client("billing"))).await).contains("UnknownCA"));
        let expired = ca.sign(|params| params.not_after = date_time_ymd(2020, 1, 1));
        assert!(words(ask(Some(expired)).await).contains("CertificateExpired"));
        let for_servers = ca.sign(|params| params.extended_key_usages.truncate(1));
        assert!(ask(Some(for_servers)).await.is_err(), "a server's certificate is none of a client");
    }
    // The other way round: a client that trusts another CA does not speak to the node.
    let untrusting = other.trusted_by(None);
    assert!(words(ask(edge.http, &untrusting, ALIVE).await).contains("UnknownIssuer"));
}

#[tokio::test]
async fn the_names_of_a_client_come_with_each_of_its_requests() {
    let ca = Ca::new("ours");
    for client_ca in [Some(&ca), None] {
        let (_folder, tls) = Folder::new(&ca.node(), client_ca);
        let service = Router::new().route(
            "/",
            get(|names: Option<Extension<CertificateNames>>| async {
                names.map_or("nobody".to_owned(), |Extension(names)| names.0.join(","))
            }),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_stop, stopping) = watch::channel(false);
        tokio::spawn(serve(listener, service, ServeLimits::default(), None, Some(tls), stopping));
        let config = ca.trusted_by(Some(&ca.client("billing.example.com")));
        let answer =
            ask(address, &config, "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        assert_eq!(answer.body, if client_ca.is_some() { "billing.example.com" } else { "nobody" });
    }
}

#[tokio::test]
async fn both_protocols_are_offered_and_nothing_older_than_tls_1_2() {
    let ca = Ca::new("ours");
    let (_folder, tls) = Folder::new(&ca.node(), None);
    let edge = Edge::encrypted(ServeLimits::default(), &tls).await;
    for (offered, agreed) in
        [(&["h2", "http/1.1"][..], Some("h2")), (&["http/1.1"], Some("http/1.1")), (&[], None)]
    {
        let mut config = ClientConfig::clone(&ca.trusted_by(None));
        config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let stream = soon(connect(edge.grpc, &Arc::new(config))).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), agreed.map(str::as_bytes));
    }
    // A hello of TLS 1.1.
    let mut stream = TcpStream::connect(edge.grpc).await.unwrap();
    let hello = [&[22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 2][..], &[7; 32], &[0, 0, 2, 0, 47, 1, 0]].concat();
    stream.write_all(&hello).await.unwrap();
    let mut answer = Vec::new();
    let _ = soon(stream.read_to_end(&mut answer)).await;
    assert_eq!((answer[0], answer[5]), (21, 2), "a fatal alert: {answer:?}");
}

#[tokio::test]
async fn a_client_without_tls_is_told_to_use_it_in_its_own_protocol() {
    let ca = Ca::new("ours");
    let (_folder, tls) = Folder::new(&ca.node(), None);
    let edge = Edge::encrypted(ServeLimits::default(), &tls).await;
    for address in [edge.http, edge.grpc] {
        let answer = exchange(address, ALIVE).await;
        assert_eq!((answer.status, answer.reason().as_str()), (400, "TLS_REQUIRED"));
        assert!(answer.json()["message"].as_str().unwrap().contains(&format!("https://{address}")));
    }
    let status = edge.client().await.get_status(GetStatusRequest {}).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(ApiError::from_status(&status).unwrap().reason, Reason::TlsRequired);
}

#[tokio::test]
async fn a_client_with_tls_on_a_port_without_it_gets_an_answer_in_plain_http() {
    let edge = Edge::start().await;
    let mut stream = TcpStream::connect(edge.http).await.unwrap();
    stream.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]).await.unwrap();
    let mut answer = Vec::new();
    let _ = soon(stream.read_to_end(&mut answer)).await;
    assert!(answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
}

#[tokio::test]
async fn a_new_pair_is_used_and_a_bad_one_is_not() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let first = old.node();
    let (folder, tls) = Folder::new(&first, None);
    let edge = Edge::encrypted(ServeLimits::default(), &tls).await;
    let is_served = |ca: &Ca| {
        let config = ca.trusted_by(None);
        async move { ask(edge.http, &config, ALIVE).await.is_ok() }
    };
    let (second, expired) = (new.node(), new.sign(|params| params.not_after = date_time_ymd(2020, 1, 1)));
    let bad = [
        Pair { certificate: second.certificate.clone(), key: first.key.clone() },
        Pair { certificate: String::new(), key: second.key.clone() },
        Pair { certificate: second.certificate.clone(), key: "no key".into() },
        expired,
    ];
    for pair in &bad {
        folder.put(pair);
        tls.reload();
        assert!(is_served(&old).await && !is_served(&new).await);
    }
    std::fs::remove_file(folder.path("node.pem")).unwrap();
    tls.reload();
    assert!(is_served(&old).await);
    folder.put(&second);
    tls.reload();
    assert!(is_served(&new).await && !is_served(&old).await);
}

#[tokio::test]
async fn a_changed_client_ca_closes_the_connections_that_it_does_not_cover() {
    let (ca, other) = (Ca::new("ours"), Ca::new("theirs"));
    let (folder, tls) = Folder::new(&ca.node(), Some(&ca));
    let edge = Edge::encrypted(ServeLimits::default(), &tls).await;
    let open = |pair: Pair| {
        let config = ca.trusted_by(Some(&pair));
        async move {
            let mut stream = soon(connect(edge.http, &config)).await.unwrap();
            stream.write_all(b"GET /v1/watch HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
            let mut beginning = [0; 12];
            soon(stream.read_exact(&mut beginning)).await.unwrap();
            assert_eq!(&beginning, b"HTTP/1.1 200");
            stream
        }
    };
    folder.put_client_ca(&format!("{}{}", ca.certificate, other.certificate));
    tls.reload();
    let (mut ours, mut theirs) = (open(ca.client("a")).await, open(other.client("b")).await);
    // The CA of one of them goes.
    folder.put_client_ca(&other.certificate);
    tls.reload();
    let mut rest = Vec::new();
    let _ = soon(ours.read_to_end(&mut rest)).await;
    // The other one is as it was: a stream on which nothing happens.
    let mut more = [0; 1024];
    while let Ok(outcome) = tokio::time::timeout(Duration::from_millis(50), theirs.read(&mut more)).await {
        assert_ne!(outcome.unwrap(), 0, "it was closed");
    }
    // A broken CA file changes nothing.
    folder.put_client_ca("nothing");
    tls.reload();
    let _theirs_again = open(other.client("c")).await;
}

#[tokio::test]
async fn half_open_handshakes_lock_nobody_out() {
    let ca = Ca::new("ours");
    let (_folder, tls) = Folder::new(&ca.node(), None);
    let limits = ServeLimits { max_connections: 100, ..ServeLimits::default() };
    let edge = Edge::encrypted(limits, &tls).await;
    let config = ca.trusted_by(None);
    let mut silent = Vec::new();
    for number in 0..1000 {
        let mut stream = TcpStream::connect(edge.http).await.unwrap();
        if number % 2 == 0 {
            // The beginning of a hello, and no more.
            stream.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
        }
        silent.push(stream);
        if number % 100 == 99 {
            assert_eq!(ask(edge.http, &config, ALIVE).await.unwrap().status, 200);
        }
    }
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_is_ended() {
    let ca = Ca::new("ours");
    let (_folder, tls) = Folder::new(&ca.node(), None);
    let limits = ServeLimits { header_read_timeout: Duration::from_millis(200), ..ServeLimits::default() };
    let edge = Edge::encrypted(limits, &tls).await;
    for beginning in [&[][..], &[22], &[22, 3, 1, 2, 0, 1, 0, 1]] {
        let mut stream = TcpStream::connect(edge.grpc).await.unwrap();
        stream.write_all(beginning).await.unwrap();
        let mut rest = Vec::new();
        let _ = soon(stream.read_to_end(&mut rest)).await;
    }
    until(|| edge.budget.used_bytes() == 0).await;
}

#[tokio::test]
async fn a_client_for_whom_there_is_no_place_is_told_why_inside_tls() {
    let ca = Ca::new("ours");
    let (_folder, tls) = Folder::new(&ca.node(), None);
    let edge = Edge::encrypted(ServeLimits { max_connections: 1, ..ServeLimits::default() }, &tls).await;
    let config = ca.trusted_by(None);
    let mut busy = soon(connect(edge.http, &config)).await.unwrap();
    busy.write_all(b"GET /v1/watch HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut beginning = [0; 12];
    soon(busy.read_exact(&mut beginning)).await.unwrap();
    let answer = ask(edge.http, &config, ALIVE).await.unwrap();
    assert_eq!((answer.status, answer.reason().as_str()), (429, "LIMIT_CONNECTIONS"));
}

#[tokio::test]
async fn files_that_cannot_be_used_say_why_and_never_what_the_key_is() {
    let ca = Ca::new("ours");
    let (pair, another) = (ca.node(), ca.node());
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name)
    };
    let (certificate, key) = (write("c", &pair.certificate), write("k", &pair.key));
    let (other_key, empty) = (write("o", &another.key), write("e", ""));
    let secret = write("s", "-----BEGIN PRIVATE KEY-----\nVEhFU0VDUkVU\n-----END PRIVATE KEY-----\n");
    let missing = folder.path().join("missing");
    for (certificate, key, client_ca, flag, said) in [
        (&missing, &key, None, "--tls-cert", "cannot be read: No such file"),
        (&empty, &key, None, "--tls-cert", "BEGIN CERTIFICATE is needed"),
        (&certificate, &empty, None, "--tls-key", "BEGIN PRIVATE KEY is needed"),
        (&certificate, &other_key, None, "--tls-key", "is not the key of the certificate"),
        (&certificate, &secret, None, "--tls-key", "cannot be used"),
        (&certificate, &key, Some(&empty), "--tls-client-ca", "BEGIN CERTIFICATE is needed"),
        (&certificate, &key, Some(&missing), "--tls-client-ca", "cannot be read"),
    ] {
        let files =
            TlsFiles { certificate: certificate.clone(), key: key.clone(), client_ca: client_ca.cloned() };
        let error = Tls::read(files).err().expect("it cannot be used").to_string();
        assert!(error.starts_with(flag) && error.contains(said), "{error}");
        assert!(!error.contains("VEhFU0VDUkVU") && !error.contains("THESECRET"), "{error}");
    }
}
