//! Load for lock services: what is done to them, how it is measured, and whether what they answer is right.
//!
//! - [`Workload`] names what can be done; `workloads/` does it, one file each.
//! - [`System`] is a lock service as a client sees it, [`Contender`] how one is started. `lowkey/` is ours; others
//!   plug in by the same two traits, and those of `peers/` do.
//! - [`Recorder`] keeps times in histograms, `Pace` says when the next request is due, `Referee` watches over each
//!   lock: two holders at once, or a token that does not rise, end the run.
//! - [`run()`] starts what has to be started, has the contenders take turns, and gives [`Report`]s; [`plot()`] draws them,
//!   and [`ratios()`] says how lowkey compares.
//!
//! Two rules make the figures worth something. At a fixed rate a time counts from when the request was *due*, not from
//! when it could be sent: a service that stands still for a second has kept all waiting who came in that second. And a
//! wrong result is no result: the run ends with [`Problem::Wrong`].
//!
//! Deliberately absent: what terminals and files look like. That is for whoever calls this.

mod caller;
mod lowkey;
mod pace;
#[cfg(feature = "peers")]
mod peers;
mod plot;
mod process;
mod progress;
mod ratio;
mod recorder;
mod referee;
mod report;
mod run;
mod slots;
mod system;
mod workload;
mod workloads;

pub use lowkey::{Lowkey, Place, Through};
#[cfg(feature = "peers")]
pub use peers::Peer;
pub use plot::plot;
pub use process::{Cluster, Starter};
pub use progress::{Glance, Progress};
pub use ratio::{Ratio, ratios};
pub use recorder::{Figure, Recorder, Summary};
pub use report::Report;
pub use run::{Case, Plan, Skipped, run};
pub use system::{Answer, Contender, Held, LockClient, Problem, System};
pub use workload::{Sizes, Workload};
