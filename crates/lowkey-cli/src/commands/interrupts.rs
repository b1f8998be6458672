//! Signals by which somebody wants an end to a command that waits, follows or serves.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{self, CommandFailure};

/// Signals that were ignored when this process began, as under `nohup`, and are to stay so.
pub(crate) struct Ignored {
    bits: u64,
}

impl Ignored {
    /// Those that are ignored now; none where that cannot be read.
    pub(crate) fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        Self { bits: mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default() }
    }

    pub(crate) fn contains(&self, number: i32) -> bool {
        self.bits & (1 << (number - 1)) != 0
    }
}

/// Interrupts of this process, from when it began to listen: none is missed after that, and none ends it.
pub(crate) struct Interrupts {
    hangup: Option<Signal>,
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
}

impl Interrupts {
    /// Begins to listen.
    pub(crate) fn listen() -> Result<Self, CommandFailure> {
        let ignored = Ignored::now();
        let listen = |kind: SignalKind| match ignored.contains(kind.as_raw_value()) {
            true => Ok(None),
            false => signal(kind).map(Some).map_err(|error| {
                CommandFailure::new(exit::NO_SERVICE, format!("cannot listen for signals: {error}"))
            }),
        };
        Ok(Self {
            hangup: listen(SignalKind::hangup())?,
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Resolves when somebody loses patience, with the status to end with.
    pub(crate) async fn next(&mut self) -> u8 {
        let kind = tokio::select! {
            () = heard(&mut self.hangup) => SignalKind::hangup(),
            () = heard(&mut self.interrupt) => SignalKind::interrupt(),
            () = heard(&mut self.terminate) => SignalKind::terminate(),
        };
        u8::try_from(128 + kind.as_raw_value()).unwrap_or(u8::MAX)
    }
}

async fn heard(signal: &mut Option<Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}
