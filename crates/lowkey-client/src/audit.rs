//! What happened: grants that are over, and the story of a lock.

use lowkey_api::v1::{ExplainRequest, ExplainResponse, QueryAuditRequest, QueryAuditResponse};

use crate::client::{Client, Effect};
use crate::error::Error;

impl Client {
    /// What happened to a lock, in sentences: who holds it and who waits, the last holders and why each ended, and what
    /// is odd. With a token, the story of that grant and of the one after it.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
    /// for sentence in client.explain("billing/nightly", Some(42)).await?.sentences {
    ///     println!("{sentence}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn explain(
        &self,
        name: impl Into<String>,
        fencing_token: Option<u64>,
    ) -> Result<ExplainResponse, Error> {
        let fencing_token = fencing_token.unwrap_or(0);
        let request = ExplainRequest { lock_name: name.into(), fencing_token };
        let asked = self.inner.unary(Effect::None, &request, |mut client, request| async move {
            client.explain(request).await
        });
        asked.await
    }

    /// A page of grants that are over, in the order in which they ended. To go on, or to follow what ends from now on,
    /// ask again with `after` set to the `through` of the answer. What is in a gap of the answer is not known.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
    /// use lowkey_client::api::QueryAuditRequest;
    /// let request = QueryAuditRequest { lock_name: "billing/nightly".into(), ..Default::default() };
    /// for grant in client.audit_page(&request).await?.grants {
    ///     println!("{} had token {}: {}", grant.owner_id, grant.fencing_token, grant.cause);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn audit_page(&self, request: &QueryAuditRequest) -> Result<QueryAuditResponse, Error> {
        let asked = self.inner.unary(Effect::None, request, |mut client, request| async move {
            client.query_audit(request).await
        });
        asked.await
    }
}
