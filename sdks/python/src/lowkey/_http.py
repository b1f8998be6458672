"""HTTP/1.1 for the engine: one request at a time on a connection, connections kept and reused.

`http.client` blocks a thread for each request. A client that renews a thousand leases and waits for
a hundred locks needs neither a thousand nor a hundred threads, so this speaks the protocol over
asyncio: as much of it as a server may answer with (lengths, chunks, until the end, 1xx).

Invariant: a connection that did anything unexpected is closed, never reused.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import weakref
from collections.abc import Awaitable
from typing import Any, Callable, NamedTuple, TypeVar
from urllib.parse import urlsplit

from lowkey._clock import SECOND, now_ns
from lowkey.errors import InvalidArgument

_HEAD_MAX = 64 * 1024
_BODY_MAX = 64 * 1024 * 1024
_IDLE_MAX = 64
_IDLE_SECONDS = 20

T = TypeVar("T")


class NotSent(Exception):
    """The request never left: nothing was done."""


class NoAnswer(Exception):
    """The request was sent, and there is no usable answer: it may have been done."""


class Endpoint(NamedTuple):
    """Where a node listens."""

    is_tls: bool
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Read a URL such as `http://10.0.0.1:8080`."""
        allowed = f"{url!r} is no endpoint: it must be like http://HOST:8080 or https://HOST:8080"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise InvalidArgument(allowed) from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise InvalidArgument(allowed)
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise InvalidArgument(allowed + ", without a path")
        is_tls = parts.scheme == "https"
        return cls(is_tls, parts.hostname, port or (443 if is_tls else 80))

    def at(self, address: str) -> Endpoint | None:
        """Return the endpoint of another node, told as `HOST:PORT`; None if it is not one."""
        host, separator, port = address.rpartition(":")
        host = host.strip("[]")
        if not separator or not host or not port.isdigit() or host in ("0.0.0.0", "::"):  # noqa: S104
            return None
        return Endpoint(self.is_tls, host, int(port))

    @property
    def authority(self) -> str:
        """The value of the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}"


class Response(NamedTuple):
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Wait for work, and cancel it when the time is up or the caller goes away."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=max(0.0, seconds))
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not task.done():
        task.cancel()
        raise asyncio.TimeoutError
    return task.result()


class _Body:
    """Reads a body: a known length, chunks, or until the connection ends."""

    def __init__(self, length: int | None, is_chunked: bool) -> None:
        self.left = length
        self.is_chunked = is_chunked
        self.is_done = length == 0 and not is_chunked
        self._chunk_left = 0
        self._state = "size"

    def feed(self, buffer: bytearray, take: Callable[[bytes], None]) -> None:
        """Take what is there out of the buffer."""
        if self.is_chunked:
            self._feed_chunks(buffer, take)
            return
        data = bytes(buffer if self.left is None else buffer[: self.left])
        del buffer[: len(data)]
        if self.left is not None:
            self.left -= len(data)
            self.is_done = self.left == 0
        if data:
            take(data)

    def _feed_chunks(self, buffer: bytearray, take: Callable[[bytes], None]) -> None:
        while buffer and not self.is_done:
            if self._state == "data":
                data = bytes(buffer[: self._chunk_left])
                del buffer[: len(data)]
                self._chunk_left -= len(data)
                take(data)
                if self._chunk_left == 0:
                    self._state = "end of data"
                continue
            end = buffer.find(b"\r\n")
            if end < 0:
                if len(buffer) > _HEAD_MAX:
                    raise ValueError("a line of a chunked answer does not end")
                return
            line = bytes(buffer[:end])
            del buffer[: end + 2]
            if self._state == "end of data":
                if line:
                    raise ValueError("a chunk is longer than it says")
                self._state = "size"
            elif self._state == "size":
                self._chunk_left = int(line.split(b";")[0].strip() or b"?", 16)
                if self._chunk_left < 0:
                    raise ValueError("a chunk of negative size")
                self._state = "data" if self._chunk_left else "trailer"
            else:
                self.is_done = not line


class Connection(asyncio.Protocol):
    """One connection to a node."""

    def __init__(self, endpoint: Endpoint, sock: socket.socket, heard: dict[Endpoint, int]) -> None:
        self.endpoint = endpoint
        self.sock = sock
        self._heard = heard  # when each node last said something, on any connection
        self.is_used = False
        self.is_late = False  # its request ended because its time was up
        self.is_open = True
        self.idle_since_ns = 0
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: asyncio.Future[tuple[int, dict[str, str]]] | None = None
        self._done: asyncio.Future[None] | None = None
        self._body: _Body | None = None
        self._take: Callable[[bytes], None] = _ignore
        self._method = "GET"
        self._keeps_alive = True
        self.heard_ns = now_ns()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""
        self.heard_ns = self._heard[self.endpoint] = now_ns()
        if self._done is None or self._done.done():
            self.close()  # nobody asked
            return
        self._buffer += data
        try:
            self._parse()
        except ValueError as error:
            self._fail(NoAnswer(f"{self.endpoint} does not speak HTTP: {error}"))

    def eof_received(self) -> bool:
        """Take in the end of the connection."""
        self.is_open = False
        done, body = self._done, self._body
        ends_the_body = body is not None and body.left is None and not body.is_chunked
        if ends_the_body and done is not None and not done.done():
            done.set_result(None)
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        """Take in that the connection is gone."""
        self.is_open = False
        why = f": {exc}" if exc else ""
        self._fail(NoAnswer(f"{self.endpoint} closed the connection{why}"))

    # What the link calls.

    async def request(
        self,
        method: str,
        head_and_body: bytes,
        timeout_seconds: float,
        patience_seconds: float | None = None,
        take: Callable[[bytes], None] | None = None,
    ) -> Response:
        """Send a request and wait for its answer.

        With patience, the wait also ends when the node has said nothing for that long, on any
        connection. A node that answers others is only slow, and leaving it would make that worse.

        With `take`, a success is answered as soon as its head is there, and the body is handed to
        `take` piece by piece; `ended` then waits for its end.
        """
        loop = asyncio.get_running_loop()
        transport = self._transport
        if transport is None or not self.is_open or transport.is_closing():
            raise NotSent(f"{self.endpoint} closed the connection")
        pieces: list[bytes] = []
        self._method = method
        self._head, self._done = loop.create_future(), loop.create_future()
        head, done = self._head, self._done
        self._body = None
        self._keeps_alive = True
        self._take = _Collector(pieces).take
        timer = _Timer(self, timeout_seconds, patience_seconds)
        try:
            transport.write(head_and_body)
            status, headers = await head
            if take is not None and status == 200:
                for piece in pieces:
                    take(piece)
                self._take = take
                return Response(status, headers, b"")
            await done
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
        if not self._keeps_alive or self._buffer:
            self.close()
        self.is_used = True
        return Response(status, headers, b"".join(pieces))

    async def ended(self) -> None:
        """Wait for the end of a body that is handed on piece by piece."""
        done = self._done
        if done is not None:
            await done

    def pause(self, is_paused: bool) -> None:
        """Stop reading for a while, or go on."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            with contextlib.suppress(RuntimeError):
                if is_paused:
                    transport.pause_reading()
                else:
                    transport.resume_reading()

    def close(self) -> None:
        """Close it at once."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def abandon_after_fork(self) -> None:
        """Close the child's copy of the socket, and leave the parent's connection alone."""
        self.is_open = False
        with contextlib.suppress(OSError):
            descriptor = self.sock.detach()
            if descriptor >= 0:
                os.close(descriptor)

    # Inside.

    def silent_ns(self) -> int:
        """Return for how long the node has said nothing, on any connection."""
        return now_ns() - self._heard.get(self.endpoint, 0)

    def too_late(self) -> None:
        """Stop waiting."""
        self.is_late = True
        self._fail(NoAnswer(f"{self.endpoint} does not answer"))
        self.close()

    def _fail(self, error: Exception) -> None:
        for future in (self._head, self._done):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # seen: nobody may be waiting for this one
        self.close()

    def _parse(self) -> None:
        while self._body is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _HEAD_MAX:
                    raise ValueError("the head of the answer does not end")
                return
            head = bytes(self._buffer[:end]).decode("latin-1")
            del self._buffer[: end + 4]
            self._take_head(head)
        self._body.feed(self._buffer, self._take)
        if self._body.is_done and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _take_head(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        version, _, rest = first.partition(" ")
        status_text = rest[:3]
        if not version.startswith("HTTP/1.") or not status_text.isdigit():
            raise ValueError(f"it began with {first[:60]!r}")
        status = int(status_text)
        if status < 200:
            return  # of no meaning here; the real one follows
        headers: dict[str, str] = {}
        for line in lines:
            name, separator, value = line.partition(":")
            if not separator:
                raise ValueError(f"a header without a colon: {line[:60]!r}")
            headers[name.strip().lower()] = value.strip()
        tokens = headers.get("connection", "").lower()
        self._keeps_alive = "close" not in tokens and version == "HTTP/1.1"
        self._body = self._body_of(status, headers)
        if self._body.left is None and not self._body.is_chunked:
            self._keeps_alive = False
        if self._head is not None and not self._head.done():
            self._head.set_result((status, headers))

    def _body_of(self, status: int, headers: dict[str, str]) -> _Body:
        if status in (204, 304) or self._method == "HEAD":
            return _Body(0, False)
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return _Body(None, True)
        length = headers.get("content-length")
        if length is None:
            return _Body(None, False)
        if not length.isdigit() or int(length) > _BODY_MAX:
            raise ValueError(f"a body of {length[:20]} bytes")
        return _Body(int(length), False)


class _Timer:
    """Ends a request when its time is up, or when its node has been silent for too long."""

    def __init__(self, connection: Connection, seconds: float, patience: float | None) -> None:
        self._connection = connection
        self._begun_ns = now_ns()
        self._seconds = seconds
        self._patience = seconds if patience is None else min(patience, seconds)
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(self._patience, self._look)

    def _look(self) -> None:
        passed = (now_ns() - self._begun_ns) / SECOND
        quiet = min(passed, self._connection.silent_ns() / SECOND)
        if passed >= self._seconds or quiet >= self._patience:
            self._connection.too_late()
            return
        left = min(self._seconds - passed, self._patience - quiet)
        self._handle = self._loop.call_later(max(0.001, left), self._look)

    def cancel(self) -> None:
        self._handle.cancel()


class _Collector:
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._size = 0

    def take(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > _BODY_MAX:
            raise ValueError("the answer is too long")
        self._pieces.append(piece)


def _ignore(_: bytes) -> None:
    pass


class Pool:
    """All connections of a client."""

    def __init__(self) -> None:
        self._idle: dict[Endpoint, list[Connection]] = {}
        self._heard: dict[Endpoint, int] = {}
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()

    async def take(
        self, endpoint: Endpoint, context: ssl.SSLContext | None, timeout_seconds: float
    ) -> Connection:
        """Return a connection: one that is open and free, or a new one."""
        idle = self._idle.get(endpoint, [])
        while idle:
            connection = idle.pop()
            if connection.is_open and _is_fresh(connection):
                return connection
            connection.close()
        try:
            return await within(timeout_seconds, self._open(endpoint, context))
        except asyncio.TimeoutError:
            raise NotSent(f"{endpoint} takes no connection in time") from None
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise NotSent(f"{endpoint} is not reachable: {error}") from error
        except RuntimeError as error:  # names are not looked up any more: the program ends
            raise NotSent(f"{endpoint} is not reachable: {error}") from error

    async def _open(self, endpoint: Endpoint, context: ssl.SSLContext | None) -> Connection:
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        for family, address in await _addresses(endpoint):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, address)
                _, connection = await loop.create_connection(
                    _maker(endpoint, sock, self._heard),
                    sock=sock,
                    ssl=context,
                    server_hostname=endpoint.host if context else None,
                )
            except OSError as error:
                sock.close()
                failure = error
                continue
            except BaseException:
                sock.close()
                raise
            self._all.add(connection)
            return connection
        raise failure or OSError(f"{endpoint.host} has no address")

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, if it is of any use."""
        if not connection.is_open:
            return
        idle = self._idle.setdefault(connection.endpoint, [])
        connection.idle_since_ns = now_ns()
        idle.append(connection)
        # The last one is used first, so those that are needed rarely are the first.
        while idle and (len(idle) > _IDLE_MAX or not _is_fresh(idle[0])):
            idle.pop(0).close()

    def forget(self, endpoint: Endpoint) -> None:
        """Close what is idle: the node is gone, or its credentials are to be shown anew."""
        for connection in self._idle.pop(endpoint, []):
            connection.close()

    def close(self) -> None:
        """Close everything."""
        for connection in list(self._all):
            connection.close()
        self._idle.clear()

    def abandon_after_fork(self) -> None:
        """Leave everything to the parent."""
        for connection in list(self._all):
            connection.abandon_after_fork()
        self._idle.clear()


def _is_fresh(connection: Connection) -> bool:
    return now_ns() - connection.idle_since_ns < _IDLE_SECONDS * SECOND


def _maker(
    endpoint: Endpoint, sock: socket.socket, heard: dict[Endpoint, int]
) -> Callable[[], Connection]:
    return lambda: Connection(endpoint, sock, heard)


async def _addresses(endpoint: Endpoint) -> list[tuple[int, Any]]:
    try:
        literal = ipaddress.ip_address(endpoint.host)
    except ValueError:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in found]
    family = socket.AF_INET if literal.version == 4 else socket.AF_INET6
    return [(family, (endpoint.host, endpoint.port))]
