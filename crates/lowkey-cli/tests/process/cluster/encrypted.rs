//! Between nodes everything is encrypted, with nothing to set up: who has not the key of a member is none.

use std::io::{Read as _, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::{default_provider, sign::any_eddsa_type};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use serde_json::Value;
use tempfile::TempDir;

use crate::disks::damage::identity_in;
use crate::harness::{Cluster, Node, eventually, run_to_end};

/// Takes any key: this caller wants to be heard, and does not care by whom.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// An encrypted connection to a node's peer port, with the key of that data directory.
fn dial(port: u16, key_of: &Path) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let pkcs8 = std::fs::read(key_of.join("node.key")).unwrap();
    let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8)).unwrap();
    let public = CertificateDer::from(key.public_key().unwrap().to_vec());
    let certified = Arc::new(CertifiedKey::new(vec![public], key));
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified)));
    let name = ServerName::try_from("lowkey.invalid").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).map_err(std::io::Error::other)?;
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut stream = StreamOwned::new(connection, stream);
    stream.flush()?;
    Ok(stream)
}

/// Who a caller says that it is.
struct Said {
    cluster: String,
    member: u64,
    identity: String,
    to: u64,
}

impl Said {
    /// What this node would say to that one.
    fn of(node: &Node, to: &Node) -> Self {
        let number = |node: &Node, status: &Value| -> u64 {
            let members = status["members"].as_array().unwrap().clone();
            let found = members.into_iter().find(|member| member["nodeId"] == node.name.as_str()).unwrap();
            found["memberId"].as_str().unwrap().parse().unwrap()
        };
        let status = to.status().unwrap();
        let identity = identity_in(&std::fs::read(node.data_dir.join("node")).unwrap());
        Self {
            cluster: status["clusterId"].as_str().unwrap().to_owned(),
            member: number(node, &status),
            identity: identity.iter().map(|byte| format!("{byte:02x}")).collect(),
            to: number(to, &status),
        }
    }

    /// Asks to send messages, and returns what is answered.
    fn say(&self, stream: &mut (impl std::io::Read + Write)) -> std::io::Result<String> {
        let Self { cluster, member, identity, to } = self;
        write!(
            stream,
            "GET /lowkey.peer.v1/messages HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n\
             upgrade: lowkey-messages\r\nlowkey-cluster: {cluster}\r\nlowkey-from: {member}\r\n\
             lowkey-identity: {identity}\r\nlowkey-raft-address: 127.0.0.1:1\r\nlowkey-to: {to}\r\n\r\n"
        )?;
        stream.flush()?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            answer.push(byte[0]);
        }
        Ok(String::from_utf8(answer).unwrap().replace("%20", " ").replace("%3A", ":"))
    }

    fn say_encrypted(&self, to: &Node, key_of: &Path) -> String {
        self.say(&mut dial(to.ports.raft, key_of).unwrap()).unwrap()
    }

    fn say_in_plain(&self, to: &Node) -> String {
        self.say(&mut TcpStream::connect(("127.0.0.1", to.ports.raft)).unwrap()).unwrap()
    }
}

/// Comes as that member, with its key, to a node that lets it in.
pub(crate) fn let_in(from: &Node, to: &Node) -> StreamOwned<ClientConnection, TcpStream> {
    let mut stream = dial(to.ports.raft, &from.data_dir).unwrap();
    let answer = Said::of(from, to).say(&mut stream).unwrap();
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    stream
}

/// What a node answers to a caller that says it is that member, and does not encrypt.
pub(super) fn plain_hello(from: &Node, to: &Node) -> String {
    Said::of(from, to).say_in_plain(to)
}

/// The other two of three nodes.
fn others(leader: usize) -> [usize; 2] {
    [(leader + 1) % 3, (leader + 2) % 3]
}

/// Passes on what comes, and keeps the bytes that were sent.
fn eavesdrop(to_port: u16) -> (u16, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let kept = Arc::clone(&heard);
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(("127.0.0.1", to_port)) else { continue };
            let number = {
                let mut kept = kept.lock().unwrap();
                kept.push(Vec::new());
                kept.len() - 1
            };
            let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut back_from, &mut back_to);
                let _ = back_to.shutdown(std::net::Shutdown::Both);
            });
            let (kept, mut near, mut far) = (Arc::clone(&kept), near, far);
            std::thread::spawn(move || {
                let mut bytes = [0; 64 * 1024];
                while let Ok(count @ 1..) = near.read(&mut bytes) {
                    kept.lock().unwrap()[number].extend_from_slice(&bytes[..count]);
                    if far.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
                let _ = far.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    (port, heard)
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn three_nodes_speak_encrypted_with_nothing_to_set_up_and_who_does_not_is_refused() {
    let folder = TempDir::new().unwrap();
    let mut founder = Node::new(folder.path(), "n1", &["--bootstrap"]);
    founder.start_ready();
    let join = format!("127.0.0.1:{}", founder.ports.grpc);
    let mut tapped = Node::new(folder.path(), "n2", &[]);
    let (tap, heard) = eavesdrop(tapped.ports.raft);
    let advertised = format!("127.0.0.1:{tap}");
    tapped.set_flags(&["--join", &join, "--advertise-raft-addr", &advertised]);
    tapped.start_ready();
    let mut third = Node::new(folder.path(), "n3", &["--join", &join]);
    third.start_ready();
    eventually("all vote", || (founder.status()?["clusterSize"] == 3).then_some(()));
    // A request that is forwarded, and entries of the log: all of it passes the tap one way or the other.
    for node in [&founder, &tapped, &third] {
        let lock =
            r#"{"lock_name":"a-name-that-nobody-may-read","owner_id":"o","ttl_seconds":60,"wait_ms":0}"#;
        let _ = node.http("POST", "/v1/lock/acquire", lock).unwrap();
    }
    let (_, applied) = founder.log_position();
    eventually("n2 applies it", || (tapped.log_position().1 >= applied).then_some(()));
    let identity = identity_in(&std::fs::read(founder.data_dir.join("node")).unwrap());
    let identity: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
    let heard = heard.lock().unwrap().clone();
    let spoken: Vec<_> = heard.iter().filter(|bytes| !bytes.is_empty()).collect();
    assert!(spoken.iter().map(|bytes| bytes.len()).sum::<usize>() > 1_000, "the tap heard nothing");
    for bytes in spoken {
        assert_eq!(bytes[0], 0x16, "a TLS handshake comes first");
        assert!(!contains(bytes, "a-name-that-nobody-may-read") && !contains(bytes, &identity));
    }

    // Every node has told its key, and says nothing to who does not use his.
    let said = Said::of(&tapped, &founder);
    let refused = said.say_in_plain(&founder);
    assert!(refused.contains("lowkey-key-needed: true") && refused.contains("must use it"), "{refused}");
    eventually("it is logged", || founder.log_text().contains("without encryption").then_some(()));
    // A client that came to the wrong port is still told where to go.
    let (_, told) = crate::harness::http(founder.ports.raft, "GET", "/v1/status", "").unwrap();
    assert!(told.contains(&founder.ports.http.to_string()), "{told}");
}

#[test]
fn another_nodes_key_and_a_removed_nodes_key_open_nothing() {
    let cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let [one, other] = others(leader);
    let (leader, one, other) = (&cluster.nodes[leader], &cluster.nodes[one], &cluster.nodes[other]);
    let said = Said::of(one, leader);
    let refused = said.say_encrypted(leader, &other.data_dir);
    assert!(refused.contains("has another key"), "{refused}");
    eventually("it is logged", || leader.log_text().contains("has another key").then_some(()));

    // With its own key it is heard: only the real node could say this.
    let heard = said.say_encrypted(leader, &one.data_dir);
    assert!(heard.starts_with("HTTP/1.1 101"), "{heard}");

    leader.ok("DELETE", &format!("/v1/cluster/peers/{}", one.name), "");
    eventually("it has left", || leader.status()?["leaving"].as_array()?.is_empty().then_some(()));
    let refused = said.say_encrypted(leader, &one.data_dir);
    assert!(refused.contains("was removed"), "{refused}");
    // Neither does it come in as another member.
    let other_said = Said { member: Said::of(other, leader).member, ..Said::of(other, leader) };
    let refused = other_said.say_encrypted(leader, &one.data_dir);
    assert!(refused.contains("has another key"), "{refused}");
}

#[test]
fn a_lost_key_ends_the_node_with_a_clear_word_and_the_file_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut cluster = Cluster::start(3);
    let node = &mut cluster.nodes[2];
    let path = node.data_dir.join("node.key");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    node.kill();
    let key = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let ended = run_to_end(&mut node.command());
    assert!(ended.code != Some(0) && ended.stderr.contains("node.key"), "{ended:?}");
    assert!(ended.stderr.contains("lowkey member remove"), "{ended:?}");
    std::fs::write(&path, b"no key").unwrap();
    let ended = run_to_end(&mut node.command());
    assert!(ended.stderr.contains("node.key is not a key"), "{ended:?}");
    std::fs::write(&path, key).unwrap();
    node.start_ready();
}

#[test]
fn handshakes_that_never_end_do_not_keep_peers_out() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let [follower, _] = others(leader);
    let port = cluster.nodes[leader].ports.raft;
    let hung: Vec<TcpStream> = (0..200)
        .map(|number| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            // The beginning of a handshake, in parts, or nothing at all.
            let _ = stream.write_all(&[0x16, 3, 1, 2, 0, 1][..number % 7]);
            stream
        })
        .collect();
    cluster.nodes[follower].kill();
    cluster.nodes[follower].start_ready();
    let before = cluster.nodes[follower].log_position().1;
    cluster.nodes[leader].ok("POST", "/v1/lease", r#"{"owner_id":"o","ttl_seconds":10}"#);
    eventually("the follower hears of it", || {
        (cluster.nodes[follower].log_position().1 > before).then_some(())
    });
    drop(hung);
}

/// An invitation of a cluster, in a file.
fn invitation(node: &Node, folder: &Path, body: &str) -> std::path::PathBuf {
    let invited = node.ok("POST", "/v1/cluster/invitations", body);
    let path = folder.join("join-token");
    std::fs::write(&path, invited["token"].as_str().unwrap()).unwrap();
    path
}

#[test]
fn an_invitation_lets_in_one_node_once_and_a_restart_needs_it_no_more() {
    let folder = TempDir::new().unwrap();
    let mut founder = Node::new(folder.path(), "n1", &["--bootstrap"]);
    founder.start_ready();
    let token = invitation(&founder, folder.path(), "{}");
    let flags = ["--join-token-file", token.to_str().unwrap()];
    let mut second = Node::new(folder.path(), "n2", &flags);
    second.start_ready();
    eventually("both vote", || (founder.status()?["clusterSize"] == 2).then_some(()));
    let text = std::fs::read_to_string(&token).unwrap();
    for node in [&founder, &second] {
        assert!(!node.log_text().contains(&text[20..]), "the secret is in no log");
    }

    // Replayed by another node, it lets nobody in.
    let third = Node::new(folder.path(), "n3", &flags);
    let ended = run_to_end(&mut third.command());
    assert!(ended.code == Some(69) && ended.stderr.contains("used already"), "{ended:?}");
    assert!(!ended.stderr.contains(&text[20..]), "{ended:?}");
    // Nor in the place of a node that is expected.
    founder.ok("POST", "/v1/cluster/peers", r#"{"node_id":"n3","raft_address":"127.0.0.1:1"}"#);
    let ended = run_to_end(&mut third.command());
    assert!(ended.stderr.contains("used already"), "{ended:?}");

    // The node that used it comes back with the same flags, also without the file.
    std::fs::remove_file(&token).unwrap();
    second.kill();
    second.start_ready();

    let token = invitation(&founder, folder.path(), "{}");
    let mut third = Node::new(folder.path(), "n3", &["--join-token-file", token.to_str().unwrap()]);
    third.start_ready();
    eventually("all vote", || (founder.status()?["clusterSize"] == 3).then_some(()));
}

#[test]
fn an_invitation_whose_time_is_over_is_refused_and_so_is_one_of_another_cluster() {
    let folder = TempDir::new().unwrap();
    let mut founder = Node::new(folder.path(), "n1", &["--bootstrap"]);
    founder.start_ready();
    let token = invitation(&founder, folder.path(), r#"{"ttlSeconds":1}"#);
    // Until the wall clock is beyond it.
    std::thread::sleep(Duration::from_millis(1_100));
    let late = Node::new(folder.path(), "n2", &["--join-token-file", token.to_str().unwrap()]);
    let ended = run_to_end(&mut late.command());
    assert!(ended.code == Some(69) && ended.stderr.contains("is over"), "{ended:?}");

    // A node that has another key than the invitation says is told nothing.
    let text = std::fs::read_to_string(&token).unwrap();
    for damaged in ["", "nonsense", &text[..text.len() - 2]] {
        std::fs::write(&token, damaged).unwrap();
        let ended = run_to_end(&mut late.command());
        assert!(ended.code == Some(64) && ended.stderr.contains("holds no invitation"), "{ended:?}");
    }
    let (status, refused) =
        founder.http("POST", "/v1/cluster/invitations", r#"{"ttlSeconds":86401}"#).unwrap();
    assert!(status == 400 && refused.contains("INVALID_TTL_SECONDS"), "{refused}");
}

#[test]
fn ports_that_are_mixed_up_take_nothing() {
    let folder = TempDir::new().unwrap();
    let mut founder = Node::new(folder.path(), "n1", &["--bootstrap"]);
    founder.start_ready();
    let said = Said::of(&founder, &founder);
    // A peer at the ports of clients, encrypted as peers are: no handshake comes about.
    for port in [founder.ports.grpc, founder.ports.http] {
        let answer = dial(port, &founder.data_dir).and_then(|mut stream| said.say(&mut stream));
        assert!(answer.is_err(), "{answer:?}");
    }
    // And in plain: there is no such path.
    let answer = said.say(&mut TcpStream::connect(("127.0.0.1", founder.ports.http)).unwrap()).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    founder.ok("GET", "/v1/status", "");
}
