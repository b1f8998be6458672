from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from typing import Any

import pytest
from nodes import Cluster, Node, until

from lowkey import Client, aio
from lowkey._keeper import read_grants

# 10,000 for the long story.
CANCELLED = int(os.environ.get("LOWKEY_CANCELLED", "1200"))


async def grants_of(client: aio.Client, session: aio.Session) -> list[Any]:
    """What the service says that a session holds."""
    core = client._core
    reading = read_grants(core.link, session.lease_id, core.deadline())
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(reading, core.engine.loop))


async def acquire_and_cancel(
    sessions: list[aio.Session], randomness: random.Random, counts: dict[str, int]
) -> None:
    session = randomness.choice(sessions)
    name = f"faults/{randomness.randrange(40)}"
    task = asyncio.ensure_future(
        session.lock(name, None if randomness.random() < 0.8 else 0).__aenter__()
    )
    await asyncio.wait({task}, timeout=randomness.choice((0, 0.002, 0.01, 0.05, 0.5)))
    if not task.done():
        task.cancel()
    try:
        guard = await task
    except asyncio.CancelledError:
        counts["cancelled"] += 1
    except Exception as error:
        counts[type(error).__name__] = counts.get(type(error).__name__, 0) + 1
    else:
        counts["granted"] += 1
        await guard.release()


def disturb(three: Cluster, stop: threading.Event, killed: list[Node]) -> None:
    """Kill the leader with SIGKILL, start it again, and so on."""
    while not stop.wait(1.0):
        leader = three.leader()
        if leader is None:
            continue
        leader.kill()
        killed.append(leader)
        stop.wait(0.7)
        leader.start()
        # On a slow machine kills at a fixed pace would leave no time in which anything is renewed.
        until(three.serves, "the cluster serves again", 60)


def test_acquires_that_are_cancelled_half_way_leave_nothing_behind(three: Cluster) -> None:
    stop = threading.Event()
    killed: list[Node] = []
    counts: dict[str, int] = {"cancelled": 0, "granted": 0}
    randomness = random.Random(24)

    async def story() -> None:
        async with aio.Client(three.urls) as client:
            sessions = [await client.session(ttl=60) for _ in range(6)]
            chaos = threading.Thread(target=disturb, args=(three, stop, killed))
            chaos.start()
            try:
                while counts["cancelled"] < CANCELLED or not killed:
                    batch = [acquire_and_cancel(sessions, randomness, counts) for _ in range(60)]
                    await asyncio.gather(*batch)
            finally:
                stop.set()
                await asyncio.get_running_loop().run_in_executor(None, chaos.join)
            deadline = time.monotonic() + 90
            while True:
                left = [grant for s in sessions for grant in await grants_of(client, s)]
                if not left:
                    break
                assert time.monotonic() < deadline, left
                await asyncio.sleep(0.1)
            assert all(session.held for session in sessions)
            for number in range(40):  # and everything can be had again
                async with sessions[0].lock(f"faults/{number}", timeout=30):
                    pass

    asyncio.run(story())
    print(f"\n{counts}, leaders killed: {len(killed)}")
    assert killed


def test_a_session_outlives_its_leader(three: Cluster) -> None:
    with Client(three.urls) as client, client.session(ttl=5) as session:
        guard = session.lock("faults/outlives")
        for _ in range(2):
            leader = three.leader()
            assert leader is not None
            leader.kill()
            until(lambda: three.leader() is not None, "another leader")
            with session.lock("faults/during", timeout=20):
                assert guard.held
            leader.start()
        begun = time.monotonic()
        while time.monotonic() - begun < 5:
            assert guard.held
            time.sleep(0.01)


def test_a_wait_goes_on_at_another_node_when_its_node_hangs(three: Cluster) -> None:
    with Client(three.urls) as client, client.session(ttl=20) as one, client.session(ttl=20) as two:
        first = one.lock("faults/hang")
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(two.lock("faults/hang", timeout=60)))
        thread.start()
        until(lambda: client.get_lock("faults/hang").waiter_count == 1, "it waits")
        leader = three.leader()
        assert leader is not None
        leader.signal(signal.SIGSTOP)
        try:
            first.release()
            thread.join(40)
            assert got
            assert got[0].held
            assert got[0].token > first.token
        finally:
            leader.signal(signal.SIGCONT)


def test_the_leader_is_followed(three: Cluster) -> None:
    leader = three.leader()
    assert leader is not None
    (follower, *_) = [node for node in three.nodes if node is not leader]
    with Client([follower.url]) as client, client.session(ttl=6):
        link = client._core.link
        until(lambda: str(link.directory.current) == leader.url, "it asks the leader")


@pytest.mark.parametrize("count", [int(os.environ.get("LOWKEY_SESSIONS", "1000"))])
def test_a_thousand_sessions_cost_one_thread(node: Cluster, count: int) -> None:
    with Client(node.urls) as client:
        before = threading.active_count()
        sessions = [client.session(ttl=30) for _ in range(count)]
        assert threading.active_count() <= before + 1
        client._core.keeper.latest_ns = 0
        cpu, begun = time.process_time(), time.monotonic()
        renewed = [session._presence.validity.valid_until_ns for session in sessions]
        until(
            lambda: all(
                session._presence.validity.valid_until_ns > earlier
                for session, earlier in zip(sessions, renewed)
            ),
            "all are renewed",
            60,
        )
        spent = (time.process_time() - cpu) / (time.monotonic() - begun)
        late_ms = client._core.keeper.latest_ns / 1e6
        print(f"\n{count} sessions: {spent:.1%} of a core, latest renewal {late_ms:.0f} ms late")
        assert all(session.held for session in sessions)
