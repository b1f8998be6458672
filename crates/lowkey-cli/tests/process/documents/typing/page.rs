//! What a page prints: its blocks, the commands in them that a reader types, and the rows of its tables.

use std::fs;

/// A document of the repository.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) path: &'static str,
    pub(crate) text: String,
}

/// What stands between two fences.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The nearest heading above it.
    pub(crate) section: String,
    /// What stands behind the opening fence: `sh`, `text`, `python`.
    pub(crate) language: String,
    pub(crate) text: String,
}

/// One command, and what the page says that it answers.
#[derive(Clone, Debug)]
pub(crate) struct Typed {
    /// As printed: with its quotes, its continued lines, and a comment behind it.
    pub(crate) command: String,
    /// The comment right below the command, as one line; `…` stands for anything.
    pub(crate) answer: Option<String>,
}

/// A row of the table of commands.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) command: String,
    pub(crate) what: String,
}

impl Page {
    /// Reads a page by its path from the root of the repository.
    pub(crate) fn read(path: &'static str) -> Self {
        let file = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { path, text }
    }

    /// Every block, in order.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let (mut section, mut is_inside) = (String::new(), false);
        for line in self.text.lines() {
            match (line.strip_prefix("```"), is_inside) {
                (Some(language), false) => blocks.push(Block {
                    section: section.clone(),
                    language: language.to_owned(),
                    text: String::new(),
                }),
                (Some(_), true) => {}
                (None, true) => blocks.last_mut().unwrap().text += &format!("{line}\n"),
                (None, false) => {
                    if let Some((hashes, heading)) = line.split_once(' ')
                        && hashes.starts_with('#')
                    {
                        section = heading.to_owned();
                    }
                }
            }
            is_inside ^= line.starts_with("```");
        }
        blocks
    }

    /// The blocks of a section; there must be so many.
    pub(crate) fn section<const COUNT: usize>(&self, name: &str) -> [Block; COUNT] {
        let blocks: Vec<Block> = self.blocks().into_iter().filter(|block| block.section == name).collect();
        let found = blocks.len();
        blocks.try_into().unwrap_or_else(|_| {
            panic!("{COUNT} blocks of {name:?} are known here, and {} has {found}", self.path)
        })
    }

    /// The one block that has this in it.
    pub(crate) fn block_with(&self, part: &str) -> Block {
        let mut blocks: Vec<Block> = self.blocks();
        blocks.retain(|block| block.text.contains(part));
        assert_eq!(blocks.len(), 1, "{} has one block with {part:?}: {blocks:?}", self.path);
        blocks.remove(0)
    }

    /// The rows of its table of commands.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let rows = self.text.lines().filter(|line| line.starts_with("| `lowkey "));
        rows.map(|row| {
            let mut cells = row.split('|').map(str::trim).skip(1);
            let command = cells.next().unwrap().trim_matches('`').to_owned();
            Row { command, what: cells.next().unwrap().to_owned() }
        })
        .collect()
    }
}

impl Block {
    pub(crate) fn first_line(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }

    /// The file that it is meant to be saved as: `# deploy.sh` in its first line, or below `#!/bin/sh`.
    pub(crate) fn file_name(&self) -> Option<&str> {
        let mut lines = self.text.lines().skip_while(|line| line.starts_with("#!"));
        let is_file = self.language != "sh" || self.text.starts_with("#!");
        lines.next()?.strip_prefix("# ").filter(|name| is_file && name.contains('.') && !name.contains(' '))
    }

    /// The commands in it, in order. A comment above a command is for people; one below it is the answer.
    pub(crate) fn lines(&self) -> Vec<Typed> {
        let mut typed: Vec<Typed> = Vec::new();
        let (mut goes_on, mut is_behind_a_command) = (false, false);
        for line in self.text.lines() {
            let last = typed.last_mut().filter(|_| goes_on || is_behind_a_command);
            match (last, line.strip_prefix('#')) {
                (Some(last), _) if goes_on => last.command += &format!("\n{line}"),
                (Some(last), Some(answer)) => last.answer.get_or_insert_default().push_str(answer.trim()),
                (_, Some(_)) => {}
                (_, None) if line.is_empty() => is_behind_a_command = false,
                (_, None) => {
                    typed.push(Typed { command: line.to_owned(), answer: None });
                    is_behind_a_command = true;
                }
            }
            goes_on = is_behind_a_command && line.ends_with('\\');
        }
        typed
    }
}

impl Typed {
    /// The command without the comment behind it.
    pub(crate) fn bare(&self) -> &str {
        self.command.split_once("    # ").map_or(self.command.as_str(), |(command, _)| command).trim_end()
    }

    /// The exit status that the page tells: `# status 75` behind the command, 0 otherwise.
    pub(crate) fn status(&self) -> i32 {
        let told = self.command.split_once("    # status ").map(|(_, status)| status.trim().parse());
        told.map_or(0, |status| status.unwrap_or_else(|_| panic!("a number: {}", self.command)))
    }
}

/// Whether a text is as a pattern says but for white space: a page breaks its lines where it likes, and shows spaces
/// for tabs.
pub(crate) fn says(text: &str, pattern: &str) -> bool {
    let dense = |text: &str| text.split_whitespace().collect::<String>();
    is_like(&dense(text), &dense(pattern))
}

/// Whether a text is as a pattern says, in which `…` stands for anything.
pub(crate) fn is_like(text: &str, pattern: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('…') else { return text == pattern };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let (between, end) = rest.rsplit_once('…').unwrap_or(("", rest));
    for part in between.split('…') {
        match text.split_once(part) {
            Some((_, behind)) => text = behind,
            None => return false,
        }
    }
    text.ends_with(end)
}

/// A row's command with and without each part in brackets.
pub(crate) fn variants(command: &str) -> Vec<String> {
    let Some((before, rest)) = command.split_once('[') else { return vec![command.trim().to_owned()] };
    let (optional, behind) = rest.split_once(']').expect("brackets come in pairs");
    let without = format!("{}{behind}", before.trim_end());
    let with = format!("{before}{optional}{behind}");
    [without, with].iter().flat_map(|command| variants(command)).collect()
}

/// A row's command with something in the place of each word in capitals.
pub(crate) fn filled(command: &str, fillings: &[(&str, &str)]) -> String {
    let words = command.split(' ').map(|word| {
        let is_placeholder = word.chars().all(|c| c.is_ascii_uppercase() || c == '…');
        let filling = fillings.iter().find(|(name, _)| *name == word);
        assert!(!is_placeholder || filling.is_some(), "nobody knows what to put for {word} in: {command}");
        filling.map_or(word, |(_, filling)| filling)
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn an_answer_is_compared_but_for_what_is_left_out() {
    for pattern in ["abc", "a…", "…c", "a…c", "…b…", "…", "a…b…c", "abc…"] {
        assert!(is_like("abc", pattern), "{pattern}");
    }
    for pattern in ["ab", "b…", "…b", "a…x…c", "a…abc", "c…a"] {
        assert!(!is_like("abc", pattern), "{pattern}");
    }
}

#[test]
fn brackets_are_left_out_and_taken_in() {
    assert_eq!(variants("a [B] [--c D]"), ["a", "a --c D", "a B", "a B --c D"]);
}

#[test]
fn white_space_is_not_compared_and_words_are() {
    assert!(says("deploy\t7\t33\t60s\n", "deploy … 33 60s"));
    assert!(!says("deploy\t7\t34\t60s\n", "deploy … 33 60s"));
}

#[test]
fn a_command_is_told_from_its_status_its_answer_and_a_file() {
    let block = |language: &str, text: &str| Block {
        section: String::new(),
        language: language.to_owned(),
        text: text.to_owned(),
    };
    let lines = block("sh", "# For people.\na b    # status 75\n# no\n#  way\nc &\n").lines();
    let [first, second] = &lines[..] else { panic!("two commands: {lines:?}") };
    assert_eq!((first.bare(), first.status(), first.answer.as_deref()), ("a b", 75, Some("noway")));
    assert_eq!((second.bare(), second.status(), second.answer.as_deref()), ("c &", 0, None));
    assert_eq!(block("sh", "#!/bin/sh\n# a.sh\ntrue\n").file_name(), Some("a.sh"));
    assert_eq!(block("python", "# a.py\n").file_name(), Some("a.py"));
    assert_eq!(block("sh", "# a.sh\ntrue\n").file_name(), None);
}
