//! Watches and observers: what the hub must know before a stream can begin.

use lowkey_api::ApiError;
use lowkey_api::v1::{GetLockRequest, ObserveEvent, ObserveRequest, WatchEvent, WatchRequest};
use lowkey_core::{Invalid, LockName, NamePrefix};
use lowkey_replica::{Filter, Position};

use super::{Service, check_standing};
use crate::access::Permitted;
use crate::call::Place;
use crate::edge::{Events, Node as _};
use crate::operation::in_words_of_elections;
use crate::peers::proto::ReadRevisionRequest;
use crate::watch::Start;

impl Service {
    pub(super) async fn begin_watch(
        &self,
        permitted: Permitted<WatchRequest>,
    ) -> Result<Events<WatchEvent>, ApiError> {
        let request = permitted.wanted();
        let invalid = |invalid: Invalid| ApiError::invalid(invalid.field, invalid.problem);
        let filter = filter(request).map_err(invalid)?;
        let start = start(request).map_err(invalid)?;
        let lane = match &filter {
            Filter::Name(name) => self.lanes.of(Place::Name(name.as_str())),
            Filter::Prefix(prefix) => self.lanes.of(Place::Prefix(prefix.as_str())),
        };
        check_standing(lane)?;
        // A change may have happened although this node has not applied it yet. The leader knows.
        if start.needs() > lane.hub.applied() {
            let committed = self.operate(permitted.as_part(ReadRevisionRequest {})).await?.revision;
            lane.hub.wait_applied(start.needs().min(committed)).await?;
        }
        let complete_through = match start {
            // The hub is a moment behind the replica. A change that was acknowledged before this request is
            // not news.
            Start::Now => {
                lane.hub.wait_applied(lane.view.status().applied).await?;
                lane.hub.applied()
            }
            Start::From(_) | Start::After(_) => start.needs(),
        };
        let events = lane.hub.watch(filter, start)?;
        let (request, caller) = permitted.into_parts();
        Ok(Events::new(complete_through, lane.view.guard.while_permitted(caller, request, events)))
    }

    pub(super) async fn begin_observing(
        &self,
        permitted: Permitted<ObserveRequest>,
    ) -> Result<Events<ObserveEvent>, ApiError> {
        // Who may watch may know who is there: it is asked in this node's own name.
        let read = GetLockRequest { lock_name: permitted.wanted().election.clone(), stale: false };
        let read = self.guard().for_node(read);
        let present = self.operate(read).await.map_err(in_words_of_elections)?;
        let election = LockName::parse(&present.lock_name)
            .map_err(|invalid| ApiError::invalid("election", invalid.problem))?;
        let lane = self.lanes.of(Place::Name(election.as_str()));
        let events = lane.hub.observe(election.clone(), present.holders, present.revision).await?;
        let (request, caller) = permitted.into_parts();
        Ok(Events::new(present.revision, lane.view.guard.while_permitted(caller, request, events)))
    }
}

fn filter(request: &WatchRequest) -> Result<Filter, Invalid> {
    match (request.name.as_str(), request.prefix.as_str()) {
        ("", prefix) => NamePrefix::parse(prefix).map(Filter::Prefix),
        (name, "") => {
            LockName::parse(name).map(Filter::Name).map_err(|invalid| Invalid::new("name", invalid.problem))
        }
        (_, _) => Err(Invalid::new("prefix", "must be left out where name says which lock to watch")),
    }
}

fn start(request: &WatchRequest) -> Result<Start, Invalid> {
    match (request.from, request.after.as_str()) {
        (0, "") => Ok(Start::Now),
        (from, "") => Ok(Start::From(from)),
        (0, after) => {
            let after: lowkey_api::Position =
                after.parse().map_err(|problem| Invalid::new("after", format!("{problem}")))?;
            Ok(Start::After(Position { revision: after.revision, ordinal: after.ordinal }))
        }
        (_, _) => Err(Invalid::new("after", "must be left out where from says where to begin")),
    }
}
