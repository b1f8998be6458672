//! Turns `proto/` into Rust. Everything happens in Rust crates: no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let file_descriptor_set =
        protox::compile(["lowkey/peer/v1/peer.proto", "lowkey/forming/v1/forming.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(file_descriptor_set)?;
    Ok(())
}
