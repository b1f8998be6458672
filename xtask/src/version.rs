//! Says one version everywhere. What is generated from it (`docs/reference/openapi.json`) is written anew by its test.

use crate::{Outcome, read, root, write};

/// A file, and what stands before the version in the lines that say it; the version ends at the next quote.
const PLACES: [(&str, &[&str]); 9] = [
    ("Cargo.toml", &["\nversion = \""]),
    ("sdks/go/version.go", &["const Version = \""]),
    ("sdks/python/pyproject.toml", &["\nversion = \""]),
    ("sdks/python/src/lowkey/__init__.py", &["\n__version__ = \""]),
    ("sdks/typescript/package.json", &["\n  \"version\": \""]),
    ("sdks/typescript/package-lock.json", &["\n  \"version\": \"", "\n      \"version\": \""]),
    ("deploy/helm/lowkey/Chart.yaml", &["\nappVersion: \""]),
    ("deploy/kubernetes/lowkey.yaml", &["image: \"lowkey:"]),
    ("docs/reference/openapi.json", &["\n    \"version\": \""]),
];

pub(crate) fn set(version: &str) -> Outcome {
    if !is_version(version) {
        return Err(format!("{version:?} is no version: say X.Y.Z, or X.Y.Z-rc.N"));
    }
    for (file, marks) in PLACES {
        let path = root().join(file);
        let mut text = read(&path)?;
        for mark in marks {
            text = replaced(&text, mark, pythonic(file, version).as_str())
                .ok_or_else(|| format!("{file} does not say its version as it did: {mark:?}"))?;
        }
        write(&path, text)?;
        println!("{file}");
    }
    // A chart's own version has no quotes.
    let chart = root().join("deploy/helm/lowkey/Chart.yaml");
    let text = read(&chart)?;
    let lines = text.lines().map(|line| match line.starts_with("version: ") {
        true => format!("version: {version}\n"),
        false => format!("{line}\n"),
    });
    write(&chart, lines.collect::<String>())?;
    println!("now: cargo check --workspace, for Cargo.lock; and CHANGELOG.md says what is new");
    Ok(())
}

/// Python writes 1.0.0-rc.1 as 1.0.0rc1.
fn pythonic(file: &str, version: &str) -> String {
    match file.starts_with("sdks/python") {
        true => version.replace("-rc.", "rc"),
        false => version.to_owned(),
    }
}

/// The text with another version behind the first of these marks.
fn replaced(text: &str, mark: &str, version: &str) -> Option<String> {
    let (before, behind) = text.split_once(mark)?;
    let (_, after) = behind.split_once('"')?;
    Some(format!("{before}{mark}{version}\"{after}"))
}

fn is_version(text: &str) -> bool {
    let (numbers, candidate) = text.split_once("-rc.").unwrap_or((text, "1"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    numbers.split('.').count() == 3 && numbers.split('.').all(is_number) && is_number(candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn every_file_says_the_version_where_it_is_looked_for_and_all_say_the_same() {
        for (file, marks) in PLACES {
            let text = read(&root().join(file)).unwrap();
            let wanted = pythonic(file, env!("CARGO_PKG_VERSION"));
            for mark in marks {
                let (_, behind) = text.split_once(mark).unwrap_or_else(|| panic!("{file}: {mark:?}"));
                assert_eq!(behind.split('"').next(), Some(wanted.as_str()), "{file}");
            }
        }
    }
}
