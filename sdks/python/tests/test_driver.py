from __future__ import annotations

import os
import signal
import statistics
import time

import pytest
from driver import Driver
from nodes import Cluster

# The story of 200 rounds is told by setting this higher.
ROUNDS = int(os.environ.get("LOWKEY_PAUSE_ROUNDS", "20"))


def test_a_driver_does_what_it_is_told(node: Cluster) -> None:
    with Driver() as driver:
        driver.ask("client.new", client="c", endpoints=node.urls, owner="driven")
        driver.ask("watch.new", client="c", watch="w", prefix="driven/")
        driver.ask("session.new", client="c", session="s", ttl_seconds=10)
        driver.ask("session.new", client="c", session="t", ttl_seconds=10)
        first = driver.ask("lock.acquire", session="s", lock="a", name="driven/a")
        assert driver.ask("lock.held", lock="a")["held"]
        refused = driver.answer(
            driver.send("lock.acquire", session="t", lock="b", name="driven/a", wait_ms=0)
        )
        assert refused["error"]["kind"] == "held"
        waiting = driver.send("lock.acquire", session="t", lock="b", name="driven/a")
        driver.event("watch", type="WAITING")
        assert driver.ask("cancel", target=waiting) == {"cancelled": True}
        assert driver.answer(waiting)["error"]["kind"] == "cancelled"
        driver.event("watch", type="CANCELLED")
        (holder,) = driver.ask("lock.get", client="c", name="driven/a")["holders"]
        assert holder["token"] == first["token"]
        driver.ask("lock.release", lock="a")
        driver.event("watch", type="RELEASED", token=first["token"])
        driver.ask("elect.new", client="c", elect="e", name="driven/e", value="v", ttl_seconds=10)
        driver.event("elected", elect="e")
        driver.ask("observe.new", client="c", watch="o", name="driven/e")
        assert driver.event("watch", watch="o")["value"] == "v"
        driver.ask("elect.stop", elect="e")
        driver.event("watch", watch="o", type="RELEASED")
        wrong = driver.answer(driver.send("lock.held", lock="nothing"))
        assert wrong["error"]["kind"] == "driver"
        assert driver.answer(driver.send("take"))["error"]["kind"] == "driver"
        driver.ask("exit")
        assert driver.process.wait(10) == 0


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP here")
def test_a_process_that_was_stopped_believes_nothing_after_waking(node: Cluster) -> None:
    """Stopped past its time to live, and continued: 20 at a time."""
    late_ms: list[float] = []
    with Driver() as one, Driver() as two:
        drivers = [one, two]
        for driver in drivers:
            driver.ask("client.new", client="c", endpoints=node.urls)
        left = ROUNDS
        while left > 0:
            batch = min(left, 20)
            left -= batch
            locks = []
            for number in range(batch):
                driver, handle = drivers[number % 2], f"{left}-{number}"
                driver.ask("session.new", client="c", session=handle, ttl_seconds=1)
                driver.ask("lock.acquire", session=handle, lock=handle, name=f"paused/{handle}")
                driver.ask("lock.probe", lock=handle)
                locks.append((driver, handle))
            for driver in drivers:
                driver.process.send_signal(signal.SIGSTOP)
            time.sleep(1.3)
            woken_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            for driver in drivers:
                driver.process.send_signal(signal.SIGCONT)
            for driver, handle in locks:
                probed = driver.event("probe", lock=handle)
                assert int(probed["last_true_ns"]) < woken_ns
                lost = driver.event("lost", lock=handle)
                assert lost["cause"] in ("expired", "gone")
                late_ms.append((int(lost["at_ns"]) - woken_ns) / 1e6)
                driver.event("lost", session=handle)
    late_ms.sort()
    print(
        f"\n{len(late_ms)} rounds: loss signalled after waking, in ms: "
        f"median {statistics.median(late_ms):.1f}, "
        f"p99 {late_ms[min(len(late_ms) - 1, len(late_ms) * 99 // 100)]:.1f}, "
        f"highest {late_ms[-1]:.1f}"
    )
    if "LOWKEY_PAUSE_ROUNDS" in os.environ:  # asked for as a measurement, on a quiet machine
        assert late_ms[len(late_ms) * 99 // 100 - 1] < 200
