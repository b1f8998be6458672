//! What a test of the whole workspace leaves out, so that it says so: everything here needs servers.
#![cfg(not(feature = "servers"))]

const COMMAND: &str = "cargo test -p lowkey-fence -p lowkey-fence-proof --all-features";

#[test]
#[ignore = "needs servers: cargo test -p lowkey-fence -p lowkey-fence-proof --all-features"]
fn late_writes_on_real_servers() {
    panic!("this was built without servers; ask for them by {COMMAND}");
}
