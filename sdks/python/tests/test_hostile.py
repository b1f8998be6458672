"""Servers that are no nodes: nonsense, half answers, endless heads."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from lowkey import Client, LowkeyError

OF_A_NODE = b"HTTP/1.1 200 OK\r\nlowkey-cluster: " + b"0" * 32 + b"\r\n"


def answer(body: bytes, head: bytes = OF_A_NODE) -> bytes:
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


HOSTILE = {
    "nonsense": b"\x00\xff nonsense\r\n\r\n",
    "of another protocol": b"220 mail ESMTP\r\n",
    "half of it": OF_A_NODE + b"content-length: 100\r\n\r\n{",
    "negative": OF_A_NODE + b"content-length: -5\r\n\r\n{}",
    "huge": OF_A_NODE + b"content-length: 99999999999\r\n\r\n{}",
    "no chunk": OF_A_NODE + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    "a negative chunk": OF_A_NODE + b"transfer-encoding: chunked\r\n\r\n-1\r\n",
    "no JSON": answer(b"<html>"),
    "no object": answer(b"[]"),
    "without fields": answer(b"{}"),
    "without numbers": answer(b'{"leaseId":"x","ttlSeconds":null}'),
    "of no cluster": answer(b'{"leaseId":"1","ttlSeconds":"10"}', b"HTTP/1.1 200 OK\r\n"),
    "a strange error": answer(b'{"reason":7,"message":[]}', OF_A_NODE.replace(b"200", b"400")),
    "strange details": answer(
        b'{"reason":"NO_LEADER","message":"m","details":[1]}', OF_A_NODE.replace(b"200", b"503")
    ),
    "elsewhere": b"HTTP/1.1 302 Found\r\nlocation: http://x.example/\r\ncontent-length: 0\r\n\r\n",
    "an endless head": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
    "only promises": b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
}


@pytest.mark.parametrize("said", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_answer_is_an_error_of_this_package(said: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while client.recv(65536):
                client.sendall(said)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with Client(url, call_timeout=0.3) as client, pytest.raises(LowkeyError):
        client.session()
    listener.close()
