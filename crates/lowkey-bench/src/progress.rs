//! How far a run has come, for whoever wants to look.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Written by the run, read by whoever draws it.
#[derive(Debug, Default)]
pub struct BenchProgress {
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    stage: String,
    of: Of,
}

#[derive(Debug, Default)]
enum Of {
    #[default]
    Unknown,
    Time(Instant, Duration),
    Count(usize, usize),
}

/// How far a run has come.
#[derive(Clone, Debug, PartialEq)]
pub struct Glance {
    /// What is being done.
    pub stage: String,
    /// How much of it is done, from 0 to 1, if that is known.
    pub share: Option<f64>,
}

impl BenchProgress {
    /// How far it has come.
    pub fn glance(&self) -> Glance {
        let now = self.now();
        let share = match now.of {
            Of::Unknown => None,
            Of::Time(since, time) => Some(since.elapsed().as_secs_f64() / time.as_secs_f64()),
            Of::Count(done, all) => Some(done as f64 / all.max(1) as f64),
        };
        Glance { stage: now.stage.clone(), share: share.map(|share| share.clamp(0.0, 1.0)) }
    }

    /// Something begins.
    pub(crate) fn stage(&self, stage: impl Into<String>) {
        *self.now() = Now { stage: stage.into(), of: Of::Unknown };
    }

    /// What is being done goes on for so long.
    pub(crate) fn takes(&self, time: Duration) {
        self.now().of = Of::Time(Instant::now(), time);
    }

    /// So much of what is being done is done.
    pub(crate) fn done(&self, done: usize, all: usize) {
        self.now().of = Of::Count(done, all);
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
