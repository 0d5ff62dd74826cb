"""The way to one next stage: chooses a replica for each item, and answers for the item until it is passed on.

An item is accepted only when the previous one has left, so a next stage without room holds this one back. When a
stream ends, each item that was not passed becomes a failure that names the replica, and goes to another one: the next
stages and the end learn of it.
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
from .dial import Opened, open_stream
from .item import Outgoing, failure
from .link import Link
from .metrics import Metrics
from .replicas import Replicas
from .settings import Identity, Settings

_log = logging.getLogger("windlass_stage")

#: Pause between two pings of a stream in seconds, a few of which are in each span of `link_time`.
_PING_EVERY = 3

#: Time in seconds that a stage waits for its own signal when the only replica of the next stage drains.
_ALONE = 0.5

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
        #: Zero of the clock that goes along with items.
        self._zero = time.monotonic_ns()
        #: Items that wait for a replica with room: failures of lost streams, then the newest item.
        self._waiting: deque[Outgoing] = deque()
        self._links: dict[str, Link] = {}
        self._turn = asyncio.Lock()
        self._moved = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._is_draining = False
        self._replicas = Replicas(stage, addresses, settings.resolve_every, self._dial, self._use)

    async def run(self) -> None:
        """Keeps streams to every replica, until it is cancelled."""
        keeping = asyncio.ensure_future(self._replicas.run())
        try:
            while not keeping.done():
                await asyncio.wait((keeping,), timeout=_PING_EVERY)
                for link in self._links.values():
                    link.ping()
            keeping.result()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def send(self, outgoing: Outgoing) -> None:
        """Gives an item away, when the one before has left."""
        async with self._turn:
            await self._until(lambda: not self._waiting)
            self._waiting.append(outgoing)
            self._move()

    def drain(self) -> None:
        """This stage drains itself."""
        self._is_draining = True
        self._move()

    async def finish(self) -> None:
        """Waits until everything that was given away is passed on."""
        await self._until(lambda: not self._waiting and all(link.count == 0 for link in self._links.values()))

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._moved.clear()
            await self._moved.wait()

    async def _dial(self, target: str) -> Opened:
        return await open_stream(target, self._stage, self._zero)

    async def _use(self, target: str, opened: Opened) -> None:
        """Serves one stream until its end."""
        link = self._links[target] = Link(opened, self._identity.stage, self._zero)
        writing = asyncio.ensure_future(link.write())
        self._metrics.connected(self._stage, len(self._links))
        try:
            self._move()
            while (kind := await link.receive()) is not None:
                if kind == "closing":
                    _log.info("the replica drains: %s (%s)", self._stage, link.replica)
                    asyncio.get_running_loop().call_later(_ALONE, self._left_alone, link)
                self._move()
            self._lose(self._links.pop(target))
        finally:
            self._links.pop(target, None)
            self._metrics.connected(self._stage, len(self._links))
            writing.cancel()
            await opened.channel.close()

    def _lose(self, link: Link) -> None:
        """A stream has ended. Items that it did not pass become failures, which go first."""
        lost = link.unpassed()
        peer = Identity(self._stage, link.replica)
        for outgoing in lost:
            self._fail(outgoing, peer, pb.FAILURE_KIND_STOPPED, _STOPPED)
        if lost:
            text = "a stage stopped while it had items: %s (%s), %d items"
            _log.warning(text, self._stage, link.replica, len(lost))
        self._waiting.extendleft(reversed(lost))
        self._move()

    def _move(self) -> None:
        """Sends waiting items while a replica has room for the first. Called after everything that changes that."""
        self._close_drained()
        while self._waiting and (link := self._choose(self._waiting[0])):
            head = self._waiting.popleft()
            limit = self._limit(link)
            if len(head.payload) > limit:
                reason = too_large(len(head.payload), limit)
                self._fail(head, self._identity, pb.FAILURE_KIND_TOO_LARGE, reason)
            self._metrics.time("sending", time.monotonic_ns() - head.ready)
            link.send(head)
        self._set_alarm()
        self._moved.set()

    def _close_drained(self) -> None:
        """Sends nothing more to replicas that drain, once others are there.

        A stage of the same pod drains at the same time as this one, and no other takes what this one still has: it is
        sent to until this one has finished. Such a stage may say so before this one hears its own signal."""
        if any(link.is_open for link in self._links.values()):
            for link in self._links.values():
                if link.is_last_resort:
                    link.close()

    def _left_alone(self, link: Link) -> None:
        """The link's replica has drained for a while, and this stage goes on."""
        if not self._is_draining:
            link.close()

    def _choose(self, head: Outgoing) -> Link | None:
        def has_room(link: Link) -> bool:
            # Too large an item goes as a failure, without its payload.
            size = len(head.payload)
            return link.has_room(self._settings, 0 if size > self._limit(link) else size)

        return replica(self._links, head.id, self._is_draining, has_room)

    def _limit(self, link: Link) -> int:
        """Largest payload that both sides take."""
        return min(link.max_payload, self._settings.max_payload)

    def _set_alarm(self) -> None:
        """Rings when the deadline of the first waiting item passes."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._waiting and self._waiting[0].deadline is not None:
            after = max(self._waiting[0].deadline - time.monotonic_ns(), 0) / 1e9
            self._alarm = asyncio.get_running_loop().call_later(after, self._expire, self._waiting[0])

    def _expire(self, head: Outgoing) -> None:
        """Fails the head, whose deadline has passed. It goes on waiting, as a failure."""
        head.deadline = None
        reason = f"deadline passed on the way to {self._stage}"
        self._fail(head, self._identity, pb.FAILURE_KIND_DEADLINE, reason)
        self._move()

    def _fail(self, outgoing: Outgoing, at: Identity, kind: pb.FailureKind, reason: str) -> None:
        if outgoing.failure is None:
            self._metrics.failure(kind)
        outgoing.fail(failure(at, kind, reason))


def too_large(size: int, limit: int) -> str:
    """Sizes as people write them."""
    mib = 1024 * 1024
    if limit > 0 and limit % mib == 0 and -(-size // mib) > limit // mib:
        return f"is {-(-size // mib)} MiB, the limit is {limit // mib} MiB"
    return f"is {size} bytes, the limit is {limit} bytes"
