//! The network between nodes, and between clients and nodes: proxies on loopback that hold back what passes.
//!
//! A node's advertised addresses are its proxies'. What a cut holds back is delivered when it heals, as TCP would.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::error::Error;

/// Who dials a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialler {
    Nodes,
    Clients,
}

/// What is cut at the moment.
#[derive(Debug, Default)]
struct Weather {
    /// Nodes that no other node reaches, and that reach no other node.
    isolated: BTreeSet<usize>,
    /// Nodes that no client reaches.
    without_clients: BTreeSet<usize>,
    /// The process of each node that runs.
    pids: Vec<Option<u32>>,
    /// The ports of the proxies.
    ports: Vec<u16>,
    /// The proxies are to end.
    is_over: bool,
}

/// The ends of a connection: who dialled, if that is a node, and the node that was dialled.
#[derive(Clone, Copy, Debug)]
struct Ends {
    from: Option<usize>,
    to: usize,
}

impl Weather {
    fn is_cut(&self, ends: Ends) -> bool {
        match ends.from {
            Some(from) => self.isolated.contains(&from) || self.isolated.contains(&ends.to),
            None => self.without_clients.contains(&ends.to),
        }
    }
}

/// All proxies of a cluster. Their threads end with the cluster and its connections.
#[derive(Debug)]
pub(crate) struct Net {
    weather: Mutex<Weather>,
    changed: Condvar,
}

impl Net {
    pub(crate) fn new(nodes: usize) -> Arc<Self> {
        let weather = Weather { pids: vec![None; nodes], ..Weather::default() };
        Arc::new(Self { weather: Mutex::new(weather), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Weather> {
        self.weather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Weather)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    pub(crate) fn set_pid(&self, node: usize, pid: Option<u32>) {
        self.change(|weather| {
            if let Some(place) = weather.pids.get_mut(node) {
                *place = pid;
            }
        });
    }

    pub(crate) fn isolate(&self, node: usize) {
        self.change(|weather| _ = weather.isolated.insert(node));
    }

    pub(crate) fn is_isolated(&self, node: usize) -> bool {
        self.lock().isolated.contains(&node)
    }

    pub(crate) fn cut_clients(&self, node: usize) {
        self.change(|weather| _ = weather.without_clients.insert(node));
    }

    pub(crate) fn heal(&self) {
        self.change(|weather| {
            weather.isolated.clear();
            weather.without_clients.clear();
        });
    }

    /// Ends the proxies, and lets go who waits for a cut to heal.
    pub(crate) fn end(&self) {
        self.change(|weather| weather.is_over = true);
        // Each waits for a visitor, and then sees that it is over.
        for port in std::mem::take(&mut self.lock().ports) {
            drop(TcpStream::connect(("127.0.0.1", port)));
        }
    }

    /// A proxy in front of a node's port. Gives its own port.
    pub(crate) fn serve(
        self: &Arc<Self>,
        node: usize,
        upstream: u16,
        dialler: Dialler,
    ) -> Result<u16, Error> {
        let cannot = |error| Error::new(format!("there is no proxy for node {node}: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").map_err(cannot)?;
        let port = listener.local_addr().map_err(cannot)?.port();
        self.lock().ports.push(port);
        let net = Arc::downgrade(self);
        thread::spawn(move || {
            while let Ok((near, dialled_from)) = listener.accept() {
                // The cluster is gone.
                let Some(net) = net.upgrade().filter(|net| !net.lock().is_over) else { return };
                thread::spawn(move || {
                    let from = match dialler {
                        Dialler::Clients => None,
                        Dialler::Nodes => net.node_behind(dialled_from),
                    };
                    // A node that cannot be found has ended.
                    if dialler == Dialler::Clients || from.is_some() {
                        net.relay(near, Ends { from, to: node }, upstream);
                    }
                });
            }
        });
        Ok(port)
    }

    /// Waits while the way is cut. False if the cluster is gone.
    fn pass(&self, ends: Ends) -> bool {
        let mut weather = self.lock();
        while !weather.is_over && weather.is_cut(ends) {
            weather = self.changed.wait(weather).unwrap_or_else(PoisonError::into_inner);
        }
        !weather.is_over
    }

    fn relay(self: Arc<Self>, near: TcpStream, ends: Ends, upstream: u16) {
        if !self.pass(ends) {
            return;
        }
        let Ok(far) = TcpStream::connect(("127.0.0.1", upstream)) else { return };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { return };
        let net = Arc::clone(&self);
        thread::spawn(move || net.one_way(far_too, near_too, ends));
        self.one_way(near, far, ends);
    }

    fn one_way(&self, mut from: TcpStream, mut to: TcpStream, ends: Ends) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if !self.pass(ends) || to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        // Even an end does not pass a cut.
        self.pass(ends);
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.shutdown(Shutdown::Read);
    }

    /// Which node dialled from an address of this machine.
    fn node_behind(&self, from: SocketAddr) -> Option<usize> {
        let wanted = format!("socket:[{}]", inode_of_port(from.port())?);
        let pids = self.lock().pids.clone();
        pids.iter().enumerate().find_map(|(node, pid)| {
            let files = fs::read_dir(format!("/proc/{}/fd", (*pid)?)).ok()?;
            let mut names = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
            names.any(|name| name.as_os_str() == wanted.as_str()).then_some(node)
        })
    }
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
