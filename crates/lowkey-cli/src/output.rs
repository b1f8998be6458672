//! What commands print: tables on a terminal, tab-separated lines into a pipe, JSON where it is asked for.

use std::cell::RefCell;
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
            let left_out = self.write_aligned(&mut out, (!wide).then(terminal_width))?;
            out.flush()?;
            tell_left_out(&left_out);
        } else {
            for row in &self.rows {
                writeln!(out, "{}", row.join("\t"))?;
            }
        }
        out.flush()
    }

    /// Gives the columns that there is no room for.
    fn write_aligned(&self, out: &mut impl Write, limit: Option<usize>) -> io::Result<Vec<&'static str>> {
        let mut rows = self.rows.clone();
        let mut layout = Layout(self.columns(&rows));
        if let Some(limit) = limit.filter(|limit| layout.line_width() > *limit) {
            // What says most in the least space comes first.
            rows.iter_mut().flatten().for_each(|cell| *cell = short(cell));
            layout = Layout(self.columns(&rows));
            layout.fit(limit);
        }
        layout.write(out, BOLD, self.columns)?;
        rows.iter().try_for_each(|row| layout.write(out, Style::new(), row))?;
        Ok(layout.left_out())
    }

    /// How wide each column is if nothing is shortened, and how narrow it may become.
    fn columns(&self, rows: &[Vec<String>]) -> Vec<Column> {
        let column = |(number, name): (usize, &&'static str)| {
            let cells = || rows.iter().map(|row| row[number].as_str());
            let width = cells().map(|cell| cell.width()).chain([name.width()]).max().unwrap_or_default();
            let of_numbers = cells().filter(|cell| is_number(cell)).map(|cell| cell.width()).max();
            let least = match cells().all(is_number) {
                true => width,
                false => width.min(if number == 0 { NARROW_FIRST } else { NARROW }),
            };
            let least = least.max(of_numbers.unwrap_or_default());
            Column { name, width, comfort: least, least, is_shown: true }
        };
        self.columns.iter().enumerate().map(column).collect()
    }
}

/// What stands between two columns.
const GAP: &str = "  ";
/// No number has more digits, and no moment more characters.
const NUMBER_MAX: usize = 20;
/// No column is made narrower than this, and the first one, which has the names, not as narrow.
const NARROW: usize = 8;
const NARROW_FIRST: usize = 10;
/// Columns of a feed are not made narrower than this while others can be left out.
const COMFORT: usize = 12;

/// What is left out first where a line has no room for all. What names a lock, its owner and its token stays.
const EXPENDABLE: [&str; 13] = [
    "LEASE", "VALUE", "HOW", "POSITION", "WAITING", "RAFT", "HTTP", "DETAIL", "LEASES", "LOCKS", "LEFT",
    "SINCE", "GRANTED",
];

fn terminal_width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stdout());
    size.map(|size| usize::from(size.ws_col)).ok().filter(|columns| *columns > 0).unwrap_or(80)
}

#[derive(Clone, Debug)]
struct Column {
    name: &'static str,
    width: usize,
    /// How narrow it may become while others can be left out.
    comfort: usize,
    /// How narrow it may become at all.
    least: usize,
    is_shown: bool,
}

/// Which columns a line has, and how wide they are.
#[derive(Clone, Debug)]
struct Layout(Vec<Column>);

impl Layout {
    fn line_width(&self) -> usize {
        self.width_by(|column| column.width)
    }

    fn width_by(&self, width: impl Fn(&Column) -> usize) -> usize {
        let shown = self.0.iter().filter(|column| column.is_shown);
        let (count, sum) = shown.fold((0, 0), |(count, sum), column| (count + 1, sum + width(column)));
        sum + GAP.len() * usize::saturating_sub(count, 1)
    }

    /// Leaves columns out and narrows the others until a line fits.
    fn fit(&mut self, limit: usize) {
        for name in EXPENDABLE {
            if self.width_by(|column| column.comfort) <= limit {
                break;
            }
            // The first column says what a line is about.
            let expendable = self.0.iter_mut().skip(1).find(|column| column.name == name);
            expendable.into_iter().for_each(|column| column.is_shown = false);
        }
        self.narrow(limit, |column| column.comfort);
        self.narrow(limit, |column| column.least);
    }

    /// Takes from the widest columns until a line fits.
    fn narrow(&mut self, limit: usize, least: impl Fn(&Column) -> usize) {
        while self.line_width() > limit {
            let mut wide = self.0.iter_mut().filter(|column| column.is_shown && column.width > least(column));
            let Some(first) = wide.next() else { return };
            let widest =
                wide.fold(first, |widest, next| if next.width >= widest.width { next } else { widest });
            widest.width -= 1;
        }
    }

    fn left_out(&self) -> Vec<&'static str> {
        self.0.iter().filter(|column| !column.is_shown).map(|column| column.name).collect()
    }

    fn write(&self, out: &mut impl Write, style: Style, cells: &[impl AsRef<str>]) -> io::Result<()> {
        let shown = self.0.iter().zip(cells).filter(|(column, _)| column.is_shown);
        let padded: Vec<String> = shown
            .map(|(column, cell)| padded(&shortened(cell.as_ref(), column.width), column.width))
            .collect();
        writeln!(out, "{style}{}{style:#}", padded.join(GAP).trim_end())
    }
}

/// Says on a terminal what a table does not show.
fn tell_left_out(columns: &[&str]) {
    if !columns.is_empty() {
        say(&format!("lowkey: not shown for want of room: {}; see --wide", columns.join(", ")));
    }
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

/// A number, a position or a moment: cut, it would be another.
fn is_number(cell: &str) -> bool {
    cell.len() <= NUMBER_MAX
        && cell.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | ':' | 'T' | 'Z' | '.'))
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

/// Rows that come one by one: columns have widths that are likely to do. Where a number needs more, they are arranged
/// anew, under a new header.
pub(crate) struct Feed {
    columns: &'static [(&'static str, usize)],
    layout: RefCell<Layout>,
    /// On a terminal how wide that is, unless lines are to be `wide`.
    limit: Option<usize>,
    is_terminal: bool,
}

impl Feed {
    /// Begins: on a terminal, with a header, and no wider than that, unless it is to be `wide`.
    pub(crate) fn start(columns: &'static [(&'static str, usize)], wide: bool) -> io::Result<Self> {
        let is_terminal = io::stdout().is_terminal();
        let limit = (is_terminal && !wide).then(terminal_width);
        let feed = Self::new(columns, limit, is_terminal);
        if is_terminal {
            feed.write_header(&mut anstream::stdout().lock())?;
            tell_left_out(&feed.layout.borrow().left_out());
        }
        Ok(feed)
    }

    fn new(columns: &'static [(&'static str, usize)], limit: Option<usize>, is_terminal: bool) -> Self {
        let column = |(name, width): &(&'static str, usize)| {
            let (width, is_shown) = (name.width().max(*width), true);
            Column { name, width, comfort: width.min(COMFORT), least: width.min(NARROW), is_shown }
        };
        let mut layout = Layout(columns.iter().map(column).collect());
        if let Some(limit) = limit {
            layout.fit(limit);
        }
        Self { columns, layout: RefCell::new(layout), limit, is_terminal }
    }

    pub(crate) fn row(&self, cells: impl IntoIterator<Item = String>) -> io::Result<()> {
        let cells: Vec<String> = cells.into_iter().map(|cell| one_line(&cell)).collect();
        self.write_row(&mut anstream::stdout().lock(), cells)
    }

    fn write_row(&self, out: &mut impl Write, mut cells: Vec<String>) -> io::Result<()> {
        if !self.is_terminal {
            writeln!(out, "{}", cells.join("\t"))?;
        } else if let Some(limit) = self.limit {
            for (cell, column) in cells.iter_mut().zip(&self.layout.borrow().0) {
                if cell.width() > column.width {
                    *cell = short(cell);
                }
            }
            if self.make_room(&cells, limit) {
                self.write_header(out)?;
            }
            self.layout.borrow().write(out, Style::new(), &cells)?;
        } else {
            let widths = self.columns.iter().map(|(_, width)| *width);
            let padded: Vec<String> =
                cells.iter().zip(widths).map(|(cell, width)| padded(cell, width)).collect();
            writeln!(out, "{}", padded.join(GAP).trim_end())?;
        }
        out.flush()
    }

    fn write_header(&self, out: &mut impl Write) -> io::Result<()> {
        let layout = self.layout.borrow();
        let names: Vec<&str> = layout.0.iter().map(|column| column.name).collect();
        layout.write(out, BOLD, &names)?;
        out.flush()
    }

    /// A number that is cut would be another number: arranges the columns anew if one does not fit.
    fn make_room(&self, cells: &[String], limit: usize) -> bool {
        let mut layout = self.layout.borrow_mut();
        let fits = |(cell, column): (&String, &Column)| {
            !column.is_shown || !is_number(cell) || cell.width() <= column.width
        };
        if cells.iter().zip(&layout.0).all(fits) {
            return false;
        }
        for ((cell, column), (_, width)) in cells.iter().zip(&mut layout.0).zip(self.columns) {
            if is_number(cell) {
                column.least = column.least.max(cell.width());
                column.comfort = column.comfort.max(cell.width());
            }
            (column.width, column.is_shown) = (column.least.max(*width), true);
        }
        layout.fit(limit);
        true
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

    /// A token of a cluster that began at its clock's floor.
    const LARGE: u64 = 131_000_000_000_000_001;

    #[test]
    fn a_table_with_large_numbers_leaves_columns_out_and_cuts_no_number() {
        let columns: [&'static [&'static str]; 4] = [
            &["NAME", "OWNER", "LEASE", "TOKEN", "HOW", "SINCE", "WAITING", "VALUE", "LEFT"],
            &["PLACE", "OWNER", "LEASE", "TOKEN", "HOW", "SINCE", "VALUE", "LEFT"],
            &["LEASE", "OWNER", "TTL", "LEFT", "HOLDS", "WAITS"],
            &["LOCK", "TOKEN", "OWNER", "GRANTED", "ENDED", "CAUSE", "DETAIL"],
        ];
        for columns in columns {
            let mut table = TextTable::new(columns);
            table.row(columns.iter().map(|column| match *column {
                "LEASE" | "TOKEN" => LARGE.to_string(),
                "SINCE" | "GRANTED" | "ENDED" => "2000-02-29T00:00:00Z".to_owned(),
                "HOW" => "exclusive-subtree".to_owned(),
                "WAITING" | "HOLDS" | "WAITS" => "10000".to_owned(),
                "TTL" | "LEFT" => "600.0s".to_owned(),
                _ => "long/".repeat(10),
            }));
            let lines = written(&table, 80);
            assert!(lines.iter().all(|line| line.width() <= 80), "{lines:?}");
            assert!(lines[1].contains(&LARGE.to_string()), "{lines:?}");
            assert_eq!(lines[0].contains("TOKEN"), columns.contains(&"TOKEN"), "{lines:?}");
            let wide = table.write_aligned(&mut Vec::new(), None).unwrap();
            assert_eq!(wide, Vec::<&str>::new(), "all is shown where there is room");
        }
    }

    #[test]
    fn a_feed_makes_room_for_large_numbers_under_a_new_header() {
        const COLUMNS: &[(&str, usize)] = &[
            ("POSITION", 10),
            ("EVENT", 9),
            ("NAME", 24),
            ("OWNER", 32),
            ("LEASE", 6),
            ("TOKEN", 6),
            ("VALUE", 5),
            ("TIME", 10),
        ];
        let feed = Feed::new(COLUMNS, Some(80), true);
        let row = |number: u64| {
            let mut out = Vec::new();
            let (moment, name) = ("2000-02-29T00:00:00Z".to_owned(), "long/".repeat(10));
            let (event, number) = ("ACQUIRED".to_owned(), number.to_string());
            let cells =
                vec!["7.0".into(), event, name.clone(), name, number.clone(), number, String::new(), moment];
            feed.write_row(&mut anstream::StripStream::new(&mut out), cells).unwrap();
            let lines: Vec<String> = String::from_utf8(out).unwrap().lines().map(str::to_owned).collect();
            assert!(lines.iter().all(|line| line.width() <= 80), "{lines:?}");
            lines
        };
        assert_eq!(row(7).len(), 1);
        let large = row(LARGE);
        assert!(large[0].contains("TOKEN") && large[1].contains(&format!("  {LARGE}  ")), "{large:?}");
        assert!(large[1].ends_with("2000-02-29"), "{large:?}");
        assert_eq!(row(LARGE + 1).len(), 1, "the header is told once");
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
