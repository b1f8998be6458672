//! `AccessService`: the calls of the table.

use lowkey_api::v1;
use lowkey_api::v1::access_service_server::AccessService;
use tonic::{Request, Response, Status};

use super::{Grpc, reply};
use crate::call::calls;
use crate::edge::Node;

macro_rules! access_service {
    (LockService $_locks:tt ElectionService $_elections:tt AccessService { $(
        $_name:ident($Request:ty) -> $Response:ty {
            node: $_node:tt grpc: { $method:ident } $($_other:tt)*
        }
    )* } $($_services:tt)*) => {
        #[tonic::async_trait]
        impl<N: Node> AccessService for Grpc<N> {
            $(
                async fn $method(&self, request: Request<$Request>) -> Result<Response<$Response>, Status> {
                    let call = self.permit(request)?;
                    reply(self.node.call(call).await)
                }
            )*
        }
    };
}
calls!(access_service);
