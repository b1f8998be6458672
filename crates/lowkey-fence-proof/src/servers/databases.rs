//! PostgreSQL, MariaDB and Redis, as Debian has them. They listen on a socket in their folder: no port is taken.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use tokio_postgres::NoTls;

use super::{Missing, Server, command, find, folder, start};
use crate::Failure;

/// Starts PostgreSQL with an empty database `postgres`, for user `postgres`.
pub async fn postgres() -> Result<Server, Failure> {
    let mut versions: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .collect();
    versions.sort();
    versions.reverse();
    let (initdb, postgres) = (find("initdb", &versions)?, find("postgres", &versions)?);
    let folder = folder()?;
    let mut init = command(&initdb, &folder)?;
    init.args(["-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]);
    super::carry_out(init, &folder)?;
    let mut serve = command(&postgres, &folder)?;
    serve
        .args(["-D", "data", "-c", "listen_addresses=", "-c", "max_connections=200", "-k"])
        .arg(folder.path());
    let address = format!("host={} user=postgres dbname=postgres", folder.path().display());
    let mut server = start(serve, folder, address.clone(), Signal::SIGQUIT)?;
    server
        .ready(|| {
            let address = address.clone();
            async move {
                let (client, connection) = tokio_postgres::connect(&address, NoTls).await?;
                let connection = tokio::spawn(connection);
                client.simple_query("SELECT 1").await?;
                connection.abort();
                Ok(())
            }
        })
        .await?;
    Ok(server)
}

/// Starts MariaDB with an empty database `proof`, for user `root` without a password.
pub async fn mariadb() -> Result<Server, Failure> {
    let places = [PathBuf::from("/usr/sbin")];
    let (install, mariadbd) = (find("mariadb-install-db", &places)?, find("mariadbd", &places)?);
    let folder = folder()?;
    let mut init = command(&install, &folder)?;
    let data = folder.path().join("data");
    init.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
    init.arg(format!("--datadir={}", data.display()));
    super::carry_out(init, &folder)?;
    let socket = folder.path().join("socket");
    let mut serve = command(&mariadbd, &folder)?;
    serve.args([
        "--no-defaults",
        "--skip-networking",
        "--innodb-buffer-pool-size=64M",
        "--max-connections=200",
    ]);
    serve.arg(format!("--datadir={}", data.display())).arg(format!("--socket={}", socket.display()));
    serve.arg(format!("--pid-file={}", folder.path().join("pid").display()));
    let mut server = start(serve, folder, socket.display().to_string(), Signal::SIGKILL)?;
    server
        .ready(|| {
            let options = mysql_async::OptsBuilder::default()
                .socket(Some(socket.display().to_string()))
                .user(Some("root"))
                .prefer_socket(Some(true));
            async move {
                let mut connection = mysql_async::Conn::new(options).await?;
                mysql_async::prelude::Queryable::query_drop(
                    &mut connection,
                    "CREATE DATABASE IF NOT EXISTS proof",
                )
                .await?;
                Ok(())
            }
        })
        .await?;
    Ok(server)
}

/// Starts Redis, which keeps nothing on disk.
pub async fn redis() -> Result<Server, Failure> {
    let program = find("redis-server", &[]).map_err(|_| Missing("redis-server"))?;
    let folder = folder()?;
    let socket = folder.path().join("socket");
    let mut serve = command(&program, &folder)?;
    serve.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&socket);
    let address = format!("redis+unix://{}", socket.display());
    let mut server = start(serve, folder, address.clone(), Signal::SIGKILL)?;
    server
        .ready(|| {
            let address = address.clone();
            async move {
                let client = redis::Client::open(address)?;
                let mut connection = client.get_multiplexed_async_connection().await?;
                redis::cmd("PING").query_async::<()>(&mut connection).await?;
                Ok(())
            }
        })
        .await?;
    Ok(server)
}
