//! `LockService`: the calls of the table, and those that are answered with a stream.

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use lowkey_api::v1;
use lowkey_api::v1::lock_service_server::LockService;
use tonic::{Request, Response, Status, Streaming};

use super::{Grpc, StatusEvents, heartbeat, reply, reply_events, session};
use crate::call::calls;
use crate::edge::Node;
use crate::edge::budget::Account;

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
                    reply(self.node.call(request.into_inner()).await)
                }
            )*

            async fn watch(
                &self,
                request: Request<v1::WatchRequest>,
            ) -> Result<Response<Self::WatchStream>, Status> {
                reply_events(self.node.watch(request.into_inner()).await)
            }

            async fn heartbeat(
                &self,
                request: Request<Streaming<v1::HeartbeatRequest>>,
            ) -> Result<Response<Self::HeartbeatStream>, Status> {
                let account = account(&request);
                let answers = heartbeat::answers(Arc::clone(&self.node), account, request.into_inner());
                Ok(Response::new(Box::pin(answers)))
            }

            async fn session(
                &self,
                request: Request<Streaming<v1::SessionCall>>,
            ) -> Result<Response<Self::SessionStream>, Status> {
                let account = account(&request);
                let answers = session::answers(Arc::clone(&self.node), account, request.into_inner());
                Ok(Response::new(Box::pin(answers)))
            }
        }
    };
}
calls!(lock_service);

/// The account that the calls of a stream are charged to. A port that is served without a budget does not
/// count.
fn account<T>(request: &Request<T>) -> Arc<Account> {
    request.extensions().get::<Arc<Account>>().cloned().unwrap_or_else(Account::without_limits)
}
