"""The source of a pipeline: creates items and sends them to the first stage."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from .address import parse_all
from .item import Outgoing
from .metrics import Metrics
from .outlet import Outlet
from .settings import Identity, Settings


class Source:
    """A source of items, used within `async with`. At the end of the block it waits until the first stage has passed
    all items; after an exception in the block it does not wait.

    `at` has one or more addresses of the stage `first`. The source connects in the background; until then items wait.
    `limits` are those of `Settings`, such as `window=4`.
    """

    def __init__(self, name: str, first: str, at: str | Iterable[str], **limits: Any) -> None:
        identity, addresses = Identity(name, "source"), parse_all(at)
        self._outlet = Outlet(identity, first, addresses, Settings(**limits), Metrics())
        # Random upper half: two sources of a pipeline collide with a probability of 1 in 2^32.
        self._next_id = random.getrandbits(32) << 32

    async def __aenter__(self) -> Source:
        self._outlet_task = asyncio.ensure_future(self._outlet.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.finish()
        finally:
            self._outlet_task.cancel()
            await asyncio.gather(self._outlet_task, return_exceptions=True)

    async def send(self, payload: bytes, deadline: float | None = None) -> int:
        """Sends an item as soon as the first stage has capacity, and returns its id. With a deadline in seconds, every
        stage must start its processing within that time from now; otherwise the item fails."""
        item_id, ready = self._next_id, time.monotonic_ns()
        self._next_id += 1
        deadline_ns = None if deadline is None else ready + int(deadline * 1e9)
        await self._outlet.send(Outgoing(item_id, payload, None, [], deadline_ns, ready, []))
        return item_id

    async def finish(self) -> None:
        """Waits until the first stage has passed all items."""
        await self._outlet.finish()
