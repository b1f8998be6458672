"""The keeper: renews every lease of a client, and notices when one is lost.

A lease is renewed when a third of its time to live has passed. Only the client's own clock counts;
each acknowledgement is credited to the moment before its own request was sent. A session whose
validity has run out is lost at that moment, whether or not any node answers.
"""

from __future__ import annotations

import asyncio
import heapq
import weakref
from typing import TYPE_CHECKING, Any

from lowkey._belief import GrantView, LossCause
from lowkey._clock import MILLISECOND, SECOND, now_ns
from lowkey._http import NoAnswer, NotSent
from lowkey._link import Call, Doubtful, Link, get
from lowkey._retry import up_to
from lowkey.errors import ApiError, Unavailable, WrongCluster

if TYPE_CHECKING:
    from lowkey._presence import Grant, Presence

# The clock is read at least this often, because it may have gone on while timers stood still.
_LOOK_NS = 100 * MILLISECOND
# How soon a failed renewal is tried again, at most.
_AGAIN_NS = 100 * MILLISECOND
# How many renewals are under way at once. Each has a connection for itself: as long as nodes answer
# soon, a few are enough. More of them would not help a cluster that is overloaded.
_UNDER_WAY_MAX = 64
_PAGE_SIZE = 1000


class _Kept:
    """What the keeper knows of one lease."""

    def __init__(self, presence: Presence) -> None:
        self.presence = presence
        self.is_under_way = False
        self.is_read = False
        self.silences = 0  # renewals in a row that no node answered
        self.planned_ns = 0

    @property
    def ttl_ns(self) -> int:
        return self.presence.validity.ttl_seconds * SECOND

    def patience_seconds(self) -> float:
        """Return how long a node may say nothing at all: longer each time, for slow networks."""
        base = min(max(self.ttl_ns // 6, 150 * MILLISECOND), 1_000 * MILLISECOND)
        return min(base << min(self.silences, 4), self.ttl_ns // 3) / SECOND

    def again_ns(self) -> int:
        """Return when to try again after a failure."""
        bound_ns = min(_AGAIN_NS << min(self.silences, 4), self.ttl_ns // 10)
        return now_ns() + int(up_to(bound_ns))


class Keeper:
    """Renewals of all leases of a client. Used on the engine's thread only.

    Invariant: `_due` has an entry for each lease at its `planned_ns`, and `_ends` one at or before
    the end of its validity. Both may have others, which are ignored.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._kept: dict[int, _Kept] = {}
        self._due: list[tuple[int, int]] = []
        self._ends: list[tuple[int, int]] = []
        self._limits: list[tuple[int, int, weakref.ref[Grant]]] = []
        self._under_way = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.latest_ns = 0
        """How late the latest renewal was sent, beyond a third of the time to live."""

    def keep(self, presence: Presence) -> None:
        """Keep a lease alive until it is lost or forgotten."""
        kept = _Kept(presence)
        self._kept[presence.lease_id] = kept
        made_ns = presence.validity.valid_until_ns - kept.ttl_ns // 10 * 9
        heapq.heappush(self._ends, (presence.validity.valid_until_ns, presence.lease_id))
        self._plan(kept, made_ns + kept.ttl_ns // 3)
        self._arm(0)

    def limit(self, grant: Grant) -> None:
        """End belief in a grant when its own time is over, if it has a limit."""
        if grant.limit_ns is not None:
            heapq.heappush(self._limits, (grant.limit_ns, grant.token, weakref.ref(grant)))
            self._arm(0)

    def forget(self, lease_id: int) -> None:
        """Stop keeping a lease."""
        self._kept.pop(lease_id, None)

    def close(self) -> None:
        """Stop everything."""
        self._kept.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _plan(self, kept: _Kept, at_ns: int) -> None:
        kept.planned_ns = at_ns
        heapq.heappush(self._due, (at_ns, kept.presence.lease_id))

    def _arm(self, pause_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(pause_ns / SECOND, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = now_ns()
        self._end_overdue(now)
        self._renew_due(now)
        if not self._kept:
            self._due.clear()
            self._ends.clear()
            self._limits.clear()  # their leases are lost
            return
        next_ns = now + _LOOK_NS
        if self._limits:
            next_ns = min(next_ns, self._limits[0][0])
        if self._ends:
            next_ns = min(next_ns, self._ends[0][0])
        if self._due and self._under_way < _UNDER_WAY_MAX:
            next_ns = min(next_ns, self._due[0][0])
        self._arm(max(MILLISECOND, next_ns - now_ns()))

    def _end_overdue(self, now: int) -> None:
        while self._limits and self._limits[0][0] <= now:
            grant = heapq.heappop(self._limits)[2]()
            if grant is not None:
                grant.outlive()
        while self._ends and self._ends[0][0] <= now:
            _, lease_id = heapq.heappop(self._ends)
            kept = self._kept.get(lease_id)
            if kept is None:
                continue
            if kept.presence.validity.is_valid():
                # Renewed since the entry was made.
                heapq.heappush(self._ends, (kept.presence.validity.valid_until_ns, lease_id))
            else:
                self.forget(lease_id)
                kept.presence.lose(LossCause.EXPIRED)

    def _renew_due(self, now: int) -> None:
        while self._due and self._due[0][0] <= now and self._under_way < _UNDER_WAY_MAX:
            at_ns, lease_id = heapq.heappop(self._due)
            kept = self._kept.get(lease_id)
            if kept is None or kept.is_under_way or kept.planned_ns != at_ns:
                continue
            kept.is_under_way = True
            self._under_way += 1
            self._start(self._renew(kept))

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _renew(self, kept: _Kept) -> None:
        sent_ns = now_ns()
        if kept.silences == 0:
            self.latest_ns = max(self.latest_ns, sent_ns - kept.planned_ns)
        presence = kept.presence
        holds = presence.beliefs.holds()
        told = {"count": holds.count, "digest": str(holds.digest)}
        body = {"lease_id": str(presence.lease_id), "holds": told}
        endpoint = self._link.directory.pick()
        again_ns = sent_ns + _AGAIN_NS
        try:
            answer = await self._link.once(
                endpoint,
                Call("POST", "/v1/lease/renew", body, changes=False),
                kept.ttl_ns / 3 / SECOND,
                kept.patience_seconds(),
            )
        except (NotSent, NoAnswer):
            kept.silences += 1
            self._link.directory.failed(endpoint)
            again_ns = kept.again_ns()
        except WrongCluster:
            self._link.directory.is_foreign(endpoint)
            again_ns = kept.again_ns()
        else:
            kept.silences = 0
            if isinstance(answer, ApiError):
                self._link.take_in(answer, endpoint)
            again_ns = self._take_in(kept, sent_ns, answer)
        finally:
            # Also after an error that nobody thought of: a lease is never forgotten silently.
            kept.is_under_way = False
            self._under_way -= 1
            if self._kept.get(presence.lease_id) is kept:
                self._plan(kept, again_ns)
                self._arm(0)

    def _take_in(self, kept: _Kept, sent_ns: int, answer: dict[str, Any] | ApiError) -> int:
        """Take in the answer to a renewal. Return when to send the next one."""
        presence = kept.presence
        if isinstance(answer, ApiError):
            if answer.reason == "LEASE_NOT_FOUND":
                self.forget(presence.lease_id)
                presence.lose(LossCause.GONE)
            return kept.again_ns()
        if not presence.validity.renewed(sent_ns):
            self.forget(presence.lease_id)
            presence.lose(LossCause.EXPIRED)
        elif answer.get("holdsDiffer"):
            self._read_soon(kept)
        return sent_ns + kept.ttl_ns // 3

    # What the lease holds, if that is something else than is believed.

    def _read_soon(self, kept: _Kept) -> None:
        if not kept.is_read:
            kept.is_read = True
            self._start(self._read(kept))

    async def _read(self, kept: _Kept) -> None:
        presence = kept.presence
        believed = presence.beliefs.tokens()
        deadline_ns = now_ns() + kept.ttl_ns // 2
        try:
            grants = await read_grants(self._link, presence.lease_id, deadline_ns)
        except Doubtful as doubtful:
            # If the lease could not be read, the next renewal tells of the difference again.
            if doubtful.error.reason == "LEASE_NOT_FOUND":
                self.forget(presence.lease_id)
                presence.lose(LossCause.GONE)
            return
        finally:
            kept.is_read = False
        presence.compare(believed, grants)


async def read_grants(link: Link, lease_id: int, deadline_ns: int) -> list[GrantView]:
    """Read everything that a lease holds, page by page."""
    grants: list[GrantView] = []
    page_token = ""
    while True:
        question = get("/v1/lease", lease_id=lease_id, page_size=_PAGE_SIZE, page_token=page_token)
        page = await link.call(question, deadline_ns)
        try:
            for grant in page.get("grants", []):
                token, name = int(grant["fencingToken"]), str(grant["lockName"])
                grants.append(GrantView(name, token, str(grant.get("acquireRequestId", ""))))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise Doubtful(Unavailable("the answer has no grants", False), False) from None
        page_token = str(page.get("nextPageToken", ""))
        if not page_token:
            return grants
