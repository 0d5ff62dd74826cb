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

#: The newest item has one part in so many of the mean time.
_NEWEST = 8

#: An idle replica seems twice as fast after this time, in nanoseconds.
_HALVED_AFTER = 10_000_000_000


@dataclass(slots=True)
class Pending:
    """An item on the stream. Its payload is gone."""

    outgoing: Outgoing
    sent: int
    #: Items that were at the replica before.
    ahead: int
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
        #: Mean time of an item at the replica in nanoseconds, of late; none before the first was passed.
        self._pace: float | None = None
        self._last_sent = time.monotonic_ns()
        self._untaken = 0
        self._untaken_bytes = 0
        self.replica = opened.description.replica
        self.joins = opened.description.joins
        self.max_payload = opened.description.max_payload
        self._is_closed = False
        self._drains = False

    @property
    def is_open(self) -> bool:
        """True for a replica that is there to stay."""
        return not self._is_closed and not self._drains

    @property
    def is_last_resort(self) -> bool:
        """True for a replica that drains and could still be sent to."""
        return not self._is_closed and self._drains

    @property
    def count(self) -> int:
        """Items that are not passed."""
        return len(self._pending)

    def expected(self, now: int) -> float:
        """Time until the replica would have passed one more item. A replica that has passed none yet is tried first.
        One that gets no items seems faster with time, and so is tried again: it may have been slow because it had just
        started."""
        pace: float = (self._pace or 0.0) * 0.5 ** ((now - self._last_sent) / _HALVED_AFTER)
        return pace * (len(self._pending) + 1)

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
        self._last_sent = sent
        self._pending[sequence] = Pending(outgoing, sent, len(self._pending), size)

    def ping(self) -> None:
        """Measures the round trip again."""
        if not self._is_closed:
            self._parcels.put_nowait(ping(self._zero))

    def close(self) -> None:
        """Sends nothing more. The replica ends the stream when it has passed everything."""
        if not self._is_closed:
            self._is_closed = True
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
            receipt: pb.Receipt = await self._call.read()
        except grpc.RpcError:
            return None
        if receipt is aio.EOF:
            return None
        kind = receipt.WhichOneof("content")
        if kind == "taken":
            self._taken(receipt.taken.sequence, receipt.taken.held_ns)
        elif kind == "passed":
            self._passed(receipt.passed.sequence)
        elif kind == "pong":
            self._measured(time.monotonic_ns() - self._zero - receipt.pong.sent_ns)
        elif kind == "closing":
            self._drains = True
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

    def _passed(self, sequence: int) -> None:
        """The item is in the hands of the stages after the replica."""
        self._taken(sequence, 0)
        pending = self._pending.pop(sequence, None)
        if pending is not None:
            newest = (time.monotonic_ns() - pending.sent) / (pending.ahead + 1)
            pace = newest if self._pace is None else self._pace
            self._pace = (pace * (_NEWEST - 1) + newest) / _NEWEST

    def _measured(self, round_trip: int) -> None:
        self._half_round_trip = min(self._half_round_trip, max(round_trip, 0) // 2)
