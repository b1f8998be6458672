//! What hostile clients do to encrypted ports: handshakes that take for ever, that are never ended, that are made again
//! and again, or that are wanted within a connection.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::attacks::crowd;
use super::{Scene, Victim};
use crate::papers::Papers;

/// Connections on which a handshake is under way, and how long each byte of it takes.
const SLOW_HANDSHAKES: usize = 500;
const BYTE_PAUSE: Duration = Duration::from_millis(200);

fn connection(config: &Arc<ClientConfig>) -> ClientConnection {
    ClientConnection::new(Arc::clone(config), ServerName::try_from("127.0.0.1").unwrap()).unwrap()
}

/// The first message of a handshake.
fn hello(victim: &Victim) -> Vec<u8> {
    let mut bytes = Vec::new();
    connection(victim.tls.as_ref().unwrap()).write_tls(&mut bytes).unwrap();
    bytes
}

/// Every connection says one byte after the other. Who is cut off comes again.
fn spawn_slow_handshakes(victim: Victim) {
    let hello = hello(&victim);
    thread::spawn(move || {
        let mut streams: Vec<(Option<TcpStream>, usize)> = (0..SLOW_HANDSHAKES).map(|_| (None, 0)).collect();
        while !victim.is_over() {
            for (number, (stream, said)) in streams.iter_mut().enumerate() {
                let port = if number.is_multiple_of(2) { victim.ports.grpc } else { victim.ports.http };
                let still_open = stream.as_mut().is_some_and(|stream| {
                    // The last byte is never said.
                    let byte = &hello[(*said).min(hello.len() - 2)..][..1];
                    *said += 1;
                    *said >= hello.len() - 1 || stream.write_all(byte).is_ok()
                });
                if !still_open {
                    (*stream, *said) = (victim.dial(port).ok(), 0);
                }
            }
            thread::sleep(BYTE_PAUSE);
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_take_for_ever() {
    let attack = |victim: Victim| async move {
        spawn_slow_handshakes(victim);
        Box::new(()) as Box<dyn Send>
    };
    let scene = Scene::encrypted().await;
    scene.beside("500 slow handshakes", |victim| Box::pin(attack(victim))).await;
}

/// The beginning of a hello; or of a record that never comes; or nothing.
const BEGINNINGS: [&[u8]; 3] = [&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3], &[22], &[]];

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_are_never_ended() {
    let attack = |victim: Victim| async move {
        let half_open = |number: usize| {
            let port = if number.is_multiple_of(2) { victim.ports.grpc } else { victim.ports.http };
            let mut stream = victim.dial(port).ok()?;
            // A node that was faster has closed it by now.
            let _ = stream.write_all(BEGINNINGS[number % 3]);
            Some(stream)
        };
        crowd(10_000, half_open).await
    };
    let scene = Scene::encrypted().await;
    scene.beside("10,000 half-open handshakes", |victim| Box::pin(attack(victim))).await;
}

/// A connection on which the handshake is over.
fn handshake(
    victim: &Victim,
    config: &Arc<ClientConfig>,
) -> std::io::Result<rustls::StreamOwned<ClientConnection, TcpStream>> {
    let mut stream = rustls::StreamOwned::new(connection(config), victim.dial(victim.ports.grpc)?);
    stream.sock.set_read_timeout(Some(Duration::from_secs(5)))?;
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

/// After each of four: 200 in a second. More would be an attack on the machine, of which the attacker takes as much.
const HANDSHAKE_PAUSE: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_again_and_again() {
    let attack = |victim: Victim| async move {
        let mut config = victim.tls.as_deref().unwrap().clone();
        config.resumption = Resumption::disabled();
        let config = Arc::new(config);
        drop(handshake(&victim, &config).unwrap());
        for _ in 0..4 {
            let (victim, config) = (victim.clone(), Arc::clone(&config));
            thread::spawn(move || {
                while !victim.is_over() {
                    // Who is turned away comes again.
                    drop(handshake(&victim, &config));
                    thread::sleep(HANDSHAKE_PAUSE);
                }
            });
        }
        Box::new(()) as Box<dyn Send>
    };
    let scene = Scene::encrypted().await;
    scene.beside("200 whole handshakes a second", |victim| Box::pin(attack(victim))).await;
}

/// TLS 1.3: on each connection new keys are wanted without a pause, and what the node says to that is not read.
fn spawn_key_updates(victim: Victim) {
    let config = Arc::clone(victim.tls.as_ref().unwrap());
    thread::spawn(move || {
        while !victim.is_over() {
            let Ok(mut stream) = handshake(&victim, &config) else { continue };
            stream.sock.set_nonblocking(true).unwrap();
            while !victim.is_over() {
                if stream.conn.refresh_traffic_keys().is_err() {
                    break;
                }
                match stream.conn.write_tls(&mut stream.sock) {
                    Ok(_) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        thread::sleep(Duration::from_millis(1));
                    }
                    Err(_) => break,
                }
            }
        }
    });
}

/// TLS 1.2: asks for another handshake within the connection. Gives what was said to that.
fn renegotiated(victim: &Victim, papers: &Papers) -> Option<String> {
    let files = papers.of_client();
    let file = |name: &str| files[name].as_str().unwrap().to_owned();
    let mut command = Command::new("openssl");
    command.args(["s_client", "-tls1_2", "-legacy_renegotiation", "-alpn", "h2", "-connect"]);
    command.arg(format!("127.0.0.1:{}", victim.ports.grpc));
    command.args(["-CAfile", &file("ca"), "-cert", &file("cert"), "-key", &file("key")]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    // A line of its own that says nothing but R is the wish. It stays open until that is answered.
    let mut asking = child.stdin.take().unwrap();
    asking.write_all(b"R\n").unwrap();
    let output = child.wait_with_output().unwrap();
    drop(asking);
    Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_handshakes_that_are_wanted_again() {
    let scene = Scene::encrypted().await;
    let attack = |victim: Victim| async move {
        for _ in 0..4 {
            spawn_key_updates(victim.clone());
        }
        Box::new(()) as Box<dyn Send>
    };
    scene.beside("new keys without a pause, on 4 connections", |victim| Box::pin(attack(victim))).await;

    let leader = &scene.cluster.nodes[scene.cluster.wait_leader(None)];
    let victim = Victim::of(&scene.cluster, leader, &Arc::default());
    let Some(said) = renegotiated(&victim, scene.papers.as_ref().unwrap()) else {
        assert!(std::env::var_os("LOWKEY_REQUIRE_ALL").is_none(), "openssl is missing");
        println!("skipped: openssl is missing");
        return;
    };
    // A handshake within the connection would show the node's certificate again.
    let (_, after) =
        said.split_once("RENEGOTIATING").unwrap_or_else(|| panic!("it was not asked for: {said}"));
    assert!(!after.contains("verify return"), "{said}");
    assert!(leader.status().is_some());
}
