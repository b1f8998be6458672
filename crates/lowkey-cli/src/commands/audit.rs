//! `explain`, and `audit query`, `export`, `follow`: what happened to locks.
//!
//! Rows go to standard output. What is not known goes there too where it could be missed: `follow` prints gaps between the
//! rows. The others say them on standard error, so that a file has rows and nothing else.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueEnum};
use lowkey_client::Client;
use lowkey_client::api::{AuditGap, AuditedGrant, QueryAuditRequest, QueryAuditResponse};
use serde_json::json;
use tokio::time::sleep;

use super::{ServiceArgs, parse_number, printed};
use crate::duration::parse_duration;
use crate::exit::CommandFailure;
use crate::output::{TextTable, print_json, utc};

/// As many as the service returns at once.
const PAGE_SIZE: u32 = 1000;
/// How often it is asked for what ended meanwhile.
const FOLLOW_PAUSE: Duration = Duration::from_millis(500);
const DAY_MS: u64 = 24 * 3600 * 1000;

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The lock
    name: String,

    /// Tell the story of the grant with this token, and of the one after it
    #[arg(long, value_name = "TOKEN", value_parser = parse_number, allow_negative_numbers = true, help_heading = "The grant")]
    token: Option<u64>,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Show grants that are over, in the order in which they ended
    Query(QueryArgs),
    /// Write grants that are over as rows for other programs
    Export(ExportArgs),
    /// Print grants as they end, and what is not known between them
    Follow(FollowArgs),
}

/// Which grants are meant.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Which grants")]
struct Which {
    /// Of this lock
    #[arg(long, value_name = "NAME", help_heading = "What is told")]
    lock: Option<String>,

    /// Of this owner
    #[arg(long, value_name = "OWNER", help_heading = "What is told")]
    owner: Option<String>,

    /// With this token
    #[arg(long, value_name = "TOKEN", value_parser = parse_number, allow_negative_numbers = true, help_heading = "What is told")]
    token: Option<u64>,

    /// That ended so long ago at most, or since this moment in UTC: 90m, 24h, 7d, 2026-03-01, 2026-03-01T03:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_since, help_heading = "What is told")]
    since: Option<Since>,

    /// That ended for this cause
    #[arg(long, value_name = "CAUSE", help_heading = "What is told")]
    cause: Option<CauseArg>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
enum CauseArg {
    Released,
    Expired,
    Revoked,
    HeldTooLong,
    ClusterRecovered,
}

impl CauseArg {
    fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::HeldTooLong => "held_too_long",
            Self::ClusterRecovered => "cluster_recovered",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Ago(Duration),
    UnixMs(u64),
}

#[derive(Debug, Args)]
struct QueryArgs {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct ExportArgs {
    /// How to write them
    #[arg(long, value_name = "FORMAT", default_value = "jsonl", help_heading = "Output")]
    format: Format,

    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One JSON object a line
    Jsonl,
    /// Comma-separated, with a header
    Csv,
}

#[derive(Debug, Args)]
struct FollowArgs {
    /// Go on behind this position, as an earlier `follow` printed it [default: from now]
    #[arg(long, value_name = "REVISION.ORDINAL", help_heading = "Where to begin")]
    after: Option<lowkey_client::Position>,

    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    service: ServiceArgs,
}

pub(crate) fn explain(args: &ExplainArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        let told = service.ask(client.explain(&args.name, args.token)).await?;
        if service.json {
            return printed(print_json(&told));
        }
        let mut text = String::new();
        for sentence in &told.sentences {
            text.push_str(sentence);
            text.push('\n');
        }
        if !told.oddities.is_empty() {
            text.push_str("\nOdd:\n");
            told.oddities.iter().for_each(|odd| text.push_str(&format!("- {odd}\n")));
        }
        printed(io::stdout().lock().write_all(text.as_bytes()))
    })
}

pub(crate) fn audit(args: &AuditArgs) -> ExitCode {
    match &args.command {
        AuditCommand::Query(args) => query(args),
        AuditCommand::Export(args) => export(args),
        AuditCommand::Follow(args) => follow(args),
    }
}

impl Which {
    fn request(&self) -> QueryAuditRequest {
        let since_unix_ms = self.since.map_or(0, |since| match since {
            Since::UnixMs(unix_ms) => unix_ms,
            Since::Ago(time) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(now.saturating_sub(time).as_millis()).unwrap_or(0)
            }
        });
        QueryAuditRequest {
            lock_name: self.lock.clone().unwrap_or_default(),
            owner_id: self.owner.clone().unwrap_or_default(),
            fencing_token: self.token.unwrap_or(0),
            since_unix_ms: i64::try_from(since_unix_ms).unwrap_or(i64::MAX),
            cause: self.cause.map_or("", CauseArg::name).to_owned(),
            page_size: PAGE_SIZE,
            ..QueryAuditRequest::default()
        }
    }
}

/// Asks for all pages that there are, and gives each to `take`.
async fn pages(
    service: &ServiceArgs,
    client: &Client,
    request: &mut QueryAuditRequest,
    mut take: impl FnMut(QueryAuditResponse) -> io::Result<()>,
) -> Result<u8, CommandFailure> {
    loop {
        let page = service.ask(client.audit_page(request)).await?;
        let more = page.more;
        request.after.clone_from(&page.through);
        if let Err(error) = take(page) {
            return printed(Err(error));
        }
        if !more {
            return Ok(0);
        }
    }
}

fn query(args: &QueryArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        let mut table = TextTable::new(&["LOCK", "TOKEN", "OWNER", "GRANTED", "ENDED", "CAUSE", "DETAIL"]);
        let mut gaps = Gaps::default();
        let mut request = args.which.request();
        let outcome = pages(service, &client, &mut request, |page| {
            gaps.see(&page.gaps);
            for grant in page.grants {
                match service.json {
                    true => print_json(&grant)?,
                    false => table.row(cells(&grant)),
                }
            }
            Ok(())
        });
        outcome.await?;
        gaps.tell(service);
        if service.json { Ok(0) } else { printed(table.print(service.wide)) }
    })
}

fn export(args: &ExportArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        let mut gaps = Gaps::default();
        if args.format == Format::Csv
            && let Err(error) = writeln!(io::stdout().lock(), "{CSV_HEADER}")
        {
            return printed(Err(error));
        }
        let mut request = args.which.request();
        let outcome = pages(service, &client, &mut request, |page| {
            gaps.see(&page.gaps);
            let mut out = io::stdout().lock();
            for grant in &page.grants {
                match args.format {
                    Format::Jsonl => {
                        serde_json::to_writer(&mut out, grant).map_err(io::Error::from)?;
                        out.write_all(b"\n")?;
                    }
                    Format::Csv => out.write_all(csv_line(grant).as_bytes())?,
                }
            }
            out.flush()
        });
        let code = outcome.await?;
        gaps.tell(service);
        Ok(code)
    })
}

fn follow(args: &FollowArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        let mut request = args.which.request();
        request.after = match args.after {
            Some(after) => after.to_string(),
            None => service.ask(client.status()).await?.applied_index.to_string(),
        };
        let mut gaps = Gaps::default();
        loop {
            let outcome = pages(service, &client, &mut request, |page| {
                // A gap is told before what ended behind it.
                let mut new = gaps.see(&page.gaps).into_iter().peekable();
                for grant in &page.grants {
                    while let Some(gap) = new.next_if(|gap| gap.after_revision < grant.ended_revision) {
                        print_gap(service, &gap)?;
                    }
                    match service.json {
                        true => print_json(grant)?,
                        false => {
                            writeln!(io::stdout().lock(), "{}\t{}", grant.position, cells(grant).join("\t"))?
                        }
                    }
                }
                new.try_for_each(|gap| print_gap(service, &gap))
            });
            outcome.await?;
            sleep(FOLLOW_PAUSE).await;
        }
    })
}

fn print_gap(service: &ServiceArgs, gap: &AuditGap) -> io::Result<()> {
    match service.json {
        true => print_json(&json!({ "gap": gap })),
        false => writeln!(io::stdout().lock(), "{}\t{}", gap.through_revision, gap_words(gap)),
    }
}

fn gap_words(gap: &AuditGap) -> String {
    format!(
        "not known: what ended behind revision {} through {} ({})",
        gap.after_revision, gap.through_revision, gap.cause
    )
}

/// What is not known, each part once.
#[derive(Default)]
struct Gaps {
    seen: BTreeSet<(u64, u64)>,
    all: Vec<AuditGap>,
}

impl Gaps {
    /// Takes in what a page says, and gives what is new.
    fn see(&mut self, gaps: &[AuditGap]) -> Vec<AuditGap> {
        let new = gaps.iter().filter(|gap| self.seen.insert((gap.after_revision, gap.through_revision)));
        let new: Vec<AuditGap> = new.cloned().collect();
        self.all.extend(new.iter().cloned());
        new
    }

    fn tell(&self, service: &ServiceArgs) {
        self.all.iter().for_each(|gap| service.remark(&gap_words(gap)));
    }
}

fn cells(grant: &AuditedGrant) -> [String; 7] {
    let time = |unix_ms: i64| if unix_ms == 0 { "-".to_owned() } else { utc(unix_ms) };
    [
        grant.lock_name.clone(),
        grant.fencing_token.to_string(),
        grant.owner_id.clone(),
        time(grant.granted_unix_ms),
        time(grant.ended_unix_ms),
        grant.cause.clone(),
        if grant.detail.is_empty() { "-".to_owned() } else { grant.detail.clone() },
    ]
}

const CSV_HEADER: &str = "lock_name,fencing_token,owner_id,lease_id,mode,scope,ttl_seconds,asked_unix_ms,granted_unix_ms,\
                          granted_revision,ended_unix_ms,ended_revision,position,cause,detail,actor,term,cluster_id,\
                          perhaps_uncommitted";

fn csv_line(grant: &AuditedGrant) -> String {
    let known = |unix_ms: i64| if unix_ms == 0 { String::new() } else { unix_ms.to_string() };
    let cells = [
        csv_text(&grant.lock_name),
        grant.fencing_token.to_string(),
        csv_text(&grant.owner_id),
        grant.lease_id.to_string(),
        grant.mode().as_str_name().to_owned(),
        grant.scope().as_str_name().to_owned(),
        grant.ttl_seconds.to_string(),
        known(grant.asked_unix_ms),
        known(grant.granted_unix_ms),
        grant.granted_revision.to_string(),
        known(grant.ended_unix_ms),
        grant.ended_revision.to_string(),
        grant.position.clone(),
        grant.cause.clone(),
        csv_text(&grant.detail),
        csv_text(&grant.actor),
        grant.term.to_string(),
        grant.cluster_id.clone(),
        grant.perhaps_uncommitted.to_string(),
    ];
    cells.join(",") + "\n"
}

/// In quotes, doubled within, where it could be taken for something else.
fn csv_text(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn parse_since(text: &str) -> Result<Since, String> {
    let allowed = || {
        "must be how long ago, such as 90m, 24h or 7d, or a moment in UTC, such as 2026-03-01T03:00:00Z"
            .to_owned()
    };
    if let Some(days) = text.strip_suffix('d') {
        let days = days.parse::<u64>().ok().filter(|days| *days <= 36_500).ok_or_else(allowed)?;
        return Ok(Since::Ago(Duration::from_secs(days * 24 * 3600)));
    }
    if let Ok(time) = parse_duration(text) {
        return Ok(Since::Ago(time));
    }
    moment(text).map(Since::UnixMs).ok_or_else(allowed)
}

/// A moment in UTC, as milliseconds since 1970.
fn moment(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00Z"));
    let number = |text: &str, digits: usize| {
        let is_right = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        is_right.then(|| text.parse::<u64>().ok()).flatten()
    };
    let mut parts = date.split('-');
    let (year, month, day) =
        (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let mut clock = time.strip_suffix('Z')?.split(':');
    let (hour, minute, second) =
        (number(clock.next()?, 2)?, number(clock.next()?, 2)?, number(clock.next()?, 2)?);
    let is_right = parts.next().is_none()
        && clock.next().is_none()
        && (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    // The year is taken to begin in March, so that a leap day is its last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    is_right.then_some(days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_so_long_ago_or_a_moment() {
        assert_eq!(parse_since("24h"), Ok(Since::Ago(Duration::from_secs(86_400))));
        assert_eq!(parse_since("7d"), Ok(Since::Ago(Duration::from_secs(7 * 86_400))));
        assert_eq!(parse_since("2026-03-01T03:00:02Z"), Ok(Since::UnixMs(1_772_334_002_000)));
        assert_eq!(parse_since("1970-01-01"), Ok(Since::UnixMs(0)));
        for text in [
            "",
            "yesterday",
            "2026-3-1",
            "2026-13-01",
            "2026-03-01T25:00:00Z",
            "2026-03-01 03:00",
            "99999999d",
        ] {
            assert!(parse_since(text).is_err(), "{text}");
        }
    }

    #[test]
    fn texts_in_csv_keep_their_commas_and_quotes() {
        assert_eq!(csv_text("a/b"), "a/b");
        assert_eq!(csv_text("say \"hi\", twice"), "\"say \"\"hi\"\", twice\"");
        let grant = AuditedGrant { lock_name: "a,b".into(), fencing_token: 7, ..AuditedGrant::default() };
        assert_eq!(csv_line(&grant).split(',').count(), CSV_HEADER.split(',').count() + 1);
    }

    #[test]
    fn a_gap_is_told_once() {
        let gap = |after_revision| AuditGap { after_revision, through_revision: 9, cause: "lost".into() };
        let mut gaps = Gaps::default();
        assert_eq!(gaps.see(&[gap(1), gap(2)]).len(), 2);
        assert_eq!(gaps.see(&[gap(2), gap(3)]), [gap(3)]);
    }
}
