from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest
from nodes import Cluster

from lowkey import LockHeld, LockLost, LossCause, WaitTimeout, aio


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story, debug=True)


def test_the_same_with_async_with(node: Cluster) -> None:
    async def story() -> None:
        async with aio.Client(node.urls) as client:
            async with client.session(ttl=10) as s, s.lock("aio/x", timeout=5) as g:
                assert g.held
                g.check()
                async with client.session() as other:
                    assert await other.try_lock("aio/x") is None
                    with pytest.raises(LockHeld):
                        await other.lock("aio/x", timeout=0)
                    with pytest.raises(WaitTimeout):
                        await other.lock("aio/x", timeout=0.1)
            assert not g.held
            assert (await client.get_lock("aio/x")).holders == ()
            assert [lock async for lock in client.list_locks("aio/")] == []

    play(story())


def test_a_hundred_tasks_take_turns(node: Cluster) -> None:
    async def story() -> None:
        async with aio.Client(node.urls) as client:
            inside = 0
            tokens: list[int] = []

            async def work() -> None:
                nonlocal inside
                async with client.session() as session, session.lock("aio/turns") as guard:
                    inside += 1
                    assert inside == 1
                    tokens.append(guard.token)
                    await asyncio.sleep(0)
                    inside -= 1

            await asyncio.gather(*(work() for _ in range(100)))
            assert tokens == sorted(tokens)
            assert len(set(tokens)) == 100

    play(story())


def test_work_is_cancelled_when_the_lock_is_lost(node: Cluster) -> None:
    async def story() -> None:
        async with aio.Client(node.urls) as client, client.session(ttl=6) as session:
            guard = await session.lock("aio/run")
            assert await guard.run(asyncio.sleep(0, "done")) == "done"
            was_cancelled = asyncio.Event()

            async def work() -> None:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    was_cancelled.set()
                    raise

            running = asyncio.ensure_future(guard.run(work()))
            await asyncio.sleep(0)
            await client.release_lock("aio/run", guard.lease_id, guard.token)
            with pytest.raises(LockLost) as lost:
                await running
            assert lost.value.cause is LossCause.RELEASED_ELSEWHERE
            assert was_cancelled.is_set()
            with pytest.raises(LockLost):
                await guard.run(asyncio.sleep(0))
            assert await guard.lost() is LossCause.RELEASED_ELSEWHERE

    play(story())


def test_a_blocked_loop_does_not_cost_the_lease(node: Cluster) -> None:
    async def story() -> None:
        async with aio.Client(node.urls) as client, client.session(ttl=6) as session:
            guard = await session.lock("aio/blocked")
            time.sleep(8)  # noqa: ASYNC251  (that is the point)
            guard.check()

    asyncio.run(story())


def test_a_cancelled_wait_leaves_the_queue(node: Cluster) -> None:
    async def story() -> None:
        async with aio.Client(node.urls) as client, client.session() as one:
            async with one.lock("aio/queue"), client.session() as two:
                waiting = asyncio.ensure_future(two.lock("aio/queue").__aenter__())
                while (await client.get_lock("aio/queue")).waiter_count == 0:
                    await asyncio.sleep(0.01)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                while (await client.get_lock("aio/queue")).waiter_count != 0:
                    await asyncio.sleep(0.01)
                assert await two.try_lock("aio/queue") is None

    play(story())


def test_watches_elections_and_singletons(node: Cluster) -> None:
    async def story() -> None:
        async with aio.Client(node.urls) as client:
            terms: list[int] = []

            async def lead(leadership: aio.Leadership) -> None:
                terms.append(leadership.token)
                await leadership.proclaim("led")
                await asyncio.sleep(1000)

            async with client.observe("aio/election") as observed:
                first = await observed.__anext__()
                assert first.leader is None
                running = asyncio.ensure_future(client.elect("aio/election", ttl=6).run(lead))
                async for event in observed:
                    if event.leader is not None and event.leader.value == "led":
                        break
                leader = await client.leader("aio/election")
                assert leader is not None
                await client.revoke_lease(leader.lease_id, client.owner)
                async for event in observed:
                    token = 0 if event.leader is None else event.leader.fencing_token
                    if token > terms[0]:
                        break
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                assert await client.leader("aio/election") is None

            @client.singleton("aio/job")
            async def job(number: int, guard: aio.Guard) -> int:
                assert guard.held
                assert await other(0) is None
                return number

            @client.singleton("aio/job")
            async def other(number: int) -> int:
                return number

            assert await job(7) == 7
            async with client.watch(prefix="aio/w") as watch, client.session() as session:
                async with session.lock("aio/w"):
                    pass
                types = [(await watch.__anext__()).type for _ in range(2)]
                assert types == ["ACQUIRED", "RELEASED"]
                waiting = asyncio.ensure_future(watch.__anext__())
                await asyncio.sleep(0.05)
                waiting.cancel()
                async with session.lock("aio/w"):
                    pass
                types = [(await watch.__anext__()).type for _ in range(2)]
                assert types == ["ACQUIRED", "RELEASED"]

    play(story())
