"""What can go wrong, and what that means for the caller.

Decide by the class, by `reason`, `retryable` and `outcome_unknown`, never by the text.

```text
LowkeyError
├── LockHeld            another holds the lock, and you did not want to wait
├── WaitTimeout         another held it for as long as you wanted to wait (also a TimeoutError)
├── LockLost            the lock that you held is lost: stop
├── SessionLost         the session is lost, and all that it held
├── Refused             the service refused for another reason
├── Unavailable         no node answered in time (also a ConnectionError)
├── WrongCluster        an endpoint belongs to another cluster
└── InvalidArgument     an argument is not valid (also a ValueError)
```
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lowkey._belief import LossCause

__all__ = [
    "HeldBy",
    "InvalidArgument",
    "LockHeld",
    "LockLost",
    "LowkeyError",
    "Refused",
    "SessionLost",
    "Unavailable",
    "WaitTimeout",
    "WrongCluster",
]

# Nothing was done, and the same request may succeed later or on another node.
_RETRY = frozenset(
    {
        "NODE_REMOVED",
        "NODE_STOPPING",
        "NODE_DIVERGED",
        "NO_LEADER",
        "NO_QUORUM",
        "UPGRADE_UNDER_WAY",
        "RECOVERING",
        "LIMIT_BUSY",
        "LIMIT_IN_FLIGHT",
        "LIMIT_STREAMS",
        "LIMIT_MEMORY",
        "LIMIT_CONNECTIONS",
        "LIMIT_DISK",
    }
)
# Nothing was done, and the same request would be refused again.
_FINAL = frozenset(
    {
        "LEASE_NOT_FOUND",
        "LOCK_NOT_FOUND",
        "LOCK_HELD",
        "WAIT_TIMEOUT",
        "WAIT_CANCELLED",
        "STALE_TOKEN",
        "ALREADY_HELD",
        "NODE_NOT_FOUND",
        "QUORUM_AT_RISK",
        "TRANSFER_FAILED",
        "NODE_NAME_TAKEN",
        "NODE_TOO_OLD",
        "NOT_OWNER",
        "COMPACTED",
        "LIMIT_LEASES",
        "LIMIT_MEMBERS",
        "LIMIT_LOCKS_PER_LEASE",
        "LIMIT_WAITERS",
        "UNKNOWN_FIELD",
        "FOREIGN_ORIGIN",
        "FOREIGN_HOST",
        "NO_SUCH_ROUTE",
        "METHOD_NOT_ALLOWED",
        "BODY_TOO_LARGE",
    }
)


@dataclass(frozen=True)
class HeldBy:
    """The holder of a lock that you do not get."""

    name: str
    """What is held: the lock itself, a subtree above it, or something below it."""
    owner: str
    """The holder, as it names itself."""
    lease_id: int
    fencing_token: int
    since_unix_ms: int = 0
    """By the clock of the node that granted it: for display only."""
    waiters: int = 0

    def __str__(self) -> str:
        return (
            f"{self.name} is held by {self.owner} with lease {self.lease_id} "
            f"and token {self.fencing_token}, {self.waiters} waiting"
        )


class LowkeyError(Exception):
    """Any error of this package."""

    reason: str | None = None
    """The service's own reason, such as `LOCK_HELD`, if the service gave one."""
    retryable: bool = False
    """Whether the same call may succeed if it is made again."""
    outcome_unknown: bool = False
    """Whether the call may have been carried out although it failed."""


class LockHeld(LowkeyError):
    """Another client holds the lock, and you did not want to wait."""

    reason = "LOCK_HELD"
    retryable = True

    def __init__(self, message: str, held_by: HeldBy | None) -> None:
        super().__init__(message)
        self.held_by = held_by


class WaitTimeout(LowkeyError, TimeoutError):
    """Another client held the lock for as long as you wanted to wait."""

    reason = "WAIT_TIMEOUT"
    retryable = True

    def __init__(self, message: str, held_by: HeldBy | None = None) -> None:
        super().__init__(message)
        self.held_by = held_by


class LockLost(LowkeyError):
    """The lock is lost: stop what you do under it.

    That does not mean that nothing was written. Only the resource knows, by the token.
    """

    def __init__(self, name: str, token: int, cause: LossCause) -> None:
        super().__init__(f"lock {name} (token {token}) is lost: {cause}")
        self.name = name
        self.token = token
        self.cause = cause


class SessionLost(LowkeyError):
    """The session is lost, and with it everything that it held."""

    def __init__(self, lease_id: int, cause: LossCause) -> None:
        super().__init__(f"the session with lease {lease_id} is lost: {cause}")
        self.lease_id = lease_id
        self.cause = cause
        self.reason = "LEASE_NOT_FOUND" if cause is LossCause.GONE else None


class Refused(LowkeyError):
    """The service refused; `reason` says why, and `metadata` has the particulars."""

    def __init__(self, answer: ApiError) -> None:
        super().__init__(answer.message)
        self.reason = answer.reason
        self.retryable = answer.retryable
        self.outcome_unknown = answer.outcome_unknown
        self.status = answer.status
        self.metadata = dict(answer.metadata)


class Unavailable(LowkeyError, ConnectionError):
    """No node answered in time; `outcome_unknown` tells whether it may have been done."""

    retryable = True

    def __init__(self, problem: str, outcome_unknown: bool, reason: str | None = None) -> None:
        if outcome_unknown:
            super().__init__(f"no clear answer, and it may have been done: {problem}")
        else:
            super().__init__(f"the service does not answer, nothing was done: {problem}")
        self.outcome_unknown = outcome_unknown
        self.reason = reason


class WrongCluster(LowkeyError):
    """An endpoint belongs to another cluster than the one that this client began with."""

    def __init__(self, endpoint: str, expected: str, found: str) -> None:
        super().__init__(
            f"{endpoint} belongs to cluster {found}, and this client began with {expected}: "
            "locks of one mean nothing in the other"
        )
        self.endpoint = endpoint
        self.expected = expected
        self.found = found


class InvalidArgument(LowkeyError, ValueError):
    """An argument is not valid; the text says what is allowed."""


@dataclass(frozen=True)
class ApiError:
    """An error as the service tells it over HTTP."""

    status: int
    reason: str | None
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_seconds: float = 0.0

    @property
    def retryable(self) -> bool:
        """Whether to ask again, with the same request id."""
        if self.reason in _RETRY or self.reason == "OUTCOME_UNKNOWN":
            return True
        return not self._is_known and (self.status == 429 or self.status >= 500)

    @property
    def outcome_unknown(self) -> bool:
        """Whether it may have been done."""
        if self.reason in ("OUTCOME_UNKNOWN", "INTERNAL"):
            return True
        return not self._is_known and self.status >= 500

    @property
    def _is_known(self) -> bool:
        reason = self.reason
        if reason is None:
            return False
        known = reason in _RETRY or reason in _FINAL or reason.startswith("INVALID_")
        return known or reason in ("OUTCOME_UNKNOWN", "INTERNAL")

    def held_by(self) -> HeldBy | None:
        """Return the holder, as far as is known."""
        name = self.metadata.get("held_name") or self.metadata.get("lock_name")
        owner = self.metadata.get("owner_id")
        if name is None or owner is None:
            return None
        return HeldBy(
            name=name,
            owner=owner,
            lease_id=self._number("lease_id"),
            fencing_token=self._number("fencing_token"),
            since_unix_ms=self._number("since_unix_ms"),
            waiters=self._number("waiters"),
        )

    def _number(self, key: str) -> int:
        text = self.metadata.get(key, "")
        return int(text) if text.isdigit() else 0

    def to_exception(self) -> LowkeyError:
        """Return the exception that a caller gets."""
        held_by = self.held_by()
        if self.reason == "LOCK_HELD":
            return LockHeld(self.message, held_by)
        if self.reason == "WAIT_TIMEOUT":
            return WaitTimeout(self.message, held_by)
        return Refused(self)


def parse_api_error(status: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """Read an error answer. What is not of the service, as a proxy's page, has no reason."""
    try:
        answer = json.loads(body)
        reason = answer["reason"]
        message = answer["message"]
        metadata = _metadata(answer.get("details"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ApiError(status, None, f"HTTP status {status}: {_excerpt(body)}")
    if not isinstance(reason, str) or not isinstance(message, str):
        return ApiError(status, None, f"HTTP status {status}: {_excerpt(body)}")
    hint = _retry_delay(answer.get("details"))
    if hint is None and retry_after is not None and retry_after.isdigit():
        hint = float(retry_after)
    return ApiError(status, reason, message, metadata, hint or 0.0)


def _metadata(details: Any) -> dict[str, str]:
    for detail in details or ():
        found = detail.get("metadata")
        if isinstance(found, dict):
            return {str(key): str(value) for key, value in found.items()}
    return {}


def _retry_delay(details: Any) -> float | None:
    for detail in details or ():
        delay = detail.get("retryDelay")
        if isinstance(delay, str) and delay.endswith("s"):
            try:
                return max(0.0, float(delay[:-1]))
            except ValueError:
                return None
    return None


def _excerpt(body: bytes) -> str:
    text = body[:200].decode("utf-8", "replace")
    return " ".join(text.split()) or "an empty answer"
