//! Says one version everywhere, and knows where that is. What is generated from it
//! (`docs/reference/openapi.json`) has a test of its own, which writes it anew.

use std::process::Command;

use crate::{Outcome, read, root, run, write};

/// How a place writes the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `1.0.0-rc.1`
    Semantic,
    /// `1.0.0rc1`, by Python's PEP 440.
    Python,
}
use Form::{Python, Semantic};

/// A file, what stands before the version there, how it is written, and how many times from the top.
const PLACES: [(&str, &str, Form, usize); 21] = [
    ("Cargo.toml", "\nversion = \"", Semantic, 1),
    // Crates that are published name each other with their version.
    ("Cargo.toml", "\", version = \"", Semantic, 14),
    ("CHANGELOG.md", "\n## [", Semantic, 1),
    ("README.md", "\nVersion ", Semantic, 1),
    ("conformance/DRIVER.md", "\"sdk\": \"typescript\", \"version\": \"", Semantic, 1),
    ("deploy/helm/lowkey/Chart.yaml", "\nversion: ", Semantic, 1),
    ("deploy/helm/lowkey/Chart.yaml", "\nappVersion: \"", Semantic, 1),
    ("deploy/kubernetes/lowkey.yaml", "image: \"lowkey:", Semantic, 1),
    ("docs/introduction.md", "\nThis is ", Semantic, 1),
    ("docs/reference/openapi.json", "\n    \"version\": \"", Semantic, 1),
    ("sdks/go/README.md", "lowkey@v", Semantic, 1),
    ("sdks/go/check.sh", "lowkey@v", Semantic, 1),
    ("sdks/go/examples/go.mod", "\tlowkey v", Semantic, 1),
    ("sdks/go/version.go", "const Version = \"", Semantic, 1),
    ("sdks/python/pyproject.toml", "\nversion = \"", Python, 1),
    ("sdks/python/src/lowkey/__init__.py", "\n__version__ = \"", Python, 1),
    ("sdks/typescript/driver/driver.ts", "version: \"", Semantic, 1),
    ("sdks/typescript/package-lock.json", "\n  \"version\": \"", Semantic, 1),
    ("sdks/typescript/package-lock.json", "\n      \"version\": \"", Semantic, 1),
    ("sdks/typescript/package.json", "\n  \"version\": \"", Semantic, 1),
    ("sdks/typescript/test/driver.test.ts", "version: \"", Semantic, 1),
];

pub(crate) fn set(version: &str) -> Outcome {
    if !is_version(version) {
        return Err(format!("{version:?} is no version: say X.Y.Z, or X.Y.Z-rc.N"));
    }
    for (file, mark, form, count) in PLACES {
        // The changelog's newest section gets its heading from a person.
        if file == "CHANGELOG.md" {
            continue;
        }
        let path = root().join(file);
        let text = replaced(&read(&path)?, mark, &form.of(version), count)
            .ok_or_else(|| format!("{file} does not say its version as it did: {mark:?}"))?;
        write(&path, text)?;
        println!("{file}");
    }
    run(Command::new("cargo").current_dir(root()).args(["update", "--workspace", "--offline", "--quiet"]))?;
    println!("Cargo.lock");
    println!("now: a section for {version} in CHANGELOG.md, and cargo test -p xtask");
    Ok(())
}

impl Form {
    fn of(self, version: &str) -> String {
        match self {
            Semantic => version.to_owned(),
            Python => version.replace("-rc.", "rc"),
        }
    }
}

/// Where versions stand behind the first of these marks, and none other: from byte to byte.
fn places(text: &str, mark: &str, count: usize) -> Vec<(usize, usize)> {
    let behind = text.match_indices(mark).map(|(at, _)| at + mark.len());
    let versions = behind.filter(|at| text[*at..].starts_with(|first: char| first.is_ascii_digit()));
    versions.take(count).map(|at| (at, at + version_at(&text[at..]).len())).collect()
}

/// The version that a text begins with: `1.0.0-rc.1.tgz` begins with `1.0.0-rc.1`.
fn version_at(text: &str) -> &str {
    let digits =
        |from: usize| from + text[from..].find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len() - from);
    let mut end = digits(0);
    for _ in 0..2 {
        if text[end..].starts_with('.') && digits(end + 1) > end + 1 {
            end = digits(end + 1);
        }
    }
    for candidate in ["-rc.", "rc"] {
        if text[end..].starts_with(candidate) && digits(end + candidate.len()) > end + candidate.len() {
            return &text[..digits(end + candidate.len())];
        }
    }
    &text[..end]
}

/// The text with another version behind the first of these marks; none if there are fewer.
fn replaced(text: &str, mark: &str, version: &str, count: usize) -> Option<String> {
    let places = places(text, mark, count);
    if places.len() != count {
        return None;
    }
    let (mut out, mut last) = (String::new(), 0);
    for (from, to) in places {
        out += &text[last..from];
        out += version;
        last = to;
    }
    Some(out + &text[last..])
}

fn is_version(text: &str) -> bool {
    let (numbers, candidate) = text.split_once("-rc.").unwrap_or((text, "1"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    numbers.split('.').count() == 3 && numbers.split('.').all(is_number) && is_number(candidate)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[test]
    fn a_version_is_three_numbers_and_perhaps_a_candidate() {
        for good in ["1.0.0", "0.12.3", "1.0.0-rc.1"] {
            assert!(is_version(good), "{good}");
        }
        for bad in ["1.0", "v1.0.0", "1.0.0-beta", "1.0.0-rc.", "1..0", ""] {
            assert!(!is_version(bad), "{bad}");
        }
    }

    #[test]
    fn a_version_ends_where_it_ends() {
        for (text, version) in [
            ("1.0.0-rc.1.tgz", "1.0.0-rc.1"),
            ("1.0.0.tgz", "1.0.0"),
            ("1.0.0rc1\"", "1.0.0rc1"),
            ("1.0.0-rc.12, and more", "1.0.0-rc.12"),
            ("12.3.45", "12.3.45"),
            ("1.0.0]", "1.0.0"),
        ] {
            assert_eq!(version_at(text), version, "{text}");
        }
        let text = "a 1.0.0, a none, a 2.0.0-rc.3.tgz";
        assert_eq!(replaced(text, "a ", "3.1.4", 2).as_deref(), Some("a 3.1.4, a none, a 3.1.4.tgz"));
        assert_eq!(replaced(text, "a ", "3.1.4", 3), None);
    }

    #[test]
    fn every_file_says_the_version_where_it_is_looked_for_and_all_say_the_same() {
        for (file, mark, form, count) in PLACES {
            let text = read(&root().join(file)).unwrap();
            let said: Vec<&str> =
                places(&text, mark, count).iter().map(|(from, to)| &text[*from..*to]).collect();
            assert_eq!(said, vec![form.of(VERSION); count], "{file}: {mark:?}");
        }
        let lock = read(&root().join("Cargo.lock")).unwrap();
        let ours = lock.split("\n[[package]]").filter(|package| package.contains("\nname = \"lowkey-"));
        for package in ours {
            assert!(package.contains(&format!("\nversion = \"{VERSION}\"")), "Cargo.lock:{package}");
        }
    }

    /// A place that is not in the list would keep the old version at the next release.
    #[test]
    fn no_other_file_says_the_version() {
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        for (file, _, _, count) in PLACES {
            *known.entry(file).or_default() += count;
        }
        let files = run(Command::new("git").current_dir(root()).args(["ls-files"])).unwrap();
        let told_by_hand = ["Cargo.lock", "CHANGELOG.md", "xtask/src/version.rs"];
        let mut problems = Vec::new();
        for file in files.lines().filter(|file| !told_by_hand.contains(file)) {
            let Ok(text) = std::fs::read_to_string(root().join(file)) else { continue };
            let said = [Semantic, Python].map(|form| form.of(VERSION));
            let told = said.iter().enumerate().filter(|(place, form)| *place == 0 || **form != said[0]);
            let count = told.map(|(_, form)| times(&text, form)).sum::<usize>();
            let wanted = known.get(file).copied().unwrap_or_default();
            // Versions of others may be the same as ours where they are many.
            let has_others =
                file.ends_with("-lock.json") || file.ends_with("go.sum") || file.ends_with("go.mod");
            if count != wanted && !(has_others && count > wanted) {
                problems
                    .push(format!("{file} says {VERSION} {count} times, and the list has {wanted} of them"));
            }
        }
        assert_eq!(problems, [""; 0]);
    }

    /// How often this version stands in a text, and not as a part of a longer one.
    fn times(text: &str, version: &str) -> usize {
        let is_part = |c: char| c.is_ascii_digit();
        let whole = text.match_indices(version).filter(|(at, _)| {
            let before = text[..*at].chars().next_back().is_some_and(|c| is_part(c) || c == '.');
            let behind = text[at + version.len()..].chars().next().is_some_and(is_part);
            !before && !behind
        });
        whole.count()
    }
}
