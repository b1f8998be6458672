"""Watches and observations: server-sent events that go on where they stopped, on any node.

An error ends a watch: `COMPACTED`, if what happened meanwhile is no longer kept, or a refusal of
the request itself. Everything else is a reason to connect again.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Generic, TypeVar, Union
from urllib.parse import urlencode

from lowkey._clock import SECOND, now_ns
from lowkey._http import Connection, NoAnswer, NotSent
from lowkey._link import Link
from lowkey._retry import Backoff
from lowkey.errors import LowkeyError, WrongCluster, parse_api_error

# Nodes send a sign of life every 5 s. One that is silent for longer than this is left.
_SILENCE_SECONDS = 12.0
_OPEN_SECONDS = 5.0
# Beyond this many events that were not taken, the connection is not read.
_BACKLOG_MAX = 1024
# How long a node's limit of streams is taken for a passing one.
_LIMIT_SECONDS = 10


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, or leads."""

    owner: str
    lease_id: int
    fencing_token: int
    mode: str
    scope: str
    value: str
    since_unix_ms: int
    """By the clock of the node that granted it: for display only."""

    @classmethod
    def parse(cls, answer: dict[str, Any]) -> Holder:
        """Read a holder as the service tells it."""
        return cls(
            owner=str(answer.get("ownerId", "")),
            lease_id=int(answer.get("leaseId", 0)),
            fencing_token=int(answer.get("fencingToken", 0)),
            mode=str(answer.get("mode", "EXCLUSIVE")),
            scope=str(answer.get("scope", "NAME")),
            value=str(answer.get("value", "")),
            since_unix_ms=int(answer.get("sinceUnixMs", 0)),
        )


@dataclass(frozen=True)
class Event:
    """A change of a lock."""

    type: str
    """`ACQUIRED`, `RELEASED`, `EXPIRED`, `REVOKED`, `WAITING`, `CANCELLED` or `VALUE`."""
    name: str
    owner: str
    fencing_token: int
    """0 for a waiter."""
    lease_id: int
    mode: str
    scope: str
    value: str
    position: str
    """Pass it as `after` to go on behind this event."""
    in_touch: bool
    """Whether the node hears from the leader."""
    actor: str
    at_unix_ms: int
    """By the clock of the node that proposed it: for display only."""

    @classmethod
    def parse(cls, answer: dict[str, Any], position: str) -> Event:
        """Read an event as the service tells it."""
        return cls(
            type=str(answer["type"]),
            name=str(answer.get("name", "")),
            owner=str(answer.get("owner", "")),
            fencing_token=int(answer.get("fencingToken", 0)),
            lease_id=int(answer.get("leaseId", 0)),
            mode=str(answer.get("mode", "EXCLUSIVE")),
            scope=str(answer.get("scope", "NAME")),
            value=str(answer.get("value", "")),
            position=position,
            in_touch=bool(answer.get("inTouch", False)),
            actor=str(answer.get("actor", "")),
            at_unix_ms=int(answer.get("atUnixMs", 0)),
        )


@dataclass(frozen=True)
class LeaderEvent:
    """Who leads from now on."""

    type: str
    """`ACQUIRED`, `VALUE`, `RELEASED`, `EXPIRED`, `REVOKED`, or `VACANT` in the beginning."""
    leader: Holder | None
    """None if nobody leads."""
    position: str
    in_touch: bool

    @classmethod
    def parse(cls, answer: dict[str, Any], position: str) -> LeaderEvent:
        """Read an event as the service tells it."""
        leader = answer.get("leader")
        return cls(
            type=str(answer["type"]),
            leader=Holder.parse(leader) if isinstance(leader, dict) else None,
            position=position,
            in_touch=bool(answer.get("inTouch", False)),
        )


class SseParser:
    """Takes server-sent events out of a stream of bytes."""

    def __init__(self, take: Callable[[str, str, str], None]) -> None:
        self._take = take  # kind, id, data
        self._rest = b""
        self._kind, self._id, self._data = "", "", ""

    def feed(self, piece: bytes) -> None:
        """Take in the next bytes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if not line:
                if self._data:
                    self._take(self._kind, self._id, self._data)
                self._kind, self._id, self._data = "", "", ""
                continue
            field, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if field == "event":
                self._kind = value
            elif field == "id":
                self._id = value
            elif field == "data":
                self._data = f"{self._data}\n{value}" if self._data else value


E = TypeVar("E", bound=Union[Event, LeaderEvent])


class WatchCore(Generic[E]):
    """One stream of events, resumed after every break. Used on the engine's thread only."""

    def __init__(
        self,
        link: Link,
        path: str,
        parameters: dict[str, str],
        parse: Callable[[dict[str, Any], str], E],
        can_resume: bool,
    ) -> None:
        self._link = link
        self._path = path
        self._parameters = parameters
        self._parse = parse
        self._can_resume = can_resume
        self.position = parameters.get("after", "")
        self._events: deque[E] = deque()
        self._error: LowkeyError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._connection: Connection | None = None
        self._is_paused = False
        self._has_begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_leaving = False  # the node ended the stream in good order
        self._task = asyncio.ensure_future(self._run())

    async def begun(self) -> None:
        """Wait until the watch has begun: what happens from then on is told."""
        await asyncio.shield(self._has_begun)

    async def next_batch(self) -> list[E]:
        """Return the events that are there, and wait for one if there is none."""
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._task.done():
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        batch = list(self._events)
        self._events.clear()
        if self._is_paused and self._connection is not None:
            self._is_paused = False
            self._connection.pause(False)
        return batch

    def put_back(self, batch: list[E]) -> None:
        """Give back what nobody took. Any thread may do so, before it asks again."""
        self._events.extendleft(reversed(batch))

    def close(self) -> None:
        """End it."""
        self._task.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _run(self) -> None:
        try:
            await self._go_on()
        except LowkeyError as error:
            self._error = error
        finally:
            if not self._has_begun.done():
                if self._error is not None:
                    self._has_begun.set_exception(self._error)
                    self._has_begun.exception()
                else:
                    self._has_begun.cancel()
            self._wake()

    async def _go_on(self) -> None:
        backoff = Backoff()
        limited_since_ns: int | None = None
        while not self._link.is_closed:
            endpoint = self._link.directory.pick()
            self._is_leaving = False
            try:
                parser = SseParser(self._take)
                self._connection, complete_to = await self._link.stream(
                    endpoint, self._target(), parser.feed, _OPEN_SECONDS
                )
                if not self.position:
                    self.position = complete_to  # up to here nothing is missing
                limited_since_ns = None
                backoff = Backoff()
                if not self._has_begun.done():
                    self._has_begun.set_result(None)
                await self._read(self._connection)
            except WrongCluster:
                if self._link.directory.is_foreign(endpoint):
                    raise
            except (NotSent, NoAnswer):
                self._link.directory.failed(endpoint)
            except LowkeyError as error:
                if not error.retryable:
                    raise
                if error.reason == "LIMIT_STREAMS":
                    self._link.directory.failed(endpoint)
                    limited_since_ns = limited_since_ns or now_ns()
                    if now_ns() - limited_since_ns > _LIMIT_SECONDS * SECOND:
                        raise
            if self._error is not None:
                raise self._error
            if self._is_leaving:
                self._link.directory.failed(endpoint)
            await asyncio.sleep(backoff.pause())

    def _target(self) -> str:
        parameters = dict(self._parameters)
        if self._can_resume and self.position:
            parameters.pop("from", None)
            parameters["after"] = self.position
        return f"{self._path}?{urlencode(parameters)}" if parameters else self._path

    async def _read(self, connection: Connection) -> None:
        ended = asyncio.ensure_future(connection.ended())
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=1.0)
                silent_ns = now_ns() - connection.heard_ns
                if not self._is_paused and silent_ns > _SILENCE_SECONDS * SECOND:
                    raise NoAnswer(f"{connection.endpoint} is silent")
                if self._is_leaving or self._error is not None:
                    return
            ended.result()
        finally:
            ended.cancel()
            connection.close()

    def _take(self, kind: str, event_id: str, data: str) -> None:
        answer = json.loads(data)
        if kind == "error":
            error = parse_api_error(410, data.encode())
            exception = error.to_exception()
            if not exception.retryable:
                self._error = exception
            self._is_leaving = True
            self._wake()
            return
        if event_id:
            self.position = event_id
        if kind == "end":
            self._is_leaving = True
        elif kind != "heartbeat" and answer.get("type") not in ("HEARTBEAT", "END"):
            self._events.append(self._parse(answer, event_id))
            self._wake()
            if len(self._events) >= _BACKLOG_MAX and self._connection is not None:
                self._is_paused = True
                self._connection.pause(True)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
