//! A value in this process that takes writes of holders only.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lowkey_token::Fence;

use crate::marks::Marks;
use crate::refusal::Refusal;
use crate::resource::Resource;

/// A value behind a mutex, with its marks: check and write are one step.
///
/// It forgets its marks with the process. That is right for a value that is gone then, too.
///
/// ```
/// use lowkey_fence::{Fence, MemoryFence, Mode, Resource, Token};
/// let balance = MemoryFence::new(Resource::parse("balance")?, 100);
/// let (first, second) = (Token(33), Token(34));
/// balance.write(&Fence::new("billing", second, Mode::Exclusive), |balance| *balance -= 10)?;
/// let late = balance.write(&Fence::new("billing", first, Mode::Exclusive), |balance| *balance -= 10);
/// assert!(late.is_err());
/// assert_eq!(balance.read(|balance| *balance), 90);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryFence<T> {
    resource: Resource,
    state: Mutex<Fenced<T>>,
}

struct Fenced<T> {
    marks: Marks,
    value: T,
}

impl<T> MemoryFence<T> {
    /// Protects a value. No token was accepted yet.
    pub fn new(resource: Resource, value: T) -> Self {
        Self { resource, state: Mutex::new(Fenced { marks: Marks::default(), value }) }
    }

    /// Presents the token before anything is read. From now on no earlier holder writes.
    pub fn claim(&self, fence: &Fence) -> Result<(), Refusal> {
        self.write(fence, |_| ())
    }

    /// Changes the value if the token is accepted.
    pub fn write<R>(&self, fence: &Fence, change: impl FnOnce(&mut T) -> R) -> Result<R, Refusal> {
        let mut state = self.lock();
        state.marks.present(&self.resource, fence)?;
        Ok(change(&mut state.value))
    }

    /// Looks at the value.
    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.lock().value)
    }

    /// What was accepted so far.
    pub fn marks(&self) -> Marks {
        self.lock().marks
    }

    /// A change that panics leaves the value as it then is, and the marks raised.
    fn lock(&self) -> MutexGuard<'_, Fenced<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for MemoryFence<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryFence")
            .field("resource", &self.resource)
            .field("marks", &self.marks())
            .finish_non_exhaustive()
    }
}
