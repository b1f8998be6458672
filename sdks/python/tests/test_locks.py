from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from nodes import Cluster, until

import lowkey
from lowkey import Client, InvalidArgument, LockHeld, LockLost, LossCause, WaitTimeout


def holders(client: Client, name: str) -> int:
    return len(client.get_lock(name).holders)


def waits(client: Client, name: str, count: int) -> bool:
    return client.get_lock(name).waiter_count == count


def test_one_line_gives_a_lock_and_gives_it_back(node: Cluster, client: Client) -> None:
    with Client(node.urls).session(ttl=10) as s, s.lock("locks/line", timeout=5) as g:
        assert g.held
        assert s.held
        g.check()
        (holder,) = client.get_lock("locks/line").holders
        assert holder.fencing_token == g.token
        assert holder.lease_id == s.lease_id
    assert not g.held
    assert holders(client, "locks/line") == 0
    with pytest.raises(LockLost) as lost:
        g.check()
    assert lost.value.cause is LossCause.RELEASED


def test_a_lock_that_is_held_is_refused_and_says_by_whom(client: Client) -> None:
    with client.session() as one, client.session() as two:
        with one.lock("locks/held") as g:
            assert two.try_lock("locks/held") is None
            with pytest.raises(LockHeld) as held:
                two.lock("locks/held", timeout=0)
            assert held.value.held_by is not None
            assert held.value.held_by.fencing_token == g.token
            with pytest.raises(TimeoutError):
                two.lock("locks/held", timeout=0.2)
        second = two.try_lock("locks/held")
        assert second is not None
        assert second.token > g.token


def test_a_wait_ends_with_the_lock(client: Client) -> None:
    with client.session() as one, client.session() as two:
        first = one.lock("locks/wait")
        got: list[lowkey.Guard] = []
        thread = threading.Thread(target=lambda: got.append(two.lock("locks/wait", timeout=30)))
        thread.start()
        until(lambda: client.get_lock("locks/wait").waiter_count == 1, "it waits")
        first.release()
        thread.join(10)
        assert got[0].held
        assert got[0].waited > 0


def test_a_wait_outlives_the_time_of_a_single_request(client: Client) -> None:
    """It asks again within 5 s, with the same id, and keeps its place."""
    with client.session() as one, client.session() as two, client.session() as three:
        first = one.lock("locks/long")
        got: list[int] = []

        def wait(session: lowkey.Session, number: int) -> None:
            with session.lock("locks/long", timeout=60):
                got.append(number)

        threads = []
        for number, session in enumerate((two, three), 1):
            threads.append(threading.Thread(target=wait, args=(session, number)))
            threads[-1].start()
            until(partial(waits, client, "locks/long", number), "it waits")
        before = time.monotonic()
        while time.monotonic() - before < 6:
            assert client.get_lock("locks/long").waiter_count == 2
            time.sleep(0.05)
        first.release()
        for thread in threads:
            thread.join(20)
        assert got == [1, 2]


def test_a_session_that_is_closed_ends_its_waits(proxied: Cluster) -> None:
    """At once, also if no node answers."""
    with Client(proxied.urls, call_timeout=1) as client, client.session() as one:
        guard = one.lock("locks/ends")
        two = client.session()
        told: list[Exception] = []

        def wait() -> None:
            try:
                two.lock("locks/ends")
            except lowkey.LowkeyError as error:
                told.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        until(partial(waits, client, "locks/ends", 1), "it waits")
        proxied.proxies[0].answers_pass.clear()
        with pytest.raises(lowkey.Unavailable):
            two.close()
        thread.join(30)
        assert isinstance(told[0], lowkey.SessionLost)
        assert told[0].cause is LossCause.CLOSED
        proxied.proxies[0].answers_pass.set()
        guard.release()


def test_sharing_and_subtrees(client: Client) -> None:
    with client.session() as one, client.session() as two:
        with one.lock("locks/s", shared=True) as a, two.lock("locks/s", shared=True) as b:
            assert a.held
            assert b.held
            assert two.try_lock("locks/s/below") is not None
            with one.lock("locks/s", shared=True) as again:
                assert again.token == a.token
            assert a.held  # the other guard of the same grant keeps it
            assert holders(client, "locks/s") == 2
        with one.lock("locks/tree", subtree=True):
            assert two.try_lock("locks/tree/below") is None


def test_callers_of_one_session_take_turns(client: Client) -> None:
    with client.session() as session:
        first = session.lock("locks/turns")
        assert session.try_lock("locks/turns") is None
        with pytest.raises(WaitTimeout):
            session.lock("locks/turns", timeout=0.1)
        tokens: list[int] = []

        def turn() -> None:
            with session.lock("locks/turns", timeout=30) as guard:
                tokens.append(guard.token)

        threads = [threading.Thread(target=turn) for _ in range(8)]
        for thread in threads:
            thread.start()
        first.release()
        for thread in threads:
            thread.join(30)
        assert len(set(tokens)) == 8
        assert min(tokens) > first.token


def test_a_value_is_shown(client: Client) -> None:
    with client.session() as session, session.lock("locks/value", value="10.0.0.1:80"):
        assert client.get_lock("locks/value").holders[0].value == "10.0.0.1:80"


def test_a_forgotten_guard_and_a_forgotten_session_are_released(client: Client) -> None:
    with client.session() as session:
        guard = session.lock("locks/forgotten")
        del guard
        gc.collect()
        until(lambda: holders(client, "locks/forgotten") == 0, "it is released")
    other = client.session()
    kept = other.lock("locks/forgotten")
    del kept, other
    gc.collect()
    until(lambda: holders(client, "locks/forgotten") == 0, "it is released")


def test_the_end_of_a_program_frees_its_locks(node: Cluster, client: Client) -> None:
    program = f"""
import lowkey
session = lowkey.Client({node.urls!r}).session(ttl=60)
guard = session.lock("locks/exit")
print(guard.token)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
    assert holders(client, "locks/exit") == 0


def test_a_program_that_is_killed_frees_its_locks_by_its_time_to_live(
    node: Cluster, client: Client
) -> None:
    program = f"""
import lowkey, os, signal
session = lowkey.Client({node.urls!r}).session(ttl=3)
guard = session.lock("locks/killed")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False, timeout=30)
    with client.session() as session, session.lock("locks/killed", timeout=20) as guard:
        assert guard.held


def test_bad_arguments_are_refused_with_what_is_allowed(node: Cluster, client: Client) -> None:
    for bad in (["nowhere"], ["ftp://x"], [], "http://x:notaport", ["http://x/path"]):
        with pytest.raises(InvalidArgument):
            Client(bad)
    with pytest.raises(InvalidArgument, match="1 to 600"):
        client.session(ttl=0)
    with pytest.raises(InvalidArgument, match="whole seconds"):
        client.session(ttl=1.5)
    with pytest.raises(InvalidArgument, match="owner"):
        Client(node.urls, owner="a\nb")
    with pytest.raises(InvalidArgument, match="cert="):
        Client(node.urls, key="key.pem")
    with pytest.raises(InvalidArgument, match="token file"):
        Client(node.urls, token_file="/does/not/exist")
    with client.session() as session:
        with pytest.raises(lowkey.Refused) as refused:
            session.lock("")
        assert refused.value.reason == "INVALID_LOCK_NAME"
        with pytest.raises(InvalidArgument, match="timeout"):
            session.lock("x", timeout=-1)
        with pytest.raises(lowkey.Refused):
            session.lock("locks/" + "x" * 600, timeout=0)
        with pytest.raises(InvalidArgument, match="token"):
            client.release_lock("x", 1, 0)
        weird = "locks/ü n+%&=?#/ﷺ"
        with session.lock(weird, timeout=0) as guard:
            assert client.get_lock(weird).holders[0].fencing_token == guard.token


def test_the_port_for_grpc_leads_to_the_port_for_http(node: Cluster) -> None:
    with Client([node.nodes[0].grpc_url]) as client, client.session() as session:
        assert session.held


def test_a_closed_client_says_so(node: Cluster) -> None:
    client = Client(node.urls)
    session = client.session()
    guard = session.lock("locks/closed")
    client.close()
    assert not guard.held
    assert not session.held
    guard.release()
    session.close()
    with pytest.raises(lowkey.LowkeyError, match="closed"):
        client.session()


def test_a_function_that_runs_in_one_place(client: Client) -> None:
    calls: list[int] = []

    @client.singleton("locks/job")
    def job(number: int, guard: lowkey.Guard) -> int:
        assert guard.held
        calls.append(number)
        assert nested(number) is None
        return number

    @client.singleton("locks/job")
    def nested(number: int) -> int:
        return number

    assert job(7) == 7
    assert nested(8) == 8
    assert calls == [7]


def test_locks_are_listed(client: Client) -> None:
    with client.session() as session:
        guards = [session.lock(f"locks/list/{number}") for number in range(3)]
        names = [lock.name for lock in client.list_locks("locks/list/")]
        assert names == [guard.name for guard in guards]
