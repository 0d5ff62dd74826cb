"""Threads for calls that may block, such as those of a device.

A thread that is done serves the next call, so one worker calls from one thread. A thread whose call never returns never
becomes free, and another one takes its place; it does not keep the process from ending either.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

_Call = tuple[Callable[[Any], Any], Any, asyncio.AbstractEventLoop, asyncio.Future]


class Threads:
    """Runs functions beside the event loop."""

    def __init__(self) -> None:
        self._free: list[queue.SimpleQueue[_Call]] = []

    def call(self, function: Callable[[Any], Any], argument: Any) -> asyncio.Future:
        """Calls the function on a free thread."""
        loop = asyncio.get_running_loop()
        outcome = loop.create_future()
        if self._free:
            calls = self._free.pop()
        else:
            calls = queue.SimpleQueue()
            threading.Thread(target=self._run, args=(calls,), daemon=True, name="windlass-work").start()
        calls.put((function, argument, loop, outcome))
        return outcome

    def _run(self, calls: "queue.SimpleQueue[_Call]") -> None:
        while True:
            function, argument, loop, outcome = calls.get()
            try:
                result, error = function(argument), None
            # Also `sys.exit` of the work: an item fails, and the stage goes on.
            except BaseException as raised:  # noqa: BLE001
                result, error = None, raised
            try:
                loop.call_soon_threadsafe(self._done, calls, outcome, result, error)
            except RuntimeError:
                # The loop was closed: the stage has ended without this call.
                return

    def _done(self, calls: queue.SimpleQueue, outcome: asyncio.Future, result: Any, error: Any) -> None:
        self._free.append(calls)
        if not outcome.done():
            outcome.set_result((result, error))
