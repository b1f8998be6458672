//! `fence`: what a database needs to refuse late writes, and how its marks are forgotten. It talks to no service and
//! to no database: it prints statements for the database's own shell.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use lowkey_fence::Resource;
use lowkey_fence::sql::Dialect;

use super::printed;
use crate::exit::{self, CommandFailure};
use crate::output::say;

const WARNING: &str = "A reset forgets which tokens were accepted. It is right only after a cluster was founded anew, \
    so that its tokens start at 1 again, and only once no client of the old cluster can write any more: the old \
    client's higher token would be accepted, and the new holder refused. `lowkey recover` and a restored backup need \
    no reset: their tokens are higher than ever.";

#[derive(Debug, Args)]
pub(crate) struct FenceArgs {
    #[command(subcommand)]
    command: FenceCommand,
}

#[derive(Debug, Subcommand)]
enum FenceCommand {
    /// Print the SQL that lets a database refuse late writes; it may be run again at any time
    Sql(SqlArgs),
    /// Print what makes a database or Redis forget accepted tokens, after a cluster was founded anew
    Reset(ResetArgs),
}

#[derive(Debug, Args)]
struct SqlArgs {
    /// The database: postgres, mysql (also for MariaDB) or sqlite
    dialect: Dialect,

    /// PostgreSQL: also refuse writes to this table by a transaction that has presented no token for this resource
    #[arg(long, value_name = "TABLE=RESOURCE", value_parser = parse_trigger, help_heading = "Protection")]
    trigger: Vec<(String, Resource)>,
}

#[derive(Debug, Args)]
struct ResetArgs {
    /// Where the marks are: postgres, mysql (also for MariaDB), sqlite or redis
    #[arg(value_parser = parse_place)]
    place: Place,

    /// The resources to forget the tokens of
    #[arg(required_unless_present = "all", conflicts_with = "all", value_parser = parse_resource)]
    resources: Vec<Resource>,

    /// All resources of the database
    #[arg(long, help_heading = "Resources")]
    all: bool,

    /// Do not ask; needed where nobody can be asked, because the input is no terminal
    #[arg(long, help_heading = "Confirmation")]
    yes: bool,
}

/// Where marks are kept that statements can forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Database(Dialect),
    Redis,
}

fn parse_place(text: &str) -> Result<Place, String> {
    match text {
        "redis" => Ok(Place::Redis),
        text => text.parse().map(Place::Database).map_err(|_| {
            "marks are reset in `postgres`, `mysql` (also MariaDB), `sqlite` and `redis`; for an object store call \
             ObjectFence::reset"
                .to_owned()
        }),
    }
}

fn parse_resource(text: &str) -> Result<Resource, String> {
    Resource::parse(text).map_err(|invalid| invalid.to_string())
}

fn parse_trigger(text: &str) -> Result<(String, Resource), String> {
    let (table, resource) = text.split_once('=').unwrap_or_default();
    let is_table = table.split('.').all(|part| !part.is_empty()) && !table.contains(|c: char| c.is_control());
    if !is_table || table.split('.').count() > 2 {
        return Err("must be a table, or schema.table, and a resource: bank.accounts=accounts".to_owned());
    }
    Ok((table.to_owned(), parse_resource(resource)?))
}

pub(crate) fn fence(args: &FenceArgs) -> ExitCode {
    let text = match &args.command {
        FenceCommand::Sql(args) => sql(args),
        FenceCommand::Reset(args) => reset(args),
    };
    match text.and_then(|text| printed(io::stdout().lock().write_all(text.as_bytes()))) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(false),
    }
}

fn sql(args: &SqlArgs) -> Result<String, CommandFailure> {
    let mut text = args.dialect.install().to_owned();
    for (table, resource) in &args.trigger {
        let trigger = args.dialect.require(table, resource).ok_or_else(|| {
            let line = format!(
                "--trigger is for postgres: {} cannot tell one transaction from the next",
                args.dialect
            );
            CommandFailure::new(exit::USAGE, line)
        })?;
        text.push('\n');
        text.push_str(&trigger);
    }
    Ok(text)
}

fn reset(args: &ResetArgs) -> Result<String, CommandFailure> {
    let text = match (args.place, args.all) {
        (Place::Database(dialect), true) => dialect.reset_all().to_owned(),
        (Place::Database(dialect), false) => {
            args.resources.iter().map(|resource| dialect.reset(resource)).collect()
        }
        (Place::Redis, true) => {
            let line = "name the resources: redis keeps the marks of each under a key of its own";
            return Err(CommandFailure::new(exit::USAGE, line));
        }
        (Place::Redis, false) => args.resources.iter().map(redis_reset).collect(),
    };
    say(WARNING);
    if args.yes || is_wanted()? {
        Ok(text)
    } else {
        Err(CommandFailure::new(exit::NO, "nothing was printed"))
    }
}

/// For `redis-cli`, which takes a word in double quotes with escapes.
fn redis_reset(resource: &Resource) -> String {
    let escaped = resource.as_str().replace('\\', "\\\\").replace('"', "\\\"");
    format!("DEL \"lowkey:fence:{{{escaped}}}\"\n")
}

/// Asks the person at the terminal.
fn is_wanted() -> Result<bool, CommandFailure> {
    if !io::stdin().is_terminal() {
        return Err(CommandFailure::new(exit::USAGE, "say --yes, since nobody can be asked here"));
    }
    let mut answer = String::new();
    let asked = write!(io::stderr(), "Print the reset? [y/N] ")
        .and_then(|()| io::stdin().lock().read_line(&mut answer));
    asked.map_err(|error| CommandFailure::new(exit::NO, format!("cannot ask: {error}; say --yes")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_names_a_table_and_a_resource() {
        for text in ["accounts=accounts", "bank.accounts=billing/accounts", "a=b=c"] {
            assert!(parse_trigger(text).is_ok(), "{text}");
        }
        for text in ["", "accounts", "=a", "a=", "a.b.c=d", ".a=b", "a.=b"] {
            assert!(parse_trigger(text).is_err(), "{text}");
        }
    }

    #[test]
    fn marks_are_reset_where_they_are_kept() {
        assert_eq!(parse_place("redis"), Ok(Place::Redis));
        assert_eq!(parse_place("mysql"), Ok(Place::Database(Dialect::Mysql)));
        assert!(parse_place("s3").is_err_and(|line| line.contains("ObjectFence::reset")));
        let resource = Resource::parse("a \"b\"").unwrap();
        assert_eq!(redis_reset(&resource), "DEL \"lowkey:fence:{a \\\"b\\\"}\"\n");
    }
}
