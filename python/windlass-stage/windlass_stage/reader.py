"""Reads one stream of items, and admits them to the queue or to the join as there is room.

     arrived ──> inbox ──(room in the queue, or in the table of the join)──> admitted, and told as taken

An item is read and stamped at once, so that its time on the link ends here and its wait for room is one for this
stage. The sender bounds the inbox, since it sends no more than a window of items that are not taken. Beyond `_INBOX`
the stream is not read.
"""

import asyncio
import time
from dataclasses import dataclass

from grpc import aio

from . import stage_pb2 as pb
from .custody import Custody, Receipts
from .item import Queued, from_wire
from .item_queue import ItemQueue
from .join import Join
from .link_time import LinkTime
from .wire import PassContext

#: Items that are read before there is room for them.
_INBOX = 256


@dataclass(slots=True)
class Arrival:
    """An item that waits for room."""

    sender: str
    sequence: int
    item: Queued


class Reader:
    """One stream of items."""

    def __init__(self, context: PassContext, receipts: Receipts, items: ItemQueue, join: Join | None) -> None:
        self._context = context
        self._receipts = receipts
        self._items = items
        self._join = join
        #: None after the last item.
        self._inbox: asyncio.Queue[Arrival | None] = asyncio.Queue(_INBOX)

    async def run(self) -> None:
        """Reads until the sender ends the stream, which it does soon after it hears of `Closing`, and admits
        everything. When the stream breaks, its sender or the one before answers for the items that wait."""
        tasks = [asyncio.ensure_future(self._read_all()), asyncio.ensure_future(self._admit_all())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _read_all(self) -> None:
        link_time = LinkTime(time.monotonic_ns())
        while (parcel := await self._context.read()) is not aio.EOF:
            now = time.monotonic_ns()
            content = parcel.WhichOneof("content")
            if content == "item":
                await self._inbox.put(self._arrival(parcel.item, now, link_time))
            elif content == "ping":
                link_time.observe(parcel.ping.sent_ns, now)
                self._receipts.pong(parcel.ping.sent_ns)
        await self._inbox.put(None)

    def _arrival(self, item: pb.Item, now: int, link_time: LinkTime) -> Arrival:
        excess = link_time.observe(item.sent_ns, now)
        queued = from_wire(item, now, excess, Custody(self._receipts, item.sequence))
        return Arrival(getattr(item, "from"), item.sequence, queued)

    async def _admit_all(self) -> None:
        """Waits for room, and says that the item is taken. In between nothing waits, so a call that is cancelled takes
        an item and says so, or does neither."""
        while (arrival := await self._inbox.get()) is not None:
            item = arrival.item
            if self._join is None:
                await self._items.place()
                self._receipts.taken(arrival.sequence, item.arrived)
                self._items.put(item)
            else:
                await self._join.room(item.id)
                self._receipts.taken(arrival.sequence, item.arrived)
                self._join.take(arrival.sender, item)
