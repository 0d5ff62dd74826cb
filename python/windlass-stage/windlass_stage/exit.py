"""The exit of a pipeline: the last stage publishes the end of each item to its listeners.

A new listener first gets the most recent ends again, so that one that reconnects misses none. The ends are in memory
only: a last stage that is killed loses those that it has not published.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

from . import stage_pb2 as pb
from .item import Queued
from .recent_ids import RecentIds

#: Ends that are buffered for a slow listener. Older ones are dropped and reported as missed.
LISTENER_BUFFER = 4096

#: Ends that a new listener gets again: those of a few seconds, the time to find a new replica.
MAX_RECENT_ENDS = 1024


class Listener:
    """Buffer of one listener's ends. When it is full, a new end evicts the oldest one, which counts as missed."""

    def __init__(self, recent: Iterable[pb.Ended]) -> None:
        self._ends = deque(recent)
        self._missed = 0
        self._changed = asyncio.Event()
        self._is_closed = False

    def publish(self, end: pb.Ended) -> None:
        """Adds an end."""
        if len(self._ends) == LISTENER_BUFFER:
            self._ends.popleft()
            self._missed += 1
        self._ends.append(end)
        self._changed.set()

    def close(self) -> None:
        """Ends the listener's stream after the buffered ends."""
        self._is_closed = True
        self._changed.set()

    async def next(self) -> pb.End | None:
        """The next end, or the number of ends that were missed before it; `None` after the last end."""
        while not self._ends:
            if self._is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        if self._missed:
            missed, self._missed = self._missed, 0
            return pb.End(missed=pb.Missed(count=missed))
        return pb.End(ended=self._ends.popleft())


class Exit:
    """Publishes ends to listeners, each id once."""

    def __init__(self) -> None:
        self._recent_ids = RecentIds()
        #: The most recent ends, oldest first.
        self._recent: deque[pb.Ended] = deque(maxlen=MAX_RECENT_ENDS)
        self._listeners: set[Listener] = set()
        self.is_closed = False

    def end(self, item: Queued) -> None:
        """Publishes the end of an item, and releases its custody."""
        if self._recent_ids.insert(item.id):
            size = len(item.result or b"")
            end = pb.Ended(id=item.id, visits=item.visits, failure=item.failure, payload_bytes=size)
            self._recent.append(end)
            for listener in self._listeners:
                listener.publish(end)
        for custody in item.custodies:
            custody.release()

    def listen(self) -> Listener:
        """Adds a listener, which gets the most recent ends and all later ones until `remove`."""
        listener = Listener(self._recent)
        self._listeners.add(listener)
        return listener

    def remove(self, listener: Listener) -> None:
        """Removes a listener."""
        self._listeners.discard(listener)

    def close(self) -> None:
        """Ends the streams of all listeners, after the last item has left."""
        self.is_closed = True
        for listener in self._listeners:
            listener.close()
