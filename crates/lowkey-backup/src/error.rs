//! What can go wrong with a store, said so that a person knows what to do.

use std::fmt;

use lowkey_core::EpochsSpent;

/// Why something could not be done with backups.
#[derive(Debug)]
#[non_exhaustive]
pub enum BackupError {
    /// The URL is none that backups can be kept at.
    Url {
        /// What is wrong, and what is allowed.
        problem: String,
    },
    /// The store did not do what it was asked for.
    Store {
        /// What it was asked for.
        doing: String,
        /// What it said.
        source: object_store::Error,
    },
    /// The store cannot keep two restores apart.
    Unfit {
        /// Why not.
        problem: String,
    },
    /// There is no such backup.
    NotFound {
        /// What was looked for, and where.
        problem: String,
    },
    /// Something is not as it was written.
    Damaged {
        /// The file, from the store's URL on.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No epoch is left.
    EpochsSpent(EpochsSpent),
    /// The operating system gave no random numbers.
    NoRandomness,
}

impl BackupError {
    pub(crate) fn store(doing: impl Into<String>) -> impl FnOnce(object_store::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Store { doing, source }
    }

    pub(crate) fn damaged(file: impl ToString, problem: impl Into<String>) -> Self {
        Self::Damaged { file: file.to_string(), problem: problem.into() }
    }

    /// Whether the backup is at fault, and not the way to it.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { problem } | Self::Unfit { problem } | Self::NotFound { problem } => {
                f.write_str(problem)
            }
            Self::Store { doing, source } => write!(f, "{doing}: {}", innermost(source)),
            Self::Damaged { file, problem } => {
                write!(f, "the backup is damaged: {file}: {problem}; take another one: `lowkey backup list`")
            }
            Self::EpochsSpent(spent) => spent.fmt(f),
            Self::NoRandomness => f.write_str("cannot get random numbers from the operating system"),
        }
    }
}

/// The errors of stores are nested, and each tells the one inside it too.
fn innermost(error: &object_store::Error) -> String {
    let mut told = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(inner) = next {
        let text = inner.to_string();
        if !told.contains(&text) {
            told = format!("{told}: {text}");
        }
        next = inner.source();
    }
    told
}

impl std::error::Error for BackupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store { source, .. } => Some(source),
            Self::EpochsSpent(spent) => Some(spent),
            _ => None,
        }
    }
}

impl From<EpochsSpent> for BackupError {
    fn from(spent: EpochsSpent) -> Self {
        Self::EpochsSpent(spent)
    }
}
