"""Elections with callbacks, for programs that block."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Callable

from lowkey import _views
from lowkey._belief import LossCause
from lowkey._core import Wish
from lowkey._engine import Operation
from lowkey._handles import LeadershipHandle
from lowkey._retry import Backoff
from lowkey.errors import LockLost, LowkeyError, SessionLost

if TYPE_CHECKING:
    from lowkey._client import Client, Guard, Session

_log = logging.getLogger("lowkey")


class Leadership(LeadershipHandle):
    """A term of office: what the callback of an election is given."""

    def __init__(self, election: Election, guard: Guard) -> None:
        self._election = election
        self._guard = guard
        self.guard = guard
        """The lock behind it."""

    @property
    def active(self) -> bool:
        """Whether you lead, and nobody has asked the election to stop."""
        return self.held and not self._election.is_stopping

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lead is lost or the election is to stop. Return whether it still goes on.

        For a pause between two steps of work, or without a timeout for a leader that only is one.
        """
        if self.active:
            self._election.wake.wait(timeout)
        return self.active

    def proclaim(self, value: str) -> None:
        """Change the value that tells others about the leader."""
        guard = self.guard
        client = guard.session._client
        client._ask(_views.proclaim(guard.name, client.owner, guard.lease_id, guard.token, value))


class Election:
    """Stands for an election, again and again, each time over a new session. `Client.elect`."""

    def __init__(self, client: Client, name: str, value: str, ttl: float) -> None:
        self._client = client
        self.name = name
        self._value = value
        self._ttl = _views.check_ttl(ttl)
        self._is_stopping = threading.Event()
        self.wake = threading.Event()
        """Set when the present term ends, or the election is to stop."""
        self._campaign: Operation[Any] | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None
        """What the callback raised in the background, if it did."""

    @property
    def is_stopping(self) -> bool:
        """Whether the election is to stop."""
        return self._is_stopping.is_set()

    def run(self, lead: Callable[[Leadership], Any]) -> None:
        """Campaign, call `lead` when elected, and campaign again when it returns; until `stop`.

        `lead` should return soon after `Leadership.active` is false. When it returns, the lead is
        given up. If it raises, the lead is given up, and this raises the same; but a `LockLost`
        only means that the term is over.
        """
        backoff = Backoff()
        while not self.is_stopping:
            try:
                with self._client.session(self._ttl) as session:
                    guard = self._stand(session)
                    backoff = Backoff()
                    with guard:
                        self._serve(guard, lead)
            except (LockLost, SessionLost):
                _log.info("election %s: the lead is lost; campaigning again", self.name)
            except LowkeyError as error:
                if not error.retryable:
                    if self.is_stopping:
                        return
                    raise
                _log.info("election %s: %s; trying again", self.name, error)
                self._is_stopping.wait(backoff.pause())

    def _stand(self, session: Session) -> Guard:
        with self._lock:
            asking = session._ask_lock(Wish.make(self.name, None, False, False, self._value))
            self._campaign = asking
            if self.is_stopping:
                asking.abandon()
        try:
            return session._guard_of(asking)
        finally:
            self._campaign = None

    def _serve(self, guard: Guard, lead: Callable[[Leadership], Any]) -> None:
        self.wake.clear()
        guard._grant.signal.listen(self._wake_up)
        if self.is_stopping:
            return
        lead(Leadership(self, guard))

    def _wake_up(self, _: LossCause) -> None:
        self.wake.set()

    def start(self, lead: Callable[[Leadership], Any]) -> Election:
        """Do the same as `run`, on a thread of its own. `stop` ends it and waits for it."""

        def work() -> None:
            try:
                self.run(lead)
            except BaseException as error:
                self.error = error
                _log.exception("election %s ended", self.name)

        self._thread = threading.Thread(target=work, name=f"lowkey-{self.name}", daemon=True)
        self._thread.start()
        return self

    def stop(self, timeout: float | None = None) -> None:
        """Give up the candidacy or the lead, and end. Waits for `lead` to return."""
        with self._lock:
            self._is_stopping.set()
            self.wake.set()
            if self._campaign is not None:
                self._campaign.abandon()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def __enter__(self) -> Election:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
