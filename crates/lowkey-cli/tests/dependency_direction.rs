//! The structure of the workspace, as a test: who may depend on whom, what the pure crates may never
//! touch, and where a module's file is. `docs/internals/layers.md` draws the same picture for people.
//!
//! Two rules carry the others. Dependencies point one way, so that the state machine can be read
//! without the server. And `lowkey-core` and `lowkey-replica` know no clock, no randomness and no
//! order that is not defined, so that every replica, every replay and every simulation agrees.
//!
//! A crate that is missing in [`RULES`] fails the first test: a new crate gets its place on purpose.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// What one crate may depend on.
struct Rule {
    name: &'static str,
    /// Which of our own crates it may use, in any way: also to build and to test.
    ours: &'static [&'static str],
    /// Which of other people's crates it may be built with. Tests may use what they like.
    outside: Outside,
}

enum Outside {
    /// These and no other.
    Only(&'static [&'static str]),
    /// Anything but these.
    AllBut(&'static [&'static str]),
}

/// What reads a clock, draws lots, opens a socket or waits for one.
const WORLDLY: &[&str] = &["axum", "getrandom", "hyper", "hyper-util", "rand", "rustix", "tokio"];

/// From the bottom up: a crate may use only what stands above it here.
const RULES: &[Rule] = &[
    Rule { name: "lowkey-token", ours: &[], outside: Outside::Only(&[]) },
    Rule { name: "lowkey-mutants", ours: &[], outside: Outside::Only(&[]) },
    Rule { name: "lowkey-record", ours: &[], outside: Outside::Only(&[]) },
    Rule { name: "lowkey-api", ours: &[], outside: Outside::AllBut(WORLDLY) },
    Rule {
        name: "lowkey-core",
        ours: &["lowkey-mutants", "lowkey-record", "lowkey-token"],
        outside: Outside::Only(&["prost"]),
    },
    Rule {
        name: "lowkey-wal",
        ours: &["lowkey-mutants", "lowkey-record"],
        outside: Outside::Only(&["crc32c"]),
    },
    Rule {
        name: "lowkey-replica",
        ours: &["lowkey-core", "lowkey-record"],
        outside: Outside::Only(&["prost", "raft", "slog"]),
    },
    // What a node keeps of grants that are over: it knows files, and nothing of Raft or of the network.
    Rule { name: "lowkey-audit", ours: &["lowkey-core"], outside: Outside::Only(&["rusqlite"]) },
    // Backups, and the place where restores meet.
    Rule { name: "lowkey-backup", ours: &["lowkey-core", "lowkey-replica"], outside: Outside::AllBut(&[]) },
    Rule {
        name: "lowkey-server",
        ours: &[
            "lowkey-api",
            "lowkey-audit",
            "lowkey-backup",
            "lowkey-core",
            "lowkey-replica",
            "lowkey-token",
            "lowkey-wal",
        ],
        outside: Outside::AllBut(&[]),
    },
    Rule { name: "lowkey-client", ours: &["lowkey-api", "lowkey-token"], outside: Outside::AllBut(&[]) },
    // A cluster in the tests of programs, of which it knows the wire alone.
    Rule { name: "lowkey-testing", ours: &[], outside: Outside::AllBut(&["tokio"]) },
    // What a protected resource checks tokens with.
    Rule { name: "lowkey-fence", ours: &["lowkey-token"], outside: Outside::AllBut(&[]) },
    Rule {
        name: "lowkey-fence-proof",
        ours: &["lowkey-client", "lowkey-fence"],
        outside: Outside::AllBut(&[]),
    },
    Rule { name: "lowkey-bench", ours: &["lowkey-api", "lowkey-client"], outside: Outside::AllBut(&[]) },
    Rule {
        name: "lowkey-sim",
        ours: &["lowkey-api", "lowkey-core", "lowkey-mutants", "lowkey-replica", "lowkey-wal"],
        outside: Outside::AllBut(&["tokio", "rand", "getrandom"]),
    },
    Rule {
        name: "lowkey-cli",
        ours: &[
            "lowkey-api",
            "lowkey-backup",
            "lowkey-bench",
            "lowkey-client",
            "lowkey-core",
            "lowkey-fence",
            "lowkey-server",
        ],
        outside: Outside::AllBut(&[]),
    },
];

/// Crates for different readers of one fencing token: none of them may need another.
const APART: &[&str] = &["lowkey-client", "lowkey-fence", "lowkey-server"];

/// What only the tests of a crate may use beside that: user and crate. The tests of the binary look
/// into the files that it leaves behind, judge histories by the simulator's checks, and start clusters as the tests
/// of other programs do.
const ONLY_IN_TESTS: &[(&str, &str)] = &[
    ("lowkey-cli", "lowkey-sim"),
    ("lowkey-cli", "lowkey-testing"),
    ("lowkey-cli", "lowkey-wal"),
    ("lowkey-testing", "lowkey-client"),
];

/// Crates that must give the same answer on every machine and in every run.
const PURE: &[&str] = &["lowkey-core", "lowkey-replica"];

/// Crates that know nothing of the world outside.
const SECLUDED: &[&str] =
    &["lowkey-core", "lowkey-mutants", "lowkey-record", "lowkey-replica", "lowkey-token", "lowkey-wal"];

#[test]
fn every_crate_has_a_place_in_the_picture() {
    let names: Vec<String> = manifests().into_iter().map(|manifest| manifest.name).collect();
    assert!(names.len() >= 6, "only {names:?} were found: is this test looking in the right place?");
    for name in names {
        assert!(rule(&name).is_some(), "{name} is missing in RULES: decide what it may depend on");
    }
}

#[test]
fn the_rules_themselves_point_one_way() {
    for (number, rule) in RULES.iter().enumerate() {
        for used in rule.ours {
            let is_above = RULES[..number].iter().any(|above| above.name == *used);
            assert!(is_above, "{} stands above {used} in RULES, or {used} is no crate", rule.name);
        }
    }
}

#[test]
fn client_server_and_fence_share_the_token_without_needing_each_other() {
    for name in APART {
        let reached = reachable(name);
        assert!(reached.contains("lowkey-token"), "{name} may use the token: {reached:?}");
        let others = APART.iter().filter(|other| *other != name && reached.contains(**other));
        assert_eq!(others.count(), 0, "{name} must stay apart from the others: {reached:?}");
    }
    assert!(reachable("lowkey-token").is_empty(), "the token is for everybody, and brings nothing with it");
}

#[test]
fn the_log_knows_no_locks() {
    let reached = reachable("lowkey-wal");
    for name in ["lowkey-core", "lowkey-token", "lowkey-api"] {
        assert!(!reached.contains(name), "lowkey-wal must not know {name}: {reached:?}");
    }
}

#[test]
fn dependencies_among_our_crates_point_one_way() {
    for manifest in manifests() {
        let problems = manifest.forbidden_crates_of_ours();
        assert!(problems.is_empty(), "{} must not depend on {problems:?}", manifest.name);
    }
}

#[test]
fn crates_are_built_only_with_what_they_may_use() {
    for manifest in manifests() {
        let problems = manifest.forbidden_crates_of_others();
        assert!(problems.is_empty(), "{} must not be built with {problems:?}", manifest.name);
    }
}

#[test]
fn secluded_crates_use_nothing_that_touches_the_world() {
    for manifest in manifests().into_iter().filter(|manifest| SECLUDED.contains(&manifest.name.as_str())) {
        for name in manifest.dependencies(&["dependencies", "build-dependencies"]) {
            let is_worldly = WORLDLY.contains(&name.as_str()) || name.starts_with("tonic");
            assert!(!is_worldly, "{} must not use {name}", manifest.name);
        }
    }
}

#[test]
fn every_crate_follows_the_lints_of_the_workspace() {
    for manifest in manifests() {
        let lints = manifest.table.get("lints").and_then(|lints| lints.get("workspace"));
        assert_eq!(lints, Some(&Value::Boolean(true)), "{} needs [lints] workspace = true", manifest.name);
    }
}

#[test]
fn one_file_has_unsafe_code_and_no_other() {
    // The compiler denies it everywhere. This finds those who allow it for themselves, also behind a `cfg`.
    const WITH_UNSAFE: &[&str] = &["lowkey-cli/src/names.rs"];
    let mut files = Vec::new();
    collect_rust_files(&crates_directory(), &mut files);
    assert!(files.len() > 100, "only {} files: is this test looking in the right place?", files.len());
    let this = crates_directory().join("lowkey-cli/tests/dependency_direction.rs");
    let found: Vec<String> = files
        .iter()
        .filter(|file| **file != this)
        .filter(|file| {
            let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            text.contains("unsafe_code") || text.contains("unsafe {") || text.contains("unsafe extern")
        })
        .map(|file| file.strip_prefix(crates_directory()).unwrap_or(file).display().to_string())
        .collect();
    assert_eq!(found, WITH_UNSAFE);
}

#[test]
fn clippy_forbids_clocks_and_chance_in_the_pure_crates() {
    for name in PURE {
        let path = crates_directory().join(name).join("clippy.toml");
        let config = read_toml(&path);
        for (list, forbidden) in [
            ("disallowed-methods", "std::time::Instant::now"),
            ("disallowed-methods", "std::time::SystemTime::now"),
            ("disallowed-methods", "std::collections::hash_map::RandomState::new"),
            ("disallowed-types", "std::collections::HashMap"),
            ("disallowed-types", "std::collections::HashSet"),
        ] {
            let entries = config.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
            let entry =
                entries.iter().find(|entry| entry.get("path").and_then(Value::as_str) == Some(forbidden));
            let reason = entry.and_then(|entry| entry.get("reason")).and_then(Value::as_str);
            assert!(
                reason.is_some_and(|reason| !reason.is_empty()),
                "{} must forbid {forbidden}, with a reason",
                path.display()
            );
        }
    }
}

#[test]
fn a_module_is_a_file_beside_the_folder_of_its_parts() {
    // Only what several tests or benchmarks share is a `mod.rs`: cargo takes a file in their folders for one of them.
    for manifest in manifests() {
        let mut files = Vec::new();
        collect_rust_files(&crates_directory().join(&manifest.name).join("src"), &mut files);
        for file in files {
            assert!(!file.ends_with("mod.rs"), "{} is `name.rs` beside `name/` here", file.display());
        }
    }
}

#[test]
fn the_pure_crates_mention_no_clock_and_no_undefined_order() {
    // Clippy looks at what is compiled; this looks at every line, also behind a `cfg` or an `allow`.
    const WORDS: &[&str] =
        &["HashMap", "HashSet", "Instant::now", "SystemTime::now", "thread_rng", "RandomState"];
    for name in PURE {
        let mut files = Vec::new();
        collect_rust_files(&crates_directory().join(name).join("src"), &mut files);
        assert!(!files.is_empty(), "{name} has no source files: is this test looking in the right place?");
        for file in files {
            let text =
                fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            for (number, line) in (1..).zip(text.lines()) {
                if let Some(word) = WORDS.iter().find(|word| line.contains(**word)) {
                    panic!("{}:{number} mentions {word}: {}", file.display(), line.trim());
                }
            }
        }
    }
}

#[test]
fn a_dependency_in_the_wrong_direction_is_found_however_it_is_written() {
    for manifest in [
        "[dependencies]\nlowkey-server.workspace = true",
        "[dependencies]\nlowkey-server = { path = \"../lowkey-server\" }",
        "[dev-dependencies]\nlowkey-server.workspace = true",
        "[build-dependencies]\nlowkey-server = \"0.1\"",
        "[target.'cfg(unix)'.dependencies]\nlowkey-server.workspace = true",
        "[dependencies]\nharmless = { package = \"lowkey-server\", path = \"../lowkey-server\" }",
    ] {
        let found = Manifest::parse("lowkey-core", manifest).forbidden_crates_of_ours();
        assert_eq!(found, ["lowkey-server"], "{manifest}");
    }
}

#[test]
fn a_crate_that_may_not_be_used_is_found_outside_tests_only() {
    let found = |text| Manifest::parse("lowkey-wal", text).forbidden_crates_of_others();
    assert_eq!(found("[dependencies]\ncrc32c.workspace = true\ntokio.workspace = true"), ["tokio"]);
    assert_eq!(found("[target.'cfg(unix)'.dependencies]\nrand = \"0.9\""), ["rand"]);
    assert!(found("[dev-dependencies]\nproptest.workspace = true").is_empty());
}

#[test]
fn what_only_tests_may_use_is_found_everywhere_else() {
    let found = |section: &str| {
        let text = format!("[{section}]\nlowkey-wal.workspace = true");
        Manifest::parse("lowkey-cli", &text).forbidden_crates_of_ours()
    };
    assert!(found("dev-dependencies").is_empty());
    for section in ["dependencies", "build-dependencies", "target.'cfg(unix)'.dependencies"] {
        assert_eq!(found(section), ["lowkey-wal"], "{section}");
    }
}

/// One crate's `Cargo.toml`.
struct Manifest {
    name: String,
    table: Table,
}

impl Manifest {
    fn parse(name: &str, text: &str) -> Self {
        let table = text.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name: name.to_owned(), table }
    }

    fn forbidden_crates_of_ours(&self) -> Vec<String> {
        let allowed = rule(&self.name).map_or(&[][..], |rule| rule.ours);
        let mut found = self.dependencies(&["dev-dependencies"]);
        found.retain(|name| !ONLY_IN_TESTS.contains(&(self.name.as_str(), name.as_str())));
        found.extend(self.dependencies(&["dependencies", "build-dependencies"]));
        found.retain(|name| is_ours(name) && !allowed.contains(&name.as_str()));
        found.into_iter().collect()
    }

    fn forbidden_crates_of_others(&self) -> Vec<String> {
        let mut found = self.dependencies(&["dependencies", "build-dependencies"]);
        found.retain(|name| {
            !is_ours(name)
                && match rule(&self.name).map(|rule| &rule.outside) {
                    Some(Outside::Only(allowed)) => !allowed.contains(&name.as_str()),
                    Some(Outside::AllBut(forbidden)) => forbidden.contains(&name.as_str()),
                    None => true,
                }
        });
        found.into_iter().collect()
    }

    /// The names of all crates in sections of these kinds, those for single targets included.
    fn dependencies(&self, kinds: &[&str]) -> BTreeSet<String> {
        let targets = self.table.get("target").and_then(Value::as_table);
        let of_targets = targets.into_iter().flat_map(|targets| targets.values()).filter_map(Value::as_table);
        let mut names = BTreeSet::new();
        for section in of_targets.chain([&self.table]) {
            for kind in kinds {
                let dependencies = section.get(*kind).and_then(Value::as_table);
                for (key, value) in dependencies.into_iter().flatten() {
                    names.insert(package_name(key, value));
                }
            }
        }
        names
    }
}

/// A dependency may go by another name than its crate has, here or in the workspace's table.
fn package_name(key: &str, value: &Value) -> String {
    let renamed = |value: &Value| value.get("package").and_then(Value::as_str).map(str::to_owned);
    let inherits = value.get("workspace").and_then(Value::as_bool) == Some(true);
    let in_workspace = || {
        let root = read_toml(&crates_directory().join("../Cargo.toml"));
        let shared = root.get("workspace")?.get("dependencies")?.get(key)?;
        renamed(shared)
    };
    renamed(value).or_else(|| inherits.then(in_workspace).flatten()).unwrap_or_else(|| key.to_owned())
}

fn rule(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.name == name)
}

/// Which of our crates a crate may come to use by these rules, directly or through others.
fn reachable(name: &str) -> BTreeSet<&'static str> {
    let direct = rule(name).map_or(&[][..], |rule| rule.ours);
    direct.iter().flat_map(|used| reachable(used).into_iter().chain([*used])).collect()
}

fn is_ours(name: &str) -> bool {
    name.starts_with("lowkey-")
}

fn crates_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every crate of the workspace.
fn manifests() -> Vec<Manifest> {
    let directory = crates_directory();
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut manifests = Vec::new();
    for entry in entries {
        let path = entry.expect("the directory can be listed").path().join("Cargo.toml");
        if path.is_file() {
            let table = read_toml(&path);
            let name = table.get("package").and_then(|package| package.get("name")).and_then(Value::as_str);
            let name = name.unwrap_or_else(|| panic!("{} names no package", path.display())).to_owned();
            manifests.push(Manifest { name, table });
        }
    }
    manifests
}

fn read_toml(path: &Path) -> Table {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn collect_rust_files(directory: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in entries {
        let path = entry.expect("the directory can be listed").path();
        if path.is_dir() {
            collect_rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
