//! A proxy between a driver and a port of a node, which can be told to break what passes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is broken.
#[derive(Default)]
struct Weather {
    /// Answers are swallowed.
    mute: AtomicBool,
    /// What a client sends from now on is this late.
    late_ms: AtomicU64,
    /// New connections are accepted, and nothing is done with them.
    hangs: AtomicBool,
    upstream: AtomicU16,
    streams: Mutex<Vec<TcpStream>>,
}

/// What a client has said on one connection.
#[derive(Default)]
struct Talk {
    /// It began with a TLS handshake. The answer to that is never swallowed: without it nothing would be asked at all.
    is_encrypted: AtomicBool,
    /// How many times it has said something.
    turns: AtomicU64,
}

impl Talk {
    fn note(&self, bytes: &[u8]) {
        /// The type of a record that belongs to a handshake.
        const HANDSHAKE: u8 = 22;
        if self.turns.fetch_add(1, Ordering::SeqCst) == 0 && bytes.first() == Some(&HANDSHAKE) {
            self.is_encrypted.store(true, Ordering::SeqCst);
        }
    }

    fn is_greeting(&self) -> bool {
        self.is_encrypted.load(Ordering::SeqCst) && self.turns.load(Ordering::SeqCst) < 2
    }
}

/// The proxy lives until the process ends.
pub(crate) struct Proxy {
    weather: Arc<Weather>,
    pub(crate) port: u16,
}

impl Proxy {
    /// A proxy in front of this port.
    pub(crate) fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let weather = Arc::new(Weather { upstream: upstream.into(), ..Weather::default() });
        let shared = Arc::clone(&weather);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let weather = Arc::clone(&shared);
                std::thread::spawn(move || relay(near, &weather));
            }
        });
        Self { weather, port }
    }

    /// Whether answers are swallowed.
    pub(crate) fn mute(&self, is_mute: bool) {
        self.weather.mute.store(is_mute, Ordering::SeqCst);
    }

    /// How late everything is from now on that a client sends.
    pub(crate) fn delay(&self, late: Duration) {
        self.weather.late_ms.store(u64::try_from(late.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Whether new connections get no answer.
    pub(crate) fn hang(&self, hangs: bool) {
        self.weather.hangs.store(hangs, Ordering::SeqCst);
    }

    /// From now on it stands in front of another port.
    pub(crate) fn turn_to(&self, upstream: u16) {
        self.weather.upstream.store(upstream, Ordering::SeqCst);
    }

    /// Ends all connections.
    pub(crate) fn reset(&self) {
        let streams =
            std::mem::take(&mut *self.weather.streams.lock().unwrap_or_else(PoisonError::into_inner));
        for stream in streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn relay(near: TcpStream, weather: &Arc<Weather>) {
    let kept = |stream: &TcpStream| {
        let mut streams = weather.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.push(stream.try_clone().unwrap());
    };
    kept(&near);
    if weather.hangs.load(Ordering::SeqCst) {
        // Kept open by the list above.
        return;
    }
    let Ok(far) = TcpStream::connect(("127.0.0.1", weather.upstream.load(Ordering::SeqCst))) else {
        let _ = near.shutdown(Shutdown::Both);
        return;
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    kept(&far);
    let (near_back, far_back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    let talk = Arc::new(Talk::default());
    let (back, heard) = (Arc::clone(weather), Arc::clone(&talk));
    std::thread::spawn(move || answers(far_back, near_back, &back, &heard));
    requests(near, far, weather, &talk);
}

/// Passes on what a client sends, late if told so. Even what was sent before an end arrives.
fn requests(mut near: TcpStream, far: TcpStream, weather: &Weather, talk: &Talk) {
    let (sender, receiver) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
    let writing = std::thread::spawn(move || {
        let mut far = far;
        for (due, bytes) in receiver {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if far.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = far.shutdown(Shutdown::Write);
    });
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = near.read(&mut buffer) {
        talk.note(&buffer[..count]);
        let late = Duration::from_millis(weather.late_ms.load(Ordering::SeqCst));
        if sender.send((Instant::now() + late, buffer[..count].to_vec())).is_err() {
            break;
        }
    }
    drop(sender);
    let _ = writing.join();
}

fn answers(mut far: TcpStream, mut near: TcpStream, weather: &Weather, talk: &Talk) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = far.read(&mut buffer) {
        let is_swallowed = weather.mute.load(Ordering::SeqCst) && !talk.is_greeting();
        if !is_swallowed && near.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = near.shutdown(Shutdown::Both);
}
