"""Waits with a timeout.

These replace `asyncio.wait_for`, which before Python 3.12 loses a cancellation that coincides with the result.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def with_timeout(seconds: float, awaitable: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Returns the result, or cancels the coroutine or future and raises `asyncio.TimeoutError`."""
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait((task,), timeout=seconds)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> None:
    """Waits until the event is set, at most for the timeout. The timeout sets the event; `None` disables it."""
    if seconds is None:
        await event.wait()
        return
    timer = asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
