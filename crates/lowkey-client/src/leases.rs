//! Leases seen from outside: their owners, what they hold, and how to end one.

use std::time::Duration;

use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{
    GetLeaseRequest, GetLeaseResponse, Lease, ListLeasesRequest, ReleaseLockRequest, RevokeLeaseRequest,
};

use crate::client::{Client, Effect};
use crate::error::Error;
use crate::link::Link;
use crate::random;

/// As many as the service returns at once.
const PAGE_SIZE: u32 = 1000;

impl Client {
    /// What a lease holds and waits for, and how long it lives if it is not renewed again.
    ///
    /// This reads all pages, each true at its own moment. A lock that is held during the whole read is
    /// always included.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
    /// let found = client.get_lease(812).await?;
    /// for grant in found.grants {
    ///     println!("{} with token {}", grant.lock_name, grant.fencing_token);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_lease(&self, lease_id: u64) -> Result<GetLeaseResponse, Error> {
        read_lease(&self.inner.link, lease_id, self.inner.call_timeout).await
    }

    /// All leases, by number.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
    /// for lease in client.list_leases().await? {
    ///     println!("{} of {}: {:?} left", lease.lease_id, lease.owner_id, lease.remaining());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list_leases(&self) -> Result<Vec<Lease>, Error> {
        self.leases(String::new()).await
    }

    /// All leases of one owner, by number.
    pub async fn list_leases_of(&self, owner: impl Into<String>) -> Result<Vec<Lease>, Error> {
        self.leases(owner.into()).await
    }

    async fn leases(&self, owner_id: String) -> Result<Vec<Lease>, Error> {
        let mut request = ListLeasesRequest { owner_id, page_size: PAGE_SIZE, ..Default::default() };
        let mut leases = Vec::new();
        loop {
            let page = self.inner.unary(Effect::None, &request, |mut client, request| async move {
                client.list_leases(request).await
            });
            let page = page.await?;
            leases.extend(page.leases);
            if page.next_page_token.is_empty() {
                return Ok(leases);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Ends a lease, with everything that it holds and waits for. The owner must be named, so that no other
    /// lease can be meant; [`Client::get_lease`] returns it. Events name this client's owner as the actor.
    ///
    /// A session of the SDK learns of it at once if its stream is up, and with its next renewal otherwise.
    /// Until then it may act as holder. Where that matters, wait for a third of its time to live.
    pub async fn revoke_lease(&self, lease_id: u64, owner: impl Into<String>) -> Result<(), Error> {
        let revoke = RevokeLeaseRequest {
            lease_id,
            owner_id: owner.into(),
            actor: self.inner.owner.clone(),
            request_id: random::request_id(),
        };
        match self.inner.link.call(Call::RevokeLease(revoke), self.inner.call_timeout).await? {
            Answer::RevokeLease(_) => Ok(()),
            _ => Err(Error::unavailable("an answer to another question", true)),
        }
    }

    /// Releases a lock by its numbers, for example of a [`crate::Detached`] grant. With the token, only
    /// that very grant can be meant. 0 is no token, and is refused. Events name this client's owner as the
    /// actor.
    ///
    /// The holder of a grant that is not yours learns of it at once if its stream is up, and with its next
    /// renewal otherwise. It may act until then. [`Client::revoke_lease`] ends everything that the holder
    /// has.
    pub async fn release_lock(
        &self,
        name: impl Into<String>,
        lease_id: u64,
        fencing_token: u64,
    ) -> Result<(), Error> {
        // On the wire 0 stands for "any grant of this lease".
        if fencing_token == 0 {
            return Err(Error::invalid("0 is no fencing token: the grant's token is needed, from 1"));
        }
        let release = ReleaseLockRequest {
            lock_name: name.into(),
            lease_id,
            fencing_token,
            actor: self.inner.owner.clone(),
            request_id: random::request_id(),
            ..ReleaseLockRequest::default()
        };
        match self.inner.link.call(Call::ReleaseLock(release), self.inner.call_timeout).await? {
            Answer::ReleaseLock(_) => Ok(()),
            _ => Err(Error::unavailable("an answer to another question", true)),
        }
    }
}

/// Reads all pages of a lease, each within this time.
pub(crate) async fn read_lease(
    link: &Link,
    lease_id: u64,
    time: Duration,
) -> Result<GetLeaseResponse, Error> {
    let mut request = GetLeaseRequest { lease_id, page_size: PAGE_SIZE, ..GetLeaseRequest::default() };
    let mut whole: Option<GetLeaseResponse> = None;
    loop {
        let Answer::GetLease(mut page) = link.call(Call::GetLease(request.clone()), time).await? else {
            return Err(Error::unavailable("an answer to another question", false));
        };
        request.page_token = std::mem::take(&mut page.next_page_token);
        let lease = match &mut whole {
            None => whole.insert(page),
            Some(lease) => {
                lease.grants.append(&mut page.grants);
                lease
            }
        };
        if request.page_token.is_empty() {
            return Ok(std::mem::take(lease));
        }
    }
}
