//! The socket in the node's data directory. Who may open it is an admin.
//!
//! It is how a cluster gets its first admin, and how it is opened again when no token is left that works. It
//! speaks gRPC, as the port for clients does, and every call that comes by it is asked by
//! [`Caller::LocalAdmin`](lowkey_core::Caller).
//!
//! - Only the owner of the data directory may open it: mode 0600. It is made in a folder that nobody else
//!   may enter, and comes into its place with its mode. No moment is left in which others could connect.
//! - The path of a socket ends at 107 bytes. Data directories may be deeper, so it is made by way of a
//!   descriptor of the directory.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};
use tonic::codegen::Service as _;

use super::grpc::Port;
use super::{Node, stopped};
use crate::access::LocalAdmin;

/// The name of the socket in the data directory.
pub const SOCKET_NAME: &str = "admin.sock";
/// The folder that it is made in.
const MAKING_NAME: &str = "admin.new";
/// How many may use it at a time.
const CONNECTIONS_MAX: usize = 16;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Makes the socket, in place of one that an earlier run has left. The caller has the directory's lock.
pub(crate) fn bind(directory: &Path) -> io::Result<UnixListener> {
    let opened = File::open(directory)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let (making, place) = (short.join(MAKING_NAME), short.join(SOCKET_NAME));
    let made = making.join(SOCKET_NAME);
    // What is left of an attempt that broke off.
    let _ = std::fs::remove_file(&made);
    let _ = std::fs::remove_dir(&making);
    DirBuilder::new().mode(0o700).create(&making)?;
    let listener = UnixListener::bind(&made)?;
    std::fs::set_permissions(&made, Permissions::from_mode(0o600))?;
    std::fs::rename(&made, &place)?;
    std::fs::remove_dir(&making)?;
    Ok(listener)
}

/// Serves `port` on the socket until `stop` becomes true.
pub(crate) async fn serve<N: Node>(listener: UnixListener, port: Port<N>, stop: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(stopped(stop));
    loop {
        let accepted = tokio::select! {
            () = &mut stop => return,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Who finds no room is closed, and may come again.
        if let Ok(place) = Arc::clone(&room).try_acquire_owned() {
            let port = port.clone();
            connections.spawn(async move {
                talk(stream, port).await;
                drop(place);
            });
        }
    }
}

async fn talk<N: Node>(stream: UnixStream, port: Port<N>) {
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(LocalAdmin);
        let mut port = port.clone();
        async move { port.call(request).await }
    });
    let builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(error, "a connection to the admin's socket ended early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_is_its_owners_also_where_paths_are_long_and_one_was_left() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&directory).unwrap();
        drop(bind(&directory).unwrap());
        let _listener = bind(&directory).unwrap();
        let mode = std::fs::metadata(directory.join(SOCKET_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let names: Vec<_> =
            std::fs::read_dir(&directory).unwrap().map(|one| one.unwrap().file_name()).collect();
        assert_eq!(names, [SOCKET_NAME]);
    }
}
