"""What both dialects ask of the service in the same way: questions, and how answers are read."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any, Callable

from lowkey._link import Call, get, request_id
from lowkey._watch import Event, Holder, LeaderEvent, WatchCore
from lowkey.errors import InvalidArgument

TTL_MAX_SECONDS = 600


@dataclass(frozen=True)
class LockView:
    """Who holds a lock and how many wait for it, at some moment between question and answer."""

    name: str
    holders: tuple[Holder, ...]
    waiter_count: int
    covered_by: str
    """If nobody holds it: the name above it that is held with its subtree. Empty if none is."""
    revision: int

    @classmethod
    def parse(cls, answer: dict[str, Any]) -> LockView:
        """Read a lock as the service tells it."""
        return cls(
            name=str(answer.get("lockName", "")),
            holders=tuple(Holder.parse(holder) for holder in answer.get("holders", [])),
            waiter_count=int(answer.get("waiterCount", 0)),
            covered_by=str(answer.get("coveredBy", "")),
            revision=int(answer.get("revision", 0)),
        )


def check_ttl(ttl: float) -> int:
    """Return a time to live in whole seconds."""
    if not 1 <= ttl <= TTL_MAX_SECONDS or int(ttl) != ttl:
        raise InvalidArgument(f"ttl must be 1 to {TTL_MAX_SECONDS} whole seconds, not {ttl!r}")
    return int(ttl)


def get_lock(name: str) -> Call:
    """Ask who holds a lock."""
    if not name:
        raise InvalidArgument("a lock's name must not be empty")
    return get("/v1/lock", name=name)


def list_locks(prefix: str, page_token: str) -> Call:
    """Ask for a page of locks."""
    return get("/v1/locks", prefix=prefix, page_size=1000, page_token=page_token)


def leader(election: str) -> Call:
    """Ask who leads."""
    return get("/v1/election/leader", election=election)


def parse_leader(answer: dict[str, Any]) -> Holder | None:
    """Read who leads."""
    found = answer.get("leader")
    return Holder.parse(found) if isinstance(found, dict) else None


def release_lock(name: str, lease_id: int, token: int, actor: str) -> Call:
    """Release a grant of any lease, by its numbers."""
    if token < 1:
        raise InvalidArgument("0 is no fencing token: the grant's token is needed, from 1")
    ids = {"lease_id": str(lease_id), "fencing_token": str(token), "request_id": request_id()}
    return Call("POST", "/v1/lock/release", {"lock_name": name, "actor": actor, **ids})


def revoke_lease(lease_id: int, owner: str, actor: str) -> Call:
    """End a lease, with all that it holds."""
    ids = {"lease_id": str(lease_id), "owner_id": owner, "request_id": request_id()}
    return Call("POST", "/v1/lease/revoke", {"actor": actor, **ids})


def proclaim(election: str, owner: str, lease_id: int, token: int, value: str) -> Call:
    """Change what the others know of the leader."""
    ids = {"lease_id": str(lease_id), "fencing_token": str(token), "request_id": request_id()}
    body = {"election": election, "owner_id": owner, "value": value, **ids}
    return Call("POST", "/v1/election/proclaim", body)


def watch_parameters(name: str | None, prefix: str | None, after: str | None) -> dict[str, str]:
    """Return what a watch asks for."""
    if name is not None and prefix is not None:
        raise InvalidArgument("watch one name, or all names with a prefix, not both")
    asked = {"name": name, "prefix": prefix, "after": after}
    return {key: value for key, value in asked.items() if value}


def watch_core(link: Any, parameters: dict[str, str]) -> WatchCore[Event]:
    """Begin a watch. Engine's thread only."""
    return WatchCore(link, "/v1/watch", parameters, Event.parse, can_resume=True)


def observe_core(link: Any, election: str) -> WatchCore[LeaderEvent]:
    """Begin an observation. Engine's thread only."""
    path, parameters = "/v1/election/observe", {"election": election}
    return WatchCore(link, path, parameters, LeaderEvent.parse, can_resume=False)


def wants_guard(function: Callable[..., Any]) -> bool:
    """Tell whether a function has a parameter `guard`, to be given the guard."""
    return "guard" in inspect.signature(function).parameters


wraps = functools.wraps
