"""The client for programs that block: `Client`, `Session`, `Guard`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Callable, TypeVar, Union

from lowkey import _views
from lowkey._belief import LossCause
from lowkey._core import Core, Wish
from lowkey._election import Election
from lowkey._engine import Operation
from lowkey._handles import ClientHandle, GuardHandle, SessionHandle, WatchHandle
from lowkey._presence import Grant, Listener, Presence
from lowkey._views import LockView
from lowkey._watch import Event, Holder, LeaderEvent, WatchCore
from lowkey.errors import LockHeld, LowkeyError, Unavailable, WaitTimeout

T = TypeVar("T")


class Client(ClientHandle):
    __doc__ = ClientHandle.__doc__

    def _ask(self, call: Any) -> dict[str, Any]:
        core = self._live()
        return Operation(core.engine, lambda: core.ask(call)).wait()

    def session(self, ttl: float = 10) -> Session:
        """Begin a session: a lease of `ttl` seconds (1 to 600) that is renewed until it is closed.

        If this program stops or is cut off, others can have its locks after that time.
        """
        core, making = self._make_session(_views.check_ttl(ttl))
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


def _on_callback_thread(core: Core, callback: Callable[[LossCause], Any]) -> Listener:
    return lambda cause: core.engine.call_back(lambda: callback(cause))


class Session(SessionHandle):
    """A presence: a lease that is renewed until the session is closed. Threads may share it.

    Locks hang on it and end with it.
    """

    def __init__(self, client: Client, core: Core, presence: Presence) -> None:
        self._client = client
        self._core = core
        self._presence = presence
        self._signal = presence.signal

    def lock(
        self,
        name: str,
        timeout: float | None = None,
        *,
        shared: bool = False,
        subtree: bool = False,
        value: str = "",
        at_most: int | None = None,
    ) -> Guard:
        """Acquire a lock, and return its guard.

        Args:
            name: the lock.
            timeout: how many seconds to wait for it: None for as long as it takes (first come,
                first served), 0 for not at all.
            shared: hold it together with others that do the same.
            subtree: hold the name and everything below it.
            value: a text to show with the grant, at most 4096 bytes.
            at_most: how many seconds to hold it at most, 1 to 604,800, however well the lease is
                renewed. It ends a job that hangs: the guard is lost at 90 % of it, counted from
                before the question, and the session lives on.

        Raises:
            LockHeld: with `timeout=0`, if another holds it.
            WaitTimeout: if it was not granted in time.
            SessionLost: if this session is lost.

        """
        wish = Wish.make(name, timeout, shared, subtree, value, at_most)
        return self._guard_of(self._ask_lock(wish))

    def _guard_of(self, asking: Operation[Grant]) -> Guard:
        return Guard(self, self._core, asking.wait())

    def try_lock(
        self,
        name: str,
        *,
        shared: bool = False,
        subtree: bool = False,
        value: str = "",
        at_most: int | None = None,
    ) -> Guard | None:
        """Acquire a lock if it is free now; return None if another holds it."""
        try:
            return self.lock(name, 0, shared=shared, subtree=subtree, value=value, at_most=at_most)
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
        closing = self._begin_close()
        if closing is not None:
            closing.wait()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        # If nobody answers, the client goes on trying, and the lease ends by itself.
        with contextlib.suppress(Unavailable):
            self.close()


class Guard(GuardHandle):
    """A lock that is held, until it is released or lost. Threads may share it.

    Check `held` (or call `check`) before every step that matters, and send `token` along with every
    write, so that the resource can refuse a write that comes too late. As a context manager it
    releases the lock at the end of the block, and raises `LockLost` if it was lost before.
    """

    def __init__(self, session: Session, core: Core, grant: Grant) -> None:
        super().__init__(core, grant)
        self._session = session

    @property
    def session(self) -> Session:
        """The session that holds it."""
        return self._session

    def on_lost(self, callback: Callable[[LossCause], Any]) -> None:
        """Call this when the lock is lost, on a thread for callbacks; not when you release it.

        It is called within 200 ms of the loss, without any answer from the network. Callbacks run
        one after the other: keep them short.
        """
        self._listen(_on_callback_thread(self._core, callback))

    def wait_lost(self, timeout: float | None = None) -> LossCause | None:
        """Wait until the lock is lost. Return the cause; None if it is held, or was released."""
        if self.held:
            self._grant.signal.event.wait(timeout)
        return self.lost_cause

    def release(self) -> None:
        """Release the lock, and wait until the service has heard of it.

        Belief ends first. Raises `LockLost` if it was lost before: the work since then was not
        protected. If no node answers in time, it raises `Unavailable`, and the client goes on
        trying in the background. A second release does nothing.
        """
        releasing = self._begin_release()
        if releasing is not None:
            releasing.wait()

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


E = TypeVar("E", bound=Union[Event, LeaderEvent])


class Watch(WatchHandle[E]):
    """A stream of events, to iterate over. It goes on by itself after a lost connection."""

    def __init__(self, client: Client, core: Core, begin: Callable[[], WatchCore[E]]) -> None:
        super().__init__(client, core, begin)
        self._opened(self._opening().wait())

    def __iter__(self) -> Iterator[E]:
        return self

    def __next__(self) -> E:
        if not self._batch:
            taking = self._taking()
            batch = [] if taking is None else taking.wait()
            if not batch:
                raise StopIteration
            batch.reverse()
            self._batch = batch
        return self._next()

    def close(self) -> None:
        """End it. An iteration that waits, on another thread, ends."""
        self._end()

    def __enter__(self) -> Watch[E]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["Client", "Guard", "Session", "Watch"]
