"""The same for asyncio: `async with client.session(ttl=10) as s, s.lock("x", timeout=5) as g:`.

```python
import asyncio
from lowkey.aio import Client

async def main() -> None:
    async with Client(["http://127.0.0.1:8080"]) as client:
        async with client.session(ttl=10) as s, s.lock("x", timeout=5) as g:
            print("held, with token", g.token)

asyncio.run(main())
```

All network I/O, the renewals and the clock are on the client's own thread, as in `lowkey`: a
program that blocks its loop for a while does not lose its leases by that. Cancelling a task that
acquires a lock gives the acquire up for good.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine, Generator
from types import TracebackType
from typing import Any, Callable, Generic, TypeVar, Union

from lowkey import _views
from lowkey._belief import LossCause
from lowkey._core import Core, Wish
from lowkey._engine import Operation
from lowkey._handles import (
    ClientHandle,
    GuardHandle,
    LeadershipHandle,
    SessionHandle,
    WatchHandle,
)
from lowkey._presence import Grant, Listener, Presence
from lowkey._retry import Backoff
from lowkey._views import LockView
from lowkey._watch import Event, Holder, LeaderEvent
from lowkey.errors import LockHeld, LockLost, LowkeyError, SessionLost, Unavailable, WaitTimeout

__all__ = ["Client", "Election", "Guard", "Leadership", "Session", "Watch"]

T = TypeVar("T")
R = TypeVar("R")


class Opening(Generic[T]):
    """Something that is being made: `await` it, or use it with `async with`."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._made: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._make().__await__()

    async def __aenter__(self) -> T:
        self._made = await self._make()
        return self._made

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        made: Any = self._made
        await made.__aexit__(kind, error, trace)


class Client(ClientHandle):
    """A way to a lowkey cluster, for asyncio. Takes the same arguments as `lowkey.Client`."""

    async def _ask(self, call: Any) -> dict[str, Any]:
        core = self._live()
        return await Operation(core.engine, lambda: core.ask(call)).wait_async()

    def session(self, ttl: float = 10) -> Opening[Session]:
        """Begin a session; see `lowkey.Client.session`."""
        seconds = _views.check_ttl(ttl)

        async def make() -> Session:
            core, making = self._make_session(seconds)
            return Session(self, core, await making.wait_async())

        return Opening(make)

    def singleton(
        self, name: str, *, ttl: float = 10, timeout: float | None = 0
    ) -> Callable[[Callable[..., Awaitable[R]]], Callable[..., Coroutine[Any, Any, R | None]]]:
        """Decorate a coroutine function; see `lowkey.Client.singleton`."""

        def decorate(
            function: Callable[..., Awaitable[R]],
        ) -> Callable[..., Coroutine[Any, Any, R | None]]:
            takes_guard = _views.wants_guard(function)

            @_views.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> R | None:
                async with self.session(ttl) as session:
                    try:
                        guard = await session.lock(name, timeout=timeout)
                    except (LockHeld, WaitTimeout):
                        return None
                    async with guard:
                        if takes_guard:
                            kwargs["guard"] = guard
                        return await function(*args, **kwargs)

            return run

        return decorate

    def elect(self, name: str, *, value: str = "", ttl: float = 10) -> Election:
        """Stand for election, again and again; see `Election.run`."""
        return Election(self, name, value, ttl)

    async def leader(self, election: str) -> Holder | None:
        """Return who leads, or None."""
        return _views.parse_leader(await self._ask(_views.leader(election)))

    async def get_lock(self, name: str) -> LockView:
        """Return who holds a lock and how many wait for it."""
        return LockView.parse(await self._ask(_views.get_lock(name)))

    async def list_locks(self, prefix: str = "") -> AsyncIterator[LockView]:
        """Yield what is held or waited for, by name. Each page is true at its own moment."""
        page_token = ""
        while True:
            page = await self._ask(_views.list_locks(prefix, page_token))
            for lock in page.get("locks", []):
                yield LockView.parse(lock)
            page_token = str(page.get("nextPageToken", ""))
            if not page_token:
                return

    async def release_lock(self, name: str, lease_id: int, token: int) -> None:
        """Release a lock of any session, by its numbers. Its holder acts until it hears of it."""
        await self._ask(_views.release_lock(name, lease_id, token, self.owner))

    async def revoke_lease(self, lease_id: int, owner: str) -> None:
        """End a lease with all that it holds. Its holder may act until it hears of it."""
        await self._ask(_views.revoke_lease(lease_id, owner, self.owner))

    def watch(
        self, name: str | None = None, *, prefix: str | None = None, after: str | None = None
    ) -> Opening[Watch[Event]]:
        """Watch one lock, or all with a prefix, or all; see `lowkey.Client.watch`."""
        parameters = _views.watch_parameters(name, prefix, after)

        async def make() -> Watch[Event]:
            core = self._live()
            watch = Watch(self, core, lambda: _views.watch_core(core.link, parameters))
            watch._opened(await watch._opening().wait_async())
            return watch

        return Opening(make)

    def observe(self, election: str) -> Opening[Watch[LeaderEvent]]:
        """Watch who leads: first now, then at every change."""

        async def make() -> Watch[LeaderEvent]:
            core = self._live()
            watch = Watch(self, core, lambda: _views.observe_core(core.link, election))
            watch._opened(await watch._opening().wait_async())
            return watch

        return Opening(make)

    async def close(self) -> None:
        """End all sessions of this client, and the client."""
        core = self._core
        if core.engine.is_here:
            await Operation(core.engine, core.close).finish()
        core.engine.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _on_this_loop(callback: Callable[[LossCause], Any]) -> Listener:
    """Return what calls this on the caller's own loop."""
    loop = asyncio.get_running_loop()

    def tell(cause: LossCause) -> None:
        with contextlib.suppress(RuntimeError):  # that loop has ended
            loop.call_soon_threadsafe(callback, cause)

    return tell


class Session(SessionHandle):
    """A lease that is renewed until the session is closed, for asyncio."""

    def __init__(self, client: Client, core: Core, presence: Presence) -> None:
        self._client = client
        self._core = core
        self._presence = presence

    def lock(
        self,
        name: str,
        timeout: float | None = None,
        *,
        shared: bool = False,
        subtree: bool = False,
        value: str = "",
        at_most: int | None = None,
    ) -> Opening[Guard]:
        """Acquire a lock; see `lowkey.Session.lock`."""
        wish = Wish.make(name, timeout, shared, subtree, value, at_most)

        async def acquire() -> Guard:
            return Guard(self, self._core, await self._ask_lock(wish).wait_async())

        return Opening(acquire)

    async def try_lock(
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
            return await self.lock(
                name, 0, shared=shared, subtree=subtree, value=value, at_most=at_most
            )
        except LockHeld:
            return None

    def on_lost(self, callback: Callable[[LossCause], Any]) -> None:
        """Call this on the running loop when the session is lost; not when it is closed."""
        self._presence.signal.listen(_on_this_loop(callback))

    async def close(self) -> None:
        """End the session: everything that it holds is released. Belief ends first."""
        closing = self._begin_close()
        if closing is not None:
            await closing.finish()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        # If nobody answers, the client goes on trying, and the lease ends by itself.
        with contextlib.suppress(Unavailable):
            await self.close()


class Guard(GuardHandle):
    """A lock that is held, until it is released or lost, for asyncio. See `lowkey.Guard`."""

    def __init__(self, session: Session, core: Core, grant: Grant) -> None:
        super().__init__(core, grant)
        self._session = session

    @property
    def session(self) -> Session:
        """The session that holds it."""
        return self._session

    def on_lost(self, callback: Callable[[LossCause], Any]) -> None:
        """Call this on the running loop when the lock is lost; not when you release it."""
        self._listen(_on_this_loop(callback))

    async def lost(self) -> LossCause:
        """Wait until the lock is lost, and return the cause."""
        told: asyncio.Future[LossCause] = asyncio.get_running_loop().create_future()

        def tell(cause: LossCause) -> None:
            if not told.done():
                told.set_result(cause)

        self.on_lost(tell)
        return await told

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run work for as long as the lock is held; cancel it and raise `LockLost` if it is lost.

        `LockLost` does not mean that nothing was written: only the resource knows, by the token.
        """
        self.check_or_close(work)
        task = asyncio.ensure_future(work)
        loss = asyncio.ensure_future(self.lost())
        both: set[asyncio.Future[Any]] = {task, loss}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled() and task.exception() is not None:
                return task.result()
            self.check()
            return task.result()
        finally:
            task.cancel()
            loss.cancel()

    def check_or_close(self, work: Coroutine[Any, Any, Any]) -> None:
        """Raise `LockLost` unless the lock is held; the work is then not begun."""
        try:
            self.check()
        except LockLost:
            work.close()
            raise

    async def release(self) -> None:
        """Release the lock, and wait until the service has heard of it. Belief ends first."""
        releasing = self._begin_release()
        if releasing is not None:
            await releasing.finish()

    async def __aenter__(self) -> Guard:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.release()
        except Unavailable:
            pass  # belief has ended, and the client goes on trying
        except LowkeyError:
            if error is None:
                raise


E = TypeVar("E", bound=Union[Event, LeaderEvent])


class Watch(WatchHandle[E]):
    """A stream of events, for `async for`. It goes on by itself after a lost connection."""

    def __aiter__(self) -> AsyncIterator[E]:
        return self

    async def __anext__(self) -> E:
        if not self._batch:
            taking = self._taking()
            batch = [] if taking is None else await taking.wait_async()
            if not batch:
                raise StopAsyncIteration
            batch.reverse()
            self._batch = batch
        return self._next()

    async def close(self) -> None:
        """End it."""
        self._end()

    async def __aenter__(self) -> Watch[E]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Leadership(LeadershipHandle):
    """A term of office: what the callback of an election is given."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.guard = guard
        """The lock behind it."""

    async def lost(self) -> LossCause:
        """Wait until the lead is lost, and return the cause."""
        return await self.guard.lost()

    async def proclaim(self, value: str) -> None:
        """Change the value that tells others about the leader."""
        guard = self.guard
        client = guard.session._client
        call = _views.proclaim(guard.name, client.owner, guard.lease_id, guard.token, value)
        await client._ask(call)


class Election:
    """Stands for an election, again and again, each time over a new session. `Client.elect`."""

    def __init__(self, client: Client, name: str, value: str, ttl: float) -> None:
        self._client = client
        self.name = name
        self._value = value
        self._ttl = _views.check_ttl(ttl)

    async def run(self, lead: Callable[[Leadership], Coroutine[Any, Any, Any]]) -> None:
        """Campaign, await `lead` when elected, and campaign again when it is over; until cancelled.

        `lead` is cancelled when the lead is lost. Cancelling the task that runs this gives up the
        candidacy or the lead. If `lead` raises, the lead is given up, and this raises the same.
        """
        backoff = Backoff()
        while True:
            try:
                async with (
                    self._client.session(self._ttl) as session,
                    session.lock(self.name, value=self._value) as guard,
                ):
                    backoff = Backoff()
                    await guard.run(lead(Leadership(guard)))
            except (LockLost, SessionLost):
                continue
            except LowkeyError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(backoff.pause())
