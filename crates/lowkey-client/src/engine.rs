//! The client's own thread: the link and the keeper run here, not on the program's runtime.
//!
//! So leases are renewed, and losses are told, while the program blocks all of its workers, and after its
//! runtime has ended. The thread ends by itself once the last handle of the client is gone and what was
//! still to be told, such as the release of a dropped guard, was told.

use std::future::Future;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};

use crate::error::Error;

/// How long the drop of a client's last handle waits for releases that are under way. A program whose `main`
/// returns ends all of its threads: without this its locks would stay until their leases run out.
const FAREWELL: Duration = Duration::from_millis(200);

/// The thread. Must be dropped after everything that gives it work.
pub(crate) struct Engine {
    runtime: Handle,
    thread: ThreadId,
    /// Ends when there is nothing more to do.
    is_done: Mutex<Receiver<()>>,
}

impl Engine {
    /// Starts the thread. It ends with the future that is made in its runtime.
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

    /// Where to spawn what must not depend on the program's runtime.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Blocks, also in async code: a drop cannot wait in another way, and this may be the last thing that
        // the program does. Usually one round trip; nothing at all after `Client::close`.
        if thread::current().id() != self.thread {
            // An error either way: done, or no time left. Then the thread goes on while the process lives.
            let is_done = self.is_done.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = is_done.recv_timeout(FAREWELL);
        }
    }
}
