//! One SQLite file.
//!
//! In write-ahead mode, and `synchronous = NORMAL`: a transaction costs no sync, and a reader sees it at once. It survives
//! the process; [`AuditFile::sync`] has it survive a loss of power. A file that is full is taken out of write-ahead mode, so
//! that it is one file again, which anybody can read.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};

use crate::row::{Gap, GapCause, Happening, Row};

/// What a file has. `grants` has no key but its number: rows come in the order of their positions, so the number is in that
/// order too, and a position is found by halves. The unique index is the key (a file is of one cluster), and finds tokens.
/// The view is made anew by each version: its first columns have the names that tables of locks usually have, its last
/// ones those of the API, and `detail` says the same as `Row::detail`.
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS about (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  cluster TEXT NOT NULL,
  begins_after INTEGER NOT NULL,
  through INTEGER NOT NULL,
  newest_unix_ms INTEGER NOT NULL,
  begun_unix_ms INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS grants (
  id INTEGER PRIMARY KEY,
  lock TEXT NOT NULL,
  token INTEGER NOT NULL,
  owner TEXT NOT NULL,
  lease INTEGER NOT NULL,
  shared INTEGER NOT NULL,
  subtree INTEGER NOT NULL,
  ttl_seconds INTEGER NOT NULL,
  asked_unix_ms INTEGER,
  granted_unix_ms INTEGER NOT NULL,
  granted_revision INTEGER NOT NULL,
  ended_unix_ms INTEGER,
  ended_revision INTEGER NOT NULL,
  ended_ordinal INTEGER NOT NULL,
  term INTEGER NOT NULL,
  cause TEXT NOT NULL,
  actor TEXT,
  silent_ms INTEGER,
  stalled_ms INTEGER,
  leader_changed INTEGER,
  perhaps_uncommitted INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS grants_by_token ON grants (token, lock);
CREATE INDEX IF NOT EXISTS grants_by_lock ON grants (lock);
CREATE TABLE IF NOT EXISTS gaps (
  after_revision INTEGER NOT NULL,
  through_revision INTEGER NOT NULL,
  cause TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS events (
  unix_ms INTEGER NOT NULL,
  kind TEXT NOT NULL,
  term INTEGER NOT NULL,
  what TEXT NOT NULL,
  count INTEGER NOT NULL
);
DROP VIEW IF EXISTS fencing_token_log;
CREATE VIEW fencing_token_log AS
SELECT
  lock AS key,
  token,
  owner AS holder_id,
  strftime('%Y-%m-%dT%H:%M:%fZ', granted_unix_ms / 1000.0, 'unixepoch') AS granted_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', ended_unix_ms / 1000.0, 'unixepoch') AS released_at,
  ttl_seconds,
  cause AS release_cause,
  lease AS lease_id,
  CASE shared WHEN 1 THEN 'SHARED' ELSE 'EXCLUSIVE' END AS mode,
  CASE subtree WHEN 1 THEN 'SUBTREE' ELSE 'NAME' END AS scope,
  strftime('%Y-%m-%dT%H:%M:%fZ', asked_unix_ms / 1000.0, 'unixepoch') AS asked_at,
  max(granted_unix_ms - asked_unix_ms, 0) AS waited_ms,
  granted_revision,
  ended_revision,
  actor,
  silent_ms,
  stalled_ms,
  leader_changed,
  term,
  perhaps_uncommitted,
  cluster,
  lock,
  owner,
  lease,
  ttl_seconds AS ttl,
  strftime('%Y-%m-%dT%H:%M:%fZ', ended_unix_ms / 1000.0, 'unixepoch') AS ended_at,
  cause,
  substr(
    CASE
      WHEN silent_ms IS NULL THEN ''
      WHEN leader_changed THEN '; not renewed for ' || printf('%d.%02d', silent_ms / 1000, silent_ms % 1000 / 10)
        || ' s since the leader changed'
      ELSE '; last renewal ' || printf('%d.%02d', silent_ms / 1000, silent_ms % 1000 / 10)
        || ' s before, no leader change'
    END
    || CASE WHEN silent_ms IS NOT NULL AND stalled_ms > 0 THEN '; '
        || printf('%d.%02d', stalled_ms / 1000, stalled_ms % 1000 / 10)
        || ' s were given back for the leader''s own stall' ELSE '' END
    || CASE WHEN actor IS NULL THEN '' ELSE '; by ' || actor END
    || CASE WHEN perhaps_uncommitted
        THEN '; perhaps uncommitted: from the log of the one node that was left' ELSE '' END,
    3) AS detail
FROM grants, about;
";

/// Where a file keeps how its tables are made.
const VERSION: i64 = 1;

/// Why something cannot be written or read.
#[derive(Debug)]
pub enum AuditError {
    /// SQLite says so.
    Database(rusqlite::Error),
    /// The system says so.
    Io(io::Error),
    /// The file that was being written is not there any more.
    Gone(PathBuf),
    /// Written by a later version.
    Newer(PathBuf),
}

impl fmt::Display for AuditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Database(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
            Self::Gone(path) => write!(f, "{} was deleted or replaced while it was written", path.display()),
            Self::Newer(path) => write!(f, "{} was written by a newer version", path.display()),
        }
    }
}

impl std::error::Error for AuditError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Database(error) => Some(error),
            Self::Io(error) => Some(error),
            Self::Gone(_) | Self::Newer(_) => None,
        }
    }
}

impl From<rusqlite::Error> for AuditError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl From<io::Error> for AuditError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// SQLite's integers have a sign. Counters stay below 2^63: see `lowkey_core::NewBeginning`.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// What a file says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileAbout {
    pub(crate) cluster: String,
    /// It has nothing of what happened up to this revision.
    pub(crate) begins_after: u64,
    /// It has everything from there through this one, but for its gaps.
    pub(crate) through: u64,
    /// The latest end that it knows of, or when it was begun.
    pub(crate) newest_unix_ms: u64,
    pub(crate) begun_unix_ms: u64,
}

impl FileAbout {
    pub(crate) fn read(connection: &Connection) -> Result<Option<Self>, AuditError> {
        let sql = "SELECT cluster, begins_after, through, newest_unix_ms, begun_unix_ms FROM about";
        let about = connection.query_row(sql, [], |row| {
            Ok(Self {
                cluster: row.get(0)?,
                begins_after: unsigned(row.get(1)?),
                through: unsigned(row.get(2)?),
                newest_unix_ms: unsigned(row.get(3)?),
                begun_unix_ms: unsigned(row.get(4)?),
            })
        });
        Ok(about.optional()?)
    }
}

/// A file that is being written.
pub(crate) struct AuditFile {
    path: PathBuf,
    /// Which file it was when it was opened: another may be put in its place.
    identity: (u64, u64),
    connection: Connection,
    pub(crate) about: FileAbout,
}

impl AuditFile {
    /// Opens a file, and makes it if it is missing: of this cluster then, beginning behind this revision.
    pub(crate) fn open(path: &Path, cluster: &str, after: u64, now_unix_ms: u64) -> Result<Self, AuditError> {
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE
                | OpenFlags::SQLITE_OPEN_CREATE
                | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if version > VERSION {
            return Err(AuditError::Newer(path.to_owned()));
        }
        // A small cache: the node's memory is for locks. 4 MiB of log before it is folded in.
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA cache_size = -2048; \
             PRAGMA wal_autocheckpoint = 1000; PRAGMA temp_store = MEMORY; PRAGMA busy_timeout = 1000;",
        )?;
        connection
            .execute_batch(&format!("BEGIN IMMEDIATE;{SCHEMA}PRAGMA user_version = {VERSION};COMMIT;"))?;
        connection.execute(
            "INSERT OR IGNORE INTO about VALUES (1, ?1, ?2, ?2, ?3, ?3)",
            params![cluster, signed(after), signed(now_unix_ms)],
        )?;
        let about = FileAbout::read(&connection)?.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "the file says nothing about itself")
        })?;
        Ok(Self { identity: identity(path)?, path: path.to_owned(), connection, about })
    }

    /// Writes rows in one transaction, with the gap before them if there is one, and everything that happened; from then
    /// on the file has everything through this revision.
    pub(crate) fn write(
        &mut self,
        gaps: &[Gap],
        rows: &[Row],
        events: &[Happening],
        through: u64,
    ) -> Result<(), AuditError> {
        self.check_identity()?;
        let newest = rows.iter().filter_map(|row| row.ended_unix_ms).max().unwrap_or(0);
        let newest = newest.max(self.about.newest_unix_ms);
        let through = through.max(self.about.through);
        let transaction = self.connection.transaction()?;
        for gap in gaps {
            transaction.prepare_cached("INSERT INTO gaps VALUES (?1, ?2, ?3)")?.execute(params![
                signed(gap.after),
                signed(gap.through),
                gap.cause.name()
            ])?;
        }
        {
            let mut insert = transaction.prepare_cached(
                "INSERT OR IGNORE INTO grants VALUES \
                 (NULL,?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20)",
            )?;
            for row in rows {
                let silence = row.silence;
                insert.execute(params![
                    row.lock,
                    signed(row.token),
                    row.owner,
                    signed(row.lease),
                    row.is_shared,
                    row.is_subtree,
                    row.ttl_seconds,
                    row.asked_unix_ms.map(signed),
                    signed(row.granted_unix_ms),
                    signed(row.granted_revision),
                    row.ended_unix_ms.map(signed),
                    signed(row.ended.revision),
                    row.ended.ordinal,
                    signed(row.term),
                    row.cause.name(),
                    row.actor,
                    silence.map(|silence| signed(silence.silent_ms)),
                    silence.map(|silence| signed(silence.stalled_ms)),
                    silence.map(|silence| silence.leader_changed),
                    row.is_perhaps_uncommitted,
                ])?;
            }
        }
        for event in events {
            transaction.prepare_cached("INSERT INTO events VALUES (?1, ?2, ?3, ?4, ?5)")?.execute(
                params![
                    signed(event.unix_ms),
                    event.kind.name(),
                    signed(event.term),
                    event.what,
                    signed(event.count)
                ],
            )?;
        }
        transaction
            .prepare_cached("UPDATE about SET through = ?1, newest_unix_ms = ?2")?
            .execute(params![signed(through), signed(newest)])?;
        transaction.commit()?;
        (self.about.through, self.about.newest_unix_ms) = (through, newest);
        Ok(())
    }

    /// Has everything that was written survive a loss of power.
    pub(crate) fn sync(&self) -> Result<(), AuditError> {
        self.check_identity()?;
        // SQLite itself syncs what it folds into the file. The rest is in the write-ahead log.
        match File::open(wal_of(&self.path)) {
            Ok(log) => log.sync_data()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(directory) = self.path.parent() {
            File::open(directory)?.sync_all()?;
        }
        Ok(())
    }

    /// Its size, with what is not folded in yet.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_file(&self.path)
    }

    /// Ends it: from here on it is one file.
    pub(crate) fn finish(self) -> Result<(), AuditError> {
        self.check_identity()?;
        self.connection.execute_batch("PRAGMA journal_mode = DELETE;")?;
        self.connection.close().map_err(|(_, error)| error)?;
        Ok(())
    }

    /// A file that was deleted could be written to for ever: the system keeps it until it is closed.
    fn check_identity(&self) -> Result<(), AuditError> {
        match identity(&self.path) {
            Ok(found) if found == self.identity => Ok(()),
            Ok(_) => Err(AuditError::Gone(self.path.clone())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(AuditError::Gone(self.path.clone())),
            Err(error) => Err(error.into()),
        }
    }
}

pub(crate) fn read_gaps(connection: &Connection) -> Result<Vec<Gap>, AuditError> {
    let mut statement = connection.prepare("SELECT after_revision, through_revision, cause FROM gaps")?;
    let gaps = statement.query_map([], |row| {
        let cause: String = row.get(2)?;
        let (after, through) = (unsigned(row.get(0)?), unsigned(row.get(1)?));
        Ok(Gap { after, through, cause: GapCause::named(&cause) })
    })?;
    Ok(gaps.collect::<Result<_, _>>()?)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// What SQLite writes beside a file.
pub(crate) fn wal_of(path: &Path) -> PathBuf {
    beside(path, "-wal")
}

pub(crate) fn shm_of(path: &Path) -> PathBuf {
    beside(path, "-shm")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// What a file takes on disk, with its write-ahead log.
pub(crate) fn size_of_file(path: &Path) -> u64 {
    let size = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    size(path) + size(&wal_of(path))
}
