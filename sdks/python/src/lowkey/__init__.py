"""Locks and leader election by lowkey, with leases that are counted for you.

```python
from lowkey import Client

with Client(["http://127.0.0.1:8080"]).session(ttl=10) as s, s.lock("x", timeout=5) as g:
    print("held, with token", g.token)
    g.check()  # raises LockLost if it is not held any more
```

- `Client`: a way to a cluster. `Client.session` begins a session.
- `Session`: a lease, renewed in the background. `Session.lock` acquires a lock.
- `Guard`: a lock that is held: `token`, `held`, `check`, `on_lost`, `release`.
- `Election`: campaigns again and again; `Leadership` is one term.
- `Watch`: changes of locks, or of who leads.
- `lowkey.aio`: the same for asyncio.
- `lowkey.fence`: resources that refuse late writes.
- `lowkey.errors`: what can go wrong, and what that means.
"""

from __future__ import annotations

from lowkey._belief import LossCause
from lowkey._client import Client, Guard, Session, Watch
from lowkey._election import Election, Leadership
from lowkey._views import LockView
from lowkey._watch import Event, Holder, LeaderEvent
from lowkey.errors import (
    HeldBy,
    InvalidArgument,
    LockHeld,
    LockLost,
    LowkeyError,
    Refused,
    SessionLost,
    Unavailable,
    WaitTimeout,
    WrongCluster,
)

__version__ = "1.0.0rc1"

__all__ = [
    "Client",
    "Election",
    "Event",
    "Guard",
    "HeldBy",
    "Holder",
    "InvalidArgument",
    "LeaderEvent",
    "Leadership",
    "LockHeld",
    "LockLost",
    "LockView",
    "LossCause",
    "LowkeyError",
    "Refused",
    "Session",
    "SessionLost",
    "Unavailable",
    "WaitTimeout",
    "Watch",
    "WrongCluster",
    "__version__",
]
