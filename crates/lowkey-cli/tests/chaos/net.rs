//! The network between the nodes, and between some clients and the nodes: proxies on loopback that delay,
//! hold back and cut what passes.
//!
//! A node's advertised addresses are its proxies'. A proxy learns which node dials by looking for the
//! connection among the open files of the nodes' processes, so that every pair can be treated on its own,
//! and each direction of it. What a cut holds back is delivered when it heals, as TCP would, unless the
//! connection is cut off before. A single connection of a client can be late in one direction: it is the
//! path of one client to one node. What the client sent before it gave the connection up still arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

/// For how long a path that became late stays so: longer than a client waits before it asks elsewhere.
const HELD_BACK_FOR: Duration = Duration::from_secs(2);

/// Who is at an end of a connection: a node by its number, or the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Node(usize),
    Clients,
}

/// One direction between two places.
pub(crate) type Way = (Place, Place);

/// What the network does at the moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weather {
    /// Nothing passes here.
    pub(crate) cut: BTreeSet<Way>,
    /// What passes here is this late.
    pub(crate) delay: BTreeMap<Way, Duration>,
}

struct Connection {
    ends: Way,
    path: Arc<Path>,
    relay: AbortHandle,
}

/// One connection: how late it is from the next message on, there and back, in milliseconds.
#[derive(Default)]
pub(crate) struct Path {
    there_ms: AtomicU64,
    back_ms: AtomicU64,
}

impl Path {
    /// What is sent next is this late, and so is what follows it for a while: a message and the word that it
    /// was given up do not arrive together.
    pub(crate) fn hold_back(&self, is_there: bool, ms: u64) {
        self.way(is_there).store(ms, Ordering::Relaxed);
    }

    fn way(&self, is_there: bool) -> &AtomicU64 {
        if is_there { &self.there_ms } else { &self.back_ms }
    }
}

/// All proxies.
pub(crate) struct Net {
    weather: watch::Sender<Weather>,
    connections: Mutex<Vec<Connection>>,
    /// The process of each node that runs.
    pids: Mutex<Vec<Option<u32>>>,
}

impl Net {
    pub(crate) fn new(nodes: usize) -> Arc<Self> {
        let weather = watch::Sender::new(Weather::default());
        Arc::new(Self { weather, connections: Mutex::default(), pids: Mutex::new(vec![None; nodes]) })
    }

    pub(crate) fn set_pid(&self, node: usize, pid: Option<u32>) {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner)[node] = pid;
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Weather)) {
        self.weather.send_modify(change);
    }

    /// The connections that clients have at the moment.
    pub(crate) fn paths_of_clients(&self) -> Vec<Arc<Path>> {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let of_clients = connections
            .iter()
            .filter(|connection| connection.ends.0 == Place::Clients && !connection.relay.is_finished());
        of_clients.map(|connection| Arc::clone(&connection.path)).collect()
    }

    /// Ends connections between places, both ways; gives back how many.
    pub(crate) fn reset(&self, concerns: impl Fn(Way) -> bool) -> usize {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let before = connections.len();
        connections.retain(|connection| {
            let (from, to) = connection.ends;
            let ends = concerns((from, to)) || concerns((to, from));
            if ends {
                connection.relay.abort();
            }
            !ends && !connection.relay.is_finished()
        });
        before - connections.len()
    }

    /// A proxy in front of a node's port. Whoever dials it is found out, or is a client by decree.
    pub(crate) async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        node: usize,
        upstream: u16,
        for_peers: bool,
    ) {
        loop {
            let Ok((stream, dialled_from)) = listener.accept().await else { continue };
            let net = Arc::clone(&self);
            let dialler = match for_peers {
                true => net.dialler(dialled_from),
                false => Some(Place::Clients),
            };
            // Whoever cannot be found has ended already.
            let Some(dialler) = dialler else { continue };
            let ends = (dialler, Place::Node(node));
            let path = Arc::new(Path::default());
            let relay = tokio::spawn(Arc::clone(&net).relay(stream, ends, Arc::clone(&path), upstream));
            let mut connections = net.connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.retain(|connection| !connection.relay.is_finished());
            connections.push(Connection { ends, path, relay: relay.abort_handle() });
        }
    }

    /// Which node dialled from an address of this machine.
    fn dialler(&self, from: SocketAddr) -> Option<Place> {
        let inode = inode_of_port(from.port())?;
        let wanted = format!("socket:[{inode}]");
        let pids = self.pids.lock().unwrap_or_else(PoisonError::into_inner).clone();
        pids.iter().enumerate().find_map(|(node, pid)| {
            let files = fs::read_dir(format!("/proc/{}/fd", (*pid)?)).ok()?;
            let mut names = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
            names.any(|name| name.as_os_str() == wanted.as_str()).then_some(Place::Node(node))
        })
    }

    async fn relay(self: Arc<Self>, near: TcpStream, (from, to): Way, path: Arc<Path>, upstream: u16) {
        // A greeting and its answer must both get through.
        let mut weather = self.weather.subscribe();
        let open = weather
            .wait_for(|weather| !weather.cut.contains(&(from, to)) && !weather.cut.contains(&(to, from)));
        if open.await.is_err() {
            return;
        }
        let Ok(far) = TcpStream::connect(("127.0.0.1", upstream)).await else { return };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
        let there = self.one_way(near_read, far_write, (from, to), &path.there_ms);
        let back = self.one_way(far_read, near_write, (to, from), &path.back_ms);
        match from {
            // What a client sent before it closed is delivered, as TCP would.
            Place::Clients => drop(tokio::join!(there, back)),
            // Either end that closes ends both directions.
            Place::Node(_) => tokio::select! {
                () = there => {}
                () = back => {}
            },
        }
    }

    async fn one_way(&self, from: OwnedReadHalf, to: OwnedWriteHalf, way: Way, next_ms: &AtomicU64) {
        const CHUNKS_MAX: usize = 1_024;
        let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
        let weather = self.weather.subscribe();
        let read = async move {
            let mut buffer = vec![0; 16 * 1024];
            let mut held_back = (Instant::now(), Duration::ZERO);
            while let Ok(count @ 1..) = read_some(&from, &mut buffer).await {
                let all_are_late = weather.borrow().delay.get(&way).copied().unwrap_or_default();
                let time = Instant::now();
                match next_ms.swap(0, Ordering::Relaxed) {
                    0 => {}
                    ms => held_back = (time + HELD_BACK_FOR, Duration::from_millis(ms)),
                }
                let it_is_late = if time < held_back.0 { held_back.1 } else { Duration::ZERO };
                let due = time + all_are_late.max(it_is_late);
                if sender.send((due, buffer[..count].to_vec())).await.is_err() {
                    return;
                }
            }
        };
        let mut weather = self.weather.subscribe();
        let write = async move {
            while let Some((due, bytes)) = receiver.recv().await {
                sleep_until(due).await;
                if weather.wait_for(|weather| !weather.cut.contains(&way)).await.is_err() {
                    return;
                }
                if write_all(&to, &bytes).await.is_err() {
                    return;
                }
            }
        };
        // What was read before the end is still delivered.
        tokio::join!(read, write);
    }
}

async fn read_some(from: &OwnedReadHalf, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        from.readable().await?;
        match from.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

async fn write_all(to: &OwnedWriteHalf, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The inode of the socket with a local port that is connected to somebody.
fn inode_of_port(port: u16) -> Option<u64> {
    let wanted = format!("0100007F:{port:04X}");
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        (fields.nth(1)? == wanted).then_some(())?;
        fields.nth(7)?.parse().ok().filter(|inode| *inode != 0)
    })
}
