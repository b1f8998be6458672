//! Leading for as long as the program runs: campaign, lead, and campaign again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::client::Client;
use crate::election::Leadership;
use crate::error::{Error, ErrorKind};
use crate::random::Backoff;
use crate::session::Session;

/// How long a leader's lease lives without renewal, unless [`Elect::ttl`] says otherwise.
const TTL: Duration = Duration::from_secs(10);

/// A candidate that stands again whenever it lost. Made by [`Client::elect`].
///
/// ```no_run
/// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
/// let candidate = client.elect("scheduler").value("http://10.0.0.1:4000");
/// candidate
///     .run(|lead| async move {
///         println!("elected with token {}", lead.token());
///         std::future::pending::<()>().await // what only the leader may do
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nobody stands for election before run() is awaited"]
pub struct Elect {
    client: Client,
    name: String,
    value: String,
    ttl: Duration,
    at_most: Option<Duration>,
}

impl Elect {
    pub(crate) fn new(client: Client, name: String) -> Self {
        Self { client, name, value: String::new(), ttl: TTL, at_most: None }
    }

    /// The text that tells others about the leader: at most 4096 bytes.
    pub fn value(mut self, value: impl Into<String>) -> Self {
        self.value = value.into();
        self
    }

    /// How long the lead outlives a leader that died: 1 to 600 whole seconds, 10 by default.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Leads for this long at most at a time: whole seconds, up to a week. Then the work is dropped, others have their turn,
    /// and this stands again.
    pub fn at_most(mut self, limit: Duration) -> Self {
        self.at_most = Some(limit);
        self
    }

    /// Stands for election and runs the work while this client leads, until the work ends by itself. Then
    /// resigns, and returns what the work returned.
    ///
    /// If the lead is lost, the work is dropped where it waits, and this stands again, with a new session if
    /// need be. So the work may begin many times. It gets the [`Leadership`], with the token of its term of
    /// office.
    ///
    /// A loss does not mean that nothing was written: only a resource that checks the token knows. Passing
    /// troubles, such as no node that answers, are waited out. Anything else is an error: a refusal, an
    /// argument that is not valid. Dropping the future ends the work and the candidacy.
    ///
    /// Work that ends and leaves a clone of its [`Leadership`] elsewhere leads until that clone is dropped.
    pub async fn run<W: Future>(
        &self,
        mut work: impl FnMut(Arc<Leadership>) -> W,
    ) -> Result<W::Output, Error> {
        let mut backoff = Backoff::new();
        let mut session: Option<Session> = None;
        loop {
            let lead = match self.campaign(&mut session).await {
                Ok(lead) => Arc::new(lead),
                Err(error) if is_passing(&error) => {
                    sleep(backoff.pause()).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            backoff = Backoff::new();
            if let Ok(done) = lead.run(work(Arc::clone(&lead))).await {
                if let Some(lead) = Arc::into_inner(lead) {
                    // The work is done in any case. A resignation that gets lost is told in the background.
                    let _ = lead.resign().await;
                }
                return Ok(done);
            }
        }
    }

    /// Stands for election, by the same session if it lives.
    async fn campaign(&self, kept: &mut Option<Session>) -> Result<Leadership, Error> {
        let session = match kept.take().filter(|session| session.check().is_ok()) {
            Some(session) => session,
            None => self.client.session(self.ttl).await?,
        };
        let mut election = kept.insert(session).election(self.name.clone());
        if let Some(limit) = self.at_most {
            election = election.at_most(limit);
        }
        election.campaign(self.value.clone()).await
    }
}

/// True if standing again makes sense.
fn is_passing(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::SessionLost(_) | ErrorKind::LockHeld(_) | ErrorKind::WaitTimeout(_) => true,
        ErrorKind::Unavailable { .. } | ErrorKind::Refused(_) => error.is_retryable(),
        ErrorKind::WrongCluster { .. } | ErrorKind::Invalid(_) => false,
    }
}
