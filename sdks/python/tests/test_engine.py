from __future__ import annotations

import asyncio
import contextlib
import random
import threading

import pytest

from lowkey import Unavailable
from lowkey._engine import Engine, Operation


def test_an_outcome_is_taken_or_disposed_of_and_never_both_or_neither() -> None:
    """Whenever the caller gives up: before the start, in the middle, or as it is done."""
    engine = Engine()
    made: list[int] = []
    disposed: list[int] = []
    taken: list[int] = []

    def play(number: int, delay: float, give_up_after: float) -> None:
        async def work() -> int:
            try:
                await asyncio.sleep(delay)
            except asyncio.CancelledError:
                raise
            made.append(number)
            return number

        operation = Operation(engine, work, disposed.append)
        timer = threading.Timer(give_up_after, operation.abandon)
        timer.start()
        with contextlib.suppress(Unavailable):
            taken.append(operation.wait())
        timer.join()

    randomness = random.Random(3)
    threads = [
        threading.Thread(
            target=play,
            args=(number, randomness.choice((0, 0.001)), randomness.choice((0, 0.0005, 0.001))),
        )
        for number in range(400)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a caller waits for ever"
    engine.close()
    assert sorted(taken + disposed) == sorted(made)
    assert taken
    assert disposed or len(made) < 400


def test_a_closed_engine_answers_callers_that_wait() -> None:
    engine = Engine()
    operation = Operation(engine, lambda: asyncio.sleep(1000))
    threading.Timer(0.05, engine.close).start()
    with pytest.raises(Unavailable):
        operation.wait()
    with pytest.raises(Unavailable, match="closed"):
        Operation(engine, lambda: asyncio.sleep(0)).wait()
