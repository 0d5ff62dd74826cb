"""The join of a stage: waits for one part of an item from each stage before, and makes one item of them.

               (first part)            (last part)
     unknown ───────────────> waiting ─────────────> queue
                                │ │
                                │ └──(a part is a failure)──> queue, as that failure
                                └──(no more came in time)───> queue, as a failure

The table of waiting items is bounded. A part that would begin another item waits for room, with the stream that it came
on: the stream that is ahead is held back, while the others complete items.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass

from . import stage_pb2 as pb
from .deadline import news
from .item import Queued, failure
from .item_queue import ItemQueue
from .metrics import Metrics
from .seen import Seen
from .settings import Identity, Settings


@dataclass(slots=True)
class Waiting:
    """One item of which some parts came."""

    #: The payload of each part, in the order of the stages before.
    parts: list[bytes | None]
    #: The parts' times, visits and custodies, put together.
    item: Queued


class Join:
    """Items of which some parts came."""

    def __init__(
        self, stages: list[str], identity: Identity, settings: Settings, metrics: Metrics, items: ItemQueue
    ) -> None:
        self._stages = stages
        self._identity = identity
        self._settings = settings
        self._metrics = metrics
        self._items = items
        self._table: dict[int, Waiting] = {}
        #: Ids by their first part, with the time at which they are given up, less the time that was blocked before.
        self._due: deque[tuple[int, int]] = deque()
        #: Items that wait for a place in the queue. While there are some, no part is taken.
        self._complete: deque[Queued] = deque()
        #: Time in nanoseconds in which complete items waited for a place: no part was taken, so it is not one in which
        #: parts did not come.
        self._blocked = 0
        self._done = Seen()
        self._news = asyncio.Event()
        self._has_room = asyncio.Condition()
        self._is_closed = False

    async def room(self, number: int) -> None:
        """Waits until a part of the item can be taken."""
        if not self._takes(number):
            async with self._has_room:
                await self._has_room.wait_for(lambda: self._takes(number))

    def take(self, sender: str, part: Queued) -> None:
        """Adds a part, for which there is room."""
        if part.id in self._done:
            # The item went on without this part, as a failure.
            for custody in part.custodies:
                custody.release_all()
            return
        waiting = self._merged(part)
        parts, item = waiting.parts, waiting.item
        if part.failure is not None:
            item.failure = part.failure
        elif sender not in self._stages:
            item.failure = self._failure(f"part from {sender}, which is none of --from")
        else:
            parts[self._stages.index(sender)] = part.parts[0]
        if item.failure is not None or None not in parts:
            item.parts = [] if item.failure is not None else [part for part in parts if part is not None]
            self._pass_on(item)
        # The task may have a new item to give up.
        self._news.set()

    def close(self) -> None:
        """No more parts come."""
        self._is_closed = True
        self._news.set()

    async def run(self) -> None:
        """Moves complete items to the queue, until no more parts can come and none waits."""
        while self._complete or self._table or not self._is_closed:
            self._news.clear()
            self._give_up(time.monotonic_ns())
            while self._complete:
                begun = time.monotonic_ns()
                await self._items.place()
                self._blocked += time.monotonic_ns() - begun
                self._items.put(self._complete.popleft())
            async with self._has_room:
                self._has_room.notify_all()
            await self._sleep()
        self._items.close()

    def _takes(self, number: int) -> bool:
        is_known = number in self._table or number in self._done
        return not self._complete and (is_known or len(self._table) < self._settings.join_capacity)

    def _merged(self, part: Queued) -> Waiting:
        """The item with the new part's times, visits and custodies. Its time in this stage begins with the first part;
        its link is that of the last."""
        waiting = self._table.get(part.id)
        if waiting is None:
            limit = int(self._settings.join_timeout * 1e9)
            self._due.append((time.monotonic_ns() + limit - self._blocked, part.id))
            waiting = self._table[part.id] = Waiting([None] * len(self._stages), part)
            return waiting
        item = waiting.item
        # Stages before the split are in both parts.
        known = {(visit.stage, visit.replica) for visit in item.visits}
        item.visits += [visit for visit in part.visits if (visit.stage, visit.replica) not in known]
        item.custodies += part.custodies
        item.link = part.link
        deadlines = [at for at in (item.deadline, part.deadline) if at is not None]
        item.deadline = min(deadlines, default=None)
        return waiting

    def _pass_on(self, item: Queued) -> None:
        self._done.is_first(item.id)
        del self._table[item.id]
        self._complete.append(item)

    def _give_up(self, now: int) -> None:
        """Fails items whose parts did not come in time."""
        while self._due and (self._due[0][0] + self._blocked <= now or self._due[0][1] not in self._table):
            _, number = self._due.popleft()
            if (waiting := self._table.get(number)) is not None:
                missing = [stage for stage, part in zip(self._stages, waiting.parts) if part is None]
                waiting.item.failure = self._failure(f"part from {', '.join(missing)} did not come")
                waiting.item.parts = []
                self._pass_on(waiting.item)

    async def _sleep(self) -> None:
        """Until something changes, or the next item is given up."""
        due_in = (self._due[0][0] + self._blocked - time.monotonic_ns()) / 1e9 if self._due else None
        if self._complete or (self._is_closed and not self._table):
            return
        await news(self._news, due_in)

    def _failure(self, reason: str) -> pb.Failure:
        self._metrics.failure(pb.FAILURE_KIND_PART)
        return failure(self._identity, pb.FAILURE_KIND_PART, reason)
