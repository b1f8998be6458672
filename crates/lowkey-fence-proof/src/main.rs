//! The experiments, from the command line. `cargo run -p lowkey-fence-proof --features servers -- help`

use std::time::Duration;

use clap::{Parser, Subcommand};
use lowkey_fence_proof::rounds::{Tokens, rounds};
use lowkey_fence_proof::stores::{Kind, Way};
use lowkey_fence_proof::{Failure, cost, lockset, servers, storm};

/// Whether lowkey-fence keeps late writes out, on real servers
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Two holders; the first stops between its check and its write while the second claims and writes
    Rounds {
        /// Where; everywhere if none is named
        kinds: Vec<Kind>,
        /// Rounds with made-up tokens
        #[arg(long, default_value_t = 1000)]
        rounds: u64,
        /// Rounds with tokens of the real service
        #[arg(long, default_value_t = 50)]
        served: u64,
    },
    /// Many writers with random tokens and modes, some of which crash
    Storm {
        /// Where; everywhere if none is named
        kinds: Vec<Kind>,
        #[arg(long, default_value_t = 64)]
        writers: u64,
        #[arg(long, default_value_t = 30)]
        seconds: u64,
    },
    /// A set that is read, and written back under a lock, by clients that are paused
    Lockset {
        #[arg(long, default_value_t = 600)]
        seconds: u64,
    },
    /// What a fenced transaction costs more than another, in PostgreSQL
    Cost {
        #[arg(long, default_value_t = 8)]
        connections: usize,
        #[arg(long, default_value_t = 30)]
        seconds: u64,
    },
    /// One client of the set; started by `lockset`
    #[command(hide = true)]
    LocksetClient(lockset::ClientArgs),
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    match Cli::parse().command {
        Experiment::Rounds { kinds, rounds, served } => run_rounds(kinds, rounds, served).await,
        Experiment::Storm { kinds, writers, seconds } => {
            for kind in some_or_all(kinds) {
                let store = kind.start().await?;
                let verdict =
                    storm::storm(store.as_ref(), Way::Fenced, writers, Duration::from_secs(seconds)).await?;
                println!("{kind:?}: {verdict}");
                if let Some(error) = verdict.last_error {
                    println!("  the last error: {error}");
                }
            }
            Ok(())
        }
        Experiment::Lockset { seconds } => {
            for outcome in lockset::lockset(Duration::from_secs(seconds)).await? {
                println!("{outcome}");
            }
            Ok(())
        }
        Experiment::Cost { connections, seconds } => {
            for figure in cost::cost(connections, Duration::from_secs(seconds)).await? {
                println!("{figure}");
            }
            Ok(())
        }
        Experiment::LocksetClient(args) => lockset::client(args).await,
    }
}

async fn run_rounds(kinds: Vec<Kind>, played: u64, served: u64) -> Result<(), Failure> {
    let service = servers::lowkey()?;
    for kind in some_or_all(kinds) {
        let store = kind.start().await?;
        for (tokens, name, count) in [
            (Tokens::Played, "made-up tokens", played),
            (Tokens::Service(service.client().await?), "real tokens", served),
        ] {
            for way in [Way::Fenced, Way::Naive] {
                if way == Way::Fenced || kind.can_be_naive() {
                    println!(
                        "{kind:?}, {way:?}, {name}: {}",
                        rounds(store.as_ref(), &tokens, way, count).await?
                    );
                }
            }
        }
    }
    Ok(())
}

fn some_or_all(kinds: Vec<Kind>) -> Vec<Kind> {
    if kinds.is_empty() { Kind::ALL.to_vec() } else { kinds }
}
