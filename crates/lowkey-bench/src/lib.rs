//! Load for lock services: what is done to them, how it is measured, and whether what they answer is right.
//!
//! - [`Workload`] names what can be done; `workloads/` does it, one file each.
//! - [`System`] is a lock service as a client sees it, [`Contender`] how one is started. `lowkey/` is ours; others
//!   plug in by the same two traits, and those of `rivals/` do.
//! - [`Recorder`] keeps times in histograms, `Pace` says when the next request is due, `Referee` watches over each
//!   lock: two holders at once, or a token that does not rise, end the run.
//! - [`run()`] starts what has to be started, has the contenders take turns, and gives [`BenchReport`]s; [`plot()`] draws them,
//!   and [`ratios()`] says how lowkey compares.
//!
//! Two rules make the figures worth something. At a fixed rate a time counts from when the request was *due*, not from
//! when it could be sent: a service that stands still for a second has kept all waiting who came in that second. And a
//! wrong result is no result: the run ends with [`BenchProblem::Wrong`].
//!
//! Deliberately absent: what terminals and files look like. That is for whoever calls this.

mod caller;
mod lowkey;
mod pace;
mod plot;
mod process;
mod progress;
mod ratio;
mod recorder;
mod referee;
mod report;
#[cfg(feature = "rivals")]
mod rivals;
mod run;
mod slots;
mod system;
mod workload;
mod workloads;

pub use lowkey::{Credentials, Lowkey, LowkeyAt, Setup, Through};
pub use plot::plot;
pub use process::{Cluster, Starter};
pub use progress::{BenchProgress, Glance};
pub use ratio::{Ratio, ratios};
pub use recorder::{Figure, OperationSummary, Recorder};
pub use report::BenchReport;
#[cfg(feature = "rivals")]
pub use rivals::RivalService;
pub use run::{BenchPlan, Case, Skipped, run};
pub use system::{BenchProblem, Contender, HeldLock, LockClient, System, SystemAnswer};
pub use workload::{Sizes, Workload};
