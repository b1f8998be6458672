//! All files of a node: which there are, in which order, and which are too old or too many.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::file::{AuditError, AuditFile, FileAbout, shm_of, size_of_file, wal_of};
use crate::row::{Gap, GapCause, Row};

const PREFIX: &str = "grants-";
const SUFFIX: &str = ".sqlite";

/// The directory with a node's files.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    pub(crate) directory: PathBuf,
}

impl Shelf {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// The files, by number: the order in which they were begun.
    pub(crate) fn files(&self) -> Result<Vec<(u64, PathBuf)>, AuditError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if let Some(number) = path.file_name().and_then(|name| number_of(name.to_str()?)) {
                files.push((number, path));
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{PREFIX}{number:06}{SUFFIX}"))
    }

    /// Opens the newest file if it is of this cluster, or begins a new one behind this revision. A file that cannot be
    /// used is left as it is, and a new one begun.
    pub(crate) fn open_newest(
        &self,
        cluster: &str,
        after: u64,
        now_unix_ms: u64,
    ) -> Result<AuditFile, AuditError> {
        fs::create_dir_all(&self.directory)?;
        let newest = self.files()?.pop();
        if let Some((_, path)) = &newest
            && let Ok(Some(about)) = read_only(path).and_then(|connection| FileAbout::read(&connection))
            && about.cluster == cluster
            && let Ok(file) = AuditFile::open(path, cluster, after, now_unix_ms)
        {
            return Ok(file);
        }
        let number = newest.map_or(1, |(number, _)| number + 1);
        // What the last readable file of this cluster has is where the new one begins: the rest is a gap.
        let known = self.known_through(cluster)?;
        AuditFile::open(&self.path(number), cluster, known.unwrap_or(after), now_unix_ms)
    }

    /// Begins the file behind this one.
    pub(crate) fn open_next(
        &self,
        cluster: &str,
        after: u64,
        now_unix_ms: u64,
    ) -> Result<AuditFile, AuditError> {
        let number = self.files()?.last().map_or(1, |(number, _)| number + 1);
        AuditFile::open(&self.path(number), cluster, after, now_unix_ms)
    }

    /// Up to which revision of a cluster the files have what they have; nothing if none is of this cluster.
    pub(crate) fn known_through(&self, cluster: &str) -> Result<Option<u64>, AuditError> {
        let mut known = None;
        for (_, path) in self.files()? {
            let about = read_only(&path).and_then(|connection| FileAbout::read(&connection));
            if let Ok(Some(about)) = about
                && about.cluster == cluster
            {
                known = known.max(Some(about.through));
            }
        }
        Ok(known)
    }

    /// What all files take.
    pub(crate) fn bytes(&self) -> Result<u64, AuditError> {
        Ok(self.files()?.iter().map(|(_, path)| size_of_file(path)).sum())
    }

    /// Deletes files that end before a moment, and the oldest ones while all take too much; never the newest. Gives the
    /// gaps that are left behind.
    pub(crate) fn retire(
        &self,
        now_unix_ms: u64,
        keep: Duration,
        bytes_max: u64,
    ) -> Result<Vec<(String, Gap)>, AuditError> {
        let mut files = self.files()?;
        files.pop();
        let mut bytes = self.bytes()?;
        let oldest_unix_ms = now_unix_ms.saturating_sub(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
        let mut gaps = Vec::new();
        for (_, path) in files {
            let about = read_only(&path).and_then(|connection| FileAbout::read(&connection)).ok().flatten();
            let is_old = about.as_ref().is_some_and(|about| about.newest_unix_ms < oldest_unix_ms);
            if !is_old && bytes <= bytes_max {
                break;
            }
            bytes = bytes.saturating_sub(size_of_file(&path));
            remove(&path)?;
            if let Some(about) = about {
                let gap = Gap { after: 0, through: about.through, cause: GapCause::Retention };
                gaps.push((about.cluster, gap));
            }
        }
        Ok(gaps)
    }
}

fn remove(path: &Path) -> Result<(), AuditError> {
    for path in [path.to_owned(), wal_of(path), shm_of(path)] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

/// A file to be read.
pub(crate) fn read_only(path: &Path) -> Result<Connection, AuditError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch("PRAGMA busy_timeout = 1000; PRAGMA cache_size = -8192;")?;
    Ok(connection)
}

/// Adds the rows of a cluster that is given up to the files of a node that does not run, and says where the files of the
/// cluster in its place begin: nothing happened in that one before.
pub fn append_recovered(
    directory: &Path,
    old: (&str, u64, &[Row]),
    new: (&str, u64),
    now_unix_ms: u64,
) -> Result<(), AuditError> {
    let shelf = Shelf::new(directory);
    let (cluster, through, rows) = old;
    let mut file = shelf.open_newest(cluster, through, now_unix_ms)?;
    let known = file.about.through;
    let unknown = Gap { after: known, through, cause: GapCause::Unrecorded };
    let gaps = if known < through { vec![unknown] } else { Vec::new() };
    file.write(&gaps, rows, &[], through)?;
    file.sync()?;
    file.finish()?;
    let file = shelf.open_next(new.0, new.1, now_unix_ms)?;
    file.sync()?;
    file.finish()
}
