"""The way to the service: which node to ask, and asking again until there is a clear answer.

- It prefers the leader, and goes to the next node when one does not answer.
- It asks again, with the same request id, what was refused for the moment or not answered at all.
- It remembers whether any copy of a call may have been carried out.
- It refuses the answers of another cluster than the one that it began with.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import uuid
from typing import Any, Callable, NamedTuple, cast
from urllib.parse import urlencode

from lowkey._clock import SECOND, now_ns
from lowkey._credentials import Credentials
from lowkey._http import Connection, Endpoint, NoAnswer, NotSent, Pool, Response
from lowkey._retry import Backoff
from lowkey.errors import (
    ApiError,
    InvalidArgument,
    LowkeyError,
    Refused,
    Unavailable,
    WrongCluster,
    parse_api_error,
)

_log = logging.getLogger("lowkey")

# A node that says nothing for this long is left for another one.
PATIENCE_SECONDS = 1.0
# A wait is asked for again within 5 s: proxies give up, and a stopped node says nothing.
WAIT_PATIENCE_SECONDS = 4.0
# How often the client looks who leads.
_LEADER_CHECK_NS = 3 * SECOND
# How long a node that failed is asked only if no other is left.
_AVOID_NS = 2 * SECOND
# How long a node that does not know a field is not told it again.
_UNKNOWN_FIELD_NS = 60 * SECOND

# Fields that only advise. What restricts a call is never left out.
_ADVISORY = {("/v1/lease/renew", "holds")}
# The node itself is the problem, or knows no leader: another may do better.
_ASK_ANOTHER = frozenset(
    {
        "NODE_REMOVED",
        "NODE_STOPPING",
        "NODE_DIVERGED",
        "NO_LEADER",
        "NO_QUORUM",
        "LIMIT_CONNECTIONS",
    }
)


def request_id() -> str:
    """Return an id for one operation."""
    return uuid.uuid4().hex


class Call(NamedTuple):
    """One call, as it goes over the wire."""

    method: str
    path: str
    body: dict[str, Any]
    changes: bool = True
    """Whether it changes something, so that its outcome can be in doubt."""


class _Request(NamedTuple):
    """One copy of a call, to one node."""

    endpoint: Endpoint
    method: str
    path: str
    body: dict[str, Any]
    timeout: float
    patience: float | None


def get(path: str, **parameters: Any) -> Call:
    """Return a call that only reads."""
    known = {name: value for name, value in parameters.items() if value not in (None, "", 0)}
    return Call("GET", path + ("?" + urlencode(known) if known else ""), {}, changes=False)


class Doubtful(Exception):
    """A call failed; `may_have_been_done` tells whether its effect must be undone if unwanted."""

    def __init__(self, error: LowkeyError, may_have_been_done: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.may_have_been_done = may_have_been_done


class Directory:
    """Which node to ask next."""

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self.configured = list(endpoints)
        self._all = list(endpoints)
        self._failed_ns: dict[Endpoint, int] = {}
        self._foreign: set[Endpoint] = set()
        self.current = self._all[0]

    def pick(self) -> Endpoint:
        """Return the node to ask: the current one, or the next that is not to be avoided."""
        now = now_ns()
        start = self._all.index(self.current)
        line = self._all[start:] + self._all[:start]
        for endpoint in line:
            if now - self._failed_ns.get(endpoint, -_AVOID_NS) >= _AVOID_NS:
                self.current = endpoint
                return endpoint
        # All have failed lately: the one that failed first has had the most time.
        self.current = min(line, key=lambda endpoint: self._failed_ns.get(endpoint, 0))
        return self.current

    def failed(self, endpoint: Endpoint) -> None:
        """Note that a node is of no use for a while."""
        self._failed_ns[endpoint] = now_ns()

    def answered(self, endpoint: Endpoint) -> None:
        """Note that a node is of use."""
        self._failed_ns.pop(endpoint, None)
        self._foreign.discard(endpoint)

    def is_foreign(self, endpoint: Endpoint) -> bool:
        """Note that a node is of another cluster. Return whether all that were given are."""
        self._foreign.add(endpoint)
        self.failed(endpoint)
        return all(known in self._foreign for known in self.configured)

    def moved(self, old: Endpoint, new: Endpoint) -> bool:
        """Replace an endpoint by the one that it told to use."""
        if old not in self._all or new == old:
            return False
        place = self._all.index(old)
        if new in self._all:
            del self._all[place]
        else:
            self._all[place] = new
        self.configured = [new if known == old else known for known in self.configured]
        self.current = new
        return True

    def learn(self, members: list[Endpoint]) -> None:
        """Remember the nodes of the cluster beside those that were given."""
        gone = [
            known for known in self._all if known not in members and known not in self.configured
        ]
        for endpoint in gone:
            if endpoint != self.current:
                self._all.remove(endpoint)
        self._all.extend(endpoint for endpoint in members if endpoint not in self._all)

    def prefer(self, endpoint: Endpoint) -> None:
        """Ask this node from now on."""
        if endpoint not in self._all:
            self._all.append(endpoint)
        self._failed_ns.pop(endpoint, None)
        self.current = endpoint


class Link:
    """Calls to the service. Used on the engine's thread only."""

    def __init__(
        self, endpoints: list[Endpoint], credentials: Credentials, cluster_id: str | None
    ) -> None:
        self.directory = Directory(endpoints)
        self.pool = Pool()
        self.cluster_id = cluster_id
        self._credentials = credentials
        self._checked_ns = 0
        self._check: asyncio.Task[None] | None = None
        self._unknown_fields: dict[tuple[Endpoint, str], int] = {}
        self.is_closed = False

    async def call(
        self,
        call: Call,
        deadline_ns: int,
        patience_seconds: float = PATIENCE_SECONDS,
        wait_until_ns: int | None = None,
    ) -> dict[str, Any]:
        """Make a call until it is answered clearly, or the time is up. Raises `Doubtful`."""
        attempt = _Attempts(call, deadline_ns)
        patience = None if wait_until_ns is not None else patience_seconds
        while True:
            left_ns = deadline_ns - now_ns()
            if left_ns <= 0 or self.is_closed:
                raise attempt.overdue()
            if wait_until_ns is not None:
                left_ms = max(1, (wait_until_ns - now_ns()) // 1_000_000)
                call.body["wait_ms"] = left_ms
            endpoint = self.directory.pick()
            sent_ns = now_ns()
            timeout = left_ns / SECOND
            if wait_until_ns is not None:
                timeout = min(timeout, WAIT_PATIENCE_SECONDS)
            try:
                answer = await self.once(endpoint, call, timeout, patience)
            except NotSent as problem:
                self.directory.failed(endpoint)
                pause = attempt.not_sent(str(problem), is_last=now_ns() >= deadline_ns)
            except NoAnswer as problem:
                is_silent_wait = wait_until_ns is not None and (
                    now_ns() - sent_ns >= int(WAIT_PATIENCE_SECONDS * 0.9 * SECOND)
                )
                if not is_silent_wait:
                    self.directory.failed(endpoint)
                pause = attempt.no_answer(str(problem))
                if is_silent_wait:
                    # It may just be waiting: ask again at once, to keep the place. But not a node
                    # that has stopped.
                    if await self._status(endpoint) is None:
                        self.directory.failed(endpoint)
                    continue
            except WrongCluster as error:
                pause = attempt.wrong_cluster(error)
                if self.directory.is_foreign(endpoint):
                    raise attempt.overdue() from None
            else:
                if isinstance(answer, dict):
                    return answer
                self.take_in(answer, endpoint)
                pause = attempt.refused(answer, now_ns() - sent_ns, wait_until_ns is not None)
            await asyncio.sleep(max(0.0, min(pause, (deadline_ns - now_ns()) / SECOND)))

    def take_in(self, error: ApiError, endpoint: Endpoint) -> None:
        """Note what a refusal says of the node that sent it."""
        if error.reason in _ASK_ANOTHER:
            self.directory.failed(endpoint)
            self._checked_ns = 0

    async def once(
        self, endpoint: Endpoint, call: Call, timeout: float, patience: float | None = None
    ) -> dict[str, Any] | ApiError:
        """Send one copy of a call to one node."""
        body = self._without_unknown(endpoint, call)
        request = _Request(endpoint, call.method, call.path, body, timeout, patience)
        response = await self._send(request)
        self._look_around_soon()
        if response.status == 200:
            return _parse(response, endpoint)
        error = parse_api_error(response.status, response.body, response.headers.get("retry-after"))
        if error.reason == "UNKNOWN_FIELD":
            field = error.metadata.get("field", "")
            if (call.path, field) in _ADVISORY and field in body:
                self._unknown_fields[endpoint, field] = now_ns()
                return await self.once(endpoint, call, timeout, patience)
        if error.reason == "NO_SUCH_ROUTE":
            # That was the port for gRPC or for peers: the answer names the one for HTTP.
            moved = endpoint.at(error.metadata.get("http_address", ""))
            if moved is not None and self.directory.moved(endpoint, moved):
                _log.info("%s is not the port for HTTP: using %s", endpoint, moved)
                return await self.once(moved, call, timeout, patience)
        return error

    def _without_unknown(self, endpoint: Endpoint, call: Call) -> dict[str, Any]:
        if not self._unknown_fields:
            return call.body
        body = dict(call.body)
        for path, field in _ADVISORY:
            since = self._unknown_fields.get((endpoint, field))
            if path == call.path and since is not None:
                if now_ns() - since < _UNKNOWN_FIELD_NS:
                    body.pop(field, None)
                else:
                    del self._unknown_fields[endpoint, field]
        return body

    async def _send(self, request: _Request) -> Response:
        endpoint, begun_ns = request.endpoint, now_ns()
        connection = await self._connect(endpoint, request.patience or request.timeout)
        was_used = connection.is_used
        sent_ns = now_ns()
        try:
            response = await self._exchange(connection, request, sent_ns - begun_ns)
        except NoAnswer:
            # An idle connection may have been closed by the node meanwhile. The call is idempotent
            # by its request id, so a copy over a fresh connection does no harm.
            is_stale = was_used and connection.heard_ns < sent_ns and not connection.is_late
            if not is_stale:
                raise
            self.pool.forget(endpoint)
            try:
                connection = await self._connect(endpoint, request.patience or request.timeout)
            except NotSent as problem:
                raise NoAnswer(str(problem)) from problem  # the first copy was sent
            response = await self._exchange(connection, request, now_ns() - begun_ns)
        self.pool.give_back(connection)
        self._check_cluster(endpoint, response)
        return response

    async def _exchange(self, connection: Connection, request: _Request, spent_ns: int) -> Response:
        content = self._render(request.endpoint, request.method, request.path, request.body)
        left = max(0.001, request.timeout - spent_ns / SECOND)
        return await connection.request(request.method, content, left, request.patience)

    async def stream(
        self, endpoint: Endpoint, path: str, take: Callable[[bytes], None], timeout: float
    ) -> tuple[Connection, str]:
        """Open a stream of events. Its pieces go to `take` until the connection ends.

        Return the connection, and the revision up to which nothing is missing.
        """
        connection = await self._connect(endpoint, timeout)
        response = await connection.request(
            "GET", self._render(endpoint, "GET", path, {}), timeout, take=take
        )
        try:
            self._check_cluster(endpoint, response)
        except BaseException:
            connection.close()
            raise
        if response.status != 200:
            self.pool.give_back(connection)
            error = parse_api_error(response.status, response.body)
            self.take_in(error, endpoint)
            raise error.to_exception()
        return connection, response.headers.get("lowkey-revision", "")

    async def _connect(self, endpoint: Endpoint, timeout: float) -> Connection:
        context: ssl.SSLContext | None = None
        if endpoint.is_tls:
            context, is_new = self._credentials.context()
            if is_new:
                self.pool.forget(endpoint)
        return await self.pool.take(endpoint, context, timeout)

    def _render(self, endpoint: Endpoint, method: str, path: str, body: dict[str, Any]) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: {endpoint.authority}\r\n"
        token = self._credentials.token()
        if token is not None:
            head += f"Authorization: Bearer {token}\r\n"
        if method == "GET":
            return (head + "\r\n").encode("ascii")
        content = json.dumps(body, separators=(",", ":")).encode()
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        return head.encode("ascii") + content

    def _check_cluster(self, endpoint: Endpoint, response: Response) -> None:
        found = response.headers.get("lowkey-cluster")
        if found is None:
            # A proxy's own error is judged by its status. Anything else must say where it is from.
            if response.status == 200 or b'"reason"' in response.body:
                raise NoAnswer(f"{endpoint} answers without lowkey-cluster: is it a lowkey node?")
            return
        if self.cluster_id is None:
            self.cluster_id = found
        if found != self.cluster_id:
            raise WrongCluster(str(endpoint), self.cluster_id, found)
        self.directory.answered(endpoint)

    # Who leads.

    def _look_around_soon(self) -> None:
        if self._check is None and now_ns() - self._checked_ns >= _LEADER_CHECK_NS:
            self._checked_ns = now_ns()
            self._check = asyncio.ensure_future(self._look_around())

    async def _look_around(self) -> None:
        try:
            here = self.directory.current
            status = await self._status(here)
            if status is None:
                return
            members = [here.at(str(m.get("httpAddress"))) for m in status.get("members", [])]
            self.directory.learn([endpoint for endpoint in members if endpoint is not None])
            leader = here.at(str(status.get("leaderHttpAddress")))
            if status.get("isLeader") or leader is None or leader == here:
                return
            # It must be reachable from here, and of the same cluster.
            if (await self._status(leader) or {}).get("isLeader"):
                self.directory.prefer(leader)
        finally:
            self._check = None

    async def _status(self, endpoint: Endpoint) -> dict[str, Any] | None:
        try:
            request = _Request(endpoint, "GET", "/v1/status", {}, PATIENCE_SECONDS, None)
            response = await self._send(request)
            return _parse(response, endpoint) if response.status == 200 else None
        except (NotSent, NoAnswer, WrongCluster):
            return None

    def close(self) -> None:
        """Close all connections. Calls under way fail."""
        self.is_closed = True
        if self._check is not None:
            self._check.cancel()
        self.pool.close()


def _parse(response: Response, endpoint: Endpoint) -> dict[str, Any]:
    try:
        answer = json.loads(response.body)
    except ValueError:
        raise NoAnswer(f"{endpoint} answered with something that is not JSON") from None
    if not isinstance(answer, dict):
        raise NoAnswer(f"{endpoint} answered with something that is no JSON object")
    return cast("dict[str, Any]", answer)


class _Attempts:
    """What became of the copies of one call so far."""

    def __init__(self, call: Call, deadline_ns: int) -> None:
        self._call = call
        self._deadline_ns = deadline_ns
        self._backoff = Backoff()
        self._in_doubt = False
        self._problem: LowkeyError | None = None

    def not_sent(self, problem: str, is_last: bool = False) -> float:
        # A connection that the end of the time cut short says less than what was seen before.
        if not is_last or self._problem is None:
            self._problem = Unavailable(problem, False)
        return self._backoff.pause()

    def no_answer(self, problem: str) -> float:
        self._in_doubt |= self._call.changes
        self._problem = Unavailable(problem, self._in_doubt)
        return self._backoff.pause()

    def wrong_cluster(self, error: WrongCluster) -> float:
        self._problem = error
        return self._backoff.pause()

    def refused(self, error: ApiError, took_ns: int, is_wait: bool) -> float:
        """Return the pause before the next copy, or raise if there is to be none."""
        self._in_doubt |= error.outcome_unknown and self._call.changes
        self._problem = error.to_exception()
        if not error.retryable:
            raise Doubtful(self._problem, self._in_doubt)
        pause = self._backoff.pause(error.retry_after_seconds)
        # So far the outcome is certain. Another copy without enough time for its answer would make
        # it doubtful.
        again_ns = now_ns() + int(pause * SECOND)
        took_ns = 0 if is_wait else took_ns
        if self._call.changes and not self._in_doubt and again_ns + took_ns >= self._deadline_ns:
            raise Doubtful(self._problem, False)
        return pause

    def overdue(self) -> Doubtful:
        problem = self._problem or Unavailable("no answer in time", self._in_doubt)
        if isinstance(problem, WrongCluster) or not self._in_doubt or problem.outcome_unknown:
            return Doubtful(problem, self._in_doubt)
        # The last copy was not carried out. The fate of an earlier one is unknown.
        return Doubtful(Unavailable(str(problem), True, problem.reason), True)


def parse_endpoints(urls: str | list[str] | tuple[str, ...]) -> list[Endpoint]:
    """Read URLs, given as a list or as one text with commas."""
    texts = urls.split(",") if isinstance(urls, str) else list(urls)
    endpoints = [Endpoint.parse(text.strip()) for text in texts if text.strip()]
    if not endpoints:
        raise InvalidArgument("at least one endpoint is needed, such as http://127.0.0.1:8080")
    return list(dict.fromkeys(endpoints))


__all__ = [
    "Call",
    "Doubtful",
    "Link",
    "Refused",
    "get",
    "parse_endpoints",
    "request_id",
]
