"""One thread for each client: it does all network I/O, and watches the clock.

The thread runs an asyncio loop of its own. Callers on other threads, and on other loops, hand it
coroutines and wait. So both dialects of this package, `lowkey` and `lowkey.aio`, are the same code
underneath, nothing that blocks a caller delays a renewal, and a thousand sessions cost one thread.

After a fork the child has none of this: the thread does not exist there, and the sockets belong to
the parent.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import queue
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, Callable, Generic, TypeVar

from lowkey.errors import Unavailable

_log = logging.getLogger("lowkey")

T = TypeVar("T")

# How long the end of the program waits until the service has heard of released locks.
_EXIT_SECONDS = 1.0

# Objects of the parent that a forked child must neither use nor collect: their finalizers would
# take the parent's sockets out of the loop's epoll, which both processes share.
_left_to_the_parent: list[object] = []


class Engine:
    """The thread, its loop, and a second thread for callbacks of the program."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop: asyncio.AbstractEventLoop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._run, name="lowkey", daemon=True)
        self._callbacks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._callback_thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.is_closed = False
        self.before_exit: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.after_fork: Callable[[], None] | None = None
        self._thread.start()
        _engines.add(self)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        with contextlib.suppress(Exception):
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    @property
    def is_here(self) -> bool:
        """Whether this is the process that the engine runs in, and it runs."""
        return not self.is_closed and os.getpid() == self.pid

    def soon(self, work: Callable[[], None]) -> None:
        """Run something on the engine's thread. Does nothing if the engine has ended."""
        if self.is_here:
            with contextlib.suppress(RuntimeError):  # it has just ended
                self.loop.call_soon_threadsafe(work)

    def call_back(self, callback: Callable[[], None]) -> None:
        """Run a callback of the program, on the thread for callbacks."""
        with self._lock:
            if self._callback_thread is None and not self.is_closed:
                self._callback_thread = threading.Thread(
                    target=self._run_callbacks, name="lowkey-callbacks", daemon=True
                )
                self._callback_thread.start()
        self._callbacks.put(callback)

    def _run_callbacks(self) -> None:
        while True:
            callback = self._callbacks.get()
            if callback is None:
                return
            try:
                callback()
            except Exception:
                _log.exception("a callback of the program failed")

    def is_own_thread(self) -> bool:
        """Tell whether the caller is the engine's own thread, which must never wait for itself."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Stop. What is under way is cancelled."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        if os.getpid() != self.pid:
            return
        self._callbacks.put(None)
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_own_thread():
            self._thread.join(timeout=_EXIT_SECONDS)


class Operation(Generic[T]):
    """Something that runs on the engine, and its outcome for a caller elsewhere.

    Invariant: an outcome is either taken by the caller, or handed to `dispose`, whatever happens
    first. A lock that is granted while its caller goes away is released, not forgotten.
    """

    def __init__(
        self,
        engine: Engine,
        work: Callable[[], Coroutine[Any, Any, T]],
        dispose: Callable[[T], None] | None = None,
    ) -> None:
        self._engine = engine
        self._work = work
        self._dispose = dispose
        self._lock = threading.Lock()
        self._is_abandoned = False  # never together with `_is_taken`
        self._is_taken = False
        self._task: asyncio.Task[None] | None = None
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            if not engine.is_here:
                raise RuntimeError
            engine.loop.call_soon_threadsafe(self._start)
        except RuntimeError:
            self.future.set_exception(Unavailable("the client is closed", False))

    def _start(self) -> None:
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._ended)
        if self._is_abandoned:
            self._task.cancel()

    def _ended(self, _: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step never runs at all.
        self._fail(Unavailable("it was given up, or the client was closed", True))

    async def _run(self) -> None:
        try:
            outcome = await self._work()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(error)
            return
        with self._lock:
            if not self._is_abandoned:
                self.future.set_result(outcome)
                return
        if self._dispose is not None:
            self._dispose(outcome)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)

    def wait(self) -> T:
        """Wait for the outcome, on a thread that may block."""
        if self._engine.is_own_thread():
            raise RuntimeError("the engine's own thread must not wait for itself")
        try:
            self.future.result()
        except BaseException:
            # Ctrl-C, for example. After an error of the operation itself this does nothing.
            self.abandon()
            raise
        return self._take()

    async def wait_async(self) -> T:
        """Wait for the outcome, on another loop. Cancelling gives it up."""
        try:
            await self.finish()
        except BaseException:
            self.abandon()
            raise
        return self._take()

    async def finish(self) -> T:
        """Wait for the outcome of something that goes on even if its caller is cancelled."""
        wrapped = asyncio.wrap_future(self.future)
        # The caller may be gone when the outcome comes: then nobody looks at it.
        wrapped.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(wrapped)

    def _take(self) -> T:
        with self._lock:
            if self._is_abandoned:
                raise Unavailable("it was given up", True)
            self._is_taken = True
        return self.future.result()

    def abandon(self) -> None:
        """Give it up. An outcome that is there already is disposed of."""
        with self._lock:
            if self._is_abandoned or self._is_taken:
                return
            self._is_abandoned = True
        if self.future.done():
            if self.future.exception() is None and self._dispose is not None:
                self._dispose(self.future.result())
            return
        self._engine.soon(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for engine in list(_engines):
        _left_to_the_parent.append((engine, engine.loop))
        if engine.after_fork is not None:
            engine.after_fork()
    _engines.clear()


def _at_exit() -> None:
    """Release what the program still holds: others should not have to wait for its leases."""
    for engine in list(_engines):
        if engine.is_here:
            if engine.before_exit is not None:
                farewell = Operation(engine, engine.before_exit)
                with contextlib.suppress(Exception):
                    farewell.future.result(timeout=_EXIT_SECONDS)
            engine.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
