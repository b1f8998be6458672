//! The client's own thread. The link and the keeper run here, not on the program's runtime.
//!
//! So leases are renewed, and losses are told, even while the program blocks all of its workers, and after
//! its runtime has ended. The thread ends by itself once the last handle of the client is gone and all
//! pending messages were sent, such as the release of a dropped guard.

use std::future::Future;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};

use crate::error::Error;

/// How long the drop of a client's last handle waits for releases that are under way. When a program's
/// `main` returns, all of its threads end. Without this wait its locks would stay until their leases
/// expire.
const FAREWELL: Duration = Duration::from_millis(200);

/// The thread. It must be dropped after everything that gives it work.
pub(crate) struct Engine {
    runtime: Handle,
    thread: ThreadId,
    /// Disconnected when there is nothing more to do.
    is_done: Mutex<Receiver<()>>,
}

impl Engine {
    /// Starts the thread. It ends with the future that `work` makes in its runtime.
    pub(crate) fn start<F: Future<Output = ()> + 'static>(
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Self, Error> {
        let cannot = |error: std::io::Error| {
            Error::unavailable(format!("the client's own thread cannot be started: {error}"), false)
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let handle = runtime.handle().clone();
        let (done, is_done): (SyncSender<()>, _) = sync_channel(0);
        let thread = thread::Builder::new().name("lowkey-client".to_owned());
        let thread = thread.spawn(move || {
            runtime.block_on(async { work().await });
            drop(done);
            // Connections that are still open end with the runtime.
        });
        let thread = thread.map_err(cannot)?.thread().id();
        Ok(Self { runtime: handle, thread, is_done: Mutex::new(is_done) })
    }

    /// Where to spawn tasks that must not depend on the program's runtime.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // This blocks, also in async code. A drop cannot wait in another way, and this may be the last
        // thing that the program does. It usually takes one round trip, and nothing at all after
        // `Client::close`.
        if thread::current().id() != self.thread {
            // It is an error either way: done, or no time left. In the second case the thread goes on while
            // the process lives.
            let is_done = self.is_done.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = is_done.recv_timeout(FAREWELL);
        }
    }
}
