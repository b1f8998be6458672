"""The driver of the Python SDK, as `conformance/DRIVER.md` describes it.

It does with `lowkey.aio` what it is told on standard input, and says what the SDK answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

import lowkey
from lowkey import aio
from lowkey._clock import now_ns

Command = dict[str, Any]
Answer = dict[str, Any]


class DriverError(Exception):
    """The command itself is wrong."""


def say(line: dict[str, Any]) -> None:
    """Write one line. Any thread may."""
    text = json.dumps({key: value for key, value in line.items() if value is not None})
    with _writing:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


_writing = threading.Lock()


def describe(error: BaseException) -> dict[str, Any]:
    """Put an error into the words of the protocol."""
    kinds: list[tuple[type[BaseException], str]] = [
        (asyncio.CancelledError, "cancelled"),
        (DriverError, "driver"),
        (lowkey.LockHeld, "held"),
        (lowkey.WaitTimeout, "wait_timeout"),
        (lowkey.SessionLost, "session_lost"),
        (lowkey.LockLost, "lost"),
        (lowkey.WrongCluster, "wrong_cluster"),
        (lowkey.InvalidArgument, "invalid"),
        (lowkey.Unavailable, "unavailable"),
        (lowkey.Refused, "refused"),
    ]
    kind = next((kind for known, kind in kinds if isinstance(error, known)), "driver")
    found: dict[str, Any] = {"kind": kind, "message": str(error) or repr(error)}
    found["outcome_unknown"] = bool(getattr(error, "outcome_unknown", False))
    cause = getattr(error, "cause", None)
    if isinstance(cause, lowkey.LossCause):
        found["cause"] = cause.value
    reason = getattr(error, "reason", None)
    if reason is not None:
        found["reason"] = reason
    return found


OPS = frozenset(
    [
        "client.new",
        "client.close",
        "session.new",
        "session.status",
        "session.close",
        "lock.acquire",
        "lock.held",
        "lock.check",
        "lock.probe",
        "lock.release",
        "lock.get",
        "cancel",
        "watch.new",
        "watch.close",
        "elect.new",
        "elect.stop",
        "observe.new",
        "exit",
    ]
)


class Driver:
    """All that was made, by its handle, and the commands under way."""

    def __init__(self) -> None:
        self.clients: dict[str, aio.Client] = {}
        self.sessions: dict[str, aio.Session] = {}
        self.locks: dict[str, aio.Guard] = {}
        self.streams: dict[str, asyncio.Task[None]] = {}
        self.elections: dict[str, asyncio.Task[None]] = {}
        self.under_way: dict[int, asyncio.Task[None]] = {}

    def take(self, line: str) -> None:
        """Begin a command."""
        try:
            command = json.loads(line)
            number = int(command["id"])
            work = getattr(self, str(command["op"]).replace(".", "_"), None)
        except (ValueError, KeyError, TypeError) as error:
            say({"event": "driver.error", "message": f"no command: {error!r}"})
            return
        task = asyncio.ensure_future(self.carry_out(number, command, work))
        self.under_way[number] = task

    async def carry_out(
        self, number: int, command: Command, work: Callable[[Command], Awaitable[Answer]] | None
    ) -> None:
        """Carry out a command, and answer it."""
        try:
            if work is None or command["op"] not in OPS:
                raise DriverError(f"unknown op {command['op']!r}")
            answer = await work({key: value for key, value in command.items() if value is not None})
            say({"id": number, "ok": answer})
        except KeyError as error:
            say({"id": number, "error": describe(DriverError(f"unknown or missing: {error}"))})
        except BaseException as error:
            say({"id": number, "error": describe(error)})
        finally:
            self.under_way.pop(number, None)

    # Clients and sessions.

    async def client_new(self, command: Command) -> Answer:
        """Make a client."""
        handle = fresh(self.clients, command["client"])
        self.clients[handle] = aio.Client(
            command["endpoints"],
            owner=command.get("owner"),
            call_timeout=command.get("call_timeout_ms", 10_000) / 1000,
            ca=command.get("ca"),
            cert=command.get("cert"),
            key=command.get("key"),
            token_file=command.get("token_file"),
        )
        return {}

    async def client_close(self, command: Command) -> Answer:
        """Close a client."""
        await self.clients.pop(command["client"]).close()
        return {}

    async def session_new(self, command: Command) -> Answer:
        """Begin a session."""
        handle = fresh(self.sessions, command["session"])
        session = await self.clients[command["client"]].session(command["ttl_seconds"])
        self.sessions[handle] = session
        session.on_lost(lambda cause: lost("session", handle, cause))
        return {"lease_id": str(session.lease_id)}

    async def session_status(self, command: Command) -> Answer:
        """Tell how a session stands."""
        session = self.sessions[command["session"]]
        at_ns, held, cause = now_ns(), session.held, session.lost_cause
        answer = {"held": held, "remaining_ms": session.remaining * 1000, "at_ns": str(at_ns)}
        return answer if cause is None else {**answer, "cause": cause.value}

    async def session_close(self, command: Command) -> Answer:
        """End a session."""
        await self.sessions.pop(command["session"]).close()
        return {}

    # Locks.

    async def lock_acquire(self, command: Command) -> Answer:
        """Acquire a lock."""
        handle = fresh(self.locks, command["lock"])
        wait_ms = command.get("wait_ms")
        guard = await self.sessions[command["session"]].lock(
            command["name"],
            None if wait_ms is None else wait_ms / 1000,
            shared=one_of(command, "mode", "exclusive", "shared"),
            subtree=one_of(command, "scope", "name", "subtree"),
            value=command.get("value", ""),
            at_most=command.get("at_most_seconds"),
        )
        self.locks[handle] = guard
        guard.on_lost(lambda cause: lost("lock", handle, cause))
        answer = {"token": str(guard.token), "lease_id": str(guard.lease_id)}
        return {**answer, "at_ns": str(now_ns())}

    async def lock_held(self, command: Command) -> Answer:
        """Tell whether a lock is held."""
        guard = self.locks[command["lock"]]
        at_ns = now_ns()
        held = guard.held
        return {"held": held, "remaining_ms": guard.remaining * 1000, "at_ns": str(at_ns)}

    async def lock_check(self, command: Command) -> Answer:
        """Raise if a lock is lost."""
        self.locks[command["lock"]].check()
        return {}

    async def lock_probe(self, command: Command) -> Answer:
        """Ask again and again whether a lock is held, until it is not."""
        handle = command["lock"]
        guard = self.locks[handle]
        threading.Thread(target=probe, args=(handle, guard), daemon=True).start()
        return {}

    async def lock_release(self, command: Command) -> Answer:
        """Release a lock."""
        guard = self.locks.pop(command["lock"])
        at_ns = now_ns()
        await guard.release()
        return {"at_ns": str(at_ns)}

    async def lock_get(self, command: Command) -> Answer:
        """Tell who holds a lock."""
        lock = await self.clients[command["client"]].get_lock(command["name"])
        holders = [
            {"owner": h.owner, "lease_id": str(h.lease_id), "token": str(h.fencing_token)}
            for h in lock.holders
        ]
        return {"holders": holders}

    async def cancel(self, command: Command) -> Answer:
        """Cancel a command that is under way."""
        task = self.under_way.get(command["target"])
        return {"cancelled": task is not None and task.cancel()}

    # Streams.

    async def watch_new(self, command: Command) -> Answer:
        """Watch locks."""
        handle = fresh(self.streams, command["watch"])
        client = self.clients[command["client"]]
        watch = await client.watch(
            command.get("name"), prefix=command.get("prefix"), after=command.get("after")
        )

        def tell(event: lowkey.Event) -> None:
            what = {"type": event.type, "name": event.name, "owner": event.owner}
            token = {"token": str(event.fencing_token), "position": event.position}
            say({"event": "watch", "watch": handle, **what, **token})

        self.streams[handle] = asyncio.ensure_future(relay(handle, watch, tell))
        return {}

    async def observe_new(self, command: Command) -> Answer:
        """Watch who leads."""
        handle = fresh(self.streams, command["watch"])
        watch = await self.clients[command["client"]].observe(command["name"])

        def tell(event: lowkey.LeaderEvent) -> None:
            leader = event.leader
            what: dict[str, Any] = {"type": event.type, "name": command["name"]}
            if leader is not None:
                what.update(owner=leader.owner, token=str(leader.fencing_token), value=leader.value)
            say({"event": "watch", "watch": handle, **what, "position": event.position})

        self.streams[handle] = asyncio.ensure_future(relay(handle, watch, tell))
        return {}

    async def watch_close(self, command: Command) -> Answer:
        """End a watch or an observation."""
        self.streams.pop(command["watch"]).cancel()
        return {}

    # Elections.

    async def elect_new(self, command: Command) -> Answer:
        """Stand for election."""
        handle = fresh(self.elections, command["elect"])
        election = self.clients[command["client"]].elect(
            command["name"], value=command.get("value", ""), ttl=command["ttl_seconds"]
        )

        async def lead(leadership: aio.Leadership) -> None:
            token = str(leadership.token)
            term = {"elect": handle, "token": token}
            say({"event": "elected", **term, "at_ns": str(now_ns())})

            def deposed(cause: lowkey.LossCause) -> None:
                say({"event": "deposed", **term, "cause": cause.value, "at_ns": str(now_ns())})

            leadership.guard.on_lost(deposed)
            await asyncio.Event().wait()

        self.elections[handle] = asyncio.ensure_future(election.run(lead))
        return {}

    async def elect_stop(self, command: Command) -> Answer:
        """Give up a candidacy or a lead."""
        task = self.elections.pop(command["elect"])
        task.cancel()
        await asyncio.wait({task})
        return {}

    async def exit(self, command: Command) -> Answer:
        """End at once."""
        say({"id": command["id"], "ok": {}})
        os._exit(0)


def fresh(known: dict[str, Any], handle: str) -> str:
    """Return a handle that is not in use."""
    if handle in known:
        raise DriverError(f"{handle!r} is in use")
    return handle


def one_of(command: Command, field: str, no: str, yes: str) -> bool:
    """Read a field that has two values."""
    value = command.get(field, no)
    if value not in (no, yes):
        raise DriverError(f"{field} must be {no} or {yes}, not {value!r}")
    return bool(value == yes)


def lost(kind: str, handle: str, cause: lowkey.LossCause) -> None:
    """Tell of a loss."""
    say({"event": "lost", kind: handle, "cause": cause.value, "at_ns": str(now_ns())})


def probe(handle: str, guard: aio.Guard) -> None:
    """Ask about every millisecond whether a lock is held, until it is not."""
    last_true, trues = None, 0
    while True:
        at_ns = now_ns()
        if not guard.held:
            break
        last_true, trues = str(at_ns), trues + 1
        time.sleep(0.001)
    said = {"last_true_ns": last_true, "first_false_ns": str(at_ns), "trues": trues}
    say({"event": "probe", "lock": handle, **said})


async def relay(handle: str, watch: aio.Watch[Any], tell: Callable[[Any], None]) -> None:
    """Tell of every event of a stream."""
    try:
        async with watch:
            async for event in watch:
                tell(event)
    except lowkey.LowkeyError as error:
        found = describe(error)
        say({"event": "watch.error", "watch": handle, **found})


def read_commands(loop: asyncio.AbstractEventLoop, driver: Driver) -> None:
    """Read standard input, on a thread of its own."""
    for line in sys.stdin:
        if line.strip():
            loop.call_soon_threadsafe(driver.take, line)
    os._exit(0)


async def main() -> None:
    """Serve until the input ends."""
    driver = Driver()
    loop = asyncio.get_running_loop()
    ready = {"sdk": "python", "version": lowkey.__version__, "protocol": 1}
    say({"event": "ready", **ready})
    threading.Thread(target=read_commands, args=(loop, driver), daemon=True).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
