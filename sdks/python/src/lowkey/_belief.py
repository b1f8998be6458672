"""What a client believes: until when its lease is valid, and which tokens the lease holds.

Two clients never believe in the same exclusive lock at once. That rests on this file:

- Only making and renewing a lease extend its validity, each counted from before its first send.
- Validity that has run out is over for good. A late answer never revives it.
- Whether something is held is a question to the clock, not a remembered flag.
- Belief ends before a release is sent.
- A forked child holds nothing.
"""

from __future__ import annotations

import enum
import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, NamedTuple

from lowkey._clock import MILLISECOND, SECOND, now_ns

if TYPE_CHECKING:
    from collections.abc import Iterable

_MASK = (1 << 64) - 1

# How many acquires that were given up are remembered: far more than can be under way (128), or are
# remembered by the service (256).
_GIVEN_UP_MAX = 1024


class LossCause(enum.Enum):
    """Why a session or a lock was lost."""

    EXPIRED = "expired"
    """No renewal was acknowledged in time, by this client's own clock."""
    GONE = "gone"
    """The service said that the lease is gone: it ran out there, or was revoked."""
    CLOSED = "closed"
    """This client closed the session."""
    RELEASED_ELSEWHERE = "released_elsewhere"
    """Somebody else released this lock. Its session goes on."""
    HELD_TOO_LONG = "held_too_long"
    """This lock was held for as long as `at_most` allows. Its session goes on."""
    RELEASED = "released"
    """You released it yourself. Only `check` tells this: it is no loss."""
    FORKED = "forked"
    """This process is a fork of the holder, and a fork holds nothing."""

    def __str__(self) -> str:
        return _CAUSES[self]


_CAUSES = {
    LossCause.EXPIRED: "no renewal was acknowledged in time",
    LossCause.GONE: "the lease is gone: it ran out, or was revoked",
    LossCause.CLOSED: "the session was closed",
    LossCause.RELEASED_ELSEWHERE: "somebody else released it",
    LossCause.HELD_TOO_LONG: "it was held for as long as it may be",
    LossCause.RELEASED: "you released it",
    LossCause.FORKED: "this process was forked, and a fork holds nothing",
}


def valid_until(first_sent_ns: int, ttl_seconds: int) -> int:
    """Return until when a client may act: 90 % of the time to live, from before the first send."""
    return first_sent_ns + ttl_seconds * SECOND // 10 * 9


def valid_until_after_wait(first_sent_ns: int, waited_ms: int, ttl_seconds: int) -> int:
    """Return the same for a lease that was made by an acquire which waited."""
    return valid_until(first_sent_ns + waited_ms * MILLISECOND // 10 * 9, ttl_seconds)


def held_until(first_sent_ns: int, waited_ms: int, max_hold_seconds: int) -> int:
    """Return until when a grant with a limit is believed in, unless its lease ends before."""
    return valid_until_after_wait(first_sent_ns, waited_ms, max_hold_seconds)


def mix(token: int) -> int:
    """Spread a token over 64 bits: the finishing steps of SplitMix64."""
    mixed = (token + 0x9E37_79B9_7F4A_7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return mixed ^ (mixed >> 31)


@dataclass(frozen=True)
class Holds:
    """How many locks a lease holds, and a digest of their tokens."""

    count: int
    digest: int


class Validity:
    """Whether one lease is valid now. Any thread may ask.

    Invariant: once `is_valid` has said no, it never says yes again.
    """

    def __init__(
        self,
        ttl_seconds: int,
        valid_until_ns: int,
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self.ttl_seconds = ttl_seconds
        self.valid_until_ns = valid_until_ns  # only ever grows
        self._clock = clock
        self._cause: LossCause | None = None  # set once
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def is_valid(self) -> bool:
        """Tell whether the holder may act now."""
        if os.getpid() != self._pid:
            return False  # before any lock: another thread may have held it during the fork
        if self._cause is None and self._clock() < self.valid_until_ns:
            return True
        with self._lock:
            self._look()
            return self._cause is None

    def renewed(self, first_sent_ns: int) -> bool:
        """Take in the answer to a renewal. Return whether the lease is still valid."""
        with self._lock:
            self._look()
            if self._cause is None:
                until = valid_until(first_sent_ns, self.ttl_seconds)
                self.valid_until_ns = max(self.valid_until_ns, until)
            return self._cause is None

    def end(self, cause: LossCause) -> bool:
        """End the validity. Only the first cause counts; return whether this was it."""
        if os.getpid() != self._pid:
            return False
        with self._lock:
            self._look()
            if self._cause is not None:
                return False
            self._cause = cause
            return True

    def _look(self) -> None:
        if self._cause is None and self._clock() >= self.valid_until_ns:
            self._cause = LossCause.EXPIRED

    @property
    def cause(self) -> LossCause | None:
        """Why it is not valid any more, or None while it is."""
        if os.getpid() != self._pid:
            return LossCause.FORKED
        return None if self.is_valid() else self._cause

    def remaining_ns(self) -> int:
        """Return how long it stays valid if nothing more is heard."""
        if not self.is_valid():
            return 0
        return max(0, self.valid_until_ns - self._clock())


class GrantView(NamedTuple):
    """A grant, as the service tells it."""

    name: str
    token: int
    acquire_request_id: str


class Verdict(NamedTuple):
    """What follows from what a lease holds."""

    lost: list[int]
    orphans: list[GrantView]


class Beliefs:
    """The tokens that a client believes its lease holds. Used on the engine's thread only.

    A renewal carries their digest. If the service differs, the client reads the lease: a token that
    was believed in before the read and is not there is lost. A grant that is there and not believed
    in may be one whose answer is under way; it is released only if it was granted to an acquire of
    this client that was given up, since nobody else would ever release it.
    """

    def __init__(self) -> None:
        self._tokens: set[int] = set()
        self._digest = 0
        self._given_up: deque[str] = deque(maxlen=_GIVEN_UP_MAX)

    def add(self, token: int) -> None:
        """Begin to believe in a token."""
        if token not in self._tokens:
            self._tokens.add(token)
            self._digest ^= mix(token)

    def remove(self, token: int) -> None:
        """Stop believing in a token, for any reason."""
        if token in self._tokens:
            self._tokens.remove(token)
            self._digest ^= mix(token)

    def give_up(self, acquire_request_id: str) -> None:
        """Note that nobody waits for this acquire any more."""
        self._given_up.append(acquire_request_id)

    def holds(self) -> Holds:
        """Return what a renewal tells."""
        return Holds(len(self._tokens), self._digest)

    def tokens(self) -> frozenset[int]:
        """Return the tokens that are believed in now."""
        return frozenset(self._tokens)

    def judge(
        self, believed: Iterable[int], grants: list[GrantView], asking: Callable[[str], bool]
    ) -> Verdict:
        """Judge what the lease held when it was read, after `believed` was believed in.

        Lost tokens are not believed in any more. A name that the session is `asking` for is left
        alone: it may be given this very grant, and that answer may be under way.
        """
        there = {grant.token for grant in grants}
        lost = [t for t in believed if t not in there and t in self._tokens]
        for token in lost:
            self.remove(token)
        orphans = [
            grant
            for grant in grants
            if grant.acquire_request_id in self._given_up
            and grant.token not in self._tokens
            and not asking(grant.name)
        ]
        return Verdict(sorted(lost), orphans)
