"""A proxy between client and node that can hold answers back, lose them, and speak TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading


class Proxy:
    """Relays bytes, except as told."""

    def __init__(self, port: int = 0, context: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.answers_pass = threading.Event()
        self.answers_pass.set()
        self.loses_answers = False
        self.requests: list[bytes] = []
        self.connections = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self.context is not None:
                client = self.context.wrap_socket(client, server_side=True)
            node = socket.create_connection(("127.0.0.1", self.port))
        except OSError:
            client.close()
            return
        self.connections += 1
        self._open += [client, node]
        threading.Thread(target=self._answers, args=(node, client), daemon=True).start()
        with contextlib.suppress(OSError):
            while True:
                data = client.recv(65536)
                if not data:
                    break
                self.requests.append(data)
                node.sendall(data)
        _end(node)
        _end(client)

    def _answers(self, node: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                data = node.recv(65536)
                if not data:
                    break
                if self.loses_answers:
                    break
                self.answers_pass.wait()
                client.sendall(data)
        _end(client)
        _end(node)

    def cut(self) -> None:
        """End all connections."""
        for sock in list(self._open):
            _end(sock)

    def close(self) -> None:
        self._listener.close()
        self.answers_pass.set()
        self.cut()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        sock.close()
