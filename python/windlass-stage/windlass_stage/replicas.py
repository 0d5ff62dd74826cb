"""The replicas behind an address: found by name, dialed, and dialed again.

               ┌────────(failed: pause)────────┐
               v                               │
     found ─> due ─────────(dial)─────────> dialing ──(opened)──> open ──(ended)──> due

The name is resolved every few seconds, more often after a change, and each second while none is open: replicas of a
Deployment come and go one after another. A replica that the name no longer has is forgotten, unless it is open: a
draining pod leaves the DNS first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from .address import Address
from .deadline import news
from .dial import DialError

T = TypeVar("T")

_log = logging.getLogger("windlass_stage")

#: Shortest and longest pause between two dials of a replica, in seconds.
_BACK_OFF = (0.05, 2.0)

#: Pause after a change; each further one is twice as long.
_AFTER_CHANGE = 0.5

#: Pause between two looks at a name of which no replica is open.
_NONE_OPEN = 1.0


class Replicas(Generic[T]):
    """Replicas of one stage, each with at most one open stream."""

    def __init__(
        self,
        stage: str,
        addresses: list[Address],
        resolve_every: float,
        dial: Callable[[str], Awaitable[T]],
        use: Callable[[str, T], Awaitable[None]],
    ) -> None:
        self._stage = stage
        self._addresses = addresses
        #: Longest pause between two looks at the name.
        self._resolve_every = resolve_every
        #: The next pause.
        self._resolve_after = _AFTER_CHANGE
        self._dial = dial
        #: Returns when the stream has ended.
        self._use = use
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._open: set[str] = set()
        self._ended = asyncio.Event()
        self._unresolved: str | None = None

    async def run(self) -> None:
        """Looks at the name again and again, until it is cancelled."""
        try:
            while True:
                self._ended.clear()
                await self._resolve()
                pause = self._resolve_after if self._open else _NONE_OPEN
                self._resolve_after = min(2 * self._resolve_after, self._resolve_every)
                await news(self._ended, pause)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _resolve(self) -> None:
        """Adds replicas that are new, and forgets those that are gone. One address that fails hides no other."""
        for task in self._tasks.values():
            if task.done():
                # A mistake of this kit, since such a task runs until it is cancelled: the stage fails.
                task.result()
        found: set[str] = set()
        error: OSError | None = None
        for address in self._addresses:
            try:
                found |= await address.resolve()
            except OSError as failed:
                error = failed
        if error is not None and not found:
            if self._unresolved != str(error):
                addresses = ",".join(map(str, self._addresses))
                _log.warning("cannot find the next stage: %s at %s: %s", self._stage, addresses, error)
            self._unresolved = str(error)
            return
        self._unresolved = None
        for target in set(self._tasks) - found - self._open:
            self._tasks.pop(target).cancel()
        for target in found - set(self._tasks):
            self._tasks[target] = asyncio.ensure_future(self._keep(target))
            self._tasks[target].add_done_callback(lambda _: self._ended.set())
            self._resolve_after = _AFTER_CHANGE

    async def _keep(self, target: str) -> None:
        """Keeps a stream to one replica."""
        back_off, failure = _BACK_OFF[0], None
        while True:
            try:
                opened = await self._dial(target)
            except DialError as error:
                # A new text is news, the same one is not.
                if failure != str(error):
                    text = "cannot use a replica of the next stage, trying again: %s at %s: %s"
                    _log.warning(text, self._stage, target, error)
                failure = str(error)
                await asyncio.sleep(back_off)
                back_off = min(back_off * 2, _BACK_OFF[1])
                continue
            _log.info("stream opened: %s at %s", self._stage, target)
            back_off, failure = _BACK_OFF[0], None
            self._open.add(target)
            try:
                await self._use(target, opened)
            finally:
                self._open.discard(target)
            self._resolve_after = _AFTER_CHANGE
            self._ended.set()
            await asyncio.sleep(back_off)
