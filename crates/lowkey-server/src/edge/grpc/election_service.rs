//! `ElectionService`.

use lowkey_api::v1::election_service_server::ElectionService;
use lowkey_api::v1::{
    CampaignRequest, CampaignResponse, LeaderRequest, LeaderResponse, ObserveEvent, ObserveRequest,
    ProclaimRequest, ProclaimResponse, ResignRequest, ResignResponse,
};
use tonic::{Request, Response, Status};

use super::{Grpc, StatusEvents, reply, reply_events};
use crate::edge::Node;

#[tonic::async_trait]
impl<N: Node> ElectionService for Grpc<N> {
    type ObserveStream = StatusEvents<ObserveEvent>;

    async fn campaign(
        &self,
        request: Request<CampaignRequest>,
    ) -> Result<Response<CampaignResponse>, Status> {
        reply(self.node.campaign(request.into_inner()).await)
    }

    async fn proclaim(
        &self,
        request: Request<ProclaimRequest>,
    ) -> Result<Response<ProclaimResponse>, Status> {
        reply(self.node.proclaim(request.into_inner()).await)
    }

    async fn resign(&self, request: Request<ResignRequest>) -> Result<Response<ResignResponse>, Status> {
        reply(self.node.resign(request.into_inner()).await)
    }

    async fn leader(&self, request: Request<LeaderRequest>) -> Result<Response<LeaderResponse>, Status> {
        reply(self.node.leader(request.into_inner()).await)
    }

    async fn observe(
        &self,
        request: Request<ObserveRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        reply_events(self.node.observe(request.into_inner()).await)
    }
}
