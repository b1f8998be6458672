//! Backups and their schedule: for operators.

use std::time::Duration;

use lowkey_api::v1::{
    CreateBackupRequest, CreateBackupResponse, GetBackupScheduleRequest, GetBackupScheduleResponse,
    SetBackupScheduleRequest,
};

use crate::client::{Client, Effect};
use crate::error::Error;
use crate::random;

impl Client {
    /// Has a node make a backup now: to this URL, or, if that is empty, to where the node keeps its backups. Returns when
    /// it is written and read back, or when the time is up; then it may be made all the same.
    ///
    /// The node writes with its own credentials. Fails with the reason `BACKUP_NOT_ALLOWED` if it may not write there at a
    /// client's wish, and with `BACKUP_FAILED` if it could not.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
    /// let made = client.create_backup("s3://backups/lowkey", std::time::Duration::from_secs(600)).await?;
    /// println!("{}: {} bytes", made.backup_id, made.size_bytes);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_backup(
        &self,
        to: impl Into<String>,
        within: Duration,
    ) -> Result<CreateBackupResponse, Error> {
        let request = CreateBackupRequest { to: to.into(), request_id: random::request_id() };
        // Asked twice, there are two backups, and both are good.
        self.inner
            .unary_within(within, Effect::Change, &request, |mut client, request| async move {
                client.create_backup(request).await
            })
            .await
    }

    /// The schedule of backups that is in force, where it comes from, and how the leader does with it.
    pub async fn backup_schedule(&self) -> Result<GetBackupScheduleResponse, Error> {
        let request = GetBackupScheduleRequest {};
        self.inner
            .unary(Effect::None, &request, |mut client, request| async move {
                client.get_backup_schedule(request).await
            })
            .await
    }

    /// Sets the schedule of backups for the whole cluster, in place of the one that was set before. The leader keeps to it
    /// at once.
    ///
    /// Fails with the reason `BACKUP_NOT_ALLOWED` if the node that is asked may not write there at a client's wish.
    pub async fn set_backup_schedule(&self, schedule: SetBackupScheduleRequest) -> Result<(), Error> {
        let request = SetBackupScheduleRequest { request_id: random::request_id(), ..schedule };
        // It is replaced as a whole: to ask twice is to ask once.
        self.inner
            .unary(Effect::None, &request, |mut client, request| async move {
                client.set_backup_schedule(request).await
            })
            .await?;
        Ok(())
    }
}
