"""The exit of a pipeline: items leave it at a stage without a next one, and listeners are told.

An end is told once, to the listeners of that moment, and kept by nobody.
"""

import asyncio
from collections import deque

from . import stage_pb2 as pb
from .item import Queued
from .seen import Seen

#: Ends that a slow listener may be behind.
BACKLOG = 4096


class Listener:
    """Ends that one listener was not told yet. The oldest one is dropped for a new one, and counted."""

    def __init__(self) -> None:
        self._ends: deque[pb.Ended] = deque()
        self._missed = 0
        self._news = asyncio.Event()
        self._is_closed = False

    def tell(self, end: pb.Ended) -> None:
        """Adds an end."""
        if len(self._ends) == BACKLOG:
            self._ends.popleft()
            self._missed += 1
        self._ends.append(end)
        self._news.set()

    def close(self) -> None:
        """Nothing more leaves."""
        self._is_closed = True
        self._news.set()

    async def next(self) -> pb.End | None:
        """The next end, or the number of those that were missed before it; none when nothing more leaves."""
        while not self._ends:
            if self._is_closed:
                return None
            self._news.clear()
            await self._news.wait()
        if self._missed:
            missed, self._missed = self._missed, 0
            return pb.End(missed=pb.Missed(count=missed))
        return pb.End(ended=self._ends.popleft())


class Exit:
    """Tells ends to listeners, each id once."""

    def __init__(self) -> None:
        self._seen = Seen()
        self._listeners: set[Listener] = set()
        self.is_closed = False

    def end(self, item: Queued) -> None:
        """The item leaves the pipeline."""
        if self._seen.is_first(item.id) and self._listeners:
            size = len(item.result or b"")
            end = pb.Ended(id=item.id, visits=item.visits, failure=item.failure, payload_bytes=size)
            for listener in self._listeners:
                listener.tell(end)
        for custody in item.custodies:
            custody.release()

    def listen(self) -> Listener:
        """A listener, until it is forgotten."""
        listener = Listener()
        self._listeners.add(listener)
        return listener

    def forget(self, listener: Listener) -> None:
        """The listener has gone."""
        self._listeners.discard(listener)

    def close(self) -> None:
        """Nothing more leaves: the listeners' streams end."""
        self.is_closed = True
        for listener in self._listeners:
            listener.close()
