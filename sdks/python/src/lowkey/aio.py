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
import os
from collections.abc import AsyncIterator, Awaitable, Coroutine, Generator
from types import TracebackType
from typing import Any, Callable, Generic, TypeVar, Union

from lowkey import _client, _views
from lowkey._belief import LossCause
from lowkey._core import Core, Wish
from lowkey._engine import Operation
from lowkey._presence import Listener
from lowkey._retry import Backoff
from lowkey._views import LockView
from lowkey._watch import Event, Holder, LeaderEvent, WatchCore
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


class Client:
    """A way to a lowkey cluster, for asyncio. Takes the same arguments as `lowkey.Client`."""

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
        self._blocking = _client.Client(
            endpoints,
            owner=owner,
            call_timeout=call_timeout,
            ca=ca,
            cert=cert,
            key=key,
            token_file=token_file,
            cluster_id=cluster_id,
        )

    async def _ask(self, call: Any) -> dict[str, Any]:
        core = self._blocking._live()
        return await Operation(core.engine, lambda: core.ask(call)).wait_async()

    @property
    def owner(self) -> str:
        """How this client names itself to others."""
        return self._blocking.owner

    @property
    def cluster_id(self) -> str | None:
        """The cluster that this client began with; None before the first answer."""
        return self._blocking.cluster_id

    def session(self, ttl: float = 10) -> Opening[Session]:
        """Begin a session; see `lowkey.Client.session`."""
        seconds = _views.check_ttl(ttl)

        async def make() -> Session:
            core = self._blocking._live()
            making = Operation(
                core.engine,
                lambda: core.make_session(seconds),
                _client._later(core, core.drop_session),
            )
            presence = await making.wait_async()
            return Session(self, core, _client.Session(self._blocking, core, presence))

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
            core = self._blocking._live()
            watch = Watch(self, core, lambda: _views.watch_core(core.link, parameters))
            return await watch._begin()

        return Opening(make)

    def observe(self, election: str) -> Opening[Watch[LeaderEvent]]:
        """Watch who leads: first now, then at every change."""

        async def make() -> Watch[LeaderEvent]:
            core = self._blocking._live()
            watch = Watch(self, core, lambda: _views.observe_core(core.link, election))
            return await watch._begin()

        return Opening(make)

    async def close(self) -> None:
        """End all sessions of this client, and the client."""
        core = self._blocking._core
        if core.engine.is_here:
            await Operation(core.engine, core.close).finish()
        core.engine.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"aio.Client(owner={self.owner!r})"


def _on_this_loop(callback: Callable[[LossCause], Any]) -> Listener:
    """Return what calls this on the caller's own loop."""
    loop = asyncio.get_running_loop()

    def tell(cause: LossCause) -> None:
        with contextlib.suppress(RuntimeError):  # that loop has ended
            loop.call_soon_threadsafe(callback, cause)

    return tell


class Session:
    """A lease that is renewed until the session is closed, for asyncio."""

    def __init__(self, client: Client, core: Core, blocking: _client.Session) -> None:
        self._client = client
        self._core = core
        self._blocking = blocking

    @property
    def lease_id(self) -> int:
        """The number of the lease."""
        return self._blocking.lease_id

    @property
    def ttl(self) -> int:
        """How many seconds the lease lives without renewal."""
        return self._blocking.ttl

    @property
    def held(self) -> bool:
        """Whether the session is valid now. Reads the clock."""
        return self._blocking.held

    @property
    def remaining(self) -> float:
        """How many seconds the session is valid if no further renewal is acknowledged."""
        return self._blocking.remaining

    @property
    def lost_cause(self) -> LossCause | None:
        """Why the session is lost; None while it is not."""
        return self._blocking.lost_cause

    def lock(
        self,
        name: str,
        timeout: float | None = None,
        *,
        shared: bool = False,
        subtree: bool = False,
        value: str = "",
    ) -> Opening[Guard]:
        """Acquire a lock; see `lowkey.Session.lock`."""
        wish = Wish.make(name, timeout, shared, subtree, value)

        async def acquire() -> Guard:
            grant = await self._blocking._ask_lock(wish).wait_async()
            return Guard(self, _client.Guard(self._blocking, self._core, grant))

        return Opening(acquire)

    async def try_lock(
        self, name: str, *, shared: bool = False, subtree: bool = False, value: str = ""
    ) -> Guard | None:
        """Acquire a lock if it is free now; return None if another holds it."""
        try:
            return await self.lock(name, 0, shared=shared, subtree=subtree, value=value)
        except LockHeld:
            return None

    def on_lost(self, callback: Callable[[LossCause], Any]) -> None:
        """Call this on the running loop when the session is lost; not when it is closed."""
        self._blocking._signal.listen(_on_this_loop(callback))

    async def close(self) -> None:
        """End the session: everything that it holds is released. Belief ends first."""
        core, presence = self._core, self._blocking._presence
        if core.engine.is_here:
            presence.validity.end(LossCause.CLOSED)
            await Operation(core.engine, lambda: core.close_session(presence)).finish()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        # If nobody answers, the client goes on trying, and the lease ends by itself.
        with contextlib.suppress(Unavailable):
            await self.close()

    def __repr__(self) -> str:
        return f"aio.{self._blocking!r}"


class Guard:
    """A lock that is held, until it is released or lost, for asyncio. See `lowkey.Guard`."""

    def __init__(self, session: Session, blocking: _client.Guard) -> None:
        self._session = session
        self._blocking = blocking

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._blocking.name

    @property
    def token(self) -> int:
        """The fencing token: it rises with every new grant of the lock and never repeats."""
        return self._blocking.token

    @property
    def lease_id(self) -> int:
        """The lease that holds it."""
        return self._blocking.lease_id

    @property
    def waited(self) -> float:
        """How many seconds the lock was waited for, as the service reports it."""
        return self._blocking.waited

    @property
    def session(self) -> Session:
        """The session that holds it."""
        return self._session

    @property
    def held(self) -> bool:
        """Whether you may act as holder now. Reads the clock."""
        return self._blocking.held

    @property
    def remaining(self) -> float:
        """How many seconds it is held for certain if no further renewal is acknowledged."""
        return self._blocking.remaining

    @property
    def lost_cause(self) -> LossCause | None:
        """Why it is lost; None while it is held, and after you released it."""
        return self._blocking.lost_cause

    def check(self) -> None:
        """Raise `LockLost` unless you may act as holder now."""
        self._blocking.check()

    def on_lost(self, callback: Callable[[LossCause], Any]) -> None:
        """Call this on the running loop when the lock is lost; not when you release it."""
        self._blocking._listen(_on_this_loop(callback))

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
        guard = self._blocking
        core, grant = guard._core, guard._grant
        if not core.engine.is_here:
            guard.release()
            return
        if guard._begin_release():
            await Operation(core.engine, lambda: core.release(grant)).finish()

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

    def __repr__(self) -> str:
        return f"aio.{self._blocking!r}"


E = TypeVar("E", bound=Union[Event, LeaderEvent])


class Watch(Generic[E]):
    """A stream of events, for `async for`. It goes on by itself after a lost connection."""

    def __init__(self, client: Client, core: Core, begin: Callable[[], WatchCore[E]]) -> None:
        self._client = client  # which must not end before the watch
        self._core = core
        self._make = begin
        self._batch: list[E] = []
        self._inside: WatchCore[E] | None = None
        self._position = ""

    async def _begin(self) -> Watch[E]:
        async def start() -> WatchCore[E]:
            inside = self._make()
            try:
                await inside.begun()
            except BaseException:
                inside.close()
                raise
            return inside

        core = self._core
        opening: Operation[WatchCore[E]] = Operation(
            core.engine, start, lambda inside: core.engine.soon(inside.close)
        )
        self._inside = await opening.wait_async()
        self._position = self._inside.position
        return self

    @property
    def position(self) -> str:
        """Up to where everything was told; pass it as `after` to go on there later."""
        return self._position

    def __aiter__(self) -> AsyncIterator[E]:
        return self

    async def __anext__(self) -> E:
        if not self._batch:
            inside = self._inside
            if inside is None:
                raise StopAsyncIteration
            taking = Operation(self._core.engine, inside.next_batch, inside.put_back)
            batch = await taking.wait_async()
            if not batch:
                raise StopAsyncIteration
            batch.reverse()
            self._batch = batch
        event = self._batch.pop()
        self._position = event.position
        return event

    async def close(self) -> None:
        """End it."""
        inside, self._inside = self._inside, None
        if inside is not None:
            self._core.engine.soon(inside.close)

    async def __aenter__(self) -> Watch[E]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        inside = getattr(self, "_inside", None)
        if inside is not None:
            self._core.engine.soon(inside.close)


class Leadership:
    """A term of office: what the callback of an election is given."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        """The lock behind it."""

    @property
    def token(self) -> int:
        """The fencing token of this term: send it along with what only the leader may do."""
        return self.guard.token

    @property
    def held(self) -> bool:
        """Whether you may act as leader now. Reads the clock."""
        return self.guard.held

    def check(self) -> None:
        """Raise `LockLost` unless you may act as leader now."""
        self.guard.check()

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
