"""Custody of an item: the responsibility for its end, and the receipts that move it from stage to stage.

    arrived ──(admitted to the queue)──> taken ──(every next stage took its copy, or the item ended)──> passed

The sender keeps an item's id until the item is passed.
"""

import asyncio
import time

from . import stage_pb2 as pb
from .wire import PassContext


class Receipts:
    """Stream of receipts for one sender. A task of the stream sends them in order."""

    def __init__(self, copies: int) -> None:
        #: Copies of each result: one per next stage.
        self.copies = copies
        self._queue: asyncio.Queue[pb.Receipt | None] = asyncio.Queue()
        #: Number of items that are taken and not passed.
        self._unpassed = 0
        self._is_sender_done = False

    def pong(self, sent_ns: int) -> None:
        """Answers a ping."""
        self._queue.put_nowait(pb.Receipt(pong=pb.Pong(sent_ns=sent_ns)))

    def closing(self) -> None:
        """Asks the sender to end its stream: the stage drains."""
        self._queue.put_nowait(pb.Receipt(closing=pb.Closing()))

    def taken(self, sequence: int, arrived: int) -> None:
        """Reports that the item is in the stage's queue. `arrived` is its arrival in nanoseconds."""
        self._unpassed += 1
        held_ns = time.monotonic_ns() - arrived
        self._queue.put_nowait(pb.Receipt(taken=pb.Taken(sequence=sequence, held_ns=held_ns)))

    def passed(self, sequence: int) -> None:
        """Reports that every next stage has taken its copy of the item's result."""
        self._unpassed -= 1
        self._queue.put_nowait(pb.Receipt(passed=pb.Passed(sequence=sequence)))
        self._end_if_done()

    def sender_done(self) -> None:
        """Records the end of the sender's stream. The receipts end when the last item is passed."""
        self._is_sender_done = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_sender_done and self._unpassed == 0:
            self._queue.put_nowait(None)

    async def send(self, context: PassContext) -> None:
        """Sends the receipts in order, until the last one."""
        # The sender waits for the initial metadata before its first ping.
        await context.send_initial_metadata(())
        while (receipt := await self._queue.get()) is not None:
            await context.write(receipt)


class Custody:
    """Handle for the receipts of one item. It reports the item as passed when each copy of its result was released."""

    __slots__ = ("_receipts", "_sequence", "_copies")

    def __init__(self, receipts: Receipts, sequence: int) -> None:
        self._receipts = receipts
        self._sequence = sequence
        self._copies = receipts.copies

    def release(self) -> None:
        """Reports that a next stage took one copy."""
        self._copies -= 1
        if self._copies == 0:
            self._receipts.passed(self._sequence)

    def release_all(self) -> None:
        """Reports the item as passed without a copy of its result."""
        self._copies = 1
        self.release()
