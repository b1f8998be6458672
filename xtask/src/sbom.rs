//! The list of what is in the binary, in the form of CycloneDX 1.5, from what cargo says that it builds in,
//! and the C library that is linked into it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::{Outcome, run};

pub(crate) fn cyclonedx(root: &Path, target: &str, glibc: &str) -> Outcome<String> {
    let tree = run(Command::new("cargo").current_dir(root).args([
        "tree",
        "--locked",
        "--package",
        "lowkey-cli",
        "--edges",
        "normal",
        "--target",
        target,
        "--prefix",
        "none",
        "--format",
        "{p}|{l}",
    ]))?;
    // One line for each place of the tree, so the same many times: `name v1.2.3 (path)|MIT`.
    let lines: BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    let mut components = BTreeSet::from([format!(
        concat!(
            r#"{{"type":"library","name":"glibc","version":"{0}","purl":"pkg:generic/glibc@{0}","#,
            r#""licenses":[{{"expression":"LGPL-2.1-or-later"}}]}}"#
        ),
        glibc
    )]);
    for line in lines {
        let (package, licence) = line.split_once('|').unwrap_or((line, ""));
        let mut words = package.split_whitespace();
        let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
        let version = version.trim_start_matches('v');
        let licence = licence.trim_end_matches(" (*)").replace('/', " OR ");
        let mut licences = String::new();
        if !licence.is_empty() {
            let _ = write!(licences, r#","licenses":[{{"expression":"{licence}"}}]"#);
        }
        components.insert(format!(
            r#"{{"type":"library","name":"{name}","version":"{version}","purl":"pkg:cargo/{name}@{version}"{licences}}}"#
        ));
    }
    let components: Vec<String> = components.into_iter().collect();
    Ok(format!(
        concat!(
            r#"{{"bomFormat":"CycloneDX","specVersion":"1.5","version":1,"#,
            r#""metadata":{{"component":{{"type":"application","name":"lowkey","version":"{}"}}}},"#,
            "\"components\":[\n{}\n]}}\n"
        ),
        env!("CARGO_PKG_VERSION"),
        components.join(",\n")
    ))
}
