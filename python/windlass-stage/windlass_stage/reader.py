"""Reads one stream of items, and admits them to the queue or to the join.

     arrived ──> inbox ──(slot in the queue, or space in the table of the join)──> admitted, receipt `Taken`

An item gets its arrival time as soon as it is read, so its wait for admission counts as time at this stage, not on the
link. The sender has at most a window of items in flight, which bounds the inbox. With `_INBOX` items the reader
stops reading the stream.
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

#: Maximum number of items that wait for admission.
_INBOX = 256


@dataclass(slots=True)
class Arrival:
    """An item that waits for admission."""

    sender: str
    sequence: int
    item: Queued


class Reader:
    """Reader of one stream of items."""

    def __init__(self, context: PassContext, receipts: Receipts, items: ItemQueue, join: Join | None) -> None:
        self._context = context
        self._receipts = receipts
        self._items = items
        self._join = join
        #: Items that wait for admission, then `None` after the last one.
        self._inbox: asyncio.Queue[Arrival | None] = asyncio.Queue(_INBOX)

    async def run(self) -> None:
        """Reads and admits items until the sender ends the stream, which it does soon after the receipt `Closing`. If
        the stream breaks, items that wait for admission are dropped: their sender still has custody."""
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
        """Admits the items of the inbox in order. Between the admission and the receipt `Taken` there is no `await`, so
        a cancelled call has done both or neither."""
        while (arrival := await self._inbox.get()) is not None:
            item = arrival.item
            if self._join is None:
                await self._items.acquire_slot()
                self._receipts.taken(arrival.sequence, item.arrived)
                self._items.put(item)
            else:
                await self._join.wait_for_space(item.id)
                self._receipts.taken(arrival.sequence, item.arrived)
                self._join.add(arrival.sender, item)
