"""The queue of a stage: items wait for a free worker, and until the batch is full or `batch_wait` has passed.

A reader acquires a slot before it sends `Taken`, so a full queue applies back-pressure to the senders.
"""

import asyncio
import time
from collections import deque

from .deadline import wait_for_event
from .item import Queued
from .metrics import Metrics
from .settings import Settings


class ItemQueue:
    """Items in the order of their admission."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._slots = asyncio.Semaphore(settings.queue_capacity())
        self._waiting: deque[Queued] = deque()
        self._changed = asyncio.Event()
        #: Held by the worker whose batch is being filled. The other workers get later items.
        self._fill_lock = asyncio.Lock()
        self._is_closed = False

    async def acquire_slot(self) -> None:
        """Acquires a slot. Each slot is for one `put`."""
        await self._slots.acquire()

    def put(self, item: Queued) -> None:
        """Adds an item for which a slot was acquired."""
        self._waiting.append(item)
        self._metrics.queue(len(self._waiting))
        self._changed.set()

    def close(self) -> None:
        """Closes the queue: no more items are added."""
        self._is_closed = True
        self._changed.set()

    async def batch(self) -> list[Queued]:
        """Waits for the next batch, and releases its slots. Returns no items once the queue is closed and empty."""
        async with self._fill_lock:
            await self._fill()
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._settings.batch))]
        self._metrics.queue(len(self._waiting))
        for _ in batch:
            self._slots.release()
        return batch

    async def _fill(self) -> None:
        while not self._waiting and not self._is_closed:
            self._changed.clear()
            await self._changed.wait()
        while 0 < len(self._waiting) < self._settings.batch:
            waited = (time.monotonic_ns() - self._waiting[0].arrived) / 1e9
            if waited >= self._settings.batch_wait or self._is_closed:
                return
            self._changed.clear()
            await wait_for_event(self._changed, self._settings.batch_wait - waited)
