//! What documents name exists: files, symbols, headings. A document that leads nowhere is worse than none.
//!
//! Checked in every `*.md` of the repository:
//!
//! - **Links** lead to a file of the repository, and to a heading of it if they name one.
//! - **Files and folders** in backticks, and `*.rs` files in drawings, are there: by their whole path, or by
//!   the end of it, as in `lease_table.rs`.
//! - **Symbols** in backticks are in the code: `Type::method` with that method at that type, `function()`,
//!   names of types and variants, `snake_case` and `SCREAMING_CASE` words.
//! - **A symbol in brackets behind its file** is in that file: `lease_table.rs` (`take_due`).
//! - **Crates** in commands exist, as behind `-p`.
//! - **Prose** ends at 100 columns, in the README and in the book. The README stays under 150 lines.
//! - **The book's summary** lists every page, each once, and no other, in the order that mdBook wants.
//!
//! Words of one piece, such as `fence`, are words of English as well, and are not looked at. What documents
//! name and others define is in [`ELSEWHERE`], each with its reason, and goes from there when nobody names it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What documents name and this repository does not have.
const ELSEWHERE: &[(&str, &str)] = &[
    ("AbortSignal", "a class of JavaScript"),
    ("Allow", "a header of HTTP"),
    ("CLOCK_BOOTTIME", "a clock of Linux"),
    ("LimitNOFILE", "a setting of systemd"),
    ("LockIndex", "a field of Consul"),
    ("OSError", "an exception of Python"),
    ("PR_SET_PDEATHSIG", "a call to Linux"),
    ("RawNode::request_snapshot", "of crate raft"),
    ("Unlock", "a call of etcd"),
    ("bench/", "what names of locks begin with"),
    ("recover.moving/", "a folder of a node's data"),
    ("recover.ready/", "a folder of a node's data"),
    ("recover.tmp/", "a folder of a node's data"),
];

/// Documents that tell of the past: what they name may be gone.
const OF_THE_PAST: &[&str] = &["CHANGELOG.md"];

/// The contents of the book: a list of links, and no prose.
const SUMMARY: &str = "docs/SUMMARY.md";

/// How long a line of prose may be: in characters, without what stands in tables and between fences.
const COLUMNS_MAX: usize = 100;

/// What makes a word in backticks a file.
const ENDINGS: &[&str] = &["json", "lock", "md", "proto", "rs", "svg", "toml"];

#[test]
fn every_document_names_only_what_exists() {
    let repository = Repository::read();
    assert!(repository.documents.len() >= 8, "too few documents: is this test looking in the right place?");
    let mut problems = Vec::new();
    let mut named = BTreeSet::new();
    for (path, text) in &repository.documents {
        let document = Document::parse(path, text);
        problems.extend(repository.problems(&document));
        named.extend(document.names.into_iter().map(|name| name.text));
    }
    let idle = ELSEWHERE.iter().filter(|(name, _)| !named.contains(*name));
    problems.extend(idle.map(|(name, _)| format!("{name} is in ELSEWHERE, and no document names it")));
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn the_readme_is_for_somebody_who_has_two_minutes() {
    let repository = Repository::read();
    let lines = repository.documents["README.md"].lines().count();
    assert!(lines < 150, "the README has {lines} lines, and is to have fewer than 150");
}

/// Who does not know the name of a variable cannot make a test longer.
#[test]
fn contributors_are_told_every_variable_that_makes_a_test_longer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let repository = Repository::read();
    let told = &repository.documents["CONTRIBUTING.md"];
    let tests = repository.paths.iter().filter(|path| path.contains("/tests/") && path.ends_with(".rs"));
    let mut found = BTreeSet::new();
    for path in tests {
        let text = fs::read_to_string(root.join(path)).expect("a file that was listed");
        let names = text.split("rounds(\"LOWKEY_").skip(1).filter_map(|rest| rest.split('"').next());
        found.extend(names.map(|name| format!("LOWKEY_{name}=")));
    }
    assert!(found.len() > 20, "too few: is this test looking in the right place? {found:?}");
    let untold: Vec<&String> = found.iter().filter(|name| !told.contains(name.as_str())).collect();
    assert!(untold.is_empty(), "CONTRIBUTING.md does not name {untold:?}");
}

#[test]
fn prose_ends_at_the_hundredth_column() {
    let repository = Repository::read();
    let mut problems = Vec::new();
    for (path, text) in repository.documents.iter().filter(|(path, _)| repository.is_read(path)) {
        problems.extend(long_lines(text).into_iter().map(|line| format!("{path}:{line} is too long")));
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn a_long_line_is_found_where_it_is_prose() {
    let long = "word ".repeat(30);
    let link = format!("- [a page](http://127.0.0.1/{}), and more", "a".repeat(100));
    let text = format!("| {long}\n```text\n{long}\n```\n{link}\n{long}\n  {long}\n");
    assert_eq!(long_lines(&text), [6, 7]);
}

/// The numbers of lines of prose that are too long.
fn long_lines(text: &str) -> Vec<usize> {
    let mut is_fenced = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        is_fenced ^= line.trim_start().starts_with("```");
        let is_table = line.starts_with('|');
        if without_addresses(line).chars().count() > COLUMNS_MAX && !is_fenced && !is_table {
            lines.push(number);
        }
    }
    lines
}

/// A line without the addresses on the web that it links to: they cannot be broken.
fn without_addresses(line: &str) -> String {
    let mut parts = line.split("](http");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept += "]";
        kept += part.split_once(')').map_or("", |(_, behind)| behind);
    }
    kept
}

#[test]
fn the_summary_of_the_book_lists_every_page_once_and_no_other() {
    let repository = Repository::read();
    let summary = &repository.documents[SUMMARY];
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let listed: Vec<String> = links.map(|link| format!("docs/{link}")).collect();
    let once: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
    assert_eq!(once.len(), listed.len(), "no page is listed twice");
    let pages = repository.documents.keys().map(String::as_str);
    let pages = pages.filter(|path| path.starts_with("docs/") && *path != SUMMARY);
    let pages: BTreeSet<&str> = pages.collect();
    let unlisted: Vec<&&str> = pages.difference(&once).collect();
    assert!(unlisted.is_empty(), "the summary does not list {unlisted:?}");
    let missing: Vec<&&str> = once.difference(&pages).collect();
    assert!(missing.is_empty(), "the summary lists what is not there: {missing:?}");
}

/// mdBook reads single pages, then lists, then single pages again, and refuses a list behind those.
#[test]
fn the_summary_of_the_book_can_be_read_by_mdbook() {
    let repository = Repository::read();
    assert_eq!(problems_of_a_summary(&repository.documents[SUMMARY]), [""; 0]);
    let late = "# Summary\n\n[A](a.md)\n\n- [B](b.md)\n\n---\n\n[C](c.md)\n  - [D](d.md)\n\n- [E](e.md)\n";
    assert_eq!(
        problems_of_a_summary(late),
        ["line 10: a list behind the last single page", "line 12: a list behind the last single page"]
    );
    let deep = "- [A](a.md)\n    - [B](b.md)\nwords\n- C\n";
    assert_eq!(
        problems_of_a_summary(deep),
        ["line 2: two levels deeper", "line 3: no link", "line 4: no link"]
    );
}

fn problems_of_a_summary(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    // How deep the last line of a list stood, and whether a single page came behind a list.
    let (mut depth, mut is_over) = (None, false);
    for (number, line) in (1..).zip(text.lines()) {
        let shown = line.trim_start();
        if shown.is_empty() || shown.starts_with('#') || shown == "---" {
            continue;
        }
        let (entry, is_in_list) = shown.strip_prefix("- ").map_or((shown, false), |entry| (entry, true));
        let mut say = |what: &str| problems.push(format!("line {number}: {what}"));
        if !(entry.starts_with('[') && entry.contains("](") && entry.ends_with(".md)")) {
            say("no link");
        } else if !is_in_list {
            is_over = depth.is_some();
        } else if is_over {
            say("a list behind the last single page");
        } else {
            let here = (line.len() - shown.len()) / 2;
            if here > depth.map_or(0, |last| last + 1) {
                say("two levels deeper");
            }
            depth = Some(here);
        }
    }
    problems
}

#[test]
fn the_glossary_is_in_order() {
    let repository = Repository::read();
    let rows = repository.documents["docs/glossary.md"].lines();
    let terms: Vec<String> =
        rows.filter_map(|row| row.strip_prefix("| **")?.split("**").next().map(str::to_lowercase)).collect();
    assert!(terms.len() > 50, "too few terms: is this test reading the table?");
    for pair in terms.windows(2) {
        assert!(pair[0] < pair[1], "{:?} stands before {:?}", pair[0], pair[1]);
    }
}

#[test]
fn what_does_not_exist_is_found() {
    let mut repository = Repository::default();
    repository.add(
        "crates/lowkey-core/src/lease.rs",
        "pub struct LeaseTable;\nimpl LeaseTable {\n    fn arm(&self) {}\n}\n",
    );
    repository.add(
        "crates/lowkey-core/src/state.rs",
        "pub enum Command {\n    Expire { term: u64 },\n}\nfn take_due() {} // fn gone() {}\n",
    );
    repository.add("crates/lowkey-core/Cargo.toml", "name = \"lowkey-core\"");
    repository.add("docs/guide.md", "# A guide\n\n## What to `know` first, and why\n");
    let good = "\
        `lease.rs`, `lowkey-core/src/state.rs`, `src/`, `LeaseTable::arm`, `Command::Expire`, `take_due()`, \
        `take_due`, `LeaseTable`, [a guide](docs/guide.md#what-to-know-first-and-why), [here](#top), \
        `state.rs` (`take_due`, `Expire`), `some words`, `cargo test -p lowkey-core`, `word`\n# Top\n";
    assert_eq!(repository.problems(&Document::parse("README.md", good)), [""; 0]);
    for bad in [
        "`leases.rs`",
        "`lowkey-core/src/lease.toml`",
        "`srcs/`",
        "```\n lease_table.rs ──► lease.rs\n```",
        "[a guide](guide.md)",
        "[a guide](docs/guide.md#what-to-know)",
        "[here](#bottom)",
        "`LeaseTables`",
        "`LeaseTable::disarm`",
        "`LeaseTable::take_due`",
        "`Commands::Expire`",
        "`gone()`",
        "`take_all`",
        "`NOT_THERE`",
        "`lease.rs` (`take_due`)",
        "`state.rs` (`Expire`, `LeaseTable::arm`)",
        "`cargo test -p lowkey-cores`",
    ] {
        let found = repository.problems(&Document::parse("README.md", bad));
        assert_eq!(found.len(), 1, "{bad}: {found:?}");
    }
}

/// The files of the repository, and the words of its code.
#[derive(Default)]
struct Repository {
    /// All paths from the root, those of folders with a `/` at their end.
    paths: BTreeSet<String>,
    documents: BTreeMap<String, String>,
    code: BTreeMap<String, Code>,
    /// What is defined anywhere: types, variants, functions, messages of the API.
    defined: BTreeSet<String>,
}

/// One file of code, without its comments.
struct Code {
    words: BTreeSet<String>,
    /// The types that it defines or implements something for.
    types: BTreeSet<String>,
}

impl Repository {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut repository = Self::default();
        repository.collect(&root, &root);
        repository
    }

    fn collect(&mut self, root: &Path, folder: &Path) {
        let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for path in entries.map(|entry| entry.expect("the directory can be listed").path()) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_foreign = name == "node_modules" || (folder == root && matches!(name, "target" | "data"));
            if name.starts_with('.') || is_foreign {
                continue;
            }
            if path.is_dir() {
                self.collect(root, &path);
                continue;
            }
            let inside =
                path.strip_prefix(root).expect("a path below the root").to_string_lossy().into_owned();
            // What is not text is named, and not read. Neither are the wrong names that this file tries.
            let is_read = !inside.ends_with(file!().rsplit('/').next().unwrap_or_default());
            self.add(&inside, &fs::read_to_string(&path).ok().filter(|_| is_read).unwrap_or_default());
        }
    }

    fn add(&mut self, path: &str, text: &str) {
        let folders = path.match_indices('/').map(|(at, _)| path[..=at].to_owned());
        self.paths.extend(folders.chain([path.to_owned()]));
        match path.rsplit_once('.').map_or(path, |(_, ending)| ending) {
            "md" => {
                self.documents.insert(path.to_owned(), text.to_owned());
            }
            "rs" | "proto" | "toml" | "json" | "txt" | "justfile" | "ts" | "py" => {
                let code = Code::read(text, &mut self.defined);
                self.code.insert(path.to_owned(), code);
            }
            _ => {}
        }
    }

    /// Whether somebody reads it: a page of the book, or the README.
    fn is_read(&self, path: &str) -> bool {
        (path.starts_with("docs/") && path != SUMMARY) || path == "README.md"
    }

    fn problems(&self, document: &Document) -> Vec<String> {
        let mut problems = Vec::new();
        for name in &document.names {
            if OF_THE_PAST.contains(&document.path.as_str()) && !matches!(name.kind, Kind::Link) {
                continue;
            }
            if ELSEWHERE.iter().any(|(elsewhere, _)| *elsewhere == name.text) {
                continue;
            }
            if let Some(problem) = self.problem(document, name) {
                problems.push(format!("{}:{}: {problem}", document.path, name.line));
            }
        }
        problems
    }

    fn problem(&self, document: &Document, name: &Name) -> Option<String> {
        let text = name.text.as_str();
        match name.kind {
            Kind::Link => self.problem_of_link(document, text),
            Kind::File => self.resolve(text).is_empty().then(|| format!("there is no file {text}")),
            Kind::Package => {
                let manifest = format!("crates/{text}/Cargo.toml");
                (!self.paths.contains(&manifest)).then(|| format!("there is no crate {text}"))
            }
            Kind::Symbol => match &name.file {
                // A file that is named with a symbol does something with it, and need not define it.
                Some(file) => {
                    let mut codes = self.resolve(file).into_iter().filter_map(|file| self.code.get(file));
                    let is_there = codes.any(|code| words(text).all(|word| code.words.contains(word)));
                    (!is_there).then(|| format!("{file} has no {text}"))
                }
                None => (!self.has(text)).then(|| format!("nothing is called {text}")),
            },
        }
    }

    /// The files and folders whose path ends so.
    fn resolve(&self, end: &str) -> Vec<&str> {
        let end = end.trim_start_matches("./");
        let below = format!("/{end}");
        let fits = |path: &&String| {
            let path = path.as_str();
            [path, path.trim_end_matches('/')].iter().any(|path| *path == end || path.ends_with(&below))
        };
        self.paths.iter().filter(fits).map(String::as_str).collect()
    }

    fn has(&self, symbol: &str) -> bool {
        let symbol = symbol.trim_end_matches("()").trim_end_matches('!');
        let mut codes = self.code.values();
        let mut parts = symbol.rsplit("::");
        let last = parts.next().unwrap_or_default();
        match parts.next() {
            // A type's method, constant or variant is where the type is.
            Some(owner) if is_camel_case(owner) => {
                codes.any(|code| code.types.contains(owner) && code.words.contains(last))
            }
            _ if is_camel_case(last) => self.defined.contains(last),
            // The name of a metric is put together: the service, what it is, its unit.
            _ => {
                let metric = last.strip_prefix("lowkey_");
                let without_unit = metric.and_then(|metric| metric.rsplit_once('_')).map(|(name, _)| name);
                let names: Vec<&str> = [Some(last), metric, without_unit].into_iter().flatten().collect();
                codes.any(|code| names.iter().any(|name| code.words.contains(*name)))
            }
        }
    }

    fn problem_of_link(&self, document: &Document, target: &str) -> Option<String> {
        let (file, anchor) =
            target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
        let path = if file.is_empty() { document.path.clone() } else { join(&document.path, file) };
        if !self.paths.contains(&path)
            && !self.paths.contains(&format!("{}/", path.trim_end_matches('/')))
            && path != document.path
        {
            return Some(format!("the link to {target} leads nowhere"));
        }
        let headings = match self.documents.get(&path) {
            _ if path == document.path => document.headings.clone(),
            Some(text) => Document::parse(&path, text).headings,
            None => BTreeSet::new(),
        };
        let anchor = anchor.filter(|anchor| !headings.contains(*anchor))?;
        Some(format!("{path} has no heading #{anchor}"))
    }
}

impl Code {
    fn read(text: &str, defined: &mut BTreeSet<String>) -> Self {
        let mut code = Self { words: BTreeSet::new(), types: BTreeSet::new() };
        let mut is_use = false;
        for line in text.lines() {
            let line = line
                .split_once("//")
                .filter(|(before, _)| !before.ends_with(':'))
                .map_or(line, |(code, _)| code);
            let words: Vec<&str> = words(line).collect();
            // What is imported exists, or nothing would compile.
            is_use |= line.trim_start().starts_with("use ") || line.contains("pub use ");
            if is_use {
                defined.extend(words.iter().map(|word| (*word).to_owned()));
                is_use = !line.contains(';');
            }
            // `impl Trait for Type`, `impl<T> Type<T>`, `struct Type`, `message Type`, `class Type`.
            const DEFINING: &[&str] = &[
                "class",
                "const",
                "enum",
                "fn",
                "impl",
                "interface",
                "macro_rules",
                "message",
                "mod",
                "rpc",
                "service",
                "static",
                "struct",
                "trait",
                "type",
            ];
            if let Some(at) = words.iter().position(|word| DEFINING.contains(word)) {
                if words[at] == "impl" {
                    code.types.extend(
                        words[at..].iter().filter(|word| is_camel_case(word)).map(|word| (*word).to_owned()),
                    );
                } else if let Some(name) = words.get(at + 1) {
                    defined.insert((*name).to_owned());
                    code.types.insert((*name).to_owned());
                }
            } else if let Some(first) = words.first()
                && is_camel_case(first)
                && line.trim_start().starts_with(first)
            {
                // A variant, or a name that a macro is given.
                defined.insert((*first).to_owned());
            }
            code.words.extend(words.into_iter().map(str::to_owned));
        }
        code
    }
}

/// A document, and what it names.
struct Document {
    path: String,
    names: Vec<Name>,
    headings: BTreeSet<String>,
}

struct Name {
    kind: Kind,
    text: String,
    line: usize,
    /// The file in front of the bracket that it is in.
    file: Option<String>,
}

#[derive(Clone, Copy)]
enum Kind {
    Link,
    File,
    Symbol,
    Package,
}

impl Document {
    fn parse(path: &str, text: &str) -> Self {
        let mut document = Self { path: path.to_owned(), names: Vec::new(), headings: BTreeSet::new() };
        let mut is_drawing = false;
        for (line, text) in (1..).zip(text.lines()) {
            if text.trim_start().starts_with("```") {
                is_drawing = !is_drawing;
            } else if is_drawing {
                let files = text.split(|c: char| !(c.is_alphanumeric() || "_-./".contains(c)));
                let files = files.filter(|word| word.ends_with(".rs") && word.len() > 3);
                files.for_each(|file| document.name(Kind::File, file, line, None));
                document.name_packages(text, line);
            } else {
                if let Some(heading) = text.strip_prefix('#') {
                    document.headings.insert(anchor(heading.trim_start_matches('#')));
                }
                let anchors = text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
                document.headings.extend(anchors.map(str::to_owned));
                document.read_line(text, line);
            }
        }
        document
    }

    fn read_line(&mut self, text: &str, line: usize) {
        // The file that was named last, and whether a bracket was opened right behind it.
        let mut file: Option<(String, bool)> = None;
        for (number, piece) in text.split('`').enumerate() {
            // What is between backticks has an odd number.
            if number % 2 == 0 {
                self.read_prose(piece, line);
                let opens = piece.trim_start().starts_with('(');
                file = file.filter(|(_, is_open)| (opens || *is_open) && !piece.contains(')'));
                file = file.map(|(file, _)| (file, true));
                continue;
            }
            self.name_packages(piece, line);
            if is_file(piece) {
                self.name(Kind::File, piece, line, None);
                file = piece.ends_with(".rs").then(|| (piece.to_owned(), false));
            } else if is_symbol(piece) {
                self.name(Kind::Symbol, piece, line, file.clone().map(|(file, _)| file));
            }
        }
    }

    fn read_prose(&mut self, prose: &str, line: usize) {
        for (at, _) in prose.match_indices("](") {
            let target = prose[at + 2..].split(')').next().unwrap_or_default();
            if !target.contains("://") && !target.starts_with("mailto:") {
                self.name(Kind::Link, target, line, None);
            }
        }
    }

    fn name_packages(&mut self, command: &str, line: usize) {
        let mut words = command.split_whitespace();
        while let Some(word) = words.next() {
            if matches!(word, "-p" | "--package") && command.contains("cargo") {
                words.next().into_iter().for_each(|package| self.name(Kind::Package, package, line, None));
            }
        }
    }

    fn name(&mut self, kind: Kind, text: &str, line: usize, file: Option<String>) {
        self.names.push(Name { kind, text: text.to_owned(), line, file });
    }
}

/// The words of code: what identifiers are made of.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

fn is_file(text: &str) -> bool {
    let is_path = text.chars().all(|c| c.is_alphanumeric() || "_-./".contains(c));
    let has_ending =
        text.rsplit_once('.').is_some_and(|(stem, ending)| ENDINGS.contains(&ending) && !stem.is_empty());
    let is_folder = text.ends_with('/') && text.len() > 1 && !text.starts_with('/');
    let is_below =
        ["crates/", "docs/", "lowkey-"].iter().any(|start| text.starts_with(start)) && text.contains('/');
    is_path && (has_ending || is_folder || is_below)
}

/// Words of code that are no words of English: of several pieces, or with brackets.
fn is_symbol(text: &str) -> bool {
    let is_word =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let name = text.strip_suffix("()").unwrap_or(text);
    let parts: Vec<&str> = name.split("::").collect();
    parts.iter().all(|part| is_word(part))
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && (parts.len() > 1 || name != text || is_camel_case(name) || name.trim_matches('_').contains('_'))
}

fn is_camel_case(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_uppercase())
        && word.contains(|c: char| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric())
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let heading = heading.trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Where a link in a document leads.
fn join(document: &str, target: &str) -> String {
    let mut path = PathBuf::from(document);
    path.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    path.to_string_lossy().into_owned()
}
