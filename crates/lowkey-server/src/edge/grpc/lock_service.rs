//! `LockService`: the calls of the table, and those that are answered with a stream.

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use lowkey_api::v1;
use lowkey_api::v1::lock_service_server::LockService;
use tonic::{Request, Response, Status, Streaming};

use super::{Grpc, StatusEvents, heartbeat, reply, reply_events, session};
use crate::call::calls;
use crate::edge::budget::Account;
use crate::edge::{Node, Rule, Ruled, Shown};

macro_rules! lock_service {
    (LockService { $(
        $_name:ident($Request:ty) -> $Response:ty {
            node: $_node:tt grpc: { $method:ident $($_short:ident)? } $($_other:tt)*
        }
    )* } $($_services:tt)*) => {
        #[tonic::async_trait]
        impl<N: Node> LockService for Grpc<N> {
            type HeartbeatStream = Pin<Box<dyn Stream<Item = Result<v1::HeartbeatResponse, Status>> + Send>>;
            type SessionStream = Pin<Box<dyn Stream<Item = Result<v1::SessionAnswer, Status>> + Send>>;
            type WatchStream = StatusEvents<v1::WatchEvent>;

            $(
                async fn $method(&self, request: Request<$Request>) -> Result<Response<$Response>, Status> {
                    let call = self.permit(request)?;
                    reply(self.node.call(call).await)
                }
            )*

            async fn watch(
                &self,
                request: Request<v1::WatchRequest>,
            ) -> Result<Response<Self::WatchStream>, Status> {
                let watch = self.permit(request)?;
                reply_events(self.node.watch(watch).await)
            }

            async fn heartbeat(
                &self,
                request: Request<Streaming<v1::HeartbeatRequest>>,
            ) -> Result<Response<Self::HeartbeatStream>, Status> {
                let (account, shown) = (account(&request), self.somebody(&request)?);
                let answers = heartbeat::answers(Arc::clone(&self.node), account, shown, request.into_inner());
                Ok(Response::new(Box::pin(answers)))
            }

            async fn session(
                &self,
                request: Request<Streaming<v1::SessionCall>>,
            ) -> Result<Response<Self::SessionStream>, Status> {
                let (account, shown) = (account(&request), self.somebody(&request)?);
                let answers = session::answers(Arc::clone(&self.node), account, shown, request.into_inner());
                Ok(Response::new(Box::pin(answers)))
            }
        }
    };
}
calls!(lock_service);

impl<N: Node> Grpc<N> {
    /// Who opens a stream of calls. Each of these is judged by itself; but the stream is for somebody only.
    fn somebody<T>(&self, request: &Request<T>) -> Result<Shown, Status> {
        let shown = Shown::of(request.extensions());
        self.node.guard().permit(&shown, StreamOfCalls)?;
        Ok(shown)
    }
}

/// Opening a stream whose messages are calls.
struct StreamOfCalls;

impl Ruled for StreamOfCalls {
    fn rule(&self) -> Rule<'_> {
        Rule::Somebody
    }
}

/// The account that the calls of a stream are charged to. A port that is served without a budget does not
/// count.
fn account<T>(request: &Request<T>) -> Arc<Account> {
    request.extensions().get::<Arc<Account>>().cloned().unwrap_or_else(Account::without_limits)
}
