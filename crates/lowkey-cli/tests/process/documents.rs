//! What the documents promise: commands as they are printed there, every line of the log, every metric.

mod alerts;
mod book;
mod clusters;
mod commands_table;
mod drills;
mod log_lines;
mod metrics;
mod quick_start;
mod readme;
mod secure_it;
mod typing;
