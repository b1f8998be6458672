//! Rules that can be switched off, so that the simulator can show that it would notice. For tests
//! only.
//!
//! Each rule that a mutant breaks asks [`is_active`] in the one line that keeps it. Without the
//! feature `mutants`, which nothing but `lowkey-sim` ever asks for, the answer is a constant `false`,
//! and no trace of this is left in what is built. `docs/simulation.md` lists the mutants.

/// True if the rule of this name is broken on purpose, on this thread.
#[cfg(not(feature = "mutants"))]
pub const fn is_active(_name: &str) -> bool {
    false
}

/// A count that is in no log and in no snapshot.
#[cfg(not(feature = "mutants"))]
pub const fn count_in_memory() -> u64 {
    0
}

#[cfg(feature = "mutants")]
pub use switched::{activate, count_in_memory, is_active};

#[cfg(feature = "mutants")]
mod switched {
    use std::cell::Cell;

    thread_local! {
        static ACTIVE: Cell<Option<&'static str>> = const { Cell::new(None) };
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    /// Breaks the rule of this name on this thread, and keeps all others.
    pub fn activate(name: Option<&'static str>) {
        ACTIVE.set(name);
        COUNT.set(0);
    }

    /// True if the rule of this name is broken on purpose, on this thread.
    pub fn is_active(name: &str) -> bool {
        ACTIVE.get() == Some(name)
    }

    /// A count that is in no log and in no snapshot.
    pub fn count_in_memory() -> u64 {
        COUNT.set(COUNT.get() + 1);
        COUNT.get()
    }
}
