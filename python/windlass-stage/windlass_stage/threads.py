"""Threads for calls that may block, such as those of a device.

A thread that is done serves the next call, so one worker calls from one thread. A thread whose call never returns never
becomes free, and another one takes its place; it does not keep the process from ending either.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")


class Threads(Generic[T]):
    """Runs functions, which raise nothing, beside the event loop."""

    def __init__(self) -> None:
        self._free: list[queue.SimpleQueue[_Call[T]]] = []

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Calls the function on a free thread."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        if self._free:
            calls = self._free.pop()
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
                # The loop was closed: the stage has ended without this call.
                return
            # The next call may be late: its thread keeps no payload meanwhile.
            del function, outcome, result

    def _done(self, calls: queue.SimpleQueue[_Call[T]], outcome: asyncio.Future[T], result: T) -> None:
        self._free.append(calls)
        if not outcome.done():
            outcome.set_result(result)


_Call: TypeAlias = tuple[Callable[[], T], asyncio.AbstractEventLoop, asyncio.Future[T]]
