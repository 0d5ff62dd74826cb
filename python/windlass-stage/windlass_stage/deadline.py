"""Waiting with a limit.

`asyncio.wait_for` is not used: before Python 3.12 it loses a cancellation that comes together with the result.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, running: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """The result, or `asyncio.TimeoutError` with the coroutine or task cancelled."""
    task = asyncio.ensure_future(running)
    try:
        await asyncio.wait((task,), timeout=seconds)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


async def news(event: asyncio.Event, seconds: float | None) -> None:
    """Waits until the event is set, which it also is after the time."""
    if seconds is None:
        await event.wait()
        return
    alarm = asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        alarm.cancel()
