//! What nodes count about themselves, as Prometheus would read it.

use std::collections::{BTreeMap, BTreeSet};

use crate::harness::{Cluster, Node, eventually};

/// A scrape: samples by name and labels.
struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    fn of(node: &Node) -> Self {
        let (status, text) = node.http("GET", "/metrics", "").expect("the node answers");
        assert_eq!(status, 200, "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
            (sample.to_owned(), value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
        });
        Self(samples.collect())
    }

    fn get(&self, sample: &str) -> f64 {
        *self.0.get(sample).unwrap_or_else(|| panic!("no {sample} in {:#?}", self.0))
    }

    /// The names without labels, and without what a histogram or a counter adds to its own.
    fn families(&self) -> BTreeSet<String> {
        let name = |sample: &String| sample.split('{').next().unwrap().to_owned();
        let names: BTreeSet<String> = self.0.keys().map(name).collect();
        let of_histogram = |name: &str| {
            ["_bucket", "_count", "_sum"].into_iter().find_map(|end| {
                let family = name.strip_suffix(end)?;
                names.contains(&format!("{family}_bucket")).then(|| family.to_owned())
            })
        };
        names.iter().map(|name| of_histogram(name).unwrap_or_else(|| name.clone())).collect()
    }
}

/// Nodes with encrypted ports have these, too: see `secure.rs`.
const ONLY_WITH_TLS: [&str; 2] =
    ["lowkey_tls_certificate_expires_timestamp_seconds", "lowkey_tls_handshakes_failed_total"];

fn acquire(node: &Node, lock: &str, owner: &str, ttl: u64) -> (u16, String) {
    let body = format!(r#"{{"lock_name":"{lock}","owner_id":"{owner}","ttl_seconds":{ttl}}}"#);
    node.http("POST", "/v1/lock/acquire", &body).expect("the node answers")
}

#[test]
fn a_cluster_counts_what_it_does_and_no_label_grows_with_the_data() {
    let cluster = Cluster::start(3);
    let leader = &cluster.nodes[cluster.wait_whole()];
    let follower = cluster.nodes.iter().find(|node| node.name != leader.name).unwrap();
    for number in 0..20 {
        assert_eq!(acquire(leader, &format!("lock-{number}"), "one", 600).0, 200);
    }
    assert_eq!(acquire(leader, "lock-0", "another", 600).0, 409);
    assert_eq!(acquire(leader, "lock 0 // is no name", "another", 600).0, 400);
    let passed_on = || Scrape::of(follower).get("lowkey_requests_passed_on_total");
    let passed_on_before = passed_on();
    assert_eq!(acquire(follower, "brief", "one", 1).0, 200);
    assert_eq!(passed_on(), passed_on_before + 1.0);

    let scrape = Scrape::of(leader);
    assert_eq!(scrape.get(r#"lowkey_requests_total{rpc="AcquireLock",result="OK"}"#), 20.0);
    assert_eq!(scrape.get(r#"lowkey_requests_total{rpc="AcquireLock",result="LOCK_HELD"}"#), 1.0);
    assert_eq!(scrape.get(r#"lowkey_requests_total{rpc="AcquireLock",result="INVALID_LOCK_NAME"}"#), 1.0);
    assert_eq!(scrape.get(r#"lowkey_request_duration_seconds_count{rpc="AcquireLock"}"#), 22.0);
    assert_eq!(scrape.get("lowkey_is_leader"), 1.0);
    assert_eq!(scrape.get("lowkey_voters"), 3.0);
    assert!(scrape.get("lowkey_log_sync_duration_seconds_count") >= 20.0);
    assert!(scrape.get("lowkey_applied_entries_total") >= 21.0);
    let lags = scrape.0.keys().filter(|sample| sample.starts_with("lowkey_member_lag_entries{"));
    assert_eq!(lags.count(), 2);
    // By name: an alert that says "member 2" sends a person to look for who that is.
    let told = follower.ok("GET", "/v1/status", "");
    let members = told["members"].as_array().unwrap();
    let number = |name: &str| members.iter().find(|it| it["nodeId"] == name).unwrap()["memberId"].clone();
    let (member, node) = (number(&follower.name), &follower.name);
    let reachable = format!(r#"lowkey_member_reachable{{member={member},node="{node}"}}"#);
    assert_eq!(scrape.get(&reachable), 1.0);
    assert_eq!(Scrape::of(follower).get("lowkey_is_leader"), 0.0);

    // The brief lease runs out, and every node counts that once.
    for node in &cluster.nodes {
        eventually("the lease has run out", || {
            (Scrape::of(node).get("lowkey_leases_expired_total") == 1.0).then_some(())
        });
        eventually("the rest is there", || (Scrape::of(node).get("lowkey_locks") == 20.0).then_some(()));
    }
    let before = Scrape::of(leader).0.len();
    for number in 0..50 {
        assert_eq!(acquire(leader, &format!("more/{number}"), &format!("owner-{number}"), 600).0, 200);
    }
    assert_eq!(Scrape::of(leader).0.len(), before, "a label grows with the data");
}

#[test]
fn the_guide_for_operators_and_the_dashboard_have_every_metric_and_no_other() {
    let cluster = Cluster::start(3);
    let leader = &cluster.nodes[cluster.wait_whole()];
    assert_eq!(acquire(leader, "a", "one", 600).0, 200);
    let families = Scrape::of(leader).families();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
    let guide = std::fs::read_to_string(format!("{folder}reference/metrics.md")).unwrap();
    let rows = guide.lines().filter_map(|line| line.strip_prefix("| `lowkey_")?.split(['`', '{']).next());
    let mut documented: BTreeSet<String> = rows.map(|name| format!("lowkey_{name}")).collect();
    let all = documented.clone();
    // Only where a node keeps to a plan: see the tests of backups.
    assert!(documented.remove("lowkey_backup_age_seconds"));
    assert!(documented.remove("lowkey_backup_every_seconds"));
    for name in ONLY_WITH_TLS {
        assert!(documented.remove(name), "{name} is not in the guide");
    }
    assert_eq!(documented, families);

    let dashboard = std::fs::read_to_string(format!("{folder}operate/grafana.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            let words = words.filter(|word| word.starts_with("lowkey_"));
            asked.extend(words.map(|word| word.trim_end_matches("_bucket").to_owned()));
        }
    }
    let strange: Vec<_> = asked.difference(&all).collect();
    assert!(strange.is_empty(), "the dashboard asks for what no node has: {strange:?}");
    let unseen: Vec<_> = all.difference(&asked).collect();
    assert!(unseen.is_empty(), "no panel of the dashboard shows {unseen:?}");
}
