"""What both dialects have in common: everything that can be asked without waiting.

The blocking classes and those of `lowkey.aio` are these, and the calls that wait for something.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Callable, Generic, TypeVar, Union

from lowkey._belief import LossCause
from lowkey._core import Config, Core, Wish
from lowkey._engine import Operation
from lowkey._presence import Grant, Listener, Presence
from lowkey._watch import Event, LeaderEvent, WatchCore
from lowkey.errors import LockLost

T = TypeVar("T")
E = TypeVar("E", bound=Union[Event, LeaderEvent])


class ClientHandle:
    """A way to a lowkey cluster. Threads may share one; a program needs only one.

    Args:
        endpoints: URLs of the HTTP port of one or more nodes: a list, or one text with commas. If
            left out, `LOWKEY_ENDPOINTS`, or `http://127.0.0.1:8080`.
        owner: how this program names itself to others; made up if left out.
        call_timeout: how many seconds a call may take, not counting the wait for a lock.
        ca: a file with the certificates to trust, for `https://` endpoints.
        cert: a file with this client's own certificate, and
        key: its key.
        token_file: a file with a bearer token. If left out, `LOWKEY_AUTH_FILE`.
        cluster_id: the cluster to insist on. If left out, the first one that answers.

    The files are read again when they change.

    """

    def __init__(
        self,
        endpoints: str | list[str] | tuple[str, ...] | None = None,
        *,
        owner: str | None = None,
        call_timeout: float = 10.0,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        token_file: str | os.PathLike[str] | None = None,
        cluster_id: str | None = None,
    ) -> None:
        config = Config.make(endpoints, owner, call_timeout, ca, cert, key, token_file, cluster_id)
        self._core = Core(config)

    def _live(self) -> Core:
        """Return the core of this process: a forked child gets one of its own."""
        if os.getpid() != self._core.engine.pid:
            self._core = self._core.reborn()
        return self._core

    def _make_session(self, ttl_seconds: int) -> tuple[Core, Operation[Presence]]:
        core = self._live()
        drop = _later(core, core.drop_session)
        return core, Operation(core.engine, lambda: core.make_session(ttl_seconds), drop)

    @property
    def owner(self) -> str:
        """How this client names itself to others."""
        return self._core.config.owner

    @property
    def cluster_id(self) -> str | None:
        """The cluster that this client began with; None before the first answer."""
        return self._core.link.cluster_id

    def __del__(self) -> None:
        core: Core | None = getattr(self, "_core", None)
        if core is not None and core.engine.is_here:
            closed = core
            core.engine.soon(lambda: _close_soon(closed))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(owner={self.owner!r})"


def _close_soon(core: Core) -> None:
    task = asyncio.ensure_future(core.close())
    task.add_done_callback(lambda _: core.engine.close())


def _later(core: Core, drop: Callable[[T], None]) -> Callable[[T], None]:
    return lambda outcome: core.engine.soon(lambda: drop(outcome))


class SessionHandle:
    """A lease that is renewed until its session is closed."""

    _core: Core
    _presence: Presence

    @property
    def lease_id(self) -> int:
        """The number of the lease."""
        return self._presence.lease_id

    @property
    def ttl(self) -> int:
        """How many seconds the lease lives without renewal."""
        return self._presence.validity.ttl_seconds

    @property
    def held(self) -> bool:
        """Whether the session is valid now. Reads the clock."""
        return self._presence.validity.is_valid()

    @property
    def remaining(self) -> float:
        """How many seconds the session is valid if no further renewal is acknowledged."""
        return self._presence.validity.remaining_ns() / 1e9

    @property
    def lost_cause(self) -> LossCause | None:
        """Why the session is lost; None while it is not."""
        return self._presence.validity.cause

    def _ask_lock(self, wish: Wish) -> Operation[Grant]:
        core, presence = self._core, self._presence
        core.check(presence)
        return Operation(core.engine, lambda: core.acquire(presence, wish), _later(core, core.drop))

    def _begin_close(self) -> Operation[None] | None:
        """End belief. Return what tells the service, if it can be told."""
        core, presence = self._core, self._presence
        if not core.engine.is_here:
            return None
        presence.validity.end(LossCause.CLOSED)
        return Operation(core.engine, lambda: core.close_session(presence))

    def __del__(self) -> None:
        core: Core | None = getattr(self, "_core", None)
        if core is not None:
            drop, presence = core.drop_session, self._presence
            core.engine.soon(lambda: drop(presence))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(lease_id={self.lease_id}, held={self.held})"


class GuardHandle:
    """A lock that is held, until it is released or lost."""

    def __init__(self, core: Core, grant: Grant) -> None:
        self._core = core
        self._grant = grant
        self._is_released = False
        self._listeners: list[Listener] = []
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._grant.name

    @property
    def token(self) -> int:
        """The fencing token: it rises with every new grant of the lock and never repeats."""
        return self._grant.token

    @property
    def lease_id(self) -> int:
        """The lease that holds it."""
        return self._grant.presence.lease_id

    @property
    def waited(self) -> float:
        """How many seconds the lock was waited for, as the service reports it."""
        return self._grant.waited_ms / 1e3

    @property
    def held(self) -> bool:
        """Whether you may act as holder now. Reads the clock: right also after a long pause."""
        return not self._is_released and self._grant.is_held()

    @property
    def remaining(self) -> float:
        """How many seconds it is held for certain if no further renewal is acknowledged."""
        return self._grant.remaining_ns() / 1e9 if self.held else 0.0

    @property
    def lost_cause(self) -> LossCause | None:
        """Why it is lost; None while it is held, and after you released it."""
        return None if self._is_released else self._grant.cause()

    def check(self) -> None:
        """Raise `LockLost` unless you may act as holder now."""
        if not self.held:
            cause = LossCause.RELEASED if self._is_released else self._grant.cause()
            raise LockLost(self.name, self.token, cause or LossCause.EXPIRED)

    def _listen(self, listener: Listener) -> None:
        with self._lock:
            if not self._is_released:
                self._listeners.append(listener)
                self._grant.signal.listen(listener)

    def _begin_release(self) -> Operation[None] | None:
        """End belief. Return what tells the service, if it is to be told."""
        core, grant = self._core, self._grant
        if not core.engine.is_here:
            cause = None if self._is_released else grant.cause()
            self._is_released = True
            if cause is not None and cause is not LossCause.CLOSED:
                raise LockLost(self.name, self.token, cause)
            return None
        with self._lock:
            if self._is_released:
                return None
            self._is_released = True
            # The grant may go on for others that share it. A loss that was told is told to all.
            for listener in self._listeners:
                grant.signal.forget(listener)
        return Operation(core.engine, lambda: core.release(grant))

    def __del__(self) -> None:
        core: Core | None = getattr(self, "_core", None)
        if core is not None and not self._is_released:
            self._is_released = True
            drop, grant = core.drop, self._grant
            core.engine.soon(lambda: drop(grant))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, token={self.token}, held={self.held})"


class WatchHandle(Generic[E]):
    """A stream of events, and how far it was told."""

    def __init__(self, client: ClientHandle, core: Core, begin: Callable[[], WatchCore[E]]) -> None:
        self._client = client  # which must not end before the watch
        self._core = core
        self._begin = begin
        self._batch: list[E] = []  # the last one is the next
        self._inside: WatchCore[E] | None = None
        self._position = ""

    def _opening(self) -> Operation[WatchCore[E]]:
        engine, begin = self._core.engine, self._begin

        async def start() -> WatchCore[E]:
            inside = begin()
            try:
                await inside.begun()
            except BaseException:
                inside.close()
                raise
            return inside

        return Operation(engine, start, lambda inside: engine.soon(inside.close))

    def _opened(self, inside: WatchCore[E]) -> None:
        self._inside = inside
        self._position = inside.position

    def _taking(self) -> Operation[list[E]] | None:
        """Return what takes the next events; None if there will be none."""
        inside = self._inside
        if inside is None:
            return None
        return Operation(self._core.engine, inside.next_batch, inside.put_back)

    def _next(self) -> E:
        event = self._batch.pop()
        self._position = event.position
        return event

    @property
    def position(self) -> str:
        """Up to where everything was told; pass it as `after` to go on there later."""
        return self._position

    def _end(self) -> None:
        inside, self._inside = self._inside, None
        if inside is not None:
            self._core.engine.soon(inside.close)

    def __del__(self) -> None:
        if getattr(self, "_inside", None) is not None:
            self._end()


class LeadershipHandle:
    """A term of office."""

    _guard: GuardHandle

    @property
    def token(self) -> int:
        """The fencing token of this term: send it along with what only the leader may do."""
        return self._guard.token

    @property
    def held(self) -> bool:
        """Whether you may act as leader now. Reads the clock."""
        return self._guard.held

    def check(self) -> None:
        """Raise `LockLost` unless you may act as leader now."""
        self._guard.check()
