//! The story of a world, for a person.

/// Lines with their times, if anyone wants them.
pub(crate) struct Trace {
    lines: Option<Vec<String>>,
}

impl Trace {
    pub(crate) fn new(wanted: bool) -> Self {
        Self { lines: wanted.then(Vec::new) }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.lines.is_some()
    }

    /// Tells a line; it is made only if the story is wanted.
    pub(crate) fn tell(&mut self, now: u64, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>4}.{:06} {}", now / 1_000_000_000, now / 1000 % 1_000_000, line()));
        }
    }

    pub(crate) fn take(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }
}
