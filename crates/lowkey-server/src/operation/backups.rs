//! Backups at a client's wish.

use lowkey_api::v1::{CreateBackupRequest, CreateBackupResponse};
use lowkey_api::{ApiError, Reason};
use lowkey_backup::StoreUrl;

use super::Answer;
use crate::access::Permitted;
use crate::peers::proto::ReadRevisionRequest;
use crate::service::Service;

impl Answer for CreateBackupRequest {
    async fn answer(call: Permitted<Self>, service: &Service) -> Result<CreateBackupResponse, ApiError> {
        let to = destination(service, &call.wanted().to)?;
        // What was acknowledged before this request is to be in it, also at a node that is behind.
        let committed = service.operate(call.as_part(ReadRevisionRequest {})).await?.revision;
        let made = service.backups.make(to.clone(), committed).await;
        let made = made.map_err(|cause| {
            ApiError::new(Reason::BackupFailed, format!("the backup to {to} could not be made: {cause}"))
        })?;
        Ok(CreateBackupResponse {
            backup_id: made.id.to_string(),
            url: to.to_string(),
            size_bytes: made.manifest.size_bytes(),
            revision: made.id.revision(),
            fencing_counter: made.manifest.groups.iter().map(|group| group.last_token).max().unwrap_or(0),
            took_ms: u64::try_from(made.took.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

/// Where the backup goes. A node writes with its own rights, also to its own disk: where it has not been told to by who
/// started it, only those may tell it who could as well do it themselves.
fn destination(service: &Service, to: &str) -> Result<StoreUrl, ApiError> {
    let planned = service.backups.plan.as_ref().map(|plan| &plan.to);
    if to.is_empty() {
        return planned.cloned().ok_or_else(|| {
            let problem = "must name a store: this node was started without --backup-to";
            ApiError::invalid("to", problem.to_owned())
        });
    }
    let wanted: StoreUrl =
        to.parse().map_err(|error: lowkey_backup::BackupError| ApiError::invalid("to", error.to_string()))?;
    if service.trusts_network || planned.is_some_and(|planned| wanted.is_within(planned)) {
        return Ok(wanted);
    }
    let place = planned
        .map_or_else(|| "nowhere, without --backup-to".to_owned(), |planned| format!("within {planned}"));
    Err(ApiError::new(
        Reason::BackupNotAllowed,
        format!(
            "this node makes backups at a client's wish {place}; start it with --backup-to to name another place"
        ),
    ))
}
