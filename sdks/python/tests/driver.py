"""The driver as a process, for stories that stop, continue and kill it."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).resolve().parents[1] / "conformance_driver.py"


class Driver:
    """Sends commands, and sorts answers from events."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._number = 0
        threading.Thread(target=self._read, daemon=True).start()
        self.event("ready")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            with self._changed:
                if "event" in said:
                    self.events.append(said)
                else:
                    self.answers[said["id"]].put(said)
                self._changed.notify_all()

    def send(self, op: str, **fields: Any) -> int:
        with self._changed:
            self._number += 1
            number = self._number
            self.answers[number] = queue.SimpleQueue()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"id": number, "op": op, **fields}) + "\n")
        self.process.stdin.flush()
        return number

    def answer(self, number: int, seconds: float = 60) -> dict[str, Any]:
        return self.answers[number].get(timeout=seconds)

    def ask(self, op: str, **fields: Any) -> Any:
        said = self.answer(self.send(op, **fields))
        assert "ok" in said, said
        return said["ok"]

    def event(self, event: str, seconds: float = 60, **fields: Any) -> dict[str, Any]:
        """Wait for an event with these fields."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                for said in self.events:
                    if said["event"] == event and all(said.get(k) == v for k, v in fields.items()):
                        return said
                left = deadline - time.monotonic()
                assert left > 0, f"no event {event} {fields} in {self.events[-5:]}"
                self._changed.wait(left)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
