//! Backups at a client's wish, and their schedule.

use std::sync::Arc;

use lowkey_api::v1::{
    CreateBackupRequest, CreateBackupResponse, GetBackupScheduleRequest, GetBackupScheduleResponse,
    SetBackupScheduleRequest, SetBackupScheduleResponse,
};
use lowkey_api::{ApiError, Reason};
use lowkey_backup::{BackupError, StoreUrl};
use lowkey_core::{BackupRule, BackupSchedule, Command, Invalid, Reply};
use lowkey_replica::{Query, Request, Response};

use super::{Answer, Operation, unexpected};
use crate::access::Permitted;
use crate::backups::described;
use crate::peers::proto::{ReadBackupScheduleRequest, ReadRevisionRequest};
use crate::service::Service;

/// The time from one backup to the next, and how many are kept, if a schedule does not say: as without flags.
const EVERY_SECONDS: i64 = 600;
const KEEP: i32 = 48;

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
    let backups = &service.backups;
    if !to.is_empty() {
        let wanted = store_url(to).map_err(|invalid| ApiError::invalid(invalid.field, invalid.problem))?;
        return backups.bounds.permit(&wanted).map_err(not_allowed).map(|()| wanted);
    }
    let plan = backups.in_force().map_err(not_allowed)?;
    // Also where the cluster makes none by itself.
    plan.or_else(|| backups.bounds.flags.clone()).map(|plan| plan.to).ok_or_else(|| {
        let problem =
            "must name a store: this node was started without --backup-to, and the cluster has no schedule";
        ApiError::invalid("to", problem.to_owned())
    })
}

fn store_url(to: &str) -> Result<StoreUrl, Invalid> {
    to.parse().map_err(|error: BackupError| Invalid::new("to", error.to_string()))
}

fn not_allowed(problem: String) -> ApiError {
    ApiError::new(Reason::BackupNotAllowed, problem)
}

impl Operation for SetBackupScheduleRequest {
    /// The place is one that this node may write to. Others have flags of their own: each leader judges again.
    fn permit(&self, service: &Service) -> Result<(), ApiError> {
        match store_url(&self.to) {
            Ok(to) => service.backups.bounds.permit(&to).map_err(not_allowed),
            // Nothing to judge, or it is refused as it is parsed.
            Err(_) => Ok(()),
        }
    }

    fn parse(&self) -> Result<Request, Invalid> {
        let schedule = match (self.to.as_str(), self.off, self.from_flags) {
            ("", true, false) => Some(BackupSchedule::Off),
            ("", false, true) => None,
            ("", false, false) => {
                return Err(Invalid::new("to", "must name a store, if neither off nor from_flags is true"));
            }
            (_, _, true) => {
                return Err(Invalid::new("from_flags", "must be the only one of to, off and from_flags"));
            }
            (_, true, false) => {
                return Err(Invalid::new("off", "must be the only one of to, off and from_flags"));
            }
            (to, false, false) => {
                let to = store_url(to)?.to_string();
                let every_seconds = if self.every_seconds == 0 { EVERY_SECONDS } else { self.every_seconds };
                let keep = if self.keep == 0 { KEEP } else { self.keep };
                Some(BackupSchedule::On(BackupRule::parse(&to, every_seconds, keep.into())?))
            }
        };
        let numbers = [("every_seconds", self.every_seconds), ("keep", self.keep.into())];
        if self.to.is_empty()
            && let Some((field, _)) = numbers.into_iter().find(|(_, number)| *number != 0)
        {
            return Err(Invalid::new(field, "must be 0 without a store"));
        }
        Ok(Request::Command(Command::SetBackupSchedule(schedule.map(Arc::new))))
    }

    fn respond(&self, response: Response) -> Result<SetBackupScheduleResponse, ApiError> {
        match response {
            Response::Applied(Reply::BackupScheduleSet) => Ok(SetBackupScheduleResponse {}),
            other => Err(unexpected(&other)),
        }
    }
}

impl Operation for ReadBackupScheduleRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        Ok(Request::Read(Query::BackupSchedule))
    }

    fn respond(&self, response: Response) -> Result<GetBackupScheduleResponse, ApiError> {
        match response {
            Response::BackupSchedule(schedule) => Ok(described(schedule.as_deref())),
            other => Err(unexpected(&other)),
        }
    }
}

impl Answer for GetBackupScheduleRequest {
    async fn answer(call: Permitted<Self>, service: &Service) -> Result<GetBackupScheduleResponse, ApiError> {
        let set = service.operate(call.as_part(ReadBackupScheduleRequest {})).await?;
        let Some(by_leader) = service.leaders_backups().await else { return Ok(set) };
        // The leader's report may be a moment older than the setting that was read. Then it is about another schedule.
        let of_setting = |told: &GetBackupScheduleResponse| {
            (told.to.clone(), told.every_seconds, told.keep, told.off, told.from_flags)
        };
        if set.from_flags && by_leader.from_flags || of_setting(&set) == of_setting(&by_leader) {
            return Ok(by_leader);
        }
        Ok(GetBackupScheduleResponse { leader_id: by_leader.leader_id, ..set })
    }
}
