//! `ElectionService`: the calls of the table, and those that are answered with a stream.

use lowkey_api::v1;
use lowkey_api::v1::election_service_server::ElectionService;
use tonic::{Request, Response, Status};

use super::{Grpc, StatusEvents, reply, reply_events};
use crate::call::calls;
use crate::edge::Node;

macro_rules! election_service {
    (LockService $_locks:tt ElectionService { $(
        $_name:ident($Request:ty) -> $Response:ty {
            node: $_node:tt grpc: { $method:ident } $($_other:tt)*
        }
    )* } $($_services:tt)*) => {
        #[tonic::async_trait]
        impl<N: Node> ElectionService for Grpc<N> {
            type ObserveStream = StatusEvents<v1::ObserveEvent>;

            $(
                async fn $method(&self, request: Request<$Request>) -> Result<Response<$Response>, Status> {
                    let call = self.permit(request)?;
                    reply(self.node.call(call).await)
                }
            )*

            async fn observe(
                &self,
                request: Request<v1::ObserveRequest>,
            ) -> Result<Response<Self::ObserveStream>, Status> {
                let observe = self.permit(request)?;
                reply_events(self.node.observe(observe).await)
            }
        }
    };
}
calls!(election_service);
