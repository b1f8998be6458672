//! Questions about grants that are over.
//!
//! Each is answered from all files, over connections of its own: the thread that writes is not asked, and is not in the
//! way. Rows are found by lock, by token, or by position; by owner, cause and time they are looked through.

use std::path::Path;

use lowkey_core::Silence;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, params, params_from_iter};

use crate::file::{AuditError, FileAbout, read_gaps, signed, unsigned};
use crate::row::{Cause, Gap, GapCause, Happening, HappeningKind, Position, Row};
use crate::shelf::{Shelf, read_only};

/// What is asked for: everything that is given must be so.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Of this lock; with a `/` at its end, of all locks below it.
    pub lock: Option<String>,
    /// Of this owner.
    pub owner: Option<String>,
    /// With this token.
    pub token: Option<u64>,
    /// With a token above this one.
    pub token_above: Option<u64>,
    /// Ended at this moment or later, by the clocks that were told.
    pub since_unix_ms: Option<u64>,
    /// Ended for this cause.
    pub cause: Option<Cause>,
    /// Ended behind this position.
    pub after: Position,
    /// So many rows at most, at least 1.
    pub count_max: usize,
    /// The last first, and then not `after` but all.
    pub newest_first: bool,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In the order of their ends; or the other way round.
    pub rows: Vec<Row>,
    /// All that there is up to here is in this page, or in those before it.
    pub through: Position,
    /// What is not known of the revisions that were looked through.
    pub gaps: Vec<Gap>,
}

/// Reads the files of a node.
#[derive(Clone, Debug)]
pub struct Reader {
    shelf: Shelf,
}

const COLUMNS: &str = "lock, token, owner, lease, shared, subtree, ttl_seconds, asked_unix_ms, granted_unix_ms, \
                       granted_revision, ended_unix_ms, ended_revision, ended_ordinal, term, cause, actor, silent_ms, \
                       stalled_ms, leader_changed, perhaps_uncommitted";

impl Reader {
    /// Of the files in this directory.
    pub fn new(directory: &Path) -> Self {
        Self { shelf: Shelf::new(directory) }
    }

    /// Looks for rows. The files are of several clusters if one was recovered; positions of a later cluster are higher.
    pub fn find(&self, query: &Query) -> Result<Page, AuditError> {
        let mut files = self.shelf.files()?;
        if query.newest_first {
            files.reverse();
        }
        let mut page = Page { through: query.after, ..Page::default() };
        let mut gaps = Vec::new();
        let mut begins: Option<u64> = None;
        let mut before: Option<(String, u64)> = None;
        for (_, path) in files {
            // A file may be deleted meanwhile, or be damaged: its rows are missing then, and nothing else. That shows
            // between the files beside it.
            let Ok(connection) = read_only(&path) else { continue };
            let Ok(Some(about)) = FileAbout::read(&connection) else { continue };
            begins = Some(begins.map_or(about.begins_after, |begins| begins.min(about.begins_after)));
            let unreadable =
                Gap { after: about.begins_after, through: about.through, cause: GapCause::Deleted };
            match read_gaps(&connection) {
                Ok(known) => gaps.extend(known),
                Err(_) => gaps.push(unreadable),
            }
            // Between two files nothing is missing, unless one was lost.
            if let Some((cluster, through)) = &before
                && *cluster == about.cluster
            {
                let (after, through) = match query.newest_first {
                    false => (*through, about.begins_after),
                    true => (about.through, *through),
                };
                if after < through {
                    gaps.push(Gap { after, through, cause: GapCause::Deleted });
                }
            }
            let edge = if query.newest_first { about.begins_after } else { about.through };
            before = Some((about.cluster.clone(), edge));
            let wanted = query.count_max - page.rows.len();
            if wanted == 0 {
                continue;
            }
            if !is_of_interest(query, &about) {
                page.through = page.through.max(Position::end_of(about.through));
                continue;
            }
            let already = page.rows.len();
            if rows(&connection, &about.cluster, query, wanted, &mut page.rows).is_err() {
                // A damaged page. What lies before it was read, and of the rest nobody can say what it was.
                gaps.push(unreadable);
            }
            let is_full = page.rows.len() - already == wanted;
            page.through = match page.rows.last().filter(|_| is_full) {
                Some(last) => last.ended,
                None => page.through.max(Position::end_of(about.through)),
            };
        }
        if let Some(begins) = begins.filter(|begins| *begins > 1) {
            // Before the first file there may have been others.
            let is_told = gaps.iter().any(|gap| gap.after == 0 && gap.through >= begins);
            if !is_told && query.after.revision < begins {
                gaps.push(Gap { after: 0, through: begins, cause: GapCause::Retention });
            }
        }
        page.gaps = relevant(gaps, query, &page);
        Ok(page)
    }

    /// What happened to the cluster since a moment, as this node saw it; at most so much, the latest.
    pub fn happenings(&self, since_unix_ms: u64, count_max: usize) -> Result<Vec<Happening>, AuditError> {
        let mut happenings = Vec::new();
        for (_, path) in self.shelf.files()?.into_iter().rev() {
            let Ok(connection) = read_only(&path) else { continue };
            let Ok(Some(about)) = FileAbout::read(&connection) else { continue };
            let left = count_max - happenings.len();
            // What a damaged file cannot tell is left out: nothing is decided by it.
            happenings.extend(happenings_of(&connection, since_unix_ms, left).unwrap_or_default());
            if happenings.len() >= count_max || about.begun_unix_ms < since_unix_ms {
                break;
            }
        }
        happenings.reverse();
        Ok(happenings)
    }
}

/// What happened to the cluster, as one file tells it; the latest first.
fn happenings_of(
    connection: &Connection,
    since_unix_ms: u64,
    count_max: usize,
) -> Result<Vec<Happening>, AuditError> {
    let sql = "SELECT unix_ms, kind, term, what, count FROM events WHERE unix_ms >= ?1 \
               ORDER BY rowid DESC LIMIT ?2";
    let mut statement = connection.prepare(sql)?;
    let found = statement.query_map(params![signed(since_unix_ms), signed(count_max as u64)], |row| {
        let kind: String = row.get(1)?;
        let Some(kind) = HappeningKind::named(&kind) else { return Ok(None) };
        Ok(Some(Happening {
            unix_ms: unsigned(row.get(0)?),
            kind,
            term: unsigned(row.get(2)?),
            what: row.get(3)?,
            count: unsigned(row.get(4)?),
        }))
    })?;
    Ok(found.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// False if nothing in a file can match.
fn is_of_interest(query: &Query, about: &FileAbout) -> bool {
    let is_behind = query.newest_first || about.through > query.after.revision;
    is_behind && query.since_unix_ms.is_none_or(|since| about.newest_unix_ms >= since)
}

/// Those gaps that lie in what was looked through, each once.
fn relevant(mut gaps: Vec<Gap>, query: &Query, page: &Page) -> Vec<Gap> {
    let is_looked_at = |gap: &Gap| match (query.newest_first, page.rows.last()) {
        // The latest rows, as many as were wanted: what is missing before them was not asked for.
        (true, Some(last)) if page.rows.len() == query.count_max => gap.through >= last.ended.revision,
        (true, _) => true,
        (false, _) => gap.through > query.after.revision && gap.after < page.through.revision,
    };
    gaps.retain(is_looked_at);
    gaps.sort_unstable_by_key(|gap| (gap.after, gap.through));
    gaps.dedup();
    gaps
}

/// The rows of one file. If there is an error, those before it are in `page` all the same.
fn rows(
    connection: &Connection,
    cluster: &str,
    query: &Query,
    count_max: usize,
    page: &mut Vec<Row>,
) -> Result<(), AuditError> {
    let mut conditions = Vec::new();
    let mut values = Vec::new();
    let mut must = |condition: &str, value: Value| {
        values.push(value);
        conditions.push(condition.replace('?', &format!("?{}", values.len())));
    };
    if !query.newest_first && query.after > Position::default() {
        must("id > ?", Value::Integer(id_of(connection, query.after)?));
    }
    match query.lock.as_deref() {
        // All that begins so, in the order of bytes: up to what follows the slash.
        Some(lock) if lock.ends_with('/') => {
            must("lock >= ?", Value::Text(lock.to_owned()));
            must("lock < ?", Value::Text(format!("{}0", &lock[..lock.len() - 1])));
        }
        Some(lock) => must("lock = ?", Value::Text(lock.to_owned())),
        None => {}
    }
    if let Some(token) = query.token {
        must("token = ?", Value::Integer(signed(token)));
    }
    if let Some(token) = query.token_above {
        // Not by the index of tokens: nearly all are above.
        must("+token > ?", Value::Integer(signed(token)));
    }
    if let Some(owner) = &query.owner {
        must("owner = ?", Value::Text(owner.clone()));
    }
    if let Some(cause) = query.cause {
        must("cause = ?", Value::Text(cause.name().to_owned()));
    }
    if let Some(since) = query.since_unix_ms {
        must("ended_unix_ms >= ?", Value::Integer(signed(since)));
    }
    let filter = if conditions.is_empty() { "1".to_owned() } else { conditions.join(" AND ") };
    let order = if query.newest_first { "DESC" } else { "ASC" };
    let sql = format!("SELECT {COLUMNS} FROM grants WHERE {filter} ORDER BY id {order} LIMIT {count_max}");
    let mut statement = connection.prepare(&sql)?;
    for row in statement.query_map(params_from_iter(values), |row| read_row(row, cluster))? {
        page.push(row?);
    }
    Ok(())
}

/// The number of the last row up to a position. Numbers have no holes and rise with the positions, so it is found by
/// halves.
fn id_of(connection: &Connection, position: Position) -> Result<i64, AuditError> {
    let last: Option<i64> = connection.query_row("SELECT max(id) FROM grants", [], |row| row.get(0))?;
    let (mut low, mut high) = (0, last.unwrap_or(0));
    let mut at = connection.prepare("SELECT ended_revision, ended_ordinal FROM grants WHERE id = ?1")?;
    // Everything up to `low` lies before or at the position, everything behind `high` lies after it.
    while low < high {
        let middle = low + (high - low + 1) / 2;
        let found: Option<(i64, u32)> =
            at.query_row([middle], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let is_behind = found
            .is_some_and(|(revision, ordinal)| Position { revision: unsigned(revision), ordinal } > position);
        if is_behind {
            high = middle - 1;
        } else {
            low = middle;
        }
    }
    Ok(low)
}

fn read_row(row: &rusqlite::Row<'_>, cluster: &str) -> rusqlite::Result<Row> {
    let number = |at: usize| row.get(at).map(unsigned);
    let maybe = |at: usize| row.get::<_, Option<i64>>(at).map(|number| number.map(unsigned));
    let cause: String = row.get(14)?;
    let silence = match maybe(16)? {
        None => None,
        Some(silent_ms) => Some(Silence {
            silent_ms,
            stalled_ms: maybe(17)?.unwrap_or(0),
            leader_changed: row.get::<_, Option<bool>>(18)?.unwrap_or(false),
        }),
    };
    Ok(Row {
        cluster: cluster.to_owned(),
        lock: row.get(0)?,
        token: number(1)?,
        owner: row.get(2)?,
        lease: number(3)?,
        is_shared: row.get(4)?,
        is_subtree: row.get(5)?,
        ttl_seconds: row.get(6)?,
        asked_unix_ms: maybe(7)?,
        granted_unix_ms: number(8)?,
        granted_revision: number(9)?,
        ended_unix_ms: maybe(10)?,
        ended: Position { revision: number(11)?, ordinal: row.get(12)? },
        term: number(13)?,
        cause: Cause::named(&cause).ok_or_else(|| {
            rusqlite::Error::FromSqlConversionFailure(
                14,
                rusqlite::types::Type::Text,
                format!("no such cause: {cause}").into(),
            )
        })?,
        actor: row.get(15)?,
        silence,
        is_perhaps_uncommitted: row.get(19)?,
    })
}
