//! `hot`: everybody is after one lock, and waits for it.
//!
//! A hand-over is counted from when one holder sends its release until the next has its grant, if that one waited for it:
//! at a fixed rate there may be nobody.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{Arena, close};
use crate::pace::Pace;
use crate::recorder::Recorder;
use crate::referee::Referee;
use crate::system::{BenchProblem, LockClient};

/// Longer than any turn in a line that moves.
const WAIT: Duration = Duration::from_secs(60);

struct Line {
    referee: Referee,
    released: Mutex<Option<Instant>>,
}

pub(super) async fn perform(arena: &Arena<'_>) -> Result<(), BenchProblem> {
    let clients = arena.clients(arena.size).await?;
    let pace = Pace::new(arena.sizes.rate);
    let line =
        Arc::new(Line { referee: Referee::new(format!("{}/hot", arena.prefix)), released: Mutex::default() });
    let mut crew = JoinSet::new();
    for client in clients {
        crew.spawn(take_turns(client, Arc::clone(&line), Arc::clone(&pace), Arc::clone(arena.recorder)));
    }
    close(arena.timed(&pace, crew).await?).await
}

async fn take_turns(
    mut client: Box<dyn LockClient>,
    line: Arc<Line>,
    pace: Arc<Pace>,
    recorder: Arc<Recorder>,
) -> Result<Box<dyn LockClient>, BenchProblem> {
    while let Some(due) = pace.turn().await {
        let asked = Instant::now();
        let token = client.acquire(line.referee.lock(), WAIT).await?;
        let granted = Instant::now();
        line.referee.granted(token)?;
        recorder.took("acquire", due.elapsed());
        // This one releases it at once.
        let released = line.released.lock().unwrap_or_else(PoisonError::into_inner).replace(granted);
        if let Some(released) = released.filter(|released| asked <= *released) {
            recorder.took("hand-over", granted - released);
        }
        line.referee.releasing();
        client.release().await?;
    }
    Ok(client)
}
