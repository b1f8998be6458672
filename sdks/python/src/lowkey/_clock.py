"""The clock that belief is counted by.

It must go on while the machine is suspended: a lease does. Only differences of it mean anything.
"""

from __future__ import annotations

import time

SECOND = 1_000_000_000
MILLISECOND = 1_000_000


def _clock_id() -> int | None:
    # Linux: CLOCK_MONOTONIC stands still during suspend, CLOCK_BOOTTIME does not.
    # macOS: `time.monotonic` stands still, CLOCK_MONOTONIC does not.
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        clock_id = getattr(time, name, None)
        if isinstance(clock_id, int):
            return clock_id
    return None  # Windows, whose `time.monotonic` goes on


_CLOCK_ID = _clock_id()


def now_ns() -> int:
    """Return the time, in nanoseconds since some moment."""
    if _CLOCK_ID is None:
        return time.monotonic_ns()
    return time.clock_gettime_ns(_CLOCK_ID)
