//! Rules that can be switched off, so that the simulator can show that it would notice. For tests
//! only.
//!
//! The same as `mutants` of `lowkey-core`, which this crate does not know. Without the feature
//! `mutants`, which nothing but `lowkey-sim` ever asks for, the answer is a constant `false`.

/// True if the rule of this name is broken on purpose, on this thread.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn is_active(_name: &str) -> bool {
    false
}

#[cfg(feature = "mutants")]
pub use switched::activate;
#[cfg(feature = "mutants")]
pub(crate) use switched::is_active;

#[cfg(feature = "mutants")]
mod switched {
    use std::cell::Cell;

    thread_local! {
        static ACTIVE: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Breaks the rule of this name on this thread, and keeps all others.
    pub fn activate(name: Option<&'static str>) {
        ACTIVE.set(name);
    }

    /// True if the rule of this name is broken on purpose, on this thread.
    pub(crate) fn is_active(name: &str) -> bool {
        ACTIVE.get() == Some(name)
    }
}
