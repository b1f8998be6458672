"""A job that runs in one place: start it on many machines at the same time."""

from __future__ import annotations

import threading
import time

from lowkey import Client, Guard

client = Client()


@client.singleton("examples/nightly", ttl=10)
def nightly(machine: str, guard: Guard) -> str:
    print(f"{machine} runs the job, with token {guard.token}")
    for page in range(3):
        guard.check()  # before every step that matters
        print(f"{machine} writes page {page}")
        time.sleep(0.2)
    return "done"


def start(machine: str) -> None:
    outcome = nightly(machine)
    print(f"{machine}: {outcome or 'another one does it'}")


if __name__ == "__main__":
    machines = [threading.Thread(target=start, args=(name,)) for name in ("one", "two", "three")]
    for machine in machines:
        machine.start()
    for machine in machines:
        machine.join()
    client.close()
