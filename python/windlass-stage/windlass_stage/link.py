"""One stream to a replica: the items on it, and how far each is.

     sent ──(Taken)──> taken ──(Passed)──> forgotten
       │                 │
       └──(the stream ends)──> a failure for another replica
"""

import asyncio
import time
from dataclasses import dataclass

import grpc
from grpc import aio

from . import stage_pb2 as pb
from .dial import Opened, ping
from .item import Outgoing
from .settings import UNTAKEN_BYTES, Settings


@dataclass(slots=True)
class Pending:
    """An item on the stream. Its payload is gone."""

    outgoing: Outgoing
    sent: int
    #: Bytes of its payload while the replica has not taken it.
    untaken: int | None


class Link:
    """A stream that has opened."""

    def __init__(self, opened: Opened, sender: str, zero: int) -> None:
        self._call = opened.call
        self._sender = sender
        self._zero = zero
        self._half_round_trip = opened.half_round_trip
        self._parcels: asyncio.Queue[pb.Parcel | None] = asyncio.Queue()
        #: Items that the replica has not passed, by their number, in their order.
        self._pending: dict[int, Pending] = {}
        self._next_sequence = 0
        self._untaken = 0
        self._untaken_bytes = 0
        self.replica = opened.description.replica
        self.joins = opened.description.joins
        self.max_payload = opened.description.max_payload
        #: False once the replica drains.
        self.is_open = True

    @property
    def count(self) -> int:
        """Items that are not passed."""
        return len(self._pending)

    def has_room(self, settings: Settings, size: int) -> bool:
        """True if one more item fits. A payload that is larger than all the room goes alone."""
        fits = self._untaken == 0 or self._untaken_bytes + size <= UNTAKEN_BYTES
        return self._untaken < settings.window and fits

    def send(self, outgoing: Outgoing) -> None:
        """Sends an item, and keeps its name."""
        sent, sequence, size = time.monotonic_ns(), self._next_sequence, len(outgoing.payload)
        self._next_sequence += 1
        item = outgoing.to_wire(self._sender, sequence, sent, self._half_round_trip, self._zero)
        self._parcels.put_nowait(pb.Parcel(item=item))
        outgoing.payload = b""
        self._untaken += 1
        self._untaken_bytes += size
        self._pending[sequence] = Pending(outgoing, sent, size)

    def ping(self) -> None:
        """Measures the round trip again."""
        if self.is_open:
            self._parcels.put_nowait(ping(self._zero))

    def close(self) -> None:
        """Sends nothing more. The replica ends the stream when it has passed everything."""
        if self.is_open:
            self.is_open = False
            self._parcels.put_nowait(None)

    def unpassed(self) -> list[Outgoing]:
        """Items that the replica never passed, in their order."""
        return [pending.outgoing for pending in self._pending.values()]

    async def write(self) -> None:
        """Sends what is to be sent. The stream's end shows itself by its receipts."""
        try:
            while (parcel := await self._parcels.get()) is not None:
                await self._call.write(parcel)
            await self._call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass

    async def receive(self) -> str | None:
        """Notes one receipt, and returns its kind; none at the stream's end."""
        try:
            receipt = await self._call.read()
        except grpc.RpcError:
            return None
        if receipt is aio.EOF:
            return None
        kind = receipt.WhichOneof("content")
        if kind == "taken":
            self._taken(receipt.taken.sequence, receipt.taken.held_ns)
        elif kind == "passed":
            self._taken(receipt.passed.sequence, 0)
            self._pending.pop(receipt.passed.sequence, None)
        elif kind == "pong":
            self._measured(time.monotonic_ns() - self._zero - receipt.pong.sent_ns)
        elif kind == "closing":
            self.close()
        return kind or "unknown"

    def _taken(self, sequence: int, held_ns: int) -> None:
        """The replica has the item: the senders before this stage may forget it."""
        pending = self._pending.get(sequence)
        if pending is None or pending.untaken is None:
            return
        self._untaken -= 1
        self._untaken_bytes -= pending.untaken
        pending.untaken = None
        self._measured(time.monotonic_ns() - pending.sent - held_ns)
        for custody in pending.outgoing.custodies:
            custody.release()
        pending.outgoing.custodies = []

    def _measured(self, round_trip: int) -> None:
        self._half_round_trip = min(self._half_round_trip, max(round_trip, 0) // 2)
