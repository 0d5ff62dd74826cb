"""One stream to a replica, and the state of each item on it.

     sent ──(Taken)──> taken ──(Passed)──> removed
       │                 │
       └──(the stream ends)──> a failure for another replica
"""

import asyncio
import time
from dataclasses import dataclass

import grpc
from grpc import aio

from . import stage_pb2 as pb
from .dial import ItemStream, ping
from .item import Outgoing
from .settings import MAX_UNACKNOWLEDGED_BYTES, Settings

#: Inverse weight of the newest item in the moving average.
_AVERAGE_WEIGHT = 8

#: Half-life of the average of an idle replica in nanoseconds: after this time, the replica counts as twice as fast.
_IDLE_HALF_LIFE = 10_000_000_000


@dataclass(slots=True)
class Pending:
    """An item that was sent, without its payload."""

    outgoing: Outgoing
    sent: int
    #: Number of items on the stream that were sent before and not passed yet.
    ahead: int
    #: Payload bytes; `None` once the replica has taken the item.
    unacknowledged_bytes: int | None


class Link:
    """An open stream."""

    def __init__(self, stream: ItemStream, sender: str, zero: int) -> None:
        self._call = stream.call
        self._sender = sender
        self._zero = zero
        self._half_round_trip = stream.half_round_trip
        self._parcels: asyncio.Queue[pb.Parcel | None] = asyncio.Queue()
        #: Items that the replica has not passed, by sequence number, in the order of sending.
        self._pending: dict[int, Pending] = {}
        self._next_sequence = 0
        #: Moving average of the time per item at the replica, in nanoseconds; `None` before it has passed one.
        self._item_time: float | None = None
        self._last_sent = time.monotonic_ns()
        self._unacknowledged = 0
        self._unacknowledged_bytes = 0
        self.replica = stream.description.replica
        self.joins = stream.description.joins
        self.max_payload = stream.description.max_payload
        self._is_closed = False
        self._is_draining = False

    @property
    def is_open(self) -> bool:
        """True if the replica accepts items and does not drain."""
        return not self._is_closed and not self._is_draining

    @property
    def is_draining(self) -> bool:
        """True if the replica drains and still accepts items."""
        return not self._is_closed and self._is_draining

    @property
    def pending_count(self) -> int:
        """Number of items that the replica has not passed."""
        return len(self._pending)

    def expected_wait(self, now: int) -> float:
        """Expected time until the replica has passed one more item, in nanoseconds. It is zero for a replica that has
        passed none yet. For an idle replica it decays, so that a replica that was slow at its start is tried again."""
        item_time: float = (self._item_time or 0.0) * 0.5 ** ((now - self._last_sent) / _IDLE_HALF_LIFE)
        return item_time * (len(self._pending) + 1)

    def has_capacity(self, settings: Settings, size: int) -> bool:
        """True if one more item fits in the window and in `MAX_UNACKNOWLEDGED_BYTES`. A larger payload goes alone."""
        fits = self._unacknowledged == 0 or self._unacknowledged_bytes + size <= MAX_UNACKNOWLEDGED_BYTES
        return self._unacknowledged < settings.window and fits

    def send(self, outgoing: Outgoing) -> None:
        """Sends an item, and keeps it without its payload."""
        sent, sequence, size = time.monotonic_ns(), self._next_sequence, len(outgoing.payload)
        self._next_sequence += 1
        item = outgoing.to_wire(self._sender, sequence, sent, self._half_round_trip, self._zero)
        self._parcels.put_nowait(pb.Parcel(item=item))
        outgoing.payload = b""
        self._unacknowledged += 1
        self._unacknowledged_bytes += size
        self._last_sent = sent
        self._pending[sequence] = Pending(outgoing, sent, len(self._pending), size)

    def ping(self) -> None:
        """Measures the round trip again."""
        if not self._is_closed:
            self._parcels.put_nowait(ping(self._zero))

    def close(self) -> None:
        """Closes the stream for sending. The replica ends the stream when it has passed all items."""
        if not self._is_closed:
            self._is_closed = True
            self._parcels.put_nowait(None)

    def unpassed(self) -> list[Outgoing]:
        """Items that the replica has not passed, in the order of sending."""
        return [pending.outgoing for pending in self._pending.values()]

    async def write(self) -> None:
        """Writes the queued messages. Errors are ignored: the receipts show the end of the stream."""
        try:
            while (parcel := await self._parcels.get()) is not None:
                await self._call.write(parcel)
            await self._call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass

    async def receive(self) -> str | None:
        """Handles one receipt, and returns its kind; `None` at the end of the stream."""
        try:
            receipt: pb.Receipt = await self._call.read()
        except grpc.RpcError:
            return None
        if receipt is aio.EOF:
            return None
        kind = receipt.WhichOneof("content")
        if kind == "taken":
            self._on_taken(receipt.taken.sequence, receipt.taken.held_ns)
        elif kind == "passed":
            self._on_passed(receipt.passed.sequence)
        elif kind == "pong":
            self._record_round_trip(time.monotonic_ns() - self._zero - receipt.pong.sent_ns)
        elif kind == "closing":
            self._is_draining = True
        return kind or "unknown"

    def _on_taken(self, sequence: int, held_ns: int) -> None:
        """Handles the receipt `Taken`: releases the custody of the previous stages."""
        pending = self._pending.get(sequence)
        if pending is None or pending.unacknowledged_bytes is None:
            return
        self._unacknowledged -= 1
        self._unacknowledged_bytes -= pending.unacknowledged_bytes
        pending.unacknowledged_bytes = None
        self._record_round_trip(time.monotonic_ns() - pending.sent - held_ns)
        for custody in pending.outgoing.custodies:
            custody.release()
        pending.outgoing.custodies = []

    def _on_passed(self, sequence: int) -> None:
        """Handles the receipt `Passed`: the item is done, and its time enters the average."""
        self._on_taken(sequence, 0)
        pending = self._pending.pop(sequence, None)
        if pending is not None:
            newest = (time.monotonic_ns() - pending.sent) / (pending.ahead + 1)
            item_time = newest if self._item_time is None else self._item_time
            self._item_time = (item_time * (_AVERAGE_WEIGHT - 1) + newest) / _AVERAGE_WEIGHT

    def _record_round_trip(self, round_trip: int) -> None:
        self._half_round_trip = min(self._half_round_trip, max(round_trip, 0) // 2)
