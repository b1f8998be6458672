//! Whether a node of the old cluster still lives: asked at the addresses that the backup knows.

use std::time::Duration;

use futures::future::join_all;
use lowkey_backup::Manifest;
use lowkey_client::Client;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::exit::{self, CommandFailure};

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Refuses if any of them answers. Two clusters that grant the same locks are what a restore must never lead to.
pub(super) async fn ask(manifest: &Manifest) -> Result<(), CommandFailure> {
    let asked =
        manifest.members.iter().filter(|member| !member.grpc_address.is_empty()).map(|member| async move {
            let who = answers(&member.grpc_address, &manifest.cluster).await?;
            Some(format!("{} at {} ({who})", member.name, member.grpc_address))
        });
    let alive: Vec<String> = join_all(asked).await.into_iter().flatten().collect();
    if alive.is_empty() {
        return Ok(());
    }
    let line = format!(
        "a node of the old cluster answers: {}. While one runs, or can be started again, that cluster is not lost: see \
         `lowkey recover`. Nothing was changed. To restore all the same, stop it for good, or add \
         --although-nodes-of-the-old-cluster-answer",
        alive.join(", ")
    );
    Err(CommandFailure::new(exit::NO, line))
}

/// What is known of who answers at an address, if it may be a node of that cluster.
async fn answers(address: &str, cluster: &str) -> Option<&'static str> {
    timeout(PATIENCE, TcpStream::connect(address)).await.ok()?.ok()?;
    let asked = async {
        let client = Client::builder([format!("http://{address}")])
            .connect_timeout(PATIENCE)
            .call_timeout(PATIENCE)
            .connect()
            .await?;
        client.status().await
    };
    match timeout(2 * PATIENCE, asked).await {
        Ok(Ok(status)) if status.cluster_id == cluster => Some("it says that it belongs to that cluster"),
        // A cluster that has taken its place already.
        Ok(Ok(_)) => None,
        _ => Some("it does not say to which cluster it belongs"),
    }
}
