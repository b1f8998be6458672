//! Limits of the service that its clients have to know.

use std::time::Duration;

/// The longest wait for a lock that one request may ask for. The state machine has the same limit, as the
/// server makes sure when it is built.
pub const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest limit of how long a grant is held: a week. The state machine has the same limit, as the server makes sure
/// when it is built.
pub const MAX_HOLD_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
