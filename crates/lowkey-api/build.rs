//! Turns `proto/` into Rust. Everything happens in Rust crates: no `protoc` is needed.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const PROTO: &str = "lowkey/v1/lowkey.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);

    let file_descriptor_set = protox::compile([PROTO], ["proto"])?;
    let encoded = file_descriptor_set.encode_to_vec();
    fs::write(out_dir.join("lowkey.v1.fds"), &encoded)?;

    // `connect()` on the generated clients would be I/O: whoever needs a channel makes one.
    tonic_prost_build::configure().build_transport(false).compile_fds(file_descriptor_set)?;
    pbjson_build::Builder::new()
        .register_descriptors(&encoded)?
        .emit_fields()
        .ignore_unknown_fields()
        .build(&[".lowkey.v1"])?;
    Ok(())
}
