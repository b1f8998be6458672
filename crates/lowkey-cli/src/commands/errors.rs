//! `errors`: what a reason means, and what to do about it, from the page of the reference that the program carries.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Args;
use lowkey_client::Reason;

use super::printed;
use crate::exit::{self, CommandFailure};
use crate::output::TextTable;

/// `docs/reference/errors.md`, by a link within the crate.
const PAGE: &str = include_str!("errors.txt");

#[derive(Debug, Args)]
pub(crate) struct ErrorsArgs {
    /// The reason, as an error tells it [default: list all of them]
    reason: Option<String>,
}

pub(crate) fn errors(args: &ErrorsArgs) -> ExitCode {
    let outcome = match &args.reason {
        None => list(),
        Some(name) => {
            let name = name.to_ascii_uppercase();
            match section(&name) {
                Some(text) => printed(io::stdout().lock().write_all(text.as_bytes())),
                None => {
                    let line = format!("there is no reason {name}; `lowkey errors` lists all of them");
                    Err(CommandFailure::new(exit::NO, line))
                }
            }
        }
    };
    outcome.map_or_else(|failure| failure.report(false), ExitCode::from)
}

fn list() -> Result<u8, CommandFailure> {
    let mut table = TextTable::new(&["REASON", "HTTP", "RETRY"]);
    for reason in Reason::all() {
        let retry = if reason.is_retryable() { "yes" } else { "no" };
        table.row([reason.as_str().to_owned(), reason.http_status().to_string(), retry.to_owned()]);
    }
    printed(table.print(true))
}

/// What the page says about a reason: what is below its heading, or its line of a table.
fn section(name: &str) -> Option<String> {
    let mut lines = PAGE.lines().skip_while(|line| line.strip_prefix("### ") != Some(name));
    if lines.next().is_some() {
        let below: Vec<&str> = lines.take_while(|line| !line.starts_with('#')).collect();
        return Some(format!("{name}\n\n{}\n", plain(below.join("\n").trim())));
    }
    let row = format!("<a id=\"{}\"></a>", name.to_ascii_lowercase());
    let cells = PAGE.lines().find_map(|line| line.strip_prefix("| ")?.strip_prefix(&row))?;
    let (_, words) = cells.trim_end_matches(['|', ' ']).split_once(" | ")?;
    Some(format!("{name}\n\n{}\n", plain(words.trim())))
}

/// Markdown as it reads best without being rendered: links to other pages become their words.
fn plain(text: &str) -> String {
    let (mut told, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, behind)) = rest.split_once('[') {
        told.push_str(before);
        match behind.split_once("](").and_then(|(words, target)| Some((words, target.split_once(')')?.1))) {
            Some((words, after)) if !words.contains(['[', ']']) => {
                told.push_str(words);
                rest = after;
            }
            _ => {
                told.push('[');
                rest = behind;
            }
        }
    }
    // Anchors are for browsers.
    let mut lines = String::new();
    for line in (told + rest).lines() {
        let line = line.split_once("<a id=").map_or(line, |(before, behind)| {
            if before.is_empty() { behind.split_once("</a>").map_or(line, |(_, words)| words) } else { line }
        });
        let _ = writeln!(lines, "{line}");
    }
    lines.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_explained() {
        for reason in Reason::all() {
            let text = section(reason.as_str()).unwrap_or_else(|| panic!("nothing is said of {reason:?}"));
            assert!(text.lines().count() >= 3 && !text.contains("]("), "{text}");
        }
        let stale = section("STALE_TOKEN").unwrap();
        assert!(stale.contains("Your lock was lost") && !stale.contains("NOT_OWNER"), "{stale}");
        assert_eq!(section("NO_SUCH_REASON"), None);
    }

    #[test]
    fn links_become_their_words() {
        assert_eq!(plain("see [names](api.md#locks), [a] and [b](c)"), "see names, [a] and b");
    }
}
