"""The exit of a pipeline: items leave it at a stage without a next one, and listeners are told.

A listener is told the newest ends first, so that one that connects anew misses none. A last stage that is killed takes
along the ends that it has not told yet.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

from . import stage_pb2 as pb
from .item import Queued
from .seen import Seen

#: Ends that a slow listener may be behind.
BACKLOG = 4096

#: Ends that a new listener is told: those of some seconds, in which a listener finds a new replica.
RECENT = 1024


class Listener:
    """Ends that one listener was not told yet. The oldest one is dropped for a new one, and counted."""

    def __init__(self, recent: Iterable[pb.Ended]) -> None:
        self._ends = deque(recent)
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
        #: The newest ends.
        self._recent: deque[pb.Ended] = deque(maxlen=RECENT)
        self._listeners: set[Listener] = set()
        self.is_closed = False

    def end(self, item: Queued) -> None:
        """The item leaves the pipeline."""
        if self._seen.is_first(item.id):
            size = len(item.result or b"")
            end = pb.Ended(id=item.id, visits=item.visits, failure=item.failure, payload_bytes=size)
            self._recent.append(end)
            for listener in self._listeners:
                listener.tell(end)
        for custody in item.custodies:
            custody.release()

    def listen(self) -> Listener:
        """A listener to the newest ends and each later one, until it is forgotten."""
        listener = Listener(self._recent)
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
