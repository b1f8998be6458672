"""Resources that refuse late writes: the half of a lock's promise that lives in the resource.

A holder that was paused for too long may write after its lock went to another. Only the resource
can refuse that, by the fencing token. It keeps two marks: the highest exclusive and the highest
shared token that it accepted. An exclusive token must be at least both, a shared one at least the
exclusive mark. What is accepted raises its own mark, in the same atomic step as the write.

**Claim before you read.** A new holder's first act is to present its token, before it reads
anything that its writes depend on. Or check, read and write in one transaction.

None of this talks to the lock service. Marks are kept for each resource, and you name the resource:
two locks that protect the same rows, such as a subtree and a name below it, present the same one.

```python
import sqlite3
from lowkey import fence

fence.install_sqlite(connection)                 # once
with fence.sqlite(connection, "accounts", guard.token):
    connection.execute("UPDATE account SET balance = balance - 10")
```

A `StaleToken` means: another holds the lock by now. Stop, and do not retry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from lowkey.errors import InvalidArgument, LowkeyError

__all__ = ["RedisFence", "StaleToken", "install_sqlite", "mysql", "postgres", "sqlite"]

_TOKEN_MAX = (1 << 63) - 1
_STALE_STATE = "LK001"


class StaleToken(LowkeyError):
    """The resource has accepted a higher token: your lock is gone. Stop, do not retry."""

    reason = "STALE_TOKEN"

    def __init__(
        self, resource: str, token: int, exclusive: int | None, shared: int | None
    ) -> None:
        marks = "a higher one"
        if exclusive is not None and shared is not None:
            marks = f"exclusive {exclusive} and shared {shared}"
        super().__init__(
            f"{resource} refused token {token}, since it has accepted {marks}: "
            "your lock is gone: stop, do not retry"
        )
        self.resource = resource
        self.token = token
        self.exclusive = exclusive
        self.shared = shared


def _check(resource: str, token: int) -> None:
    if not 1 <= len(resource.encode()) <= 512:
        raise InvalidArgument("the name of a resource must have 1 to 512 bytes")
    if isinstance(token, bool) or not isinstance(token, int) or not 1 <= token <= _TOKEN_MAX:
        raise InvalidArgument(f"a fencing token is a whole number from 1, not {token!r}")


# SQLite.

_SQLITE_TABLE = """
CREATE TABLE IF NOT EXISTS lowkey_fence (
    resource  TEXT    NOT NULL PRIMARY KEY,
    exclusive INTEGER NOT NULL,
    shared    INTEGER NOT NULL
)
"""

# One statement: it raises the mark if the token is accepted, and changes nothing otherwise.
_SQLITE_PRESENT = """
INSERT INTO lowkey_fence AS kept (resource, exclusive, shared)
VALUES (
    :resource,
    CASE WHEN :shared THEN 0 ELSE :token END,
    CASE WHEN :shared THEN :token ELSE 0 END
)
ON CONFLICT (resource) DO UPDATE SET
    exclusive = CASE WHEN :shared THEN kept.exclusive ELSE :token END,
    shared = CASE WHEN :shared THEN max(kept.shared, :token) ELSE kept.shared END
WHERE :token >= kept.exclusive AND (:shared OR :token >= kept.shared)
"""


def install_sqlite(connection: Any) -> None:
    """Create the table of marks in a SQLite database, if it is missing.

    `lowkey fence sql sqlite` prints the same table, with a view for programs without this package.
    """
    connection.execute(_SQLITE_TABLE)


@contextlib.contextmanager
def sqlite(connection: Any, resource: str, token: int, shared: bool = False) -> Iterator[Any]:
    """Begin an immediate transaction, present the token in it, and commit at the end of the block.

    Check, read and write are one step: SQLite has one writer at a time, from `BEGIN IMMEDIATE` on.
    An empty block is a claim. The connection must not be in a transaction already.

    Raises `StaleToken`, with nothing changed, if the token is refused.
    """
    _check(resource, token)
    if connection.in_transaction:
        raise InvalidArgument("the connection is in a transaction: commit or roll back first")
    connection.execute("BEGIN IMMEDIATE")
    try:
        values = {"resource": resource, "token": token, "shared": shared}
        if connection.execute(_SQLITE_PRESENT, values).rowcount != 1:
            marks = connection.execute(
                "SELECT exclusive, shared FROM lowkey_fence WHERE resource = ?", (resource,)
            ).fetchone()
            raise StaleToken(resource, token, *(marks or (None, None)))
        yield connection
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


# Databases behind a server: the function is installed by `lowkey fence sql postgres|mysql`.


def postgres(connection: Any, resource: str, token: int, shared: bool = False) -> None:
    """Present a token to PostgreSQL, as the first statement of the writing transaction.

    `connection` is a connection or cursor of psycopg or another DB-API driver, not in autocommit
    mode. The row of the resource stays locked until the transaction ends, so check and write are
    one step. A claim is this and a commit.

    Raises `StaleToken` if the token is refused; the transaction is then aborted: roll it back.
    """
    _call(connection, "SELECT lowkey_fence(%s, %s, %s)", resource, token, shared)


def mysql(connection: Any, resource: str, token: int, shared: bool = False) -> None:
    """Present a token to MySQL or MariaDB; see `postgres`. Roll back after a `StaleToken`."""
    _call(connection, "CALL lowkey_fence(%s, %s, %s)", resource, token, shared)


def _call(connection: Any, statement: str, resource: str, token: int, shared: bool) -> None:
    _check(resource, token)
    if getattr(connection, "autocommit", False) is True:
        raise InvalidArgument(
            "in autocommit mode the check and the write would be two transactions: "
            "open one transaction for both"
        )
    cursor = connection.cursor() if hasattr(connection, "cursor") else connection
    try:
        cursor.execute(statement, (resource, token, bool(shared)))
    except Exception as error:
        if _sql_state(error) != _STALE_STATE:
            raise
        detail = getattr(getattr(error, "diag", None), "message_detail", None) or str(error)
        raise StaleToken(
            resource, token, _mark(detail, "exclusive="), _mark(detail, "shared=")
        ) from error


def _sql_state(error: Exception) -> str | None:
    for name in ("sqlstate", "pgcode"):  # psycopg 3 and MySQL's own driver; psycopg 2
        state = getattr(error, name, None)
        if isinstance(state, str):
            return state
    return _STALE_STATE if "STALE_TOKEN" in str(error) else None  # drivers that do not tell


def _mark(detail: str, name: str) -> int | None:
    digits = ""
    for character in detail.partition(name)[2]:
        if not character.isdigit():
            break
        digits += character
    return int(digits) if digits else None


# Redis.

# Tokens are compared as decimal text: numbers in Lua are exact only up to 2^53.
_REDIS_SCRIPT = """
local token, shared = ARGV[1], ARGV[2] == 'shared'
local function below(one, other)
    if #one ~= #other then return #one < #other end
    return one < other
end
local kept = redis.call('HMGET', KEYS[1], 'exclusive', 'shared')
local exclusive_mark, shared_mark = kept[1] or '0', kept[2] or '0'
if below(token, exclusive_mark) or (not shared and below(token, shared_mark)) then
    return {0, exclusive_mark, shared_mark}
end
if not shared then
    redis.call('HSET', KEYS[1], 'exclusive', token)
elseif below(shared_mark, token) then
    redis.call('HSET', KEYS[1], 'shared', token)
end
local function write(KEYS, ARGV)
    --WRITE--
end
local keys, arguments = {}, {}
for number = 2, #KEYS do keys[number - 1] = KEYS[number] end
for number = 3, #ARGV do arguments[number - 2] = ARGV[number] end
return {1, (write(keys, arguments))}
"""


class RedisFence:
    """A resource in Redis: keys that one lock protects. `client` is a `redis.Redis`.

    **It forgets at a failover.** Redis replicates asynchronously: a replica that takes over may not
    have seen the last marks, nor the last writes, and then accepts a token that the old primary
    would have refused. Where that must not happen, keep the marks in a database.

    The server must not evict keys without a time to live. Keys must lie in the slot of the marks:
    make them with `key`.
    """

    def __init__(self, client: Any, resource: str) -> None:
        _check(resource, 1)
        if "{" in resource or "}" in resource:
            raise InvalidArgument("the name of a resource in Redis must have no braces")
        self._client = client
        self.resource = resource
        self.marks_key = f"lowkey:fence:{{{resource}}}"

    def key(self, name: str) -> str:
        """Return a key in the same slot as the marks."""
        return f"{{{self.resource}}}:{name}"

    def claim(self, token: int, shared: bool = False) -> None:
        """Present the token before anything is read. From now on no earlier holder writes."""
        self.write(token, "", shared=shared)

    def set(self, token: int, key: str, value: Any, shared: bool = False) -> None:
        """Set a key, if the token is accepted."""
        self.write(token, "redis.call('SET', KEYS[1], ARGV[1])", [key], [value], shared=shared)

    def write(
        self,
        token: int,
        body: str,
        keys: list[str] | None = None,
        arguments: list[Any] | None = None,
        shared: bool = False,
    ) -> Any:
        """Run a write in Lua, if the token is accepted, in one step with the check.

        It sees its own `KEYS` and `ARGV`; what it returns is returned. If it fails half-way, Redis
        keeps what was written until then, and the mark stays raised.
        """
        _check(self.resource, token)
        keys = [self.marks_key, *(keys or [])]
        values = [str(token), "shared" if shared else "exclusive", *(arguments or [])]
        script = _REDIS_SCRIPT.replace("--WRITE--", body)
        answer = self._client.eval(script, len(keys), *keys, *values)
        if int(answer[0]) == 1:
            return answer[1] if len(answer) > 1 else None
        raise StaleToken(self.resource, token, int(answer[1]), int(answer[2]))
