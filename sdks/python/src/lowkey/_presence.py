"""A session from inside: its lease, what it holds, and who is to be told when it is lost.

- `Presence`: one lease. Its loss is signalled once, to it and to all that it held.
- `Grant`: one lock that it holds, by one guard or shared by several.
- `Door`: the way to one name. A lease that asks twice for a name is given the same grant twice, and
  the release of one would end the other. So a session asks for a name only when it neither holds
  it, nor asks for it, nor releases it; callers that come meanwhile wait in line here. Callers that
  want to share what is held in shared mode get it at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple

from lowkey._belief import Beliefs, GrantView, LossCause, Validity
from lowkey._clock import now_ns
from lowkey._engine import Engine

Listener = Callable[[LossCause], None]


class Signal:
    """Tells of one loss, once, to everybody who listens, now or later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._inside: list[Listener] = []  # of the SDK itself: told of any end
        self._cause: LossCause | None = None
        self._is_off = False
        self.event = threading.Event()
        """Set when it is over: lost, or ended by its owner."""

    def listen(self, listener: Listener, of_any_end: bool = False) -> None:
        """Call this when the loss is told; at once if it was. It must not block.

        With `of_any_end` also when it is ended on purpose.
        """
        with self._lock:
            cause = self._cause
            if self._is_off and not of_any_end:
                return
            if cause is None and not self._is_off:
                (self._inside if of_any_end else self._listeners).append(listener)
                return
        listener(cause or LossCause.CLOSED)

    def forget(self, listener: Listener) -> None:
        """Do not call this any more."""
        with self._lock:
            for listeners in (self._listeners, self._inside):
                if listener in listeners:
                    listeners.remove(listener)

    def give(self, cause: LossCause) -> None:
        """Tell of the loss."""
        with self._lock:
            if self._cause is not None or self._is_off:
                return
            self._cause = cause
            listeners = self._inside + self._listeners
            self._inside, self._listeners = [], []
        self.event.set()
        for listener in listeners:
            listener(cause)

    def off(self) -> None:
        """Tell nobody any more: it was ended on purpose."""
        with self._lock:
            self._is_off = self._cause is None
            listeners, self._inside, self._listeners = self._inside, [], []
        self.event.set()
        for listener in listeners:
            listener(LossCause.CLOSED)

    @property
    def cause(self) -> LossCause | None:
        """The cause, if the loss was told."""
        return self._cause


class Way(NamedTuple):
    """How a name is wanted or held."""

    is_shared: bool
    is_subtree: bool
    is_limited: bool = False  # a grant that is held for a limited time is nobody else's


class Grant:
    """A lock that is held. Whether it is held now is asked of the clock."""

    def __init__(
        self,
        presence: Presence,
        name: str,
        token: int,
        waited_ms: int,
        limit_ns: int | None = None,
    ) -> None:
        self.presence = presence
        self.name = name
        self.token = token
        self.waited_ms = waited_ms
        self.limit_ns = limit_ns  # belief ends here at the latest, by this client's own clock
        self.guards = 1  # that share it; counted on the engine's thread
        self.is_ended = False  # released, or lost by itself; never true and then false
        self.lost_cause: LossCause | None = None
        self.signal = Signal()

    def is_held(self) -> bool:
        """Tell whether the holder may act now. Any thread may ask."""
        return not self.is_ended and not self._is_outlived() and self.presence.validity.is_valid()

    def _is_outlived(self) -> bool:
        return self.limit_ns is not None and now_ns() >= self.limit_ns

    def remaining_ns(self) -> int:
        """Return how long it is held for certain if nothing more is heard."""
        if not self.is_held():
            return 0
        remaining = self.presence.validity.remaining_ns()
        return remaining if self.limit_ns is None else min(remaining, self.limit_ns - now_ns())

    def cause(self) -> LossCause | None:
        """Return why it is lost: None if it is held, or was released by its holder."""
        if self.lost_cause is not None:
            return self.lost_cause
        if not self.is_ended and self._is_outlived():
            return LossCause.HELD_TOO_LONG
        return None if self.is_ended else self.presence.validity.cause

    def lose(self, cause: LossCause) -> None:
        """End it alone: the service has it no more, although the lease goes on."""
        if self.is_ended:
            return
        if self._is_outlived():
            cause = LossCause.HELD_TOO_LONG
        self.is_ended = True
        if self.lost_cause is None:
            self.lost_cause = cause
            self.signal.give(cause)

    def outlive(self) -> None:
        """End belief in it: its own time is over. The service has it still, for a tenth of that.

        So it is not ended: who drops it releases it.
        """
        if self.lost_cause is None and not self.is_ended:
            self.lost_cause = LossCause.HELD_TOO_LONG
            self.signal.give(LossCause.HELD_TOO_LONG)


class Door:
    """The way to one name. Used on the engine's thread only."""

    def __init__(self) -> None:
        self.is_taken = False
        self.way: Way | None = None
        self.grant: Grant | None = None  # while it is held
        self.is_brief = False  # what goes on now is decided soon
        self._line: deque[tuple[asyncio.Future[bool], bool]] = deque()

    async def enter(self, way: Way, is_brief: bool) -> Grant | None:
        """Wait for the turn to ask. Return a grant if it can be shared instead.

        A brief caller, which does not want to wait, waits only for what is decided soon. Raises
        `BlockingIOError` if somebody else has the name.
        """
        while True:
            grant = self.grant
            is_joint = way.is_shared and not way.is_limited
            can_share = grant is not None and self.way == way and is_joint
            if can_share and not self._line and grant is not None and grant.is_held():
                grant.guards += 1
                return grant
            if not self.is_taken:
                self.is_taken, self.is_brief = True, is_brief
                return None
            if is_brief and not self.is_brief:
                raise BlockingIOError
            turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._line.append((turn, is_brief))
            try:
                if await turn:
                    return None
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled() and turn.result():
                    self.leave()  # it was this caller's turn
                else:
                    self._line = deque(entry for entry in self._line if entry[0] is not turn)
                raise

    def held(self, grant: Grant, way: Way) -> None:
        """Note that the name is held. Those in line look again: they may share, or be refused."""
        self.grant, self.way, self.is_brief = grant, way, False
        line, self._line = self._line, deque()
        for turn, _ in line:
            if not turn.done():
                turn.set_result(False)

    def leaving(self) -> None:
        """Note that the name is being released."""
        self.grant, self.is_brief = None, True

    def leave(self) -> None:
        """Let the next one in."""
        self.is_taken, self.grant, self.is_brief = False, None, False
        while self._line:
            turn, is_brief = self._line.popleft()
            if not turn.done():
                self.is_taken, self.is_brief = True, is_brief
                turn.set_result(True)
                return


class Presence:
    """One lease, as its session, its guards and the keeper share it."""

    def __init__(self, engine: Engine, lease_id: int, validity: Validity) -> None:
        self.engine = engine
        self.lease_id = lease_id
        self.validity = validity
        self.signal = Signal()
        self.beliefs = Beliefs()
        self.grants: dict[int, Grant] = {}
        self.doors: dict[str, Door] = {}
        self.release_orphan: Callable[[GrantView], Any] = _nothing

    def door(self, name: str) -> Door:
        """Return the door of a name."""
        if len(self.doors) > 1024:
            self.doors = {known: door for known, door in self.doors.items() if door.is_taken}
        return self.doors.setdefault(name, Door())

    def add(self, grant: Grant) -> None:
        """Begin to believe in a grant."""
        self.grants[grant.token] = grant
        self.beliefs.add(grant.token)

    def remove(self, grant: Grant) -> None:
        """Stop believing in a grant."""
        self.grants.pop(grant.token, None)
        self.beliefs.remove(grant.token)

    def lose(self, cause: LossCause) -> None:
        """End belief in the lease and all that it holds, and tell of it. Engine's thread only."""
        self.validity.end(cause)
        first = self.validity.cause or cause
        if first is LossCause.CLOSED:
            self.signal.off()
        else:
            self.signal.give(first)
        grants, self.grants = list(self.grants.values()), {}
        for grant in grants:
            self.beliefs.remove(grant.token)
            grant.signal.give(first)

    def compare(self, believed: Iterable[int], grants: list[GrantView]) -> None:
        """Act on what the lease holds, as the service says."""

        def is_asked_for(name: str) -> bool:
            door = self.doors.get(name)
            return door is not None and door.is_taken

        verdict = self.beliefs.judge(believed, grants, is_asked_for)
        for token in verdict.lost:
            grant = self.grants.pop(token, None)
            if grant is not None:
                grant.lose(LossCause.RELEASED_ELSEWHERE)
                door = self.doors.get(grant.name)
                if door is not None and door.grant is grant:
                    door.leave()
        for orphan in verdict.orphans:
            self.release_orphan(orphan)


def _nothing(_: GrantView) -> None:
    pass
