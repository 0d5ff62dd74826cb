"""The join of a stage: waits for one part of each item from every previous stage, and merges them into one item.

               (first part)            (last part)
     unknown ───────────────> waiting ─────────────> queue
                                │ │
                                │ └──(a part is a failure)──> queue, as that failure
                                └──(join_timeout)───────────> queue, as a failure

The table of waiting items is bounded. When it is full, the first part of a new item blocks its stream. So the stream
that is ahead waits, while the others complete items.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass

from . import stage_pb2 as pb
from .deadline import wait_for_event
from .item import Queued, failure
from .item_queue import ItemQueue
from .metrics import Metrics
from .recent_ids import RecentIds
from .settings import Identity, Settings


@dataclass(slots=True)
class IncompleteItem:
    """One item with missing parts."""

    #: Payloads by previous stage, in the order of `from_`; `None` for a missing part.
    parts: list[bytes | None]
    #: Merged times, visits and custodies of the parts.
    item: Queued


class Join:
    """Table of the items with missing parts."""

    def __init__(
        self, stages: list[str], identity: Identity, settings: Settings, metrics: Metrics, items: ItemQueue
    ) -> None:
        self._stages = stages
        self._identity = identity
        self._settings = settings
        self._metrics = metrics
        self._items = items
        self._table: dict[int, IncompleteItem] = {}
        #: Timeouts and ids of the items, in the order of their first parts. `_blocked` is to be added to the timeouts.
        self._timeouts: deque[tuple[int, int]] = deque()
        #: Items that wait for a slot in the queue. While there are any, no part is admitted.
        self._complete: deque[Queued] = deque()
        #: Total wait of complete items for slots, in nanoseconds. It extends the timeouts, since no part was admitted
        #: during it.
        self._blocked = 0
        self._completed = RecentIds()
        self._changed = asyncio.Event()
        self._space_freed = asyncio.Condition()
        self._is_closed = False

    async def wait_for_space(self, item_id: int) -> None:
        """Waits until a part of the item can be admitted."""
        if not self._has_space(item_id):
            async with self._space_freed:
                await self._space_freed.wait_for(lambda: self._has_space(item_id))

    def add(self, sender: str, part: Queued) -> None:
        """Adds a part, after `wait_for_space`."""
        if part.id in self._completed:
            # The item has already failed without this part.
            for custody in part.custodies:
                custody.release_all()
            return
        incomplete = self._merge(part)
        parts, item = incomplete.parts, incomplete.item
        if part.failure is not None:
            item.failure = part.failure
        elif sender not in self._stages:
            item.failure = self._failure(f"part from {sender}, which is none of --from")
        else:
            parts[self._stages.index(sender)] = part.parts[0]
        if item.failure is not None or None not in parts:
            item.parts = [] if item.failure is not None else [part for part in parts if part is not None]
            self._complete_item(item)
        # The first timeout can have changed.
        self._changed.set()

    def close(self) -> None:
        """Closes the join: no more parts are added."""
        self._is_closed = True
        self._changed.set()

    async def run(self) -> None:
        """Moves complete items to the queue. Returns once the join is closed and the table is empty."""
        while self._complete or self._table or not self._is_closed:
            self._changed.clear()
            self._expire(time.monotonic_ns())
            while self._complete:
                started = time.monotonic_ns()
                await self._items.acquire_slot()
                self._blocked += time.monotonic_ns() - started
                self._items.put(self._complete.popleft())
            async with self._space_freed:
                self._space_freed.notify_all()
            await self._sleep()
        self._items.close()

    def _has_space(self, item_id: int) -> bool:
        has_entry = item_id in self._table or item_id in self._completed
        return not self._complete and (has_entry or len(self._table) < self._settings.join_capacity)

    def _merge(self, part: Queued) -> IncompleteItem:
        """Merges visits, custodies, deadline and link time of a part into its item. The arrival stays that of the first
        part; the link time is that of the last part."""
        incomplete = self._table.get(part.id)
        if incomplete is None:
            limit = int(self._settings.join_timeout * 1e9)
            self._timeouts.append((time.monotonic_ns() + limit - self._blocked, part.id))
            incomplete = self._table[part.id] = IncompleteItem([None] * len(self._stages), part)
            return incomplete
        item = incomplete.item
        # Both parts contain the visits of the stages before the split.
        known = {(visit.stage, visit.replica) for visit in item.visits}
        item.visits += [visit for visit in part.visits if (visit.stage, visit.replica) not in known]
        item.custodies += part.custodies
        item.link = part.link
        deadlines = [at for at in (item.deadline, part.deadline) if at is not None]
        item.deadline = min(deadlines, default=None)
        return incomplete

    def _complete_item(self, item: Queued) -> None:
        self._completed.insert(item.id)
        del self._table[item.id]
        self._complete.append(item)

    def _expire(self, now: int) -> None:
        """Fails the items whose `join_timeout` has passed."""
        timeouts = self._timeouts
        while timeouts and (timeouts[0][0] + self._blocked <= now or timeouts[0][1] not in self._table):
            _, item_id = timeouts.popleft()
            if (incomplete := self._table.get(item_id)) is not None:
                missing = [stage for stage, part in zip(self._stages, incomplete.parts) if part is None]
                incomplete.item.failure = self._failure(f"part from {', '.join(missing)} did not come")
                incomplete.item.parts = []
                self._complete_item(incomplete.item)

    async def _sleep(self) -> None:
        """Waits for a change or for the next timeout."""
        seconds = (self._timeouts[0][0] + self._blocked - time.monotonic_ns()) / 1e9 if self._timeouts else None
        if self._complete or (self._is_closed and not self._table):
            return
        await wait_for_event(self._changed, seconds)

    def _failure(self, reason: str) -> pb.Failure:
        self._metrics.failure(pb.FAILURE_KIND_PART)
        return failure(self._identity, pb.FAILURE_KIND_PART, reason)
