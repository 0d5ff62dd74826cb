"""The outlet to one next stage: chooses a replica for each item, and has custody of the item until it is passed.

An item is accepted only after the previous one was sent, so a next stage without capacity applies back-pressure. When a
stream ends, each item that was not passed becomes a failure that names the replica. The failure goes to another
replica, so that later joins and the listeners get it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from . import stage_pb2 as pb
from .address import Address
from .choice import replica
from .dial import ItemStream, open_stream
from .item import Outgoing, failure
from .link import Link
from .metrics import Metrics
from .replicas import Replicas
from .settings import Identity, Settings

_log = logging.getLogger("windlass_stage")

#: Interval between the pings of a stream in seconds: a few pings per span of `link_time`.
_PING_INTERVAL = 3

#: Seconds that this stage waits for its own shutdown signal after a replica of the next stage has started to drain.
_DRAIN_GRACE = 0.5

_STOPPED = "the stage stopped while it had the item"


class Outlet:
    """The streams to one next stage."""

    def __init__(
        self, identity: Identity, stage: str, addresses: list[Address], settings: Settings, metrics: Metrics
    ) -> None:
        self._identity = identity
        self._stage = stage
        self._settings = settings
        self._metrics = metrics
        metrics.connected(stage, 0)
        #: Zero of the clock whose times are sent with items, in nanoseconds.
        self._zero = time.monotonic_ns()
        #: Items that wait for a replica with capacity: failures of lost streams first, then at most one new item.
        self._waiting: deque[Outgoing] = deque()
        self._links: dict[str, Link] = {}
        self._send_lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._is_draining = False
        self._replicas = Replicas(stage, addresses, settings.resolve_interval, self._dial, self._use)

    async def run(self) -> None:
        """Maintains a stream to every replica, until it is cancelled."""
        replicas_task = asyncio.ensure_future(self._replicas.run())
        try:
            while not replicas_task.done():
                await asyncio.wait((replicas_task,), timeout=_PING_INTERVAL)
                for link in self._links.values():
                    link.ping()
            replicas_task.result()
        finally:
            replicas_task.cancel()
            await asyncio.gather(replicas_task, return_exceptions=True)

    async def send(self, outgoing: Outgoing) -> None:
        """Sends an item. Waits until the previous item was sent."""
        async with self._send_lock:
            await self._until(lambda: not self._waiting)
            self._waiting.append(outgoing)
            self._send_waiting()

    def drain(self) -> None:
        """Records that this stage drains."""
        self._is_draining = True
        self._send_waiting()

    async def finish(self) -> None:
        """Waits until all items are passed."""
        await self._until(lambda: not self._waiting and all(link.pending_count == 0 for link in self._links.values()))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def _dial(self, target: str) -> ItemStream:
        return await open_stream(target, self._stage, self._zero)

    async def _use(self, target: str, stream: ItemStream) -> None:
        """Handles the receipts of one stream until its end."""
        link = self._links[target] = Link(stream, self._identity.stage, self._zero)
        write_task = asyncio.ensure_future(link.write())
        self._metrics.connected(self._stage, len(self._links))
        try:
            self._send_waiting()
            while (kind := await link.receive()) is not None:
                if kind == "closing":
                    _log.info("the replica drains: %s (%s)", self._stage, link.replica)
                    asyncio.get_running_loop().call_later(_DRAIN_GRACE, self._end_grace, link)
                self._send_waiting()
            self._lose_stream(self._links.pop(target))
        finally:
            self._links.pop(target, None)
            self._metrics.connected(self._stage, len(self._links))
            write_task.cancel()
            await stream.channel.close()

    def _lose_stream(self, link: Link) -> None:
        """Handles the end of a stream. Items that were not passed become failures, and are sent first."""
        unpassed = link.unpassed()
        peer = Identity(self._stage, link.replica)
        for outgoing in unpassed:
            self._fail(outgoing, peer, pb.FAILURE_KIND_STOPPED, _STOPPED)
        if unpassed:
            text = "a stage stopped while it had items: %s (%s), %d items"
            _log.warning(text, self._stage, link.replica, len(unpassed))
        self._waiting.extendleft(reversed(unpassed))
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Sends waiting items while a replica has capacity for the first one. Called after every change of state."""
        self._close_draining()
        while self._waiting and (link := self._choose(self._waiting[0])):
            head = self._waiting.popleft()
            limit = self._limit(link)
            if len(head.payload) > limit:
                reason = too_large(len(head.payload), limit)
                self._fail(head, self._identity, pb.FAILURE_KIND_TOO_LARGE, reason)
            self._metrics.time("sending", time.monotonic_ns() - head.ready)
            link.send(head)
        self._set_deadline_timer()
        self._changed.set()

    def _close_draining(self) -> None:
        """Closes the streams to draining replicas once another replica is open.

        A next stage in the same pod drains at the same time as this stage, and has no other replica. This stage keeps
        sending to it until its own drain is done. The next stage can announce its drain before this stage gets its own
        signal, hence the grace period."""
        if any(link.is_open for link in self._links.values()):
            for link in self._links.values():
                if link.is_draining:
                    link.close()

    def _end_grace(self, link: Link) -> None:
        """Closes the link of a draining replica after the grace period, unless this stage drains too."""
        if not self._is_draining:
            link.close()

    def _choose(self, head: Outgoing) -> Link | None:
        def has_capacity(link: Link) -> bool:
            # An item over the limit becomes a failure, and is sent without its payload.
            size = len(head.payload)
            return link.has_capacity(self._settings, 0 if size > self._limit(link) else size)

        return replica(self._links, head.id, self._is_draining, has_capacity)

    def _limit(self, link: Link) -> int:
        """Largest payload in bytes that both sides accept."""
        return min(link.max_payload, self._settings.max_payload)

    def _set_deadline_timer(self) -> None:
        """Sets the timer for the deadline of the first waiting item."""
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        if self._waiting and self._waiting[0].deadline is not None:
            delay = max(self._waiting[0].deadline - time.monotonic_ns(), 0) / 1e9
            self._deadline_timer = asyncio.get_running_loop().call_later(delay, self._expire, self._waiting[0])

    def _expire(self, head: Outgoing) -> None:
        """Fails the first item, whose deadline has passed. It continues to wait, as a failure."""
        head.deadline = None
        reason = f"deadline passed on the way to {self._stage}"
        self._fail(head, self._identity, pb.FAILURE_KIND_DEADLINE, reason)
        self._send_waiting()

    def _fail(self, outgoing: Outgoing, identity: Identity, kind: pb.FailureKind, reason: str) -> None:
        if outgoing.failure is None:
            self._metrics.failure(kind)
        outgoing.fail(failure(identity, kind, reason))


def too_large(size: int, limit: int) -> str:
    """Reason of a failure for a payload over the limit, in MiB where the numbers allow it."""
    mib = 1024 * 1024
    if limit > 0 and limit % mib == 0 and -(-size // mib) > limit // mib:
        return f"is {-(-size // mib)} MiB, the limit is {limit // mib} MiB"
    return f"is {size} bytes, the limit is {limit} bytes"
