//! The alerts for Prometheus: the guide lists them as they are, and each goes off when it should.
//!
//! `promtool` of Prometheus judges the files and plays the stories. `.ci/servers` installs it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::skip;

fn operate() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate").canonicalize().unwrap()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(operate().join(file)).unwrap()
}

/// A rule, as far as it matters here.
#[derive(Debug, Default)]
struct Rule {
    expression: String,
    lasts: Option<String>,
    severity: String,
    page: String,
}

/// The rules of a file, by the name behind `alert` or `record`. They are written in one manner, so this needs no
/// parser of YAML; `promtool` has one.
fn rules(file: &str, kind: &str) -> BTreeMap<String, Rule> {
    let mut rules: BTreeMap<String, Rule> = BTreeMap::new();
    let (mut name, mut is_expression) = (String::new(), false);
    for line in read(file).lines() {
        let line = line.trim();
        if let Some(found) = line.strip_prefix(&format!("- {kind}: ")) {
            name = found.to_owned();
            assert!(rules.insert(name.clone(), Rule::default()).is_none(), "{name} is there twice");
            continue;
        }
        let Some(rule) = rules.get_mut(&name) else { continue };
        let key = line.split_once(": ").map(|(key, value)| (key, value.trim_matches('"')));
        match key {
            Some(("expr", value)) => (rule.expression, is_expression) = (value.to_owned(), true),
            Some(("for", value)) => (rule.lasts, is_expression) = (Some(value.to_owned()), false),
            Some(("labels", value)) => {
                let severity = value.strip_prefix("{ severity: ").and_then(|rest| rest.strip_suffix(" }"));
                (rule.severity, is_expression) = (severity.unwrap().to_owned(), false);
            }
            Some(("runbook", value)) => rule.page = value.to_owned(),
            _ if is_expression => rule.expression += line,
            _ => {}
        }
    }
    assert!(rules.len() >= 5, "too few rules in {file}: is this reading it right?");
    rules
}

/// The metrics that a text names, without what a histogram adds.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let words = words.filter(|word| word.starts_with("lowkey_") || *word == "up");
    words.map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
}

/// The rows of the table below a heading of the guide.
fn table<'a>(guide: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let (_, below) = guide.split_once(&format!("## {heading}\n")).unwrap();
    let rows =
        below.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    rows.skip(2).map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

#[test]
fn the_guide_lists_every_alert_as_it_is_and_no_other() {
    let guide = read("monitor.md");
    let (mut alerts, recorded) = (rules("alerts.yml", "alert"), rules("recording.yml", "record"));
    for rule in alerts.values_mut() {
        // What it computes from is what counts.
        for (name, of) in &recorded {
            rule.expression = rule.expression.replace(name, &of.expression);
        }
        assert!(!rule.expression.contains("lowkey:"), "recording.yml lacks a series: {rule:?}");
    }
    for (heading, severity) in [("What to wake somebody for", "page"), ("What to look at today", "ticket")] {
        for row in table(&guide, heading) {
            let [name, when, _, page] = row[..] else { panic!("{row:?} has not four cells") };
            let rule = alerts.remove(name).unwrap_or_else(|| panic!("alerts.yml has no {name}"));
            assert_eq!(rule.severity, severity, "{name}");
            assert_eq!(metrics(when), metrics(&rule.expression), "{name} asks for what its row names");
            let lasts = match rule.lasts.as_deref() {
                None => None,
                Some("1h") => Some("for an hour".to_owned()),
                Some("1d") => Some("for a day".to_owned()),
                Some(time) if time.ends_with('m') => Some(format!("for {} min", time.trim_end_matches('m'))),
                Some(time) => Some(format!("for {} s", time.trim_end_matches('s'))),
            };
            assert_eq!(lasts.is_some(), when.contains(" for "), "{name}: {when}");
            assert!(lasts.is_none_or(|lasts| when.contains(&lasts)), "{name} says for how long: {rule:?}");
            let linked = page.rsplit_once("](").unwrap().1.split(['#', ')']).next().unwrap();
            let linked = operate().join(linked).canonicalize().unwrap();
            let named = operate().join("../..").join(&rule.page).canonicalize().unwrap();
            assert_eq!(linked, named, "{name} and its row name one page");
        }
    }
    assert!(alerts.is_empty(), "the guide does not list {alerts:#?}");
    let listed: BTreeSet<&str> =
        table(&guide, "What is recorded").into_iter().map(|row| row[0].trim_matches('`')).collect();
    assert_eq!(listed, recorded.keys().map(String::as_str).collect());
}

/// A cluster that is well: its series, and their values from minute to minute.
const WELL: &[(&str, &str)] = &[
    (r#"up{job="lowkey",instance="a"}"#, "1x1500"),
    (r#"lowkey_has_leader{job="lowkey",instance="a"}"#, "1x1500"),
    (r#"lowkey_is_diverged{job="lowkey",instance="a"}"#, "0x1500"),
    (r#"lowkey_disk_room{job="lowkey",instance="a"}"#, "2x1500"),
    (r#"lowkey_leader_changes_total{job="lowkey",instance="a"}"#, "4x1500"),
    (r#"lowkey_member_reachable{job="lowkey",instance="a",member="2",node="b"}"#, "1x1500"),
    (r#"lowkey_member_lag_entries{job="lowkey",instance="a",member="2",node="b"}"#, "3x1500"),
    (r#"lowkey_recovering_seconds{job="lowkey",instance="a"}"#, "0x1500"),
    // The clock of these stories begins at 0.
    (r#"lowkey_tls_certificate_expires_timestamp_seconds{job="lowkey",instance="a"}"#, "7000000x1500"),
    (r#"lowkey_tls_handshakes_failed_total{job="lowkey",instance="a"}"#, "1x1500"),
    (r#"lowkey_access_refused_total{job="lowkey",instance="a",cause="unauthenticated"}"#, "1x1500"),
    (r#"lowkey_backup_age_seconds{job="lowkey",instance="a"}"#, "300x1500"),
    (r#"lowkey_backup_every_seconds{job="lowkey",instance="a"}"#, "600x1500"),
    (r#"lowkey_backups_failed_total{job="lowkey",instance="a"}"#, "1x1500"),
    (r#"lowkey_audit_writable{job="lowkey",instance="a"}"#, "1x1500"),
    (r#"lowkey_audit_gaps_total{job="lowkey",instance="a"}"#, "1x1500"),
    (r#"lowkey_late_renewals_total{job="lowkey",instance="a"}"#, "1x1500"),
    (r#"lowkey_requests_total{job="lowkey",instance="a",rpc="AcquireLock",result="OK"}"#, "0+60x1500"),
    (r#"lowkey_requests_total{job="lowkey",instance="a",rpc="AcquireLock",result="LIMIT_BUSY"}"#, "0x1500"),
    (r#"lowkey_request_duration_seconds_bucket{job="lowkey",rpc="AcquireLock",le="0.01"}"#, "0+60x1500"),
    (r#"lowkey_request_duration_seconds_bucket{job="lowkey",rpc="AcquireLock",le="1"}"#, "0+60x1500"),
    (r#"lowkey_request_duration_seconds_bucket{job="lowkey",rpc="AcquireLock",le="+Inf"}"#, "0+60x1500"),
    (r#"lowkey_log_sync_duration_seconds_bucket{job="lowkey",instance="a",le="0.01"}"#, "0+60x1500"),
    (r#"lowkey_log_sync_duration_seconds_bucket{job="lowkey",instance="a",le="1"}"#, "0+60x1500"),
    (r#"lowkey_log_sync_duration_seconds_bucket{job="lowkey",instance="a",le="+Inf"}"#, "0+60x1500"),
    (r#"lowkey_stalled_seconds_total{job="lowkey",instance="a"}"#, "0x1500"),
    (r#"lowkey_timing_factor{job="lowkey",instance="a"}"#, "1x1500"),
    (r#"lowkey_snapshots_failed_total{job="lowkey",instance="a"}"#, "0x1500"),
    (r#"lowkey_voters{job="lowkey",instance="a"}"#, "3x1500"),
    (r#"lowkey_build_info{job="lowkey",instance="a",version="1"}"#, "1x1500"),
];

/// What goes wrong: alerts, the beginning of a series of [`WELL`], what it is instead, and after how many minutes.
const STORIES: &[(&[&str], &str, &str, u32)] = &[
    (&["LowkeyNoLeader"], "lowkey_has_leader", "0x1500", 60),
    // No node answers at all: what they told before is gone, and only `up` says something.
    (&["LowkeyDown", "LowkeyNoLeader"], "up", "1x10 0x1500", 60),
    (&["LowkeyMemberNotReachable"], "lowkey_member_reachable", "0x1500", 60),
    (&["LowkeyRecovering"], "lowkey_recovering_seconds", "600x1500", 60),
    (&["LowkeyDiverged"], "lowkey_is_diverged", "1x1500", 60),
    (&["LowkeyDiskFull"], "lowkey_disk_room", "1x1500", 60),
    (&["LowkeyLeaderChanges"], "lowkey_leader_changes_total", "0+1x1500", 60),
    (&["LowkeyCertificateExpired", "LowkeyCertificateExpires"], "lowkey_tls_certificate", "60000x1500", 60),
    (&["LowkeyCertificateExpires"], "lowkey_tls_certificate", "900000x1500", 60),
    (&["LowkeyHandshakesFail"], "lowkey_tls_handshakes_failed", "0+10x1500", 60),
    (&["LowkeyAccessRefused"], "lowkey_access_refused_total", "0+90x1500", 60),
    (&["LowkeyBackupTooOld"], "lowkey_backup_age_seconds", "3600+60x1500", 60),
    (&["LowkeyBackupUnknown"], "lowkey_backup_age_seconds", "300x10 _x1490", 60),
    (&["LowkeyBackupsFail"], "lowkey_backups_failed_total", "0+0.1x1500", 60),
    (&["LowkeyAuditNotWritable"], "lowkey_audit_writable", "0x1500", 60),
    (&["LowkeyAuditGaps"], "lowkey_audit_gaps_total", "0x50 1x1450", 60),
    (&["LowkeyLateRenewals"], "lowkey_late_renewals_total", "0+2x1500", 60),
    (
        &["LowkeyLimit"],
        r#"lowkey_requests_total{job="lowkey",instance="a",rpc="AcquireLock",result="L"#,
        "0+1x1500",
        60,
    ),
    (
        &["LowkeySlowRequests"],
        r#"lowkey_request_duration_seconds_bucket{job="lowkey",rpc="AcquireLock",le="0"#,
        "0x1500",
        60,
    ),
    (
        &["LowkeySlowDisk"],
        r#"lowkey_log_sync_duration_seconds_bucket{job="lowkey",instance="a",le="0"#,
        "0x1500",
        60,
    ),
    (&["LowkeyStalls"], "lowkey_stalled_seconds_total", "0+6x1500", 60),
    (&["LowkeyTimingStretched"], "lowkey_timing_factor", "2x1500", 60),
    (&["LowkeyMemberBehind"], "lowkey_member_lag_entries", "20000x1500", 60),
    (&["LowkeySnapshotsFail"], "lowkey_snapshots_failed_total", "0x50 1x1450", 60),
    (&["LowkeyEvenVoters"], "lowkey_voters", "4x1500", 90),
    (&["LowkeySeveralVersions"], "", r#"lowkey_build_info{job="lowkey",instance="b",version="2"}"#, 1500),
    // All is well for a day and an hour.
    (&[], "", r#"lowkey_build_info{job="lowkey",instance="b",version="1"}"#, 1500),
];

/// The stories as a file of `promtool test rules`.
fn stories() -> String {
    let operate = operate().display().to_string();
    let mut file = format!(
        "rule_files: ['{operate}/recording.yml', '{operate}/alerts.yml']\nevaluation_interval: 1m\ntests:\n"
    );
    for (alerts, series, instead, minutes) in STORIES {
        file += "- interval: 1m\n  input_series:\n";
        let mut replaced = 0;
        for (name, values) in WELL {
            let is_meant = !series.is_empty() && name.starts_with(series);
            replaced += usize::from(is_meant);
            // What stands still when nobody answers.
            let is_gone = *series == "up" && *name != WELL[0].0;
            let values = match (is_meant, is_gone) {
                (true, _) => instead,
                (_, true) => "1x9 stale",
                _ => *values,
            };
            file += &format!("  - {{ series: '{name}', values: '{values}' }}\n");
        }
        if series.is_empty() {
            file += &format!("  - {{ series: '{instead}', values: '1x1500' }}\n");
        } else {
            assert_eq!(replaced, 1, "{series} is one series");
        }
        file += "  promql_expr_test:\n  - expr: count by (alertname) (ALERTS{alertstate=\"firing\"})\n";
        file += &format!("    eval_time: {minutes}m\n    exp_samples:\n");
        for alert in *alerts {
            file += &format!("    - {{ labels: '{{alertname=\"{alert}\"}}', value: 1 }}\n");
        }
    }
    file
}

#[test]
fn every_alert_goes_off_when_it_should_and_none_while_all_is_well() {
    let told: BTreeSet<&str> = STORIES.iter().flat_map(|(alerts, ..)| alerts.iter().copied()).collect();
    let alerts = rules("alerts.yml", "alert");
    assert_eq!(told, alerts.keys().map(String::as_str).collect(), "each alert has a story");
    if Command::new("promtool").arg("--version").output().is_err() {
        return skip("the alerts: there is no promtool; .ci/servers installs it");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stories.yml");
    std::fs::write(&file, stories()).unwrap();
    let [alerts, recorded] = ["alerts.yml", "recording.yml"].map(|name| operate().join(name));
    for arguments in [vec!["check", "rules"], vec!["test", "rules"]] {
        let mut promtool = Command::new("promtool");
        match arguments[0] {
            "check" => promtool.args(&arguments).args([&alerts, &recorded]),
            _ => promtool.args(&arguments).arg(&file),
        };
        let output = promtool.output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{said}");
    }
}
