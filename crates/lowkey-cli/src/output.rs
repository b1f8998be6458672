//! What commands print: tables on a terminal, tab-separated lines into a pipe, JSON where it is asked for.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use anstyle::Style;
use serde::Serialize;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

const BOLD: Style = Style::new().bold();

/// A line of our own on standard error. If nobody can read it, because a pipe's other end has gone or a disk is full,
/// it is lost and nothing else: `eprintln!` would panic, and leave a command without whoever watches over it.
pub(crate) fn say(line: &str) {
    let _ = io::stderr().lock().write_all(format!("{}\n", line.trim_end()).as_bytes());
}

/// Rows under a header. The header is shown on a terminal only.
pub(crate) struct TextTable {
    columns: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(crate) fn new(columns: &'static [&'static str]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<String> = cells.into_iter().map(|cell| one_line(&cell)).collect();
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// Prints it: on a terminal no wider than that, unless it is to be `wide`.
    pub(crate) fn print(&self, wide: bool) -> io::Result<()> {
        // Knows whether colours are wanted: not in a pipe, not with NO_COLOR.
        let mut out = anstream::stdout().lock();
        if io::stdout().is_terminal() {
            self.write_aligned(&mut out, (!wide).then(terminal_width))?;
        } else {
            for row in &self.rows {
                writeln!(out, "{}", row.join("\t"))?;
            }
        }
        out.flush()
    }

    fn write_aligned(&self, out: &mut impl Write, limit: Option<usize>) -> io::Result<()> {
        let mut rows = self.rows.clone();
        let mut widths = self.widths(&rows);
        if let Some(limit) = limit.filter(|limit| line_width(&widths) > *limit) {
            // What says most in the least space comes first.
            rows.iter_mut().flatten().for_each(|cell| *cell = short(cell));
            widths = self.widths(&rows);
            fit(&mut widths, limit, |column| rows.iter().any(|row| !is_number(&row[column])));
        }
        write_row(out, BOLD, self.columns.iter().copied(), &widths)?;
        rows.iter().try_for_each(|row| write_row(out, Style::new(), row.iter().map(String::as_str), &widths))
    }

    /// How wide each column is if nothing is shortened.
    fn widths(&self, rows: &[Vec<String>]) -> Vec<usize> {
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].width());
            cells.chain([self.columns[column].width()]).max().unwrap_or_default()
        };
        (0..self.columns.len()).map(width).collect()
    }
}

/// What stands between two columns.
const GAP: &str = "  ";
/// No column is made narrower than this, and the first one, which has the names, not as narrow.
const NARROW: usize = 8;
const NARROW_FIRST: usize = 10;

fn terminal_width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stdout());
    size.map(|size| usize::from(size.ws_col)).ok().filter(|columns| *columns > 0).unwrap_or(80)
}

fn line_width(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1)
}

/// Takes from the widest columns, among those that may be shortened, until the line fits.
fn fit(widths: &mut [usize], limit: usize, may_shorten: impl Fn(usize) -> bool) {
    while line_width(widths) > limit {
        let least = |column: usize| if column == 0 { NARROW_FIRST } else { NARROW };
        let shortened =
            (0..widths.len()).filter(|column| widths[*column] > least(*column) && may_shorten(*column));
        let Some(widest) = shortened.max_by_key(|column| widths[*column]) else { return };
        widths[widest] -= 1;
    }
}

fn write_row<'a>(
    out: &mut impl Write,
    style: Style,
    cells: impl Iterator<Item = &'a str>,
    widths: &[usize],
) -> io::Result<()> {
    let padded: Vec<String> =
        cells.zip(widths).map(|(cell, width)| padded(&shortened(cell, *width), *width)).collect();
    writeln!(out, "{style}{}{style:#}", padded.join(GAP).trim_end())
}

/// Padded by what it takes on the screen, which is more or less than its characters.
fn padded(cell: &str, width: usize) -> String {
    format!("{cell}{}", " ".repeat(width.saturating_sub(cell.width())))
}

/// The beginning and the end of a cell that is too wide: names that belong together differ at either.
fn shortened(cell: &str, width: usize) -> String {
    if cell.width() <= width {
        return cell.to_owned();
    }
    let kept = width.saturating_sub(1);
    let tail_width = kept / 2;
    let (mut head, mut taken) = (String::new(), 0);
    for c in cell.chars() {
        let next = taken + c.width().unwrap_or_default();
        if next > kept - tail_width {
            break;
        }
        taken = next;
        head.push(c);
    }
    let (mut tail, mut taken) = (Vec::new(), 0);
    for c in cell.chars().rev() {
        let next = taken + c.width().unwrap_or_default();
        if next > tail_width {
            break;
        }
        taken = next;
        tail.push(c);
    }
    format!("{head}…{}", tail.into_iter().rev().collect::<String>())
}

/// A number or a moment: cut, it would be another.
fn is_number(cell: &str) -> bool {
    cell.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | ':' | 'T' | 'Z'))
}

/// What says the same in less space, if there is anything.
fn short(cell: &str) -> String {
    match cell.strip_prefix("exclusive") {
        Some(rest) if matches!(rest, "" | "-subtree") => format!("excl{rest}"),
        _ => short_moment(cell),
    }
}

/// A moment as [`utc`] tells it, without its date if that is today; any other cell as it is.
fn short_moment(cell: &str) -> String {
    let is_moment = cell.len() == 20 && cell.ends_with('Z') && cell.as_bytes()[10] == b'T' && cell.is_ascii();
    if !is_moment {
        return cell.to_owned();
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let today = utc(i64::try_from(now.as_millis()).unwrap_or_default());
    if cell[..10] == today[..10] { cell[11..].to_owned() } else { cell[..10].to_owned() }
}

/// Rows that come one by one: columns have widths that are likely to do.
pub(crate) struct Feed {
    widths: Vec<usize>,
    is_terminal: bool,
    wide: bool,
}

impl Feed {
    /// Begins: on a terminal, with a header, and no wider than that, unless it is to be `wide`.
    pub(crate) fn start(columns: &'static [(&'static str, usize)], wide: bool) -> io::Result<Self> {
        let is_terminal = io::stdout().is_terminal();
        let mut widths: Vec<usize> = columns.iter().map(|(_, width)| *width).collect();
        if is_terminal && !wide {
            fit(&mut widths, terminal_width(), |_| true);
        }
        let feed = Self { widths, is_terminal, wide };
        if feed.is_terminal {
            feed.line(BOLD, columns.iter().map(|(name, _)| (*name).to_owned()).collect())?;
        }
        Ok(feed)
    }

    pub(crate) fn row(&self, cells: impl IntoIterator<Item = String>) -> io::Result<()> {
        self.line(Style::new(), cells.into_iter().map(|cell| one_line(&cell)).collect())
    }

    fn line(&self, style: Style, mut cells: Vec<String>) -> io::Result<()> {
        let mut out = anstream::stdout().lock();
        if !self.is_terminal {
            writeln!(out, "{}", cells.join("\t"))?;
        } else if self.wide {
            let padded: Vec<String> =
                cells.iter().zip(&self.widths).map(|(cell, width)| padded(cell, *width)).collect();
            writeln!(out, "{style}{}{style:#}", padded.join(GAP).trim_end())?;
        } else {
            for (cell, width) in
                cells.iter_mut().zip(&self.widths).filter(|(cell, width)| cell.width() > **width)
            {
                *cell = short(cell);
                // A number that is cut would be another number.
                if !is_number(cell) {
                    *cell = shortened(cell, *width);
                }
            }
            let padded: Vec<String> =
                cells.iter().zip(&self.widths).map(|(cell, width)| padded(cell, *width)).collect();
            writeln!(out, "{style}{}{style:#}", padded.join(GAP).trim_end())?;
        }
        out.flush()
    }
}

/// A cell never breaks its table: what would is written as in a program.
pub(crate) fn one_line(cell: &str) -> String {
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

/// One line for a file or another program: nothing but the token.
pub(crate) fn print_token(token: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{token}")?;
    out.flush()
}

/// How long something lives, in seconds.
pub(crate) fn time_left(left: Option<Duration>) -> String {
    left.map_or_else(|| "-".to_owned(), |left| format!("{:.1}s", left.as_secs_f64()))
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
        let mut table = TextTable::new(&["NAME", "OWNER"]);
        table.row(["jobs/nightly".into(), "a".into()]);
        table.row(["é".into(), "b\nc".into()]);
        let mut out = Vec::new();
        table.write_aligned(&mut anstream::StripStream::new(&mut out), None).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "NAME          OWNER\njobs/nightly  a\né             b\\nc\n"
        );
    }

    fn written(table: &TextTable, limit: usize) -> Vec<String> {
        let mut out = Vec::new();
        table.write_aligned(&mut anstream::StripStream::new(&mut out), Some(limit)).unwrap();
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn wide_characters_are_aligned() {
        let mut table = TextTable::new(&["NAME", "OWNER"]);
        table.row(["仕事".into(), "a".into()]);
        table.row(["jobs".into(), "b".into()]);
        assert_eq!(written(&table, 80), ["NAME  OWNER", "仕事  a", "jobs  b"]);
    }

    #[test]
    fn a_table_that_is_too_wide_is_shortened_in_the_middle_and_never_in_a_number() {
        let mut table = TextTable::new(&["NAME", "OWNER", "TOKEN", "SINCE"]);
        let name = format!("jobs/{}/nightly", "very-long-".repeat(10));
        table.row([name, "仕".repeat(40), u64::MAX.to_string(), "2000-02-29T00:00:00Z".into()]);
        let lines = written(&table, 80);
        assert!(lines.iter().all(|line| line.width() <= 80), "{lines:?}");
        assert!(lines[1].starts_with("jobs/very-") && lines[1].contains("nightly  仕"), "{lines:?}");
        assert!(lines[1].contains(&u64::MAX.to_string()) && lines[1].ends_with("2000-02-29"), "{lines:?}");
    }
}
