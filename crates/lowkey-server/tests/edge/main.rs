//! The edge over real sockets, with a small node in memory behind it.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod dashboard;
mod disconnect;
mod election;
mod fake;
mod gate;
mod grpc;
mod http;
mod openapi;
mod serve;
mod session;
mod support;
mod tls;
mod watch;
mod wrong_protocol;
