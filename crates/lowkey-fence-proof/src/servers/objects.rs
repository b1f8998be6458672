//! An S3 server that is not ours: the Versity gateway, over plain files.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use super::{Server, command, find, folder, free_port, start, unprivileged};
use crate::Failure;

/// The one bucket. Both keys are its name, too.
pub const BUCKET: &str = "lowkey";

/// HTTP clients are built with TLS, also where they do not use it, and want to know by which library.
pub fn choose_crypto() {
    // It fails where it was chosen before.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Starts an S3 server with an empty bucket.
pub async fn s3() -> Result<Server, Failure> {
    choose_crypto();
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers");
    let mut places = vec![built];
    places.extend(std::env::var_os("LOWKEY_SERVERS").map(PathBuf::from));
    let program = find("versitygw", &places)?;
    let folder = folder()?;
    let bucket = folder.path().join("data").join(BUCKET);
    std::fs::create_dir_all(&bucket)?;
    if let Some((user, group)) = unprivileged() {
        for path in [&folder.path().join("data"), &bucket] {
            std::os::unix::fs::chown(path, Some(user), Some(group))?;
        }
    }
    let port = free_port()?;
    let mut serve = command(&program, &folder)?;
    serve.env("ROOT_ACCESS_KEY", BUCKET).env("ROOT_SECRET_KEY", BUCKET);
    serve.args(["--quiet", "--port", &format!("127.0.0.1:{port}"), "posix", "data"]);
    let address = format!("http://127.0.0.1:{port}");
    let mut server = start(serve, folder, address.clone(), Signal::SIGKILL)?;
    server
        .ready(|| {
            let address = address.clone();
            async move {
                // Any answer will do: it refuses who does not sign.
                reqwest::get(address).await?;
                Ok(())
            }
        })
        .await?;
    Ok(server)
}
