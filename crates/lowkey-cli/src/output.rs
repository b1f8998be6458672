//! What commands print: tables on a terminal, tab-separated lines into a pipe, JSON where it is asked for.

use std::io::{self, IsTerminal, Write};

use anstyle::Style;
use serde::Serialize;

const BOLD: Style = Style::new().bold();

/// A line of our own on standard error. If nobody can read it, because a pipe's other end has gone or a disk is full,
/// it is lost and nothing else: `eprintln!` would panic, and leave a command without whoever watches over it.
pub(crate) fn say(line: &str) {
    let _ = io::stderr().lock().write_all(format!("{}\n", line.trim_end()).as_bytes());
}

/// Rows under a header. The header is shown on a terminal only.
pub(crate) struct Table {
    columns: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &'static [&'static str]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<String> = cells.into_iter().map(|cell| one_line(&cell)).collect();
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    pub(crate) fn print(&self) -> io::Result<()> {
        // Knows whether colours are wanted: not in a pipe, not with NO_COLOR.
        let mut out = anstream::stdout().lock();
        if io::stdout().is_terminal() {
            self.write_aligned(&mut out)?;
        } else {
            for row in &self.rows {
                writeln!(out, "{}", row.join("\t"))?;
            }
        }
        out.flush()
    }

    fn write_aligned(&self, out: &mut impl Write) -> io::Result<()> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.columns[column].len()]).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut line = |style: Style, cells: &mut dyn Iterator<Item = &str>| {
            let padded: Vec<String> =
                cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}", width = *width)).collect();
            writeln!(out, "{style}{}{style:#}", padded.join("  ").trim_end())
        };
        line(BOLD, &mut self.columns.iter().copied())?;
        for row in &self.rows {
            line(Style::new(), &mut row.iter().map(String::as_str))?;
        }
        Ok(())
    }
}

/// Rows that come one by one: columns have widths that are likely to do.
pub(crate) struct Feed {
    columns: &'static [(&'static str, usize)],
    is_terminal: bool,
}

impl Feed {
    /// Begins: on a terminal, with a header.
    pub(crate) fn start(columns: &'static [(&'static str, usize)]) -> io::Result<Self> {
        let feed = Self { columns, is_terminal: io::stdout().is_terminal() };
        if feed.is_terminal {
            feed.line(BOLD, columns.iter().map(|(name, _)| (*name).to_owned()).collect())?;
        }
        Ok(feed)
    }

    pub(crate) fn row(&self, cells: impl IntoIterator<Item = String>) -> io::Result<()> {
        self.line(Style::new(), cells.into_iter().map(|cell| one_line(&cell)).collect())
    }

    fn line(&self, style: Style, cells: Vec<String>) -> io::Result<()> {
        let mut out = anstream::stdout().lock();
        if self.is_terminal {
            let widths = self.columns.iter().map(|(_, width)| *width);
            let padded: Vec<String> =
                cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(out, "{style}{}{style:#}", padded.join("  ").trim_end())?;
        } else {
            writeln!(out, "{}", cells.join("\t"))?;
        }
        out.flush()
    }
}

/// A cell never breaks its table: what would is written as in a program.
fn one_line(cell: &str) -> String {
    let mut text = String::with_capacity(cell.len());
    for c in cell.chars() {
        match c {
            '\t' => text.push_str("\\t"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            c if c.is_control() => text.extend(c.escape_unicode()),
            c => text.push(c),
        }
    }
    text
}

/// One JSON object in one line.
pub(crate) fn print_json(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// A moment of a wall clock, in UTC.
pub(crate) fn utc(unix_ms: i64) -> String {
    let seconds = unix_ms.div_euclid(1000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 1 March 0000, by which leap days come last; after Howard Hinnant's civil_from_days.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_in_utc() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59Z"),
            (1_785_546_245_000, "2026-08-01T01:04:05Z"),
        ] {
            assert_eq!(utc(unix_ms), text);
        }
    }

    #[test]
    fn a_table_is_aligned_and_no_cell_breaks_it() {
        let mut table = Table::new(&["NAME", "OWNER"]);
        table.row(["jobs/nightly".into(), "a".into()]);
        table.row(["é".into(), "b\nc".into()]);
        let mut out = Vec::new();
        table.write_aligned(&mut anstream::StripStream::new(&mut out)).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "NAME          OWNER\njobs/nightly  a\né             b\\nc\n"
        );
    }
}
