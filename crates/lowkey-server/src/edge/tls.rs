//! TLS on the clients' ports: the certificate of the node, and who may connect.
//!
//! - The files are read at the start, and again when they change: every 10 s (`Tls::keep`), and when
//!   somebody asks for it ([`Tls::reload`]). Both ports share what was read.
//! - A pair that cannot be used never replaces one that can. It is logged, with what to do.
//! - A connection whose certificate is not covered by a new client CA is closed (`Tls::uncovered`).
//! - No session is resumed: a resumed one is not verified again, so it would outlive its CA.
//! - No message contains anything of a key.

mod handshake;
mod loaded;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

pub(super) use self::handshake::{Encrypted, handshake, is_client_hello};
use self::loaded::{Contents, Loaded};
use super::stopped;
use crate::error::StartError;

/// How often the files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// How long before its end a certificate is warned about, and how often.
const WARN_BEFORE_SECONDS: i64 = 30 * 24 * 3600;
const WARN_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Where certificate and key of a node are, and the CA of its clients.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, and those between it and its CA, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
    /// The CAs that sign clients' certificates, as PEM. If it is given, each client needs a certificate.
    pub client_ca: Option<PathBuf>,
}

/// What is wrong with one of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsProblem {
    flag: &'static str,
    problem: String,
}

impl TlsProblem {
    fn new(flag: &'static str, path: &Path, problem: impl std::fmt::Display) -> Self {
        Self { flag, problem: format!("{}: {problem}", path.display()) }
    }
}

impl From<TlsProblem> for StartError {
    fn from(TlsProblem { flag, problem }: TlsProblem) -> Self {
        Self::Flag { flag, problem }
    }
}

/// The TLS of a node's ports.
pub struct Tls {
    files: TlsFiles,
    current: watch::Sender<Arc<Loaded>>,
    /// The problem that was logged last, until it is over.
    told: Mutex<Option<TlsProblem>>,
    failed_handshakes: AtomicU64,
}

impl Tls {
    /// Reads the files.
    pub fn read(files: TlsFiles) -> Result<Self, StartError> {
        let loaded = Loaded::from(Contents::read(&files)?, &files)?;
        loaded.warn_of_end();
        let current = watch::Sender::new(Arc::new(loaded));
        Ok(Self { files, current, told: Mutex::default(), failed_handshakes: AtomicU64::new(0) })
    }

    /// Looks at the files, until `stopping` becomes true.
    pub(crate) async fn keep(self: Arc<Self>, stopping: watch::Receiver<bool>) {
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut warnings = interval(WARN_INTERVAL);
        // Each begins at once, and the start has done both.
        looks.tick().await;
        warnings.tick().await;
        let mut stop = std::pin::pin!(stopped(stopping));
        loop {
            tokio::select! {
                // A disk that does not answer must not hold up the node.
                _ = looks.tick() => {
                    let tls = Arc::clone(&self);
                    // It never panics, and if it did the next look would come all the same.
                    let _ = spawn_blocking(move || tls.reload()).await;
                }
                _ = warnings.tick() => self.now().warn_of_end(),
                () = &mut stop => return,
            }
        }
    }

    /// Reads the files again. If they changed and are good, new connections use them. Otherwise everything
    /// stays as it is, and the log says why.
    pub fn reload(&self) {
        // One after the other: what was read last must win.
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.now();
        let outcome = Contents::read(&self.files).and_then(|contents| {
            if contents == before.contents {
                return Ok(None);
            }
            let loaded = Loaded::from(contents, &self.files)?;
            loaded.must_not_end_before(&before, &self.files)?;
            Ok(Some(loaded))
        });
        match outcome {
            Ok(None) => *told = None,
            Ok(Some(loaded)) => {
                *told = None;
                tracing::info!(
                    certificate = %self.files.certificate.display(),
                    expires_unix = loaded.ends_unix,
                    "new TLS files are in use"
                );
                loaded.warn_of_end();
                self.current.send_replace(Arc::new(loaded));
            }
            Err(problem) if told.as_ref() != Some(&problem) => {
                tracing::warn!(
                    "{}: {}; the TLS files that were read before stay in use; put a matching certificate and key there, \
                     and they are read within {} s, or at once after SIGHUP",
                    problem.flag,
                    problem.problem,
                    LOOK_INTERVAL.as_secs()
                );
                *told = Some(problem);
            }
            Err(_) => {}
        }
    }

    /// When the certificate in use ends, in seconds since 1970.
    pub(crate) fn ends_unix(&self) -> i64 {
        self.now().ends_unix
    }

    /// How many handshakes have failed since the start.
    pub(crate) fn failed_handshakes(&self) -> u64 {
        self.failed_handshakes.load(Ordering::Relaxed)
    }

    /// How this node connects to another one's port, as its client.
    pub(crate) fn as_client(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&self.now().as_client)
    }

    fn count_failed(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> Arc<Loaded> {
        Arc::clone(&self.current.borrow())
    }

    /// Resolves when a client with this certificate may no longer be connected.
    pub(super) async fn uncovered(&self, chain: Vec<CertificateDer<'static>>) {
        let mut changes = self.current.subscribe();
        // It may have changed since the handshake began.
        changes.mark_changed();
        while changes.changed().await.is_ok() {
            let loaded = Arc::clone(&changes.borrow_and_update());
            if !loaded.covers(&chain) {
                return;
            }
        }
        // Nothing changes any more: the node ends.
        std::future::pending().await
    }
}

fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
