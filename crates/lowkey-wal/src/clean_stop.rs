//! The clean-stop marker: where a log ended that was closed.
//!
//! After a crash the last batch cannot be told from a torn one. After a clean stop it can: the marker
//! says exactly where the log ends, so that even its last byte is accounted for. It is removed before
//! anything new is written.

use crate::batch::u64_at;
use crate::disk::Disk;
use crate::error::WalError;
use crate::sealed;
use crate::segment::CLEAN_STOP;

const KIND: [u8; 4] = *b"STOP";
const PAYLOAD_BYTES: usize = 40;

/// The end of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CleanStop {
    pub(crate) identity: [u8; 16],
    /// The last batch.
    pub(crate) sequence: u64,
    /// The segment and the offset where the next one would begin.
    pub(crate) segment: u64,
    pub(crate) offset: u64,
}

impl CleanStop {
    pub(crate) fn write(&self, disk: &dyn Disk) -> Result<(), WalError> {
        let mut payload = Vec::with_capacity(PAYLOAD_BYTES);
        payload.extend_from_slice(&self.identity);
        payload.extend_from_slice(&self.sequence.to_le_bytes());
        payload.extend_from_slice(&self.segment.to_le_bytes());
        payload.extend_from_slice(&self.offset.to_le_bytes());
        Ok(sealed::write(disk, CLEAN_STOP, KIND, &payload)?)
    }

    pub(crate) fn read(disk: &dyn Disk, expected_identity: [u8; 16]) -> Result<Option<CleanStop>, WalError> {
        let Some(payload) = sealed::read(disk, CLEAN_STOP, KIND)? else {
            return Ok(None);
        };
        if payload.len() != PAYLOAD_BYTES {
            return Err(WalError::corrupt(CLEAN_STOP, 0, "it has the wrong length"));
        }
        let mut identity = [0; 16];
        identity.copy_from_slice(&payload[..16]);
        if identity != expected_identity {
            return Err(WalError::Foreign { file: CLEAN_STOP.to_string(), offset: 0, found: identity });
        }
        Ok(Some(CleanStop {
            identity,
            sequence: u64_at(&payload, 16),
            segment: u64_at(&payload, 24),
            offset: u64_at(&payload, 32),
        }))
    }

    /// Removes the marker, durably.
    pub(crate) fn remove(disk: &dyn Disk) -> Result<(), WalError> {
        disk.remove(CLEAN_STOP).map_err(|source| WalError::io("removing", CLEAN_STOP, source))?;
        disk.sync_dir().map_err(|source| WalError::io("syncing the directory of", CLEAN_STOP, source))
    }
}
