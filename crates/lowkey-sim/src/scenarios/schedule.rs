//! The cluster is told to make backups, another machine leads, and in the end all of it is lost and begins anew.
//!
//! Attacked: a machine that begins from a snapshot, and a cluster that begins anew, know of the setting only what is
//! written there. One that forgot it would make no backups, and nobody would have said so.
//! Must be true: every machine knows the setting, under the next leader too; it comes back out of a snapshot, and a
//! cluster that takes this one's place has it.

use std::sync::Arc;

use lowkey_core::{BackupRule, BackupSchedule, ClusterId, Command, FirstNumbers, NewBeginning, Reply, State};
use lowkey_replica::Response;

use super::script::{ANN, N1, Script, ensure};
use crate::invariants::Check;
use crate::node::node_info;

pub(super) fn stays(script: &mut Script) -> Check {
    let rule = BackupRule::parse("s3://backups/lowkey", 600, 48).expect("a rule within the limits");
    let schedule = Some(Arc::new(BackupSchedule::On(rule)));
    let set = Command::SetBackupSchedule(schedule.clone());
    let answer = script.command(N1, "set how backups are made", set)?;
    ensure(answer == Ok(Response::Applied(Reply::BackupScheduleSet)), || {
        format!("it is answered {answer:?}")
    })?;
    let second = script.hand_over(N1)?;
    script.take_lock(ANN, second, 2)?;
    let Some(lane) = script.lane(second) else {
        return ensure(false, || "the next leader is gone".to_owned());
    };
    let state = lane.replica.state();
    let known = state.backup_schedule().cloned();
    ensure(known == schedule, || format!("the next leader knows of {known:?}"))?;
    let read = State::decode_snapshot(&state.encode_snapshot());
    let known = read.as_ref().ok().and_then(|read| read.backup_schedule().cloned());
    ensure(known == schedule, || format!("out of a snapshot it is {known:?}"))?;
    let anew = state.begin_anew(NewBeginning {
        cluster: ClusterId([9; 16]),
        node: node_info(9),
        numbers: FirstNumbers::Unclaimed { unix_minutes: 29_900_000, spread: 0 },
        keep_tokens: false,
        quarantine: true,
    });
    let known = anew.ok().and_then(|(state, _)| state.backup_schedule().cloned());
    ensure(known == schedule, || format!("the cluster that begins anew has {known:?}"))?;
    script.end(1)
}
