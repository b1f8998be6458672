"""What a client does, on the engine's thread: sessions, acquires, releases.

Invariants:
- Whoever asked for a lock and goes away before the answer leaves nothing behind: the acquire is
  released by its request id, again and again until a node has heard it.
- Until that is certain, no other caller of the session may ask for the name: the same lease would
  be given the same grant, and would lose it by this release.
- Belief ends before a release or a revocation is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import Any, Callable, TypeVar

from lowkey._belief import GrantView, LossCause, Validity, held_until, valid_until
from lowkey._clock import SECOND, now_ns
from lowkey._credentials import Credentials
from lowkey._engine import Engine
from lowkey._http import Endpoint
from lowkey._keeper import Keeper
from lowkey._link import Call, Doubtful, Link, parse_endpoints, request_id
from lowkey._presence import Grant, Presence, Way
from lowkey.errors import (
    HeldBy,
    InvalidArgument,
    LockHeld,
    LockLost,
    LowkeyError,
    SessionLost,
    Unavailable,
    WaitTimeout,
)

WAIT_MAX_SECONDS = 24 * 3600.0
# The longest limit of how long a lock is held: a week.
AT_MOST_MAX_SECONDS = 7 * 24 * 3600
# How long a release or revocation is tried whose answer nobody waits for.
_TELL_SECONDS = 3600.0
# How many of those are on the way at once. Of one lease the service takes 128 operations.
_TELLING_MAX = 32

_NOT_HELD = frozenset({"LOCK_NOT_FOUND", "NOT_OWNER", "STALE_TOKEN", "LEASE_NOT_FOUND"})

T = TypeVar("T")


@dataclass(frozen=True)
class Config:
    """How a client was made."""

    endpoints: list[Endpoint]
    owner: str
    call_timeout: float
    credentials: Credentials
    cluster_id: str | None = None

    @classmethod
    def make(
        cls,
        endpoints: str | list[str] | tuple[str, ...] | None,
        owner: str | None,
        call_timeout: float,
        ca: str | os.PathLike[str] | None,
        cert: str | os.PathLike[str] | None,
        key: str | os.PathLike[str] | None,
        token_file: str | os.PathLike[str] | None,
        cluster_id: str | None,
    ) -> Config:
        """Check what a program gave, and fill in what the environment says."""
        if endpoints is None:
            endpoints = os.environ.get("LOWKEY_ENDPOINTS") or "http://127.0.0.1:8080"
        if token_file is None:
            token_file = os.environ.get("LOWKEY_AUTH_FILE") or None
        if owner is None:
            program = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
            owner = f"{program}@{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        if not 1 <= len(owner.encode()) <= 256 or any(ord(c) < 32 for c in owner):
            raise InvalidArgument("owner must be 1 to 256 bytes, without control characters")
        if not call_timeout > 0:
            raise InvalidArgument("call_timeout must be more than 0 seconds")
        paths = [None if path is None else os.fspath(path) for path in (ca, cert, key, token_file)]
        credentials = Credentials(*paths)
        return cls(parse_endpoints(endpoints), owner, call_timeout, credentials, cluster_id)


@dataclass(frozen=True)
class Wish:
    """A lock, and how it is wanted."""

    name: str
    way: Way
    value: str
    wait_seconds: float | None  # None: as long as it takes; 0: not at all
    at_most: int | None = None  # how many seconds it is held, however well its lease is renewed

    @classmethod
    def make(
        cls,
        name: str,
        timeout: float | None,
        shared: bool,
        subtree: bool,
        value: str,
        at_most: int | None = None,
    ) -> Wish:
        """Check what a program wants."""
        if not isinstance(name, str):
            raise InvalidArgument(f"a lock's name must be text, not {type(name).__name__}")
        if timeout is not None and not timeout >= 0:
            raise InvalidArgument("timeout must be None (as long as it takes), 0, or more seconds")
        is_whole = isinstance(at_most, int) and not isinstance(at_most, bool)
        if at_most is not None and not (is_whole and 1 <= at_most <= AT_MOST_MAX_SECONDS):
            text = f"at_most must be None, or 1 to {AT_MOST_MAX_SECONDS} whole seconds"
            raise InvalidArgument(f"{text}, not {at_most!r}")
        return cls(name, Way(shared, subtree, at_most is not None), value, timeout, at_most)


class Core:
    """A client, from inside."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.engine = Engine()
        self.link = Link(config.endpoints, config.credentials, config.cluster_id)
        self.keeper = Keeper(self.link)
        self.presences: dict[int, Presence] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._room = _Room(_TELLING_MAX)
        self._tell_until_ns: int | None = None
        self.engine.before_exit = self.close
        self.engine.after_fork = self.link.pool.abandon_after_fork

    def reborn(self) -> Core:
        """Return a client for a forked child: it holds nothing, and knows the same cluster."""
        return Core(replace(self.config, cluster_id=self.link.cluster_id))

    def deadline(self, seconds: float | None = None) -> int:
        """Return the time by which a call must be answered."""
        return now_ns() + int((self.config.call_timeout if seconds is None else seconds) * SECOND)

    async def ask(self, call: Call, seconds: float | None = None) -> dict[str, Any]:
        """Make a call."""
        try:
            return await self.link.call(call, self.deadline(seconds))
        except Doubtful as doubtful:
            raise doubtful.error from None

    # Sessions.

    async def make_session(self, ttl_seconds: int) -> Presence:
        """Make a lease, and keep it alive."""
        owner = self.config.owner
        make = {"owner_id": owner, "ttl_seconds": ttl_seconds, "request_id": request_id()}
        first_sent_ns = now_ns()
        try:
            made = await self.link.call(Call("POST", "/v1/lease", make), self.deadline())
        except Doubtful as doubtful:
            raise doubtful.error from None
        lease_id, ttl = _number(made, "leaseId"), _number(made, "ttlSeconds")
        presence = Presence(self.engine, lease_id, Validity(ttl, valid_until(first_sent_ns, ttl)))
        presence.release_orphan = _Orphans(self, presence).release
        if not presence.validity.is_valid():
            self.tell(self._revocation(presence))
            raise Unavailable("the answer took longer than the session would have lasted", True)
        self.presences[lease_id] = presence
        self.keeper.keep(presence)
        return presence

    def _revocation(self, presence: Presence) -> Call:
        ids = {"lease_id": str(presence.lease_id), "owner_id": self.config.owner}
        return Call("POST", "/v1/lease/revoke", {**ids, "request_id": request_id()})

    def end_session(self, presence: Presence) -> Call | None:
        """End belief in a session. Return what to send then, if the service is to be told."""
        is_known = self.presences.pop(presence.lease_id, None) is not None
        is_gone = presence.validity.cause is LossCause.GONE
        self.keeper.forget(presence.lease_id)
        presence.lose(LossCause.CLOSED)
        # An expired session is revoked too: the service may not have noticed yet.
        return self._revocation(presence) if is_known and not is_gone else None

    async def close_session(self, presence: Presence) -> None:
        """End a session, and wait until the service has heard of it."""
        revoke = self.end_session(presence)
        if revoke is None:
            return
        error = await self.see_through(revoke)
        if error is not None and error.reason != "LEASE_NOT_FOUND":
            raise error

    def drop_session(self, presence: Presence) -> None:
        """End a session that the program has forgotten."""
        revoke = self.end_session(presence)
        if revoke is not None:
            self.tell(revoke)

    # Calls that must be made, whether or not anybody waits.

    def tell(self, call: Call, after: Callable[[], None] | None = None) -> asyncio.Task[None]:
        """Make a call in the background, until it is answered."""
        task = asyncio.ensure_future(self._tell(call, after))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return task

    async def _tell(self, call: Call, after: Callable[[], None] | None) -> None:
        try:
            async with self._room:
                with contextlib.suppress(Doubtful):
                    await self.link.call(call, self._tell_until_ns or self.deadline(_TELL_SECONDS))
        finally:
            if after is not None:
                after()

    async def see_through(
        self, call: Call, after: Callable[[], None] | None = None
    ) -> LowkeyError | None:
        """Make a call and wait for its answer; go on in the background if none comes in time."""
        outcome: asyncio.Future[LowkeyError | None] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(self._see_through(call, outcome, after))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return await outcome

    async def _see_through(
        self,
        call: Call,
        outcome: asyncio.Future[LowkeyError | None],
        after: Callable[[], None] | None,
    ) -> None:
        error: LowkeyError | None = None
        is_answered = True
        try:
            try:
                await self.link.call(call, self._tell_until_ns or self.deadline())
            except Doubtful as doubtful:
                error = doubtful.error
                if doubtful.may_have_been_done and error.reason in _NOT_HELD:
                    error = None  # an earlier copy of this same call arrived
                is_answered = error is None or not error.retryable
            if not outcome.done():
                outcome.set_result(error)
            if not is_answered:
                await self._tell(call, None)
        finally:
            if not outcome.done():
                outcome.set_result(Unavailable("the client was closed meanwhile", True))
            if after is not None:
                after()

    # Locks.

    async def acquire(self, presence: Presence, wish: Wish) -> Grant:
        """Acquire a lock."""
        until_ns = None
        if wish.wait_seconds is not None:
            until_ns = self.deadline(min(wish.wait_seconds, WAIT_MAX_SECONDS))
        self.check(presence)
        door = presence.door(wish.name)
        try:
            shared = await self._enter(presence, wish, until_ns)
        except BlockingIOError:
            holder = HeldBy(wish.name, self.config.owner, presence.lease_id, 0)
            raise LockHeld(f"{wish.name} is held by this same session", holder) from None
        if shared is not None:
            return shared
        while True:
            grant, must_leave = None, True
            try:
                grant = await self._ask(presence, wish, until_ns)
                must_leave = False
            except WaitTimeout:
                if until_ns is not None:
                    raise
                must_leave = False  # a day has passed: ask again
                continue
            except _GaveUp as gave_up:
                must_leave = False  # the door opens when the release was heard
                raise gave_up.error from None
            finally:
                if must_leave:
                    door.leave()
            door.held(grant, wish.way)
            return grant

    def check(self, presence: Presence) -> None:
        """Raise if a session is lost."""
        cause = presence.validity.cause
        if cause is not None:
            raise SessionLost(presence.lease_id, cause)

    async def _enter(self, presence: Presence, wish: Wish, until_ns: int | None) -> Grant | None:
        is_brief = wish.wait_seconds == 0
        left = None if until_ns is None else max(0.0, (until_ns - now_ns()) / SECOND)
        if is_brief:
            left = self.config.call_timeout
        door = presence.door(wish.name)

        def step_back(shared: Grant | None) -> None:
            if shared is None:
                door.leave()
            else:
                self.drop(shared)

        try:
            return await _unless_lost(presence, door.enter(wish.way, is_brief), left, step_back)
        except asyncio.TimeoutError:
            text = f"{wish.name} is held by this same session, and the time to wait is over"
            raise WaitTimeout(text) from None

    async def _ask(self, presence: Presence, wish: Wish, until_ns: int | None) -> Grant:
        acquire_id = request_id()
        body: dict[str, Any] = {
            "lock_name": wish.name,
            "owner_id": self.config.owner,
            "lease_id": str(presence.lease_id),
            "request_id": acquire_id,
        }
        if wish.way.is_shared:
            body["mode"] = "SHARED"
        if wish.way.is_subtree:
            body["scope"] = "SUBTREE"
        if wish.value:
            body["value"] = wish.value
        if wish.at_most is not None:
            body["max_hold_seconds"] = wish.at_most
        wait_until_ns: int | None = None
        if wish.wait_seconds != 0:
            wait_until_ns = until_ns or self.deadline(WAIT_MAX_SECONDS)
        deadline_ns = max(now_ns(), wait_until_ns or 0) + int(self.config.call_timeout * SECOND)
        first_sent_ns = now_ns()
        call = self.link.call(
            Call("POST", "/v1/lock/acquire", body), deadline_ns, wait_until_ns=wait_until_ns
        )
        try:
            granted = await _unless_lost(presence, call, None)
        except Doubtful as doubtful:
            if doubtful.error.reason == "LEASE_NOT_FOUND":
                presence.lose(LossCause.GONE)
                raise SessionLost(presence.lease_id, LossCause.GONE) from None
            if doubtful.may_have_been_done:
                self._give_up(presence, wish.name, acquire_id)
                raise _GaveUp(doubtful.error) from None
            raise doubtful.error from None
        except (SessionLost, asyncio.CancelledError) as error:
            self._give_up(presence, wish.name, acquire_id)
            raise _GaveUp(error) from None
        try:
            token, waited_ms = _number(granted, "fencingToken"), _number(granted, "waitedMs")
        except Unavailable as error:
            self._give_up(presence, wish.name, acquire_id)
            raise _GaveUp(error) from None
        limit_ns = None
        if wish.at_most is not None:
            # From before the first send: every attempt has the same request id.
            limit_ns = held_until(first_sent_ns, waited_ms, wish.at_most)
        grant = Grant(presence, wish.name, token, waited_ms, limit_ns)
        if not presence.validity.is_valid():
            # A grant is valid only within the validity of its lease.
            self._give_up(presence, wish.name, acquire_id)
            cause = presence.validity.cause or LossCause.EXPIRED
            raise _GaveUp(SessionLost(presence.lease_id, cause))
        if not grant.is_held():
            self._give_up(presence, wish.name, acquire_id)
            raise _GaveUp(Unavailable("its time was over before the answer came", True))
        presence.add(grant)
        self.keeper.limit(grant)
        return grant

    def _give_up(self, presence: Presence, name: str, acquire_id: str) -> None:
        """Release what an acquire may have led to, or may yet."""
        presence.beliefs.give_up(acquire_id)
        door = presence.door(name)
        door.leaving()
        release = {"lock_name": name, "lease_id": str(presence.lease_id)}
        ids = {"acquire_request_id": acquire_id, "request_id": request_id()}
        self.tell(Call("POST", "/v1/lock/release", {**release, **ids}), door.leave)

    def end_grant(self, grant: Grant) -> tuple[Call, Callable[[], None]] | None:
        """End belief in a grant for one of its guards. Return what to send, if it was the last."""
        grant.guards -= 1
        if grant.guards > 0 or grant.is_ended:
            return None
        cause = grant.cause()
        grant.is_ended = True
        grant.lost_cause = cause
        grant.signal.off()
        presence = grant.presence
        presence.remove(grant)
        door = presence.door(grant.name)
        door.leaving()
        if cause in (LossCause.GONE, LossCause.CLOSED):
            door.leave()
            return None
        return release_by_token(presence.lease_id, grant.name, grant.token), door.leave

    async def release(self, grant: Grant) -> None:
        """Release a lock for one of its guards, and wait until the service has heard of it."""
        cause = grant.cause()
        ended = self.end_grant(grant)
        if cause is LossCause.CLOSED:
            return  # by this program itself
        if cause is not None:
            if ended is not None:
                self.tell(*ended)
            raise LockLost(grant.name, grant.token, cause)
        error = None if ended is None else await self.see_through(*ended)
        if error is None:
            return
        if error.reason == "LEASE_NOT_FOUND":
            grant.presence.lose(LossCause.GONE)
            raise LockLost(grant.name, grant.token, LossCause.GONE)
        if error.reason in _NOT_HELD:
            raise LockLost(grant.name, grant.token, LossCause.RELEASED_ELSEWHERE)
        raise error

    def drop(self, grant: Grant) -> None:
        """Release a lock whose guard the program has forgotten."""
        ended = self.end_grant(grant)
        if ended is not None:
            self.tell(*ended)

    # The end.

    async def close(self) -> None:
        """End all sessions, and wait a little until the service has heard of it."""
        self._tell_until_ns = self.deadline(min(self.config.call_timeout, 5.0))
        for presence in list(self.presences.values()):
            self.drop_session(presence)
        if self._telling:
            await asyncio.wait(set(self._telling), timeout=min(self.config.call_timeout, 5.0))
        self.keeper.close()
        self.link.close()


def release_by_token(lease_id: int, name: str, token: int) -> Call:
    """Return the call that releases exactly this grant."""
    ids = {"lease_id": str(lease_id), "fencing_token": str(token), "request_id": request_id()}
    return Call("POST", "/v1/lock/release", {"lock_name": name, **ids})


def _number(answer: dict[str, Any], field: str) -> int:
    text = str(answer.get(field))
    if not text.isdigit():
        raise Unavailable(f"the answer has no number {field}", True)
    return int(text)


class _GaveUp(Exception):
    """An acquire was given up; its door opens when that is certain."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class _Orphans:
    """Releases grants that nobody wants."""

    core: Core
    presence: Presence
    under_way: set[int] = field(default_factory=set)

    def release(self, orphan: GrantView) -> None:
        if orphan.token in self.under_way:
            return
        self.under_way.add(orphan.token)
        door = self.presence.door(orphan.name)
        door.is_taken = True
        door.leaving()

        def after() -> None:
            self.under_way.discard(orphan.token)
            door.leave()

        self.core.tell(release_by_token(self.presence.lease_id, orphan.name, orphan.token), after)


class _Room:
    """A semaphore that is made on one thread and used on another."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._line: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> None:
        while self._left == 0:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.append(turn)
            await turn
        self._left -= 1

    async def __aexit__(self, *_: object) -> None:
        self._left += 1
        while self._line:
            turn = self._line.pop(0)
            if not turn.done():
                turn.set_result(None)
                return


async def _unless_lost(
    presence: Presence,
    work: Awaitable[T],
    seconds: float | None,
    dispose: Callable[[T], None] | None = None,
) -> T:
    """Wait for work, but not beyond the loss of the session, nor for longer than this."""
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not lost.done():
            lost.set_result(None)

    def listener(_: LossCause) -> None:
        loop.call_soon_threadsafe(tell)

    presence.signal.listen(listener, of_any_end=True)
    task: asyncio.Future[T] = asyncio.ensure_future(work)
    both: set[asyncio.Future[Any]] = {task, lost}
    try:
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        if task.done() and not task.cancelled() and task.exception() is None and dispose:
            dispose(task.result())
        raise
    finally:
        presence.signal.forget(listener)
        if not task.done():
            task.cancel()
            task.add_done_callback(_seen)
    if task.done():
        return task.result()
    cause = presence.validity.cause
    if cause is not None:
        raise SessionLost(presence.lease_id, cause)
    raise asyncio.TimeoutError


def _seen(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
