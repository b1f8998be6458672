"""Pauses between attempts: random, and longer each time, so that clients do not all ask at once."""

from __future__ import annotations

import random
from typing import Callable

FIRST_BOUND_SECONDS = 0.020
LAST_BOUND_SECONDS = 0.500
_HINT_MAX_SECONDS = 1.0

# Not `random.random` itself: a forked child would repeat its parent's pauses.
_share: Callable[[], float] = random.SystemRandom().random


class Backoff:
    """Full jitter: each pause is random between zero and a bound that doubles."""

    def __init__(self) -> None:
        self._bound = FIRST_BOUND_SECONDS

    def pause(self, hint_seconds: float = 0.0, share: float | None = None) -> float:
        """Return the next pause in seconds. A hint of the service makes it longer."""
        pause = self._bound * (_share() if share is None else share)
        self._bound = min(self._bound * 2, LAST_BOUND_SECONDS)
        return pause + min(hint_seconds, _HINT_MAX_SECONDS) / 4


def up_to(seconds: float) -> float:
    """Return a random time between zero and this bound."""
    return seconds * _share()
