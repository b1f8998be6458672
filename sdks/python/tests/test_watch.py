from __future__ import annotations

import threading
import time

import pytest
from nodes import Cluster, until

import lowkey
from lowkey import Client, LossCause, Refused
from lowkey._watch import SseParser


def test_every_change_is_told_in_order(client: Client) -> None:
    with client.session() as session, client.watch(prefix="watch/a") as watch:
        with session.lock("watch/a", value="v") as guard:
            pass
        acquired, released = next(watch), next(watch)
        assert (acquired.type, acquired.value) == ("ACQUIRED", "v")
        assert (released.type, released.fencing_token) == ("RELEASED", guard.token)
        assert watch.position == released.position


def test_a_watch_goes_on_where_it_was(client: Client) -> None:
    with client.session() as session:
        with client.watch("watch/b") as watch:
            with session.lock("watch/b"):
                pass
            seen = next(watch)
        with session.lock("watch/b"):
            pass
        with client.watch("watch/b", after=seen.position) as later:
            types = [next(later).type for _ in range(3)]
        assert types == ["RELEASED", "ACQUIRED", "RELEASED"]


def test_a_watch_misses_nothing_while_nodes_come_and_go(three: Cluster) -> None:
    with Client(three.urls) as client, client.watch(prefix="watch/c") as watch:
        tokens: list[int] = []
        seen: list[int] = []
        stop = threading.Event()

        def work() -> None:
            with client.session(ttl=20) as session:
                while not stop.is_set():
                    with session.lock("watch/c", timeout=30) as guard:
                        tokens.append(guard.token)
                    time.sleep(0.02)

        thread = threading.Thread(target=work)
        thread.start()
        for node in list(three.nodes):
            time.sleep(0.5)
            node.kill()
            time.sleep(0.5)
            node.start()
            until(lambda: three.leader() is not None, "a leader")
        stop.set()
        thread.join(30)
        while len(seen) < len(tokens):
            event = next(watch)
            if event.type == "ACQUIRED":
                seen.append(event.fencing_token)
        assert seen == tokens
        assert len(tokens) > 10


def test_a_slow_reader_gets_everything(client: Client) -> None:
    with client.session() as session, client.watch(prefix="watch/d") as watch:
        for _ in range(100):
            session.lock("watch/d").release()
        time.sleep(0.2)
        assert [next(watch).type for _ in range(200)] == ["ACQUIRED", "RELEASED"] * 100


def test_a_position_that_never_was_is_refused(client: Client) -> None:
    with pytest.raises(Refused) as refused:
        client.watch("watch/e", after="nonsense")
    assert refused.value.reason == "INVALID_AFTER"


def test_closing_ends_an_iteration_that_waits(client: Client) -> None:
    watch = client.watch("watch/f")
    ended = threading.Event()

    def read() -> None:
        for _ in watch:
            pass
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.1)
    watch.close()
    assert ended.wait(10)
    thread.join()


def test_events_arrive_in_pieces() -> None:
    told: list[tuple[str, str, str]] = []
    parser = SseParser(lambda *event: told.append(event))
    stream = (
        b": comment\nevent: heartbeat\r\nid: 11\r\ndata: {}\r\n\r\nid: 12.0\ndata: \xc3\xbc\n\n"
    )
    for byte in stream:
        parser.feed(bytes([byte]))
    assert told == [("heartbeat", "11", "{}"), ("", "12.0", "ü")]


def test_an_election_campaigns_again_over_new_sessions(client: Client) -> None:
    terms: list[int] = []
    leases: list[int] = []

    def lead(leadership: lowkey.Leadership) -> None:
        terms.append(leadership.token)
        leases.append(leadership.guard.lease_id)
        leadership.wait()

    with client.observe("watch/election") as observed:
        assert next(observed).leader is None
        with client.elect("watch/election", value="first", ttl=6).start(lead) as election:
            event = next(observed)
            assert event.leader is not None
            assert event.leader.value == "first"
            until(lambda: len(terms) == 1, "elected")
            client.revoke_lease(leases[0], client.owner)
            until(lambda: len(terms) == 2, "elected again")
            assert terms[1] > terms[0]
            assert leases[1] != leases[0]
        assert election.error is None
        assert client.leader("watch/election") is None


def test_a_leader_changes_its_value_and_hands_over(client: Client) -> None:
    leading = threading.Event()

    def lead(leadership: lowkey.Leadership) -> None:
        leadership.proclaim("changed")
        leading.set()
        while leadership.active:
            leadership.wait(0.05)

    first = client.elect("watch/values", value="v1").start(lead)
    assert leading.wait(10)
    leader = client.leader("watch/values")
    assert leader is not None
    assert leader.value == "changed"
    second_leads = threading.Event()

    def lead_second(leadership: lowkey.Leadership) -> None:
        second_leads.set()
        leadership.wait()

    second = client.elect("watch/values", value="v2").start(lead_second)
    until(lambda: client.get_lock("watch/values").waiter_count == 1, "the second stands")
    first.stop()
    assert second_leads.wait(10)
    second.stop()


def test_an_error_of_the_leader_ends_the_election(client: Client) -> None:
    def lead(leadership: lowkey.Leadership) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.elect("watch/error").run(lead)
    assert client.leader("watch/error") is None


def test_a_candidate_can_be_stopped_while_it_waits(client: Client) -> None:
    with client.session() as session, session.lock("watch/waits"):
        election = client.elect("watch/waits").start(lambda leadership: None)
        until(lambda: client.get_lock("watch/waits").waiter_count == 1, "it stands")
        election.stop(20)
        until(lambda: client.get_lock("watch/waits").waiter_count == 0, "it is gone")


def test_a_lost_lead_is_told(client: Client) -> None:
    causes: list[LossCause] = []
    serving = threading.Event()

    def lead(leadership: lowkey.Leadership) -> None:
        leadership.guard.on_lost(causes.append)
        serving.set()
        leadership.wait()

    with client.elect("watch/lost", ttl=6).start(lead):
        assert serving.wait(10)
        holder = client.leader("watch/lost")
        assert holder is not None
        client.release_lock("watch/lost", holder.lease_id, holder.fencing_token)
        until(lambda: LossCause.RELEASED_ELSEWHERE in causes, "it is told")
