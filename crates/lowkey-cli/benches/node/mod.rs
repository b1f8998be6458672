//! A node of its own for a benchmark: a real process on a real disk.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};

/// The process; it ends with this.
pub(crate) struct Node(pub(crate) Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The command that founds a cluster in a folder, and where it will serve gRPC.
pub(crate) fn command(folder: &Path) -> (Command, String) {
    let address = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("127.0.0.1:{}", listener.local_addr().unwrap().port())
    };
    let grpc = address();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lowkey"));
    command.arg("--bootstrap").arg("--data-dir").arg(folder);
    command.args(["--grpc-addr", &grpc, "--http-addr", &address(), "--raft-addr", &address()]);
    (command, format!("http://{grpc}"))
}
