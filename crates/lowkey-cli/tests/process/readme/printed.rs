//! What the README prints: its blocks by section, the lines in them that a reader types, and its table of commands.

/// What stands between two fences.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The nearest heading above it.
    pub(crate) section: &'static str,
    pub(crate) text: String,
}

/// One command, and what the README says that it answers.
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
    pub(crate) command: &'static str,
    pub(crate) what: &'static str,
}

const README: &str = include_str!("../../../../../README.md");
const COMMANDS: &str = include_str!("../../../../../docs/cli.md");

/// Every block of the README.
pub(crate) fn blocks() -> Vec<Block> {
    blocks_of(README)
}

/// Every block of docs/cli.md.
pub(crate) fn blocks_of_the_commands() -> Vec<Block> {
    blocks_of(COMMANDS)
}

fn blocks_of(page: &'static str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut section, mut is_inside) = ("", false);
    for line in page.lines() {
        match (line.strip_prefix("```"), is_inside) {
            (Some(_), false) => blocks.push(Block { section, text: String::new() }),
            (Some(_), true) => {}
            (None, true) => blocks.last_mut().unwrap().text += &format!("{line}\n"),
            (None, false) => {
                if let Some((hashes, heading)) = line.split_once(' ')
                    && hashes.starts_with('#')
                {
                    section = heading;
                }
            }
        }
        is_inside ^= line.starts_with("```");
    }
    blocks
}

/// The rows of the table of commands.
pub(crate) fn rows() -> Vec<Row> {
    let rows = README.lines().filter(|line| line.starts_with("| `lowkey "));
    rows.map(|row| {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let command = cells.next().unwrap().trim_matches('`');
        Row { command, what: cells.next().unwrap() }
    })
    .collect()
}

impl Block {
    pub(crate) fn first_line(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
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
