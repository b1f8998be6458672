//! `docs/reference/errors.md` has every reason under an anchor of its own, with its code, its status, and whether
//! anything was done.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use lowkey_api::Reason;

const PAGE: &str = include_str!("../../../docs/reference/errors.md");

/// `FAILED_PRECONDITION`, of `FailedPrecondition`.
fn in_upper_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_uppercase());
    }
    text
}

#[test]
fn the_page_of_errors_says_of_every_reason_what_the_table_says() {
    for reason in Reason::all() {
        let anchor = reason.page().split_once('#').unwrap().1.to_owned();
        let section = match reason {
            Reason::Invalid(_) => {
                assert!(PAGE.contains(&format!("| <a id=\"{anchor}\"></a>`{reason}` |")), "{reason}");
                "## Invalid fields".to_owned()
            }
            _ => format!("### {reason}"),
        };
        let (_, section) = PAGE.split_once(&format!("\n{section}\n\n")).unwrap_or_else(|| panic!("{reason}"));
        let code = reason.grpc_code();
        let done = if reason.outcome_unknown() { "perhaps" } else { "no" };
        let expected = format!(
            "HTTP {} · gRPC {} ({}) · done: {done}",
            reason.http_status(),
            in_upper_case(&format!("{code:?}")),
            i32::from(code),
        );
        assert_eq!(section.lines().next(), Some(expected.as_str()), "{reason}");
    }
}

#[test]
fn the_page_of_errors_has_no_reason_that_is_not_there() {
    let headings = PAGE.lines().filter_map(|line| line.strip_prefix("### "));
    let fields = PAGE.lines().filter_map(|line| line.strip_prefix("| <a id=")?.split('`').nth(1));
    let named: Vec<&str> = headings.chain(fields).collect();
    for name in &named {
        assert!(Reason::parse(name).is_some(), "{name}");
    }
    assert_eq!(named.len(), Reason::all().count());
}
