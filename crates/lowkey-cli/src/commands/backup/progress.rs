//! How far something is, on a terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A bar is redrawn no more often than this.
const PAUSE: Duration = Duration::from_millis(50);
const CELLS: u64 = 30;

/// One line on standard error that is drawn over and over. Nothing where that is no terminal.
pub(super) struct Bar {
    what: &'static str,
    is_shown: bool,
    drawn: Mutex<Option<Instant>>,
}

impl Bar {
    pub(super) fn start(what: &'static str, as_json: bool) -> Self {
        Self { what, is_shown: !as_json && io::stderr().is_terminal(), drawn: Mutex::new(None) }
    }

    pub(super) fn show(&self, done: u64, all: u64) {
        if !self.is_shown {
            return;
        }
        let Ok(mut drawn) = self.drawn.lock() else { return };
        if drawn.is_some_and(|drawn| drawn.elapsed() < PAUSE) && done < all {
            return;
        }
        *drawn = Some(Instant::now());
        write(&format!("\r{}", line(self.what, done, all)));
    }

    pub(super) fn clear(&self) {
        if self.is_shown {
            write("\r\x1b[K");
        }
    }
}

fn line(what: &str, done: u64, all: u64) -> String {
    let share = |of: u64| {
        if all == 0 { of } else { (u128::from(of) * u128::from(done.min(all)) / u128::from(all)) as u64 }
    };
    let cells = share(CELLS) as usize;
    format!("{what} [{}{}] {:>3} %", "#".repeat(cells), ".".repeat(CELLS as usize - cells), share(100))
}

/// If nobody can read it, that changes nothing.
fn write(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_it_is_far() {
        assert_eq!(line("reading", 0, 10), format!("reading [{}]   0 %", ".".repeat(30)));
        assert_eq!(line("reading", 5, 10), format!("reading [{}{}]  50 %", "#".repeat(15), ".".repeat(15)));
        assert_eq!(line("reading", u64::MAX, u64::MAX), format!("reading [{}] 100 %", "#".repeat(30)));
        assert_eq!(line("reading", 0, 0), format!("reading [{}] 100 %", "#".repeat(30)));
    }
}
