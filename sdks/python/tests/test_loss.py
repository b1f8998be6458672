from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from typing import Any

import pytest
from nodes import Cluster, until
from proxy import Proxy

import lowkey
from lowkey import Client, LockLost, LossCause, SessionLost, WrongCluster
from lowkey._clock import SECOND, now_ns


def test_a_silent_node_costs_the_lock_at_its_time_without_any_answer(own_node: Cluster) -> None:
    with Client(own_node.urls) as client, client.session(ttl=6) as session:
        guard = session.lock("loss/silent")
        told: list[tuple[LossCause, int]] = []
        guard.on_lost(lambda cause: told.append((cause, now_ns())))
        session.on_lost(lambda cause: told.append((cause, now_ns())))
        own_node.nodes[0].signal(signal.SIGSTOP)
        assert guard.wait_lost(30) is LossCause.EXPIRED
        until_ns = guard._grant.presence.validity.valid_until_ns
        assert not guard.held
        until(lambda: len(told) == 2, "both callbacks")
        for cause, at_ns in told:
            assert cause is LossCause.EXPIRED
            assert at_ns >= until_ns
        with pytest.raises(LockLost):
            guard.check()
        with pytest.raises(SessionLost):
            session.lock("loss/other")
        own_node.nodes[0].signal(signal.SIGCONT)
        with pytest.raises(LockLost):
            guard.release()


def test_with_raises_if_the_lock_was_lost_and_the_block_did_not_notice(own_node: Cluster) -> None:
    def work(session: lowkey.Session) -> None:
        with session.lock("loss/block") as guard:
            own_node.nodes[0].signal(signal.SIGSTOP)
            guard.wait_lost(30)
            own_node.nodes[0].signal(signal.SIGCONT)

    with Client(own_node.urls) as client, client.session(ttl=6) as session, pytest.raises(LockLost):
        work(session)


def test_a_lock_that_somebody_else_released_is_known_with_the_next_renewal(
    client: Client,
) -> None:
    with client.session(ttl=6) as session:
        guard, other = session.lock("loss/forced"), session.lock("loss/kept")
        client.release_lock("loss/forced", guard.lease_id, guard.token)
        assert guard.wait_lost(10) is LossCause.RELEASED_ELSEWHERE
        assert other.held
        assert session.held
        again = session.lock("loss/forced", timeout=5)
        assert again.token > guard.token
        with pytest.raises(LockLost):
            guard.release()
        assert again.held


def test_a_revoked_lease_is_known_with_the_next_renewal(client: Client) -> None:
    with client.session(ttl=6) as session:
        guard = session.lock("loss/revoked")
        client.revoke_lease(session.lease_id, client.owner)
        assert guard.wait_lost(10) is LossCause.GONE
        assert session.lost_cause is LossCause.GONE


def test_a_late_reply_never_revives_a_lost_lock(proxied: Cluster) -> None:
    """Answers to renewals are held back until belief is over, and then come all at once."""
    (proxy,) = proxied.proxies
    with Client(proxied.urls) as client:
        session = client.session(ttl=6)
        guard = session.lock("loss/late")
        seen: list[bool] = []
        stop = threading.Event()

        def look() -> None:
            while not stop.is_set():
                seen.append(guard.held)
                time.sleep(0.0005)

        thread = threading.Thread(target=look)
        thread.start()
        proxy.answers_pass.clear()
        assert guard.wait_lost(20) is LossCause.EXPIRED
        proxy.answers_pass.set()
        begun_ns = now_ns()
        while now_ns() - begun_ns < SECOND:
            assert not guard.held
            assert not session.held
            time.sleep(0.001)
        stop.set()
        thread.join()
        assert not any(seen[seen.index(False) :])
        session.close()


def test_lost_answers_do_not_lose_or_double_a_lock(own_node: Cluster) -> None:
    with Proxy(own_node.nodes[0].http_port) as proxy:
        urls = [proxy.url, own_node.urls[0]]
        with Client(urls) as client, client.session(ttl=10) as session:
            proxy.loses_answers = True
            with session.lock("loss/answers", timeout=10) as guard:
                (holder,) = client.get_lock("loss/answers").holders
                assert holder.fencing_token == guard.token
            assert client.get_lock("loss/answers").holders == ()


def test_another_cluster_is_refused(own_node: Cluster, node: Cluster) -> None:
    with Client(own_node.urls) as client:
        session = client.session(ttl=10)
        guard = session.lock("loss/foreign")
        pinned = client.cluster_id
        assert pinned is not None
    with Client(node.urls, cluster_id=pinned) as client:
        with pytest.raises(WrongCluster) as wrong:
            client.session()
        assert wrong.value.expected == pinned
    with Client([node.urls[0], own_node.urls[0]], cluster_id=pinned) as client:
        assert client.session().held  # it finds the right one
    assert not guard.held


def test_an_address_that_changes_clusters_does_not_end_the_lease(
    proxied: Cluster, node: Cluster
) -> None:
    """LEASE_NOT_FOUND of a foreign cluster is not believed; the clock decides."""
    (proxy,) = proxied.proxies
    with Client(proxied.urls) as client:
        session = client.session(ttl=3)
        guard = session.lock("loss/moved")
        proxy.port = node.nodes[0].http_port
        proxy.cut()
        assert guard.wait_lost(20) is LossCause.EXPIRED


class OldNode:
    """A proxy that knows no `holds`, as an older node would not."""

    def __init__(self, port: int, cluster_id: str) -> None:
        self.renewals: list[dict[str, Any]] = []
        self._port, self._cluster_id = port, cluster_id
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as lines:
            while True:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    line = lines.readline()
                    if not line:
                        return
                    head += line
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                body = lines.read(length)
                client.sendall(self._answer(head, body))

    def _answer(self, head: bytes, body: bytes) -> bytes:
        if b"/v1/lease/renew" in head:
            self.renewals.append(json.loads(body))
            if "holds" in self.renewals[-1]:
                info = {"reason": "UNKNOWN_FIELD", "metadata": {"field": "holds"}}
                answer = json.dumps({**info, "message": "no such field", "details": [info]})
                return (
                    f"HTTP/1.1 400 Bad Request\r\nlowkey-cluster: {self._cluster_id}\r\n"
                    f"content-length: {len(answer)}\r\n\r\n{answer}"
                ).encode()
        with socket.create_connection(("127.0.0.1", self._port)) as node:
            node.sendall(head[:-2] + b"Connection: close\r\n\r\n" + body)
            answer_bytes = b""
            while True:
                piece = node.recv(65536)
                if not piece:
                    return answer_bytes.replace(b"connection: close\r\n", b"")
                answer_bytes += piece

    def close(self) -> None:
        self._listener.close()


def test_advice_that_an_older_node_does_not_know_is_left_out(proxied: Cluster) -> None:
    status = proxied.nodes[0].status()
    assert status is not None
    old = OldNode(proxied.nodes[0].http_port, status["clusterId"])
    proxied.proxies[0].port = int(old.url.rpartition(":")[2])
    try:
        with Client(proxied.urls) as client:
            with client.session(ttl=6) as session, session.lock("loss/old") as guard:
                until(lambda: len(old.renewals) >= 4, "renewals")
                assert guard.held
            assert "holds" in old.renewals[0]
            assert all("holds" not in renewal for renewal in old.renewals[1:4])
    finally:
        old.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_holds_nothing_and_disturbs_nobody(client: Client) -> None:
    with client.session(ttl=6) as session, session.lock("loss/fork") as guard:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                told: list[Any] = [guard.held, session.held, str(guard.lost_cause)]
                try:
                    guard.check()
                except LockLost as lost:
                    told.append(lost.cause.value)
                try:
                    guard.release()
                except LockLost as lost:
                    told.append(lost.cause.value)
                session.close()
                with client.session(ttl=5) as own:  # the client itself can be used again
                    told.append(own.try_lock("loss/fork") is None)
                    told.append(own.lease_id != session.lease_id)
                os.write(write, json.dumps(told).encode())
            finally:
                os._exit(0)
        os.close(write)
        told_text = b""
        while True:
            piece = os.read(read, 4096)
            if not piece:
                break
            told_text += piece
        os.close(read)
        os.waitpid(pid, 0)
        told = json.loads(told_text)
        assert told[:2] == [False, False]
        assert "forked" in told[2]
        assert told[3:] == ["forked", "forked", True, True]
        begun = time.monotonic()
        while time.monotonic() - begun < 8:
            assert guard.held  # renewals go on
            time.sleep(0.01)
        assert client.get_lock("loss/fork").holders[0].fencing_token == guard.token


def test_callbacks_that_fail_or_block_do_not_disturb_renewals(client: Client) -> None:
    with client.session(ttl=6) as doomed, client.session(ttl=6) as session:
        guard = session.lock("loss/callbacks")
        lost = doomed.lock("loss/doomed")
        called = threading.Event()
        lost.on_lost(lambda cause: 1 / 0)

        def block(_: LossCause) -> None:
            called.set()
            time.sleep(8)

        lost.on_lost(block)
        client.revoke_lease(doomed.lease_id, client.owner)
        assert called.wait(10)
        begun = time.monotonic()
        while time.monotonic() - begun < 8:
            assert guard.held
            time.sleep(0.01)


def test_a_callback_after_the_loss_is_called_too(client: Client) -> None:
    with client.session(ttl=6) as session:
        guard = session.lock("loss/after")
        client.release_lock("loss/after", guard.lease_id, guard.token)
        guard.wait_lost(10)
        told: list[lowkey.LossCause] = []
        guard.on_lost(told.append)
        until(lambda: told == [LossCause.RELEASED_ELSEWHERE], "the callback")
