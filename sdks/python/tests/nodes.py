"""Real nodes for tests: started, stopped, paused, killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Callable

from proxy import Proxy


def binary() -> str | None:
    """Return the path of the node's program, or None if there is none."""
    given = os.environ.get("LOWKEY_BIN")
    if given:
        return given if os.access(given, os.X_OK) else None
    root = Path(__file__).resolve().parents[3]
    for profile in ("release", "debug"):
        built = root / "target" / profile / "lowkey"
        if os.access(built, os.X_OK):
            return str(built)
    return shutil.which("lowkey")


def until(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """Wait for a condition, and return what it returned."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            ports.append(sock.getsockname()[1])
        return ports


class Node:
    """One node, as a process."""

    def __init__(
        self, program: str, folder: Path, number: int, join: str | None, proxy: Proxy | None
    ) -> None:
        raft, self.grpc_port, self.http_port = free_ports(3)
        self.proxy = proxy
        self.url = f"http://127.0.0.1:{self.http_port}"
        self.grpc_url = f"http://127.0.0.1:{self.grpc_port}"
        self.command = [program, "server", "--node-id", f"node-{number}"]
        self.command += ["--data-dir", str(folder / f"data{number}")]
        self.command += ["--bootstrap"] if join is None else ["--join", join]
        self.command += ["--raft-addr", f"127.0.0.1:{raft}"]
        self.command += ["--grpc-addr", f"127.0.0.1:{self.grpc_port}"]
        self.command += ["--http-addr", f"127.0.0.1:{self.http_port}", "--log", "warn"]
        if proxy is not None:
            proxy.port = self.http_port
            self.command += ["--advertise-http-addr", proxy.url.removeprefix("http://")]
        self.log = folder / f"node{number}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        until(lambda: self.status() is not None, f"node at {self.url}, see {self.log}")

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def status(self) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(self.url + "/v1/status", timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, ValueError):
            return None


class Cluster:
    """Some nodes that belong together."""

    def __init__(self, size: int, is_proxied: bool = False) -> None:
        program = binary()
        assert program is not None
        self.folder = Path(tempfile.mkdtemp(prefix="lowkey-python-"))
        self.nodes: list[Node] = []
        for number in range(1, size + 1):
            join = f"127.0.0.1:{self.nodes[0].grpc_port}" if self.nodes else None
            proxy = Proxy() if is_proxied else None
            self.nodes.append(Node(program, self.folder, number, join, proxy))
        until(lambda: self.leader() is not None, "a leader")
        until(lambda: self.status().get("clusterSize") == size, "all nodes vote")

    @property
    def urls(self) -> list[str]:
        return [node.url if node.proxy is None else node.proxy.url for node in self.nodes]

    @property
    def proxies(self) -> list[Proxy]:
        """What stands between clients and nodes: clients are told no other address."""
        return [node.proxy for node in self.nodes if node.proxy is not None]

    def status(self) -> dict[str, Any]:
        for node in self.nodes:
            status = node.status() if node.process is not None else None
            if status is not None and status.get("leaderId"):
                return status
        return {}

    def leader(self) -> Node | None:
        for node in self.nodes:
            status = node.status() if node.process is not None else None
            if status is not None and status.get("isLeader"):
                return node
        return None

    def serves(self) -> bool:
        """Whether a change is carried out now."""
        lease = json.dumps({"owner_id": "probe", "ttl_seconds": 1}).encode()
        for node in self.nodes:
            with contextlib.suppress(OSError):
                if node.process is not None:
                    urllib.request.urlopen(node.url + "/v1/lease", lease, timeout=5).close()
                    return True
        return False

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
        for proxy in self.proxies:
            proxy.close()
        shutil.rmtree(self.folder, ignore_errors=True)
