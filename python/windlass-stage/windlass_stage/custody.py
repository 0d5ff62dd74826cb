"""Custody of an item: the receipts that its sender gets, and when.

    arrived ──(room in the queue)──> taken ──(every next stage took its copy, or the item ended)──> passed

The sender keeps an item's name until it is passed.
"""

import asyncio
import time

from . import stage_pb2 as pb
from .wire import PassContext


class Receipts:
    """The receipts of one stream, sent in their order by a task of the stream."""

    def __init__(self, copies: int) -> None:
        #: Copies that are made of each result.
        self.copies = copies
        self._notes: asyncio.Queue[pb.Receipt | None] = asyncio.Queue()
        #: Items that are taken and not passed.
        self._open = 0
        self._is_read = False

    def pong(self, sent_ns: int) -> None:
        """Answers a ping."""
        self._notes.put_nowait(pb.Receipt(pong=pb.Pong(sent_ns=sent_ns)))

    def closing(self) -> None:
        """Asks for nothing more, since the stage drains."""
        self._notes.put_nowait(pb.Receipt(closing=pb.Closing()))

    def taken(self, sequence: int, arrived: int) -> None:
        """The item is in the stage's queue."""
        self._open += 1
        held_ns = time.monotonic_ns() - arrived
        self._notes.put_nowait(pb.Receipt(taken=pb.Taken(sequence=sequence, held_ns=held_ns)))

    def passed(self, sequence: int) -> None:
        """Each copy of the item's result is in other hands."""
        self._open -= 1
        self._notes.put_nowait(pb.Receipt(passed=pb.Passed(sequence=sequence)))
        self._end_if_done()

    def was_read(self) -> None:
        """The sender sends nothing more. The receipts end with the last item."""
        self._is_read = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_read and self._open == 0:
            self._notes.put_nowait(None)

    async def send(self, context: PassContext) -> None:
        """Sends receipts until the last one."""
        # The sender waits for these before its first ping.
        await context.send_initial_metadata(())
        while (receipt := await self._notes.get()) is not None:
            await context.write(receipt)


class Custody:
    """Duty to tell the sender of one item that each copy of its result is in other hands."""

    __slots__ = ("_receipts", "_sequence", "_copies")

    def __init__(self, receipts: Receipts, sequence: int) -> None:
        self._receipts = receipts
        self._sequence = sequence
        self._copies = receipts.copies

    def release(self) -> None:
        """One copy is in other hands."""
        self._copies -= 1
        if self._copies == 0:
            self._receipts.passed(self._sequence)

    def release_all(self) -> None:
        """No copy will be made."""
        self._copies = 1
        self.release()
