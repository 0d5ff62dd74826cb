"""Threads for blocking calls, such as those of a device.

An idle thread serves the next call, so each worker uses one thread. A thread whose call never returns stays busy, and a
new thread replaces it. Threads are daemons, so they do not prevent the exit of the process.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")


class Threads(Generic[T]):
    """Runs functions on threads, outside the event loop. The functions must not raise."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[_Call[T]]] = []

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Calls the function on an idle thread, or on a new one."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        if self._idle:
            calls = self._idle.pop()
        else:
            calls = queue.SimpleQueue()
            threading.Thread(target=self._run, args=(calls,), daemon=True, name="windlass-work").start()
        calls.put((function, loop, outcome))
        return outcome

    def _run(self, calls: queue.SimpleQueue[_Call[T]]) -> None:
        while True:
            function, loop, outcome = calls.get()
            result = function()
            try:
                loop.call_soon_threadsafe(self._done, calls, outcome, result)
            except RuntimeError:
                # The event loop is closed: the stage has ended without this result.
                return
            # Release the payload while the thread waits for the next call.
            del function, outcome, result

    def _done(self, calls: queue.SimpleQueue[_Call[T]], outcome: asyncio.Future[T], result: T) -> None:
        self._idle.append(calls)
        if not outcome.done():
            outcome.set_result(result)


_Call: TypeAlias = tuple[Callable[[], T], asyncio.AbstractEventLoop, asyncio.Future[T]]
