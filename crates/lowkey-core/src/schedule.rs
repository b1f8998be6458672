//! The schedule of backups, as a setting of the cluster.
//!
//! The state keeps where backups go, how often, and how many are kept. It makes none: that is the leader's work, and
//! whether a node may write to that place is for each node to judge (`lowkey-server/src/backups.rs`). A cluster that was
//! never told has no setting: the flags of its nodes decide.
//!
//! - A setting is one value: it is replaced as a whole, so setting it twice is setting it once.
//! - A place contains no credentials. The setting is shown, logged, and part of every backup.

use std::sync::Arc;

use crate::digest::DigestPart;
use crate::encoding::DecodeError;
use crate::fields::{Fields, Sink};
use crate::limits::{BACKUP_EVERY_SECONDS_MAX, BACKUP_KEEP_MAX, BACKUP_URL_BYTES_MAX};
use crate::name::Invalid;
use crate::state::State;

/// What a cluster says of its backups, if it says anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupSchedule {
    /// None are made by themselves, whatever the flags of nodes say.
    Off,
    /// They are made by this rule.
    On(BackupRule),
}

/// Where backups go, how often, and how many are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupRule {
    to: String,
    every_seconds: u32,
    keep: u32,
}

impl BackupRule {
    /// Takes a rule that is within the limits, and whose place names no credentials.
    pub fn parse(to: &str, every_seconds: i64, keep: i64) -> Result<Self, Invalid> {
        let (_, behind_scheme) = to.split_once("://").ok_or_else(|| {
            Invalid::new("to", "must be a URL such as s3://BUCKET/FOLDER or file:///FOLDER")
        })?;
        if to.len() > BACKUP_URL_BYTES_MAX {
            return Err(Invalid::new("to", format!("must not be longer than {BACKUP_URL_BYTES_MAX} bytes")));
        }
        if !to.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Invalid::new(
                "to",
                "must not contain spaces and characters beyond ASCII: write them as %20",
            ));
        }
        if behind_scheme.split('/').next().is_some_and(|host| host.contains('@')) {
            return Err(Invalid::new("to", "must not contain credentials: they belong into the environment"));
        }
        let within = |field, number: i64, max: u32| {
            let number = u32::try_from(number).ok().filter(|number| (1..=max).contains(number));
            number.ok_or_else(|| Invalid::new(field, format!("must be 1 to {max}")))
        };
        Ok(Self {
            to: to.to_owned(),
            every_seconds: within("every_seconds", every_seconds, BACKUP_EVERY_SECONDS_MAX)?,
            keep: within("keep", keep, BACKUP_KEEP_MAX)?,
        })
    }

    /// The URL of the store.
    pub fn to(&self) -> &str {
        &self.to
    }

    /// The time from one to the next.
    pub fn every_seconds(&self) -> u32 {
        self.every_seconds
    }

    /// How many of the cluster are kept.
    pub fn keep(&self) -> u32 {
        self.keep
    }
}

impl State {
    /// What the cluster says of its backups; nothing if the flags of its nodes decide.
    pub fn backup_schedule(&self) -> Option<&Arc<BackupSchedule>> {
        self.backup_schedule.as_ref()
    }

    /// Replaces the setting. Only here, so that the digest is in step.
    pub(crate) fn set_backup_schedule(&mut self, schedule: Option<Arc<BackupSchedule>>) {
        if let Some(before) = &self.backup_schedule {
            self.digest.take(DigestPart::BackupSchedule(before));
        }
        if let Some(now) = &schedule {
            self.digest.add(DigestPart::BackupSchedule(now));
        }
        self.backup_schedule = schedule;
    }
}

/// The setting in an entry and in a snapshot. All of it is empty where the flags of nodes decide.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct BackupScheduleProto {
    #[prost(string, tag = "1")]
    to: String,
    #[prost(uint32, tag = "2")]
    every_seconds: u32,
    #[prost(uint32, tag = "3")]
    keep: u32,
    #[prost(bool, tag = "4")]
    is_off: bool,
}

impl BackupScheduleProto {
    /// The setting that this is, if it is one.
    pub(crate) fn decode(self) -> Result<Option<BackupSchedule>, DecodeError> {
        let Self { to, every_seconds, keep, is_off } = self;
        let is_rule = !to.is_empty() || every_seconds != 0 || keep != 0;
        match (is_off, is_rule) {
            (false, false) => Ok(None),
            (true, false) => Ok(Some(BackupSchedule::Off)),
            (false, true) => {
                Ok(Some(BackupSchedule::On(BackupRule::parse(&to, every_seconds.into(), keep.into())?)))
            }
            (true, true) => Err(DecodeError::Malformed("a schedule of backups that is off and on".into())),
        }
    }
}

/// Writes the setting as the fields of an entry.
pub(crate) fn write_schedule<S: Sink>(schedule: Option<&BackupSchedule>, fields: &mut Fields<'_, S>) {
    match schedule {
        None => {}
        Some(BackupSchedule::Off) => fields.number(4, 1),
        Some(BackupSchedule::On(BackupRule { to, every_seconds, keep })) => {
            fields.text(1, to);
            fields.number(2, (*every_seconds).into());
            fields.number(3, (*keep).into());
        }
    }
}

impl From<&BackupSchedule> for BackupScheduleProto {
    fn from(schedule: &BackupSchedule) -> Self {
        match schedule {
            BackupSchedule::Off => Self { is_off: true, ..Self::default() },
            BackupSchedule::On(BackupRule { to, every_seconds, keep }) => {
                Self { to: to.clone(), every_seconds: *every_seconds, keep: *keep, is_off: false }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(to: &str, every_seconds: i64, keep: i64) -> Invalid {
        BackupRule::parse(to, every_seconds, keep).unwrap_err()
    }

    #[test]
    fn a_rule_is_within_its_limits_and_names_no_secret() {
        let longest = format!("s3://{}", "b".repeat(BACKUP_URL_BYTES_MAX - "s3://".len()));
        for (to, every_seconds, keep) in [
            ("s3://backups/lowkey", 600, 48),
            ("file:///var/a@b", 1, 1),
            (longest.as_str(), BACKUP_EVERY_SECONDS_MAX.into(), BACKUP_KEEP_MAX.into()),
        ] {
            let rule = BackupRule::parse(to, every_seconds, keep).unwrap();
            let told = (rule.to(), i64::from(rule.every_seconds()), i64::from(rule.keep()));
            assert_eq!(told, (to, every_seconds, keep));
        }
        for (to, why) in [
            ("", "must be a URL"),
            ("/var/backups", "must be a URL"),
            ("s3://key:secret@backups/lowkey", "credentials"),
            ("s3://key@backups", "credentials"),
            ("s3://a b", "spaces"),
            ("s3://ü", "ASCII"),
            (&format!("{longest}b"), "1024"),
        ] {
            let Invalid { field, problem } = problem(to, 600, 48);
            assert!(field == "to" && problem.contains(why) && !problem.contains("secret"), "{to}: {problem}");
        }
        for every_seconds in [i64::MIN, -1, 0, 2_678_401, i64::MAX] {
            assert_eq!(problem("s3://b", every_seconds, 48).field, "every_seconds");
        }
        for keep in [-1, 0, 100_001, i64::MAX] {
            assert_eq!(problem("s3://b", 600, keep).field, "keep");
        }
    }

    #[test]
    fn an_entry_that_contradicts_itself_is_malformed() {
        let on = BackupScheduleProto { to: "s3://b".into(), every_seconds: 600, keep: 48, is_off: false };
        assert!(on.clone().decode().is_ok());
        for bad in [
            BackupScheduleProto { is_off: true, ..on.clone() },
            BackupScheduleProto { to: String::new(), ..on.clone() },
            BackupScheduleProto { to: "s3://key:secret@b".into(), ..on.clone() },
            BackupScheduleProto { every_seconds: 0, ..on.clone() },
            BackupScheduleProto { keep: 0, ..on },
        ] {
            assert!(matches!(bad.clone().decode(), Err(DecodeError::Malformed(_))), "{bad:?}");
        }
    }

    #[test]
    fn the_setting_is_part_of_the_digest_and_only_with_it_is_a_snapshot_of_a_newer_version() {
        let mut state = State::new(crate::ClusterId([7; 16]));
        let (empty, bytes) = (state.digest(), state.encode_snapshot());
        assert_eq!(bytes[..2], [0x08, 2]);
        let rule = |keep| BackupSchedule::On(BackupRule::parse("s3://b", 600, keep).unwrap());
        let mut digests = std::collections::BTreeSet::from([empty]);
        for schedule in [rule(48), rule(49), BackupSchedule::Off] {
            state.set_backup_schedule(Some(Arc::new(schedule)));
            assert!(digests.insert(state.digest()), "replicas would not notice that they differ");
            assert_eq!(state.encode_snapshot()[..2], [0x08, 6]);
            assert_eq!(State::decode_snapshot(&state.encode_snapshot()).as_ref(), Ok(&state));
        }
        state.set_backup_schedule(None);
        assert_eq!((state.digest(), state.encode_snapshot()), (empty, bytes), "as if there had been none");
    }
}
