//! The nodes of the cluster and their leader: for operators.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lowkey_api::Reason;
use lowkey_api::v1::{
    AddPeerRequest, InvitePeerRequest, InvitePeerResponse, Member, RemovePeerRequest, TransferLeaderRequest,
    TransferLeaderResponse,
};

use crate::client::{Client, Effect};
use crate::error::Error;
use crate::random;

impl Client {
    /// The nodes of the cluster, as the node that this client is connected to sees them. That is the
    /// leader, if it can be reached. Only the leader knows which nodes are behind and which answer.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
    /// for member in client.members().await? {
    ///     println!("{}: votes: {}, entries behind: {}", member.node_id, member.voter, member.lag);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn members(&self) -> Result<Vec<Member>, Error> {
        Ok(self.status().await?.members)
    }

    /// Announces a node of this name, and where the other nodes will reach it (`HOST:PORT`). The node that
    /// joins under this name takes the place. A node that is started with `--join` registers itself, and
    /// does not need this. Returns the node's number.
    ///
    /// A node that never comes costs nothing: it votes only once it has caught up.
    ///
    /// Fails with the reason `NODE_NAME_TAKEN` if there is such a node already.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
    /// client.add_member("node-4", "10.0.0.4:7000").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn add_member(
        &self,
        name: impl Into<String>,
        raft_address: impl Into<String>,
    ) -> Result<u64, Error> {
        let request = AddPeerRequest {
            node_id: name.into(),
            raft_address: raft_address.into(),
            request_id: random::request_id(),
            ..AddPeerRequest::default()
        };
        // Idempotent: to expect a node twice is to expect it once.
        let added =
            self.inner
                .unary(Effect::Change, &request, |mut client, request| async move {
                    client.add_peer(request).await
                })
                .await?;
        Ok(added.member_id)
    }

    /// Makes an invitation: with its token one node may join, once, within this time (at most a day). The token is a
    /// secret. The node takes it from a file: `--join-token-file`.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let invited = client.invite_member(std::time::Duration::from_secs(3600)).await?;
    /// std::fs::write("join-token", invited.token)?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn invite_member(&self, ttl: Duration) -> Result<InvitePeerResponse, Error> {
        let ttl_seconds = i64::try_from(ttl.as_secs().max(1)).unwrap_or(i64::MAX);
        let request = InvitePeerRequest { ttl_seconds, request_id: random::request_id() };
        // Asked twice, there are two invitations, and one of them nobody knows.
        self.inner
            .unary(Effect::Change, &request, |mut client, request| async move {
                client.invite_peer(request).await
            })
            .await
    }

    /// Removes a node from the cluster. The node says so and ends by itself. A leader hands over the lead
    /// first. Returns the number that the node had, which is never given again.
    ///
    /// When this returns the node is no longer registered. It leaves the quorum right after: it has left
    /// when its number is no longer among `leaving` in [`Client::status`].
    ///
    /// Fails with the reason `NODE_NOT_FOUND` if there is no such node, and with `QUORUM_AT_RISK` if no
    /// majority of the remaining nodes answers.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
    /// use lowkey_client::Reason;
    ///
    /// match client.remove_member("node-2").await {
    ///     Ok(_) => println!("removed"),
    ///     Err(error) if error.reason() == Some(Reason::QuorumAtRisk) => println!("not now: {error}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn remove_member(&self, name: impl Into<String>) -> Result<u64, Error> {
        let name = name.into();
        // The number is sent along, so that a retry cannot mean a node that came later under this name.
        let known = self.members().await?.into_iter().find(|member| member.node_id == name);
        let member_id = known.map(|member| member.member_id).unwrap_or_default();
        let request = RemovePeerRequest { node_id: name, member_id, request_id: random::request_id() };
        let attempts = AtomicUsize::new(0);
        let removed = self
            .inner
            .unary(Effect::Change, &request, |mut client, request| {
                attempts.fetch_add(1, Ordering::Relaxed);
                async move { client.remove_peer(request).await }
            })
            .await;
        match removed {
            Ok(removed) => Ok(removed.member_id),
            // An earlier attempt was carried out, and its answer lost.
            Err(error)
                if error.reason() == Some(Reason::NodeNotFound)
                    && member_id != 0
                    && attempts.load(Ordering::Relaxed) > 1 =>
            {
                Ok(member_id)
            }
            Err(error) => Err(error),
        }
    }

    /// Transfers the lead to a node, and returns when it leads, also if it already did.
    ///
    /// Fails with the reason `NODE_NOT_FOUND` if there is no such node, and with `TRANSFER_FAILED` if it
    /// does not vote, does not answer, or did not take over in time.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
    /// let now = client.transfer_leader("node-3").await?;
    /// println!("{} leads, at {}", now.leader_id, now.leader_address);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transfer_leader(&self, name: impl Into<String>) -> Result<TransferLeaderResponse, Error> {
        let request = TransferLeaderRequest { node_id: name.into(), request_id: random::request_id() };
        // Idempotent: a node that leads already is given nothing.
        self.inner
            .unary(Effect::Change, &request, |mut client, request| async move {
                client.transfer_leader(request).await
            })
            .await
    }
}
