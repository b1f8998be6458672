//! `docs/reference/api.md` has a section for every call, and every field of its messages in that section.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

const PAGE: &str = include_str!("../../../docs/reference/api.md");

/// The text from the heading above the line that introduces a call to the next heading of that level.
fn section(call: &str) -> Option<&'static str> {
    let introduced = |line: &str| {
        line.starts_with(&format!("`{call}` ·"))
            || line.contains(&format!(", `{call}` ·"))
            || line.starts_with(&format!("`{call}(stream "))
    };
    let mut at = 0;
    let line = PAGE.lines().find(|line| {
        let is_it = introduced(line);
        at += if is_it { 0 } else { line.len() + 1 };
        is_it
    })?;
    assert!(PAGE[at..].starts_with(line));
    let heading = PAGE[..at].rfind("\n#")? + 1;
    let level = PAGE[heading..].split(' ').next()?;
    // A section of the second level has those of the third in it.
    let end =
        (2..=level.len()).filter_map(|level| PAGE[at..].find(&format!("\n{} ", "#".repeat(level)))).min();
    Some(&PAGE[heading..end.map_or(PAGE.len(), |end| at + end)])
}

fn message<'a>(file: &'a FileDescriptorProto, type_name: &str) -> &'a DescriptorProto {
    let name = type_name.rsplit('.').next().unwrap();
    file.message_type.iter().find(|message| message.name() == name).unwrap()
}

#[test]
fn every_field_of_every_call_is_on_the_page_of_the_api() {
    let set = FileDescriptorSet::decode(lowkey_api::FILE_DESCRIPTOR_SET).unwrap();
    let file = set.file.iter().find(|file| file.package() == "lowkey.v1").unwrap();
    let mut missing = Vec::new();
    let mut calls = 0;
    for method in file.service.iter().flat_map(|service| &service.method) {
        let Some(section) = section(method.name()) else {
            missing.push(format!("{} has no section", method.name()));
            continue;
        };
        for message in [message(file, method.input_type()), message(file, method.output_type())] {
            let unnamed =
                message.field.iter().filter(|field| !section.contains(&format!("`{}`", field.name())));
            missing.extend(unnamed.map(|field| format!("{}.{}", message.name(), field.name())));
        }
        calls += 1;
    }
    assert_eq!(missing, [""; 0]);
    assert!(calls > 20, "{calls}");
}
