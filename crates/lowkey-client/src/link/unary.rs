//! The link's stream, made of single calls: for servers that do not offer a stream.

use std::collections::HashMap;

use futures::StreamExt as _;
use futures::stream::{BoxStream, FuturesUnordered};
use lowkey_api::ApiError;
use lowkey_api::v1::election_service_client::ElectionServiceClient;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{
    HeartbeatResponse, LeasesRenewed, RenewLeaseRequest, RenewLeaseResponse, SessionAnswer, SessionCall,
};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status};

use crate::wire::Wire;

/// Both ends of such a stream.
pub(super) fn open(
    channel: Wire,
) -> (mpsc::UnboundedSender<SessionCall>, BoxStream<'static, Result<SessionAnswer, Status>>) {
    let (calls, call_receiver) = mpsc::unbounded_channel();
    let (answers, answer_receiver) = mpsc::unbounded_channel();
    tokio::spawn(run(channel, call_receiver, answers));
    (calls, UnboundedReceiverStream::new(answer_receiver).boxed())
}

async fn run(
    channel: Wire,
    mut calls: mpsc::UnboundedReceiver<SessionCall>,
    answers: mpsc::UnboundedSender<Result<SessionAnswer, Status>>,
) {
    let mut under_way: JoinSet<u64> = JoinSet::new();
    let mut by_seq: HashMap<u64, AbortHandle> = HashMap::new();
    loop {
        tokio::select! {
            call = calls.recv() => match call {
                None => return,
                Some(SessionCall { call: Some(Call::Cancel(seq)), .. }) => {
                    if let Some(task) = by_seq.remove(&seq) {
                        task.abort();
                    }
                }
                Some(SessionCall { seq, call: Some(call) }) => {
                    let (channel, answers) = (channel.clone(), answers.clone());
                    let task = under_way.spawn(async move {
                        let answer = answer(channel, call).await;
                        // The reader of the answers is gone only with this task's stream.
                        let _ = answers.send(answer.map(|answer| SessionAnswer { seq, answer: Some(answer) }));
                        seq
                    });
                    by_seq.insert(seq, task);
                }
                Some(SessionCall { call: None, .. }) => {}
            },
            Some(ended) = under_way.join_next() => {
                if let Ok(seq) = ended {
                    by_seq.remove(&seq);
                }
            }
        }
    }
}

/// The answer. An error is one of the connection, and ends the stream.
async fn answer(channel: Wire, call: Call) -> Result<Answer, Status> {
    let mut client = LockServiceClient::new(channel.clone());
    let answer = match call {
        Call::CreateLease(request) => {
            client.create_lease(request).await.map(|r| Answer::CreateLease(r.into_inner()))
        }
        Call::RevokeLease(request) => {
            client.revoke_lease(request).await.map(|r| Answer::RevokeLease(r.into_inner()))
        }
        Call::AcquireLock(request) => {
            client.acquire_lock(request).await.map(|r| Answer::AcquireLock(r.into_inner()))
        }
        Call::ReleaseLock(request) => {
            client.release_lock(request).await.map(|r| Answer::ReleaseLock(r.into_inner()))
        }
        Call::GetLease(request) => client.get_lease(request).await.map(|r| Answer::GetLease(r.into_inner())),
        Call::GetLock(request) => client.get_lock(request).await.map(|r| Answer::GetLock(r.into_inner())),
        Call::RenewLeases(request) => {
            let holds = request.holds.into_iter().map(Some).chain(std::iter::repeat(None));
            let leases = request.lease_ids.into_iter().zip(holds);
            let renewals =
                leases.map(|(lease_id, holds)| renew(client.clone(), RenewLeaseRequest { lease_id, holds }));
            let renewals: Vec<HeartbeatResponse> = renewals.collect::<FuturesUnordered<_>>().collect().await;
            Ok(Answer::RenewLeases(LeasesRenewed { renewals }))
        }
        Call::Proclaim(request) => {
            let mut client = ElectionServiceClient::new(channel);
            client.proclaim(request).await.map(|r| Answer::Proclaim(r.into_inner()))
        }
        // Watches have streams of their own, and a cancel is not answered.
        Call::Watch(_) | Call::Cancel(_) => Err(Status::unimplemented("not over single calls")),
    };
    answer.or_else(|status| match ApiError::from_status(&status) {
        Some(error) => Ok(Answer::Error(error.into())),
        None if status.code() == Code::Unavailable || status.code() == Code::Unknown => Err(status),
        None => Ok(Answer::Error(ApiError::new(lowkey_api::Reason::Internal, status.message()).into())),
    })
}

async fn renew(mut client: LockServiceClient<Wire>, request: RenewLeaseRequest) -> HeartbeatResponse {
    let lease_id = request.lease_id;
    let (renewed, refused) = match client.renew_lease(request).await {
        Ok(response) => (response.into_inner(), None),
        Err(status) => (RenewLeaseResponse::default(), Some(status)),
    };
    let error = refused.as_ref().map(|status| {
        ApiError::from_status(status)
            .unwrap_or_else(|| ApiError::new(lowkey_api::Reason::NoLeader, status.message()))
    });
    HeartbeatResponse {
        lease_id,
        ttl_seconds: renewed.ttl_seconds,
        holds_differ: renewed.holds_differ,
        error_reason: error.as_ref().map(|error| error.reason.to_string()).unwrap_or_default(),
        error_message: error.map(|error| error.message).unwrap_or_default(),
        ..HeartbeatResponse::default()
    }
}
