//! Signals that `run` passes on.

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::commands::interrupts::Ignored;
use crate::exit::{self, CommandFailure};

/// Passed on to the command.
const FORWARDED: [Signal; 7] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::WINCH];
/// What somebody sends to have an end to it.
pub(super) const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// Signals that this process gets, one by one.
pub(super) struct Signals {
    receiver: mpsc::UnboundedReceiver<Signal>,
}

/// Begins to listen. A signal that was ignored from the start (as `nohup` has it) stays so, for the command too.
pub(super) fn listen() -> Result<Signals, CommandFailure> {
    let ignored = Ignored::now();
    let (sender, receiver) = mpsc::unbounded_channel();
    let no_signals =
        |error| CommandFailure::new(exit::NO_SERVICE, format!("cannot listen for signals: {error}"));
    // Whoever ignores this one is not told how its children end. To listen once is to ignore it no more.
    drop(signal(SignalKind::child()).map_err(no_signals)?);
    // To be stopped would mean to renew nothing, while the command goes on: that is not for the terminal to decide.
    for number in FORWARDED.into_iter().chain([Signal::TSTP, Signal::CONT]) {
        if ignored.contains(number.as_raw()) {
            continue;
        }
        let mut stream = signal(SignalKind::from_raw(number.as_raw())).map_err(no_signals)?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if sender.send(number).is_err() {
                    return;
                }
            }
        });
    }
    Ok(Signals { receiver })
}

impl Signals {
    /// The next one. Never resolves when there can be none.
    pub(super) async fn next(&mut self) -> Signal {
        match self.receiver.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// Resolves when somebody wants an end to it.
    pub(super) async fn told_to_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ENDING.contains(&signal) {
                return signal;
            }
        }
    }
}
