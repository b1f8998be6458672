//! What `--help` says around the flags: examples first, and at the end where to read on.
//!
//! One table for all commands. Tests parse every example, and look for every page and command that is named.

use clap::Command;

/// One sentence, examples, usage, flags in groups, see also.
const TEMPLATE: &str = "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// How a command that runs another one ends: scripts and supervisors act on it.
const STATUSES: &str = "\
Exit status: that of the command, or
  0        the command ended with 0, and the lock was held all along
  64       the command line, or a name in it, is wrong
  69       no service: nobody answers, no majority, or it has all that it can take
  75       somebody else holds the lock (--try)
  76       the lock was lost, or given back by somebody else; the command was ended if it still ran
  124      the lock did not become free within --wait
  126, 127 the command cannot be executed, or was not found
  128 + n  ended by signal n";

/// What a command's help says beside its flags.
struct Help {
    /// The command, as it is typed behind `lowkey`: nothing for `lowkey --help` itself.
    command: &'static str,
    examples: &'static [&'static str],
    /// Other commands, with commas between them.
    commands: &'static str,
    /// A page of the documents, in the source of lowkey.
    page: &'static str,
}

const HELP: &[Help] = &[
    Help {
        command: "",
        examples: &[
            "lowkey dev",
            "lowkey run nightly --try -- ./report.sh",
            "lowkey ls",
            "lowkey --bootstrap --data-dir ./data",
        ],
        commands: "",
        page: "docs/start/five-minutes.md",
    },
    Help {
        command: "run",
        examples: &[
            "lowkey run nightly -- ./report.sh",
            "lowkey run nightly --try --at-least 5m -- ./report.sh",
            "lowkey run nightly --try --at-most 2h -- ./report.sh",
            "lowkey run deploy --wait 30s --ttl 15s -- sh -c 'echo $LOWKEY_TOKEN'",
        ],
        commands: "elect, acquire",
        page: "docs/guides/cron.md",
    },
    Help {
        command: "elect",
        examples: &["lowkey elect scheduler --value http://10.0.0.1:4000 -- ./scheduler"],
        commands: "leader, run",
        page: "docs/guides/leader-election.md",
    },
    Help {
        command: "acquire",
        examples: &["lowkey acquire deploy --ttl 60s", "lowkey acquire deploy --ttl 60s --wait 5m"],
        commands: "release, renew, run",
        page: "docs/guides/migration.md",
    },
    Help {
        command: "release",
        examples: &["lowkey release deploy --lease 7 --token 33"],
        commands: "acquire, revoke",
        page: "docs/guides/migration.md",
    },
    Help {
        command: "renew",
        examples: &["lowkey renew --lease 7"],
        commands: "acquire, lease get",
        page: "docs/guides/choosing-a-ttl.md",
    },
    Help {
        command: "revoke",
        examples: &["lowkey revoke deploy", "lowkey revoke --lease 7 --yes"],
        commands: "get, lease list",
        page: "docs/guides/force-unlock.md",
    },
    Help {
        command: "lease",
        examples: &["lowkey lease list", "lowkey lease get 7"],
        commands: "renew, revoke",
        page: "docs/start/concepts.md",
    },
    Help {
        command: "lease list",
        examples: &["lowkey lease list", "lowkey lease list --owner alice@laptop"],
        commands: "lease get, revoke",
        page: "docs/start/concepts.md",
    },
    Help {
        command: "lease get",
        examples: &["lowkey lease get 7"],
        commands: "lease list, revoke",
        page: "docs/start/concepts.md",
    },
    Help {
        command: "fence",
        examples: &["lowkey fence sql postgres > fence.sql", "lowkey fence reset postgres accounts"],
        commands: "check, recover",
        page: "docs/guides/fencing.md",
    },
    Help {
        command: "fence sql",
        examples: &[
            "lowkey fence sql postgres > fence.sql",
            "lowkey fence sql postgres --trigger bank.accounts=accounts > fence.sql",
            "lowkey fence sql mysql > fence.sql",
        ],
        commands: "fence reset",
        page: "docs/guides/fencing.md",
    },
    Help {
        command: "fence reset",
        examples: &["lowkey fence reset postgres accounts", "lowkey fence reset redis accounts --yes"],
        commands: "fence sql, recover",
        page: "docs/guides/fencing.md",
    },
    Help {
        command: "ls",
        examples: &["lowkey ls", "lowkey ls jobs/ --json"],
        commands: "get, watch",
        page: "docs/guides/watching.md",
    },
    Help {
        command: "get",
        examples: &["lowkey get jobs/nightly"],
        commands: "ls, lease get",
        page: "docs/guides/force-unlock.md",
    },
    Help {
        command: "check",
        examples: &["lowkey check jobs/nightly --token 33"],
        commands: "get",
        page: "docs/guides/fencing.md",
    },
    Help {
        command: "explain",
        examples: &["lowkey explain billing/nightly", "lowkey explain billing/nightly --token 42"],
        commands: "audit query, get, watch",
        page: "docs/guides/incident.md",
    },
    Help {
        command: "audit",
        examples: &["lowkey audit query --lock billing/nightly", "lowkey audit follow"],
        commands: "explain, watch",
        page: "docs/guides/incident.md",
    },
    Help {
        command: "audit query",
        examples: &[
            "lowkey audit query --lock billing/nightly --since 24h",
            "lowkey audit query --token 42",
            "lowkey audit query --cause expired --since 1h --json",
        ],
        commands: "explain, audit export",
        page: "docs/guides/incident.md",
    },
    Help {
        command: "audit export",
        examples: &["lowkey audit export --format csv --since 24h > grants.csv"],
        commands: "audit query",
        page: "docs/guides/incident.md",
    },
    Help {
        command: "audit follow",
        examples: &["lowkey audit follow", "lowkey audit follow --after 1204.0 --json"],
        commands: "audit query, watch",
        page: "docs/guides/incident.md",
    },
    Help {
        command: "leader",
        examples: &["lowkey leader scheduler", "lowkey leader scheduler --watch"],
        commands: "elect",
        page: "docs/guides/leader-election.md",
    },
    Help {
        command: "watch",
        examples: &["lowkey watch", "lowkey watch jobs/ --from 1200 --json"],
        commands: "ls, leader",
        page: "docs/guides/watching.md",
    },
    Help {
        command: "status",
        examples: &["lowkey status", "lowkey status --json"],
        commands: "member list",
        page: "docs/operate/monitor.md",
    },
    Help {
        command: "access",
        examples: &[
            "lowkey access principal add billing --data-dir ./data",
            "lowkey access grant billing billing acquire,read --data-dir ./data",
            "lowkey access require --dry-run --data-dir ./data",
        ],
        commands: "cert, member",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "access principal",
        examples: &["lowkey access principal list"],
        commands: "access grant, access token",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "access principal add",
        examples: &[
            "lowkey access principal add billing",
            "lowkey access principal add web --cert-name web.example.com",
        ],
        commands: "access token new, access grant",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "access principal list",
        examples: &["lowkey access principal list"],
        commands: "access principal show",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "access principal show",
        examples: &["lowkey access principal show billing"],
        commands: "access check",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "access principal remove",
        examples: &["lowkey access principal remove billing"],
        commands: "access token revoke",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "access token",
        examples: &["lowkey access token new billing > billing.token"],
        commands: "access principal",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "access token new",
        examples: &["lowkey access token new billing > billing.token"],
        commands: "access token revoke",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "access token revoke",
        examples: &["lowkey access token revoke 00c0ffee00c0ffee"],
        commands: "access token new, access principal show",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "access grant",
        examples: &[
            "lowkey access grant billing billing acquire,read,watch",
            "lowkey access grant ops / admin",
        ],
        commands: "access revoke, access check",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "access revoke",
        examples: &["lowkey access revoke billing billing watch"],
        commands: "access grant",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "access require",
        examples: &[
            "lowkey access require --dry-run",
            "lowkey access require",
            "lowkey access require --off --data-dir ./data",
        ],
        commands: "access principal, access check",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "access check",
        examples: &["lowkey access check billing acquire billing/nightly"],
        commands: "access grant",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "access whoami",
        examples: &["lowkey access whoami"],
        commands: "access check",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "errors",
        examples: &["lowkey errors", "lowkey errors NO_QUORUM"],
        commands: "status",
        page: "docs/reference/errors.md",
    },
    Help {
        command: "health",
        examples: &["lowkey health", "lowkey health --ready --connect-timeout 2s"],
        commands: "status",
        page: "docs/operate/monitor.md",
    },
    Help {
        command: "member",
        examples: &["lowkey member list", "lowkey member remove node-3"],
        commands: "status",
        page: "docs/operate/members.md",
    },
    Help {
        command: "member list",
        examples: &["lowkey member list"],
        commands: "status",
        page: "docs/operate/members.md",
    },
    Help {
        command: "member add",
        examples: &["lowkey member add node-4 --raft-addr 10.0.0.4:7000"],
        commands: "member promote, server",
        page: "docs/operate/members.md",
    },
    Help {
        command: "member invite",
        examples: &["lowkey member invite > join-token", "lowkey member invite --ttl 10m > join-token"],
        commands: "member add, server",
        page: "docs/operate/members.md",
    },
    Help {
        command: "member promote",
        examples: &["lowkey member promote node-4", "lowkey member promote node-4 --wait 2m"],
        commands: "member list",
        page: "docs/operate/members.md",
    },
    Help {
        command: "member transfer",
        examples: &["lowkey member transfer node-2"],
        commands: "member list",
        page: "docs/operate/members.md",
    },
    Help {
        command: "member remove",
        examples: &["lowkey member remove node-3"],
        commands: "member list",
        page: "docs/operate/replace-a-node.md",
    },
    Help {
        command: "server",
        examples: &[
            "lowkey --bootstrap --data-dir ./data",
            "lowkey server --join-token-file join-token --node-id node-2 --raft-addr 10.0.0.2:7000",
            "lowkey --cluster-of 3 --join 10.0.0.1:9000,10.0.0.2:9000,10.0.0.3:9000 --form-secret-file secret",
            "lowkey --bootstrap --tls-cert certs/node.pem --tls-key certs/node-key.pem",
            "lowkey --bootstrap --backup-to s3://backups/lowkey --backup-every 10m --backup-keep 48",
        ],
        commands: "dev, member",
        page: "docs/operate/three-machines.md",
    },
    Help {
        command: "recover",
        examples: &[
            "lowkey recover --data-dir ./data",
            "lowkey recover --data-dir ./data --yes-the-other-nodes-are-lost-for-good",
            "lowkey recover --data-dir ./data --backup-to s3://backups/lowkey --yes-the-other-nodes-are-lost-for-good",
        ],
        commands: "member remove",
        page: "docs/operate/recover.md",
    },
    Help {
        command: "backup",
        examples: &[
            "lowkey backup create --to s3://backups/lowkey",
            "lowkey backup verify --from s3://backups/lowkey",
            "lowkey backup restore --from s3://backups/lowkey --data-dir ./data",
        ],
        commands: "server, recover",
        page: "docs/operate/backups.md",
    },
    Help {
        command: "backup create",
        examples: &["lowkey backup create", "lowkey backup create --to file:///var/backups/lowkey"],
        commands: "backup verify, server",
        page: "docs/operate/backups.md",
    },
    Help {
        command: "backup list",
        examples: &["lowkey backup list --from s3://backups/lowkey"],
        commands: "backup verify",
        page: "docs/operate/backups.md",
    },
    Help {
        command: "backup verify",
        examples: &["lowkey backup verify --from s3://backups/lowkey"],
        commands: "backup list, backup restore",
        page: "docs/operate/backups.md",
    },
    Help {
        command: "backup schedule",
        examples: &[
            "lowkey backup schedule",
            "lowkey backup schedule --to s3://backups/lowkey --every 10m --keep 48",
            "lowkey backup schedule --off",
        ],
        commands: "backup create, server",
        page: "docs/operate/backups.md",
    },
    Help {
        command: "backup restore",
        examples: &["lowkey backup restore --from s3://backups/lowkey --data-dir ./data"],
        commands: "backup list, recover",
        page: "docs/operate/disasters/all-nodes-with-backup.md",
    },
    Help {
        command: "cert",
        examples: &[
            "lowkey cert ca",
            "lowkey cert node --host node-1.example.com,10.0.0.1",
            "lowkey cert client billing",
        ],
        commands: "server",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "cert ca",
        examples: &["lowkey cert ca", "lowkey cert ca --dir /etc/lowkey/certs --days 7300"],
        commands: "cert node",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "cert node",
        examples: &["lowkey cert node --host node-1.example.com,10.0.0.1"],
        commands: "cert client, server",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "cert client",
        examples: &["lowkey cert client billing", "lowkey cert client billing --days 30 --force"],
        commands: "cert ca",
        page: "docs/operate/secure.md",
    },
    Help {
        command: "dev",
        examples: &["lowkey dev", "lowkey dev --demo", "lowkey dev --secure"],
        commands: "server",
        page: "docs/start/five-minutes.md",
    },
    Help {
        command: "bench",
        examples: &[
            "lowkey bench",
            "lowkey bench seq par --nodes 1,3 --seconds 5",
            "lowkey bench seq par --through unary,session --tls --access --audit-off",
            "lowkey bench seq --server https://10.0.0.1:9000 --ca ca.pem --auth-file bench.token",
        ],
        commands: "status",
        page: "docs/internals/benchmarks.md",
    },
    Help {
        command: "completions",
        examples: &["lowkey completions bash > /etc/bash_completion.d/lowkey"],
        commands: "",
        page: "docs/reference/cli.md",
    },
];

/// The command line with examples, and with where to read on.
pub(crate) fn dressed(command: Command) -> Command {
    HELP.iter().fold(command, |command, help| {
        let path: Vec<&str> = help.command.split_whitespace().collect();
        dress(command, &path, help)
    })
}

fn dress(command: Command, path: &[&str], help: &Help) -> Command {
    match path {
        [] => command.help_template(TEMPLATE).before_help(help.examples()).after_help(help.at_the_end()),
        [first, rest @ ..] => command.mut_subcommand(first, |inner| dress(inner, rest, help)),
    }
}

impl Help {
    fn examples(&self) -> String {
        let lines = self.examples.iter().map(|example| format!("\n  {example}"));
        format!("Examples:{}", lines.collect::<String>())
    }

    fn at_the_end(&self) -> String {
        match self.command {
            "run" | "elect" => format!("{STATUSES}\n\n{}", self.see_also()),
            _ => self.see_also(),
        }
    }

    fn see_also(&self) -> String {
        let commands = self.commands.split(", ").filter(|command| !command.is_empty());
        let commands: Vec<String> = commands.map(|command| format!("lowkey {command} --help")).collect();
        let commands = commands.iter().map(|command| format!("{command}, ")).collect::<String>();
        format!("See also: {commands}{} in the source of lowkey", self.page)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use clap::CommandFactory as _;

    use super::*;
    use crate::{Cli, with_default_command};

    /// Every command with its path, the whole line first.
    fn all(command: &Command, path: &str) -> Vec<(String, Command)> {
        let mut found = vec![(path.to_owned(), command.clone())];
        let shown = |inner: &&Command| inner.get_name() != "help" && !inner.is_hide_set();
        for inner in command.get_subcommands().filter(shown) {
            found.extend(all(inner, format!("{path} {}", inner.get_name()).trim()));
        }
        found
    }

    /// The words of an example, as a shell makes them: up to where its output goes.
    fn words(example: &str) -> Vec<OsString> {
        let mut words: Vec<String> = vec![String::new()];
        let mut is_quoted = false;
        for letter in example.split(" > ").next().unwrap_or_default().chars() {
            match letter {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(String::new()),
                letter => words.last_mut().expect("there is one").push(letter),
            }
        }
        words.into_iter().map(OsString::from).collect()
    }

    /// The same statuses as in the table of the reference, in its order.
    #[test]
    fn the_exit_statuses_are_those_of_the_reference() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
        let page = std::fs::read_to_string(page).unwrap();
        let table = page.lines().skip_while(|line| *line != "| status | meaning |").skip(2);
        let told: Vec<String> = table
            .take_while(|line| line.starts_with('|'))
            .map(|line| line.split('|').nth(1).unwrap().trim().replace('*', ""))
            .filter(|status| status != "1")
            .collect();
        let lines = STATUSES.lines().skip(1);
        let listed: Vec<&str> = lines.map(|line| line[..11].trim()).collect();
        assert_eq!(listed, told, "1 is of commands that ask");
        for command in ["run", "elect"] {
            let help =
                dressed(Cli::command()).find_subcommand_mut(command).unwrap().render_help().to_string();
            assert!(help.contains(STATUSES), "{command}: {help}");
        }
    }

    #[test]
    fn every_command_has_examples_and_says_where_to_read_on() {
        let commands = all(&dressed(Cli::command()), "");
        let described: Vec<&str> = HELP.iter().map(|help| help.command).collect();
        for (path, command) in &commands {
            assert_eq!(described.iter().filter(|known| *known == path).count(), 1, "lowkey {path}");
            let text = command.clone().render_help().to_string();
            let places =
                ["Examples:\n  lowkey", "Usage:", "See also: "].map(|part| text.find(part).unwrap_or(0));
            assert!(places.is_sorted() && places[0] > 0, "lowkey {path}\n{text}");
        }
        assert_eq!(described.len(), commands.len(), "every line of the table is about a command");
    }

    #[test]
    fn every_example_is_a_command_line_that_is_understood() {
        for help in HELP {
            assert!(!help.examples.is_empty(), "{}", help.command);
            for example in help.examples {
                let words = with_default_command(words(example), false);
                let parsed = dressed(Cli::command()).try_get_matches_from(words);
                assert!(parsed.is_ok(), "{example}\n{parsed:?}");
                let is_about = help.command.is_empty()
                    || example.starts_with(&format!("lowkey {}", help.command))
                    || help.command == "server" && example.starts_with("lowkey --");
                assert!(is_about, "{example} is no example of {}", help.command);
            }
        }
    }

    #[test]
    fn what_is_to_be_read_exists() {
        let commands: Vec<String> = all(&Cli::command(), "").into_iter().map(|(path, _)| path).collect();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let summary = std::fs::read_to_string(root.join("docs/SUMMARY.md")).expect("there is a book");
        for help in HELP {
            for command in help.commands.split(", ").filter(|command| !command.is_empty()) {
                assert!(commands.iter().any(|known| known == command), "lowkey {command}");
            }
            let page = help.page.strip_prefix("docs/").expect("a page of the book");
            assert!(summary.contains(&format!("]({page})")), "{page} is not in the book");
        }
    }

    #[test]
    fn every_flag_is_in_a_group_and_every_command_is_told_in_one_sentence() {
        for (path, command) in all(&Cli::command(), "") {
            let about = command.get_about().expect("it says what it does").to_string();
            assert!(!about.contains(". ") && !about.contains('\n'), "lowkey {path}: {about}");
            for flag in command.get_arguments().filter(|arg| arg.get_long().is_some()) {
                let is_group = flag.get_help_heading().is_some();
                let is_usual = matches!(flag.get_id().as_str(), "help" | "version");
                assert!(is_group || is_usual, "lowkey {path} --{}", flag.get_long().unwrap_or_default());
            }
        }
    }
}
