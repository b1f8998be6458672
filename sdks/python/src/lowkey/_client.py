"""The client for programs that block: `Client`, `Session`, `Guard`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Callable, Generic, TypeVar, Union

from lowkey import _views
from lowkey._belief import LossCause
from lowkey._core import Config, Core, Wish
from lowkey._election import Election
from lowkey._engine import Operation
from lowkey._presence import Grant, Listener, Presence
from lowkey._views import LockView
from lowkey._watch import Event, Holder, LeaderEvent, WatchCore
from lowkey.errors import LockHeld, LockLost, LowkeyError, Unavailable, WaitTimeout

T = TypeVar("T")


class Client:
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
        if os.getpid() != self._core.engine.pid:
            self._core = self._core.reborn()
        return self._core

    def _ask(self, call: Any) -> dict[str, Any]:
        core = self._live()
        return Operation(core.engine, lambda: core.ask(call)).wait()

    @property
    def owner(self) -> str:
        """How this client names itself to others."""
        return self._core.config.owner

    @property
    def cluster_id(self) -> str | None:
        """The cluster that this client began with; None before the first answer."""
        return self._core.link.cluster_id

    def session(self, ttl: float = 10) -> Session:
        """Begin a session: a lease of `ttl` seconds (1 to 600) that is renewed until it is closed.

        If this program stops or is cut off, others can have its locks after that time.
        """
        seconds = _views.check_ttl(ttl)
        core = self._live()
        making: Operation[Presence] = Operation(
            core.engine, lambda: core.make_session(seconds), _later(core, core.drop_session)
        )
        return Session(self, core, making.wait())

    def singleton(
        self, name: str, *, ttl: float = 10, timeout: float | None = 0
    ) -> Callable[[Callable[..., T]], Callable[..., T | None]]:
        """Decorate a function so that it runs in one place at a time.

        A call acquires the lock, runs the function and releases the lock. If another holds the lock
        for longer than `timeout` seconds (None: wait as long as it takes), the function is not run,
        and the call returns None. A function that has a parameter `guard` is given the guard, for
        its token. If the lock is lost meanwhile, the call raises `LockLost` when the function is
        done.
        """

        def decorate(function: Callable[..., T]) -> Callable[..., T | None]:
            takes_guard = _views.wants_guard(function)

            @_views.wraps(function)
            def run(*args: Any, **kwargs: Any) -> T | None:
                with self.session(ttl) as session:
                    try:
                        guard = session.lock(name, timeout=timeout)
                    except (LockHeld, WaitTimeout):
                        return None
                    with guard:
                        if takes_guard:
                            kwargs["guard"] = guard
                        return function(*args, **kwargs)

            return run

        return decorate

    def elect(self, name: str, *, value: str = "", ttl: float = 10) -> Election:
        """Stand for election, again and again; see `Election.run`."""
        return Election(self, name, value, ttl)

    def leader(self, election: str) -> Holder | None:
        """Return who leads, or None."""
        return _views.parse_leader(self._ask(_views.leader(election)))

    def get_lock(self, name: str) -> LockView:
        """Return who holds a lock and how many wait for it."""
        return LockView.parse(self._ask(_views.get_lock(name)))

    def list_locks(self, prefix: str = "") -> Iterator[LockView]:
        """Yield what is held or waited for, by name. Each page is true at its own moment."""
        page_token = ""
        while True:
            page = self._ask(_views.list_locks(prefix, page_token))
            for lock in page.get("locks", []):
                yield LockView.parse(lock)
            page_token = str(page.get("nextPageToken", ""))
            if not page_token:
                return

    def release_lock(self, name: str, lease_id: int, token: int) -> None:
        """Release a lock of any session, by its numbers. Its holder acts until it hears of it."""
        self._ask(_views.release_lock(name, lease_id, token, self.owner))

    def revoke_lease(self, lease_id: int, owner: str) -> None:
        """End a lease with all that it holds. Its holder may act until it hears of it."""
        self._ask(_views.revoke_lease(lease_id, owner, self.owner))

    def watch(
        self, name: str | None = None, *, prefix: str | None = None, after: str | None = None
    ) -> Watch[Event]:
        """Watch one lock, or all with a prefix, or all: every change, in order, without gaps.

        It has begun when this returns. `after` is the position of the last event that was seen.
        """
        parameters = _views.watch_parameters(name, prefix, after)
        core = self._live()
        return Watch(self, core, lambda: _views.watch_core(core.link, parameters))

    def observe(self, election: str) -> Watch[LeaderEvent]:
        """Watch who leads: first now, then at every change."""
        core = self._live()
        return Watch(self, core, lambda: _views.observe_core(core.link, election))

    def close(self) -> None:
        """End all sessions of this client, and the client."""
        core = self._core
        if core.engine.is_here:
            Operation(core.engine, core.close).wait()
        core.engine.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        core: Core | None = getattr(self, "_core", None)
        if core is not None and core.engine.is_here:
            engine = core.engine
            engine.soon(lambda: _close_soon(core))

    def __repr__(self) -> str:
        return f"Client(owner={self.owner!r})"


def _close_soon(core: Core) -> None:
    task = asyncio.ensure_future(core.close())
    task.add_done_callback(lambda _: core.engine.close())


def _later(core: Core, drop: Callable[[T], None]) -> Callable[[T], None]:
    return lambda outcome: core.engine.soon(lambda: drop(outcome))


def _on_callback_thread(core: Core, callback: Callable[[LossCause], Any]) -> Listener:
    return lambda cause: core.engine.call_back(lambda: callback(cause))


class Session:
    """A presence: a lease that is renewed until the session is closed. Threads may share it.

    Locks hang on it and end with it.
    """

    def __init__(self, client: Client, core: Core, presence: Presence) -> None:
        self._client = client
        self._core = core
        self._presence = presence
        self._signal = presence.signal

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

    def lock(
        self,
        name: str,
        timeout: float | None = None,
        *,
        shared: bool = False,
        subtree: bool = False,
        value: str = "",
    ) -> Guard:
        """Acquire a lock, and return its guard.

        Args:
            name: the lock.
            timeout: how many seconds to wait for it: None for as long as it takes (first come,
                first served), 0 for not at all.
            shared: hold it together with others that do the same.
            subtree: hold the name and everything below it.
            value: a text to show with the grant, at most 4096 bytes.

        Raises:
            LockHeld: with `timeout=0`, if another holds it.
            WaitTimeout: if it was not granted in time.
            SessionLost: if this session is lost.

        """
        return self._guard_of(self._ask_lock(Wish.make(name, timeout, shared, subtree, value)))

    def _ask_lock(self, wish: Wish) -> Operation[Grant]:
        core, presence = self._core, self._presence
        core.check(presence)
        return Operation(core.engine, lambda: core.acquire(presence, wish), _later(core, core.drop))

    def _guard_of(self, asking: Operation[Grant]) -> Guard:
        return Guard(self, self._core, asking.wait())

    def try_lock(
        self, name: str, *, shared: bool = False, subtree: bool = False, value: str = ""
    ) -> Guard | None:
        """Acquire a lock if it is free now; return None if another holds it."""
        try:
            return self.lock(name, 0, shared=shared, subtree=subtree, value=value)
        except LockHeld:
            return None

    def on_lost(self, callback: Callable[[LossCause], Any]) -> None:
        """Call this when the session is lost, on a thread for callbacks; not when it is closed."""
        self._signal.listen(_on_callback_thread(self._core, callback))

    def wait_lost(self, timeout: float | None = None) -> LossCause | None:
        """Wait until the session is lost. Return the cause; None if it is not, or was closed."""
        if self.held:
            self._signal.event.wait(timeout)
        cause = self.lost_cause
        return None if cause is LossCause.CLOSED else cause

    def close(self) -> None:
        """End the session: everything that it holds is released.

        Belief ends first. If no node answers in time, this raises `Unavailable`, and the client
        goes on trying in the background.
        """
        core, presence = self._core, self._presence
        if core.engine.is_here:
            presence.validity.end(LossCause.CLOSED)
            Operation(core.engine, lambda: core.close_session(presence)).wait()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        # If nobody answers, the client goes on trying, and the lease ends by itself.
        with contextlib.suppress(Unavailable):
            self.close()

    def __del__(self) -> None:
        core: Core | None = getattr(self, "_core", None)
        if core is not None:
            presence = self._presence
            core.engine.soon(lambda: core.drop_session(presence))

    def __repr__(self) -> str:
        return f"Session(lease_id={self.lease_id}, held={self.held})"


class Guard:
    """A lock that is held, until it is released or lost. Threads may share it.

    Check `held` (or call `check`) before every step that matters, and send `token` along with every
    write, so that the resource can refuse a write that comes too late. As a context manager it
    releases the lock at the end of the block, and raises `LockLost` if it was lost before.
    """

    def __init__(self, session: Session, core: Core, grant: Grant) -> None:
        self._session = session
        self._core = core
        self._grant = grant
        self._signal = grant.signal
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
    def session(self) -> Session:
        """The session that holds it."""
        return self._session

    @property
    def held(self) -> bool:
        """Whether you may act as holder now. Reads the clock: right also after a long pause."""
        return not self._is_released and self._grant.is_held()

    @property
    def remaining(self) -> float:
        """How many seconds it is held for certain if no further renewal is acknowledged."""
        return self._grant.presence.validity.remaining_ns() / 1e9 if self.held else 0.0

    @property
    def lost_cause(self) -> LossCause | None:
        """Why it is lost; None while it is held, and after you released it."""
        return None if self._is_released else self._grant.cause()

    def check(self) -> None:
        """Raise `LockLost` unless you may act as holder now."""
        if not self.held:
            cause = LossCause.RELEASED if self._is_released else self._grant.cause()
            raise LockLost(self.name, self.token, cause or LossCause.EXPIRED)

    def on_lost(self, callback: Callable[[LossCause], Any]) -> None:
        """Call this when the lock is lost, on a thread for callbacks; not when you release it.

        It is called within 200 ms of the loss, without any answer from the network. Callbacks run
        one after the other: keep them short.
        """
        self._listen(_on_callback_thread(self._core, callback))

    def _listen(self, listener: Listener) -> None:
        with self._lock:
            if not self._is_released:
                self._listeners.append(listener)
                self._signal.listen(listener)

    def wait_lost(self, timeout: float | None = None) -> LossCause | None:
        """Wait until the lock is lost. Return the cause; None if it is held, or was released."""
        if self.held:
            self._signal.event.wait(timeout)
        return self.lost_cause

    def release(self) -> None:
        """Release the lock, and wait until the service has heard of it.

        Belief ends first. Raises `LockLost` if it was lost before: the work since then was not
        protected. If no node answers in time, it raises `Unavailable`, and the client goes on
        trying in the background. A second release does nothing.
        """
        core, grant = self._core, self._grant
        if not core.engine.is_here:
            cause = None if self._is_released else grant.cause()
            self._is_released = True
            if cause is not None and cause is not LossCause.CLOSED:
                raise LockLost(self.name, self.token, cause)
            return
        if not self._begin_release():
            return
        Operation(core.engine, lambda: core.release(grant)).wait()

    def _begin_release(self) -> bool:
        """End belief. Return whether this is the first time."""
        with self._lock:
            if self._is_released:
                return False
            self._is_released = True
            # The grant may go on for others that share it. A loss that was told is told to all.
            for listener in self._listeners:
                self._signal.forget(listener)
            return True

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except Unavailable:
            pass  # belief has ended, and the client goes on trying
        except LowkeyError:
            if error is None:
                raise

    def __del__(self) -> None:
        core: Core | None = getattr(self, "_core", None)
        if core is not None and not self._is_released:
            self._is_released = True
            grant = self._grant
            core.engine.soon(lambda: core.drop(grant))

    def __repr__(self) -> str:
        return f"Guard(name={self.name!r}, token={self.token}, held={self.held})"


E = TypeVar("E", bound=Union[Event, LeaderEvent])


class Watch(Generic[E]):
    """A stream of events, to iterate over. It goes on by itself after a lost connection."""

    def __init__(self, client: Client, core: Core, begin: Callable[[], WatchCore[E]]) -> None:
        self._client = client  # which must not end before the watch
        self._core = core
        self._batch: list[E] = []
        self._inside: WatchCore[E] | None = None

        async def start() -> WatchCore[E]:
            inside = begin()
            self._inside = inside
            try:
                await inside.begun()
            except BaseException:
                inside.close()
                raise
            return inside

        self._inside = Operation(core.engine, start).wait()
        self._position = self._inside.position

    @property
    def position(self) -> str:
        """Up to where everything was told; pass it as `after` to go on there later."""
        return self._position

    def __iter__(self) -> Iterator[E]:
        return self

    def __next__(self) -> E:
        inside = self._inside
        if not self._batch:
            if inside is None:
                raise StopIteration
            batch = Operation(self._core.engine, inside.next_batch).wait()
            if not batch:
                raise StopIteration
            batch.reverse()
            self._batch = batch
        event = self._batch.pop()
        self._position = event.position
        return event

    def close(self) -> None:
        """End it. An iteration that waits, on another thread, ends."""
        inside, self._inside = self._inside, None
        if inside is not None:
            self._core.engine.soon(inside.close)

    def __enter__(self) -> Watch[E]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_inside", None) is not None:
            self.close()


__all__ = ["Client", "Guard", "Session", "Watch"]
