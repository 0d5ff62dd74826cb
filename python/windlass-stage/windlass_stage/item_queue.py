"""The queue of a stage: items wait here until a worker is free and the batch is full or has waited long enough.

Readers of streams wait for room before they say `Taken` and read on, so a full queue holds the senders back.
"""

import asyncio
import time
from collections import deque

from .deadline import news
from .item import Queued
from .metrics import Metrics
from .settings import Settings


class ItemQueue:
    """Items in the order of their arrival."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._room = asyncio.Semaphore(settings.room())
        self._waiting: deque[Queued] = deque()
        self._news = asyncio.Event()
        #: Held by the worker whose batch is filling: the others get later items.
        self._head = asyncio.Lock()
        self._is_closed = False

    async def place(self) -> None:
        """Waits for a place. Each place is for one `put`."""
        await self._room.acquire()

    def put(self, item: Queued) -> None:
        """Adds an item, which has a place."""
        self._waiting.append(item)
        self._metrics.queue(len(self._waiting))
        self._news.set()

    def close(self) -> None:
        """Nothing more comes."""
        self._is_closed = True
        self._news.set()

    async def batch(self) -> list[Queued]:
        """The next batch; empty once nothing more comes. Its places are free again."""
        async with self._head:
            await self._fill()
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._settings.batch))]
        self._metrics.queue(len(self._waiting))
        for _ in batch:
            self._room.release()
        return batch

    async def _fill(self) -> None:
        while not self._waiting and not self._is_closed:
            self._news.clear()
            await self._news.wait()
        while 0 < len(self._waiting) < self._settings.batch:
            waited = (time.monotonic_ns() - self._waiting[0].arrived) / 1e9
            if waited >= self._settings.batch_wait or self._is_closed:
                return
            self._news.clear()
            await news(self._news, self._settings.batch_wait - waited)
