//! The SQL of the fence, for any language: `lowkey fence sql` prints it.
//!
//! It is idempotent and versioned. The tests of the adapters run this very text.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use crate::resource::Resource;

/// The SQLSTATE of a refusal in PostgreSQL and MySQL: your lock is gone, stop, do not retry.
pub const REFUSED: &str = "LK001";

/// A database that the SQL is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// PostgreSQL 13 and newer.
    Postgres,
    /// MySQL 8, and MariaDB 10.5 and newer.
    Mysql,
    /// SQLite 3.32 and newer.
    Sqlite,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Postgres, Self::Mysql, Self::Sqlite];

    /// The name by which the command line knows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Sqlite => "sqlite",
        }
    }

    /// What installs the fence, for the database's own shell.
    ///
    /// ```
    /// use lowkey_fence::sql::Dialect;
    /// assert!(Dialect::Postgres.install().contains("CREATE OR REPLACE FUNCTION lowkey_fence("));
    /// ```
    pub fn install(self) -> &'static str {
        match self {
            Self::Postgres => include_str!("../sql/postgres.sql"),
            Self::Mysql => include_str!("../sql/mysql.sql"),
            Self::Sqlite => include_str!("../sql/sqlite.sql"),
        }
    }

    /// The same as single statements, for a client that takes one at a time and knows no `DELIMITER`.
    pub fn statements(self) -> Vec<String> {
        let (mut statements, mut statement, mut end) = (Vec::new(), String::new(), ";");
        for line in self.install().lines() {
            if let Some(delimiter) = line.strip_prefix("DELIMITER ") {
                end = delimiter.trim();
                continue;
            }
            if statement.is_empty() && (line.is_empty() || line.starts_with("--")) {
                continue;
            }
            statement.push_str(line.strip_suffix(end).unwrap_or(line));
            statement.push('\n');
            if line.ends_with(end) {
                statements.push(std::mem::take(&mut statement));
            }
        }
        statements
    }

    /// What forgets the marks of a resource, so that a cluster that was founded anew and counts from 1 can write.
    ///
    /// **Only when no client of the old cluster can write any more**: its token would be accepted beside the new
    /// holder's.
    pub fn reset(self, resource: &Resource) -> String {
        format!("DELETE FROM lowkey_fence WHERE resource = {};\n", self.quoted(resource.as_str()))
    }

    /// What forgets the marks of all resources. See [`Dialect::reset`].
    pub fn reset_all(self) -> &'static str {
        "DELETE FROM lowkey_fence;\n"
    }

    /// PostgreSQL: what makes a table refuse a transaction that has presented no token for this resource. `None`
    /// where a database cannot tell one transaction from the next.
    ///
    /// ```
    /// use lowkey_fence::{Resource, sql::Dialect};
    /// let trigger = Dialect::Postgres.require("bank.accounts", &Resource::parse("accounts")?).unwrap();
    /// assert!(trigger.contains(r#"ON "bank"."accounts""#));
    /// # Ok::<(), lowkey_fence::InvalidResource>(())
    /// ```
    pub fn require(self, table: &str, resource: &Resource) -> Option<String> {
        let parts: Vec<_> =
            table.split('.').map(|part| format!("\"{}\"", part.replace('"', "\"\""))).collect();
        let (table, resource) = (parts.join("."), self.quoted(resource.as_str()));
        (self == Self::Postgres).then(|| {
            format!(
                "DROP TRIGGER IF EXISTS lowkey_fence_required ON {table};\n\
                 CREATE TRIGGER lowkey_fence_required BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}\n\
                 FOR EACH STATEMENT EXECUTE FUNCTION lowkey_fence_required({resource});\n"
            )
        })
    }

    /// A text as a literal of this database.
    fn quoted(self, text: &str) -> String {
        let text = text.replace('\'', "''");
        match self {
            // A backslash escapes in MySQL, unless a mode of the server says otherwise: in hexadecimal it cannot.
            Self::Mysql if text.contains('\\') => {
                let bytes = text.replace("''", "'").into_bytes();
                format!("X'{}'", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
            }
            // Never an escape, whatever standard_conforming_strings says.
            Self::Postgres if text.contains('\\') => format!("E'{}'", text.replace('\\', "\\\\")),
            _ => format!("'{text}'"),
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no [`Dialect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownDialect;

impl fmt::Display for UnknownDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is SQL for `postgres`, `mysql` (also for MariaDB) and `sqlite`")
    }
}

impl Error for UnknownDialect {}

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(text: &str) -> Result<Self, UnknownDialect> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == text).ok_or(UnknownDialect)
    }
}

/// The marks in what a database says about a refusal: `… exclusive=34 shared=0 …`.
#[cfg(any(feature = "mysql", feature = "postgres", test))]
pub(crate) fn marks_in(text: &str) -> crate::Marks {
    let mark = |name: &str| {
        let value = text.split([' ', ':']).find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        crate::Token(value.and_then(|value| value.parse().ok()).unwrap_or_default())
    };
    crate::Marks { exclusive: mark("exclusive"), shared: mark("shared") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Marks, Refusal, Token};

    #[test]
    fn every_text_says_its_version_and_the_advice() {
        for dialect in Dialect::ALL {
            assert!(dialect.install().contains("version 1"), "{dialect}");
            assert!(dialect.install().contains(Refusal::ADVICE), "{dialect}");
            assert_eq!(dialect.name().parse(), Ok(dialect));
        }
        assert_eq!("oracle".parse::<Dialect>(), Err(UnknownDialect));
    }

    #[test]
    fn mysql_comes_apart_into_statements_without_delimiters() {
        let statements = Dialect::Mysql.statements();
        assert_eq!(statements.len(), 3, "{statements:#?}");
        assert!(statements[2].starts_with("CREATE PROCEDURE") && statements[2].trim_end().ends_with("END"));
        assert!(!statements.concat().contains("DELIMITER"));
    }

    #[test]
    fn names_with_quotes_stay_names() {
        let resource = Resource::parse("it's \\'").unwrap();
        assert!(Dialect::Sqlite.reset(&resource).ends_with("= 'it''s \\''';\n"));
        assert!(Dialect::Postgres.reset(&resource).ends_with("= E'it''s \\\\''';\n"));
        assert!(Dialect::Mysql.reset(&resource).ends_with("= X'69742773205c27';\n"));
    }

    #[test]
    fn marks_are_found_in_what_databases_say() {
        let marks = Marks { exclusive: Token(9), shared: Token(34) };
        assert_eq!(marks_in("token=33 exclusive=9 shared=34"), marks);
        assert_eq!(marks_in("STALE_TOKEN exclusive=9 shared=34: your lock is gone"), marks);
        assert_eq!(marks_in("something else"), Marks::default());
    }
}
