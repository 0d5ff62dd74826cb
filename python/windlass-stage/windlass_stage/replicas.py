"""The replicas behind an address: resolution of the name, and one open stream per replica.

                  ┌───────(failed: back-off)──────┐
                  v                               │
     resolved ─> due ─────────(dial)─────────> dialing ──(opened)──> open ──(ended)──> due

The name is resolved as soon as a stream ends, then at intervals that double from half a second up to
`resolve_interval`. A new replica resets the interval, since a Deployment replaces its replicas one after another. While
no stream is open, the interval is one second. A replica that is missing from the result is removed, unless its stream
is open: a draining pod leaves the DNS first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from .address import Address
from .deadline import wait_for_event
from .dial import DialError

T = TypeVar("T")

_log = logging.getLogger("windlass_stage")

#: Minimum and maximum wait between two dials of a replica, in seconds.
_BACK_OFF = (0.05, 2.0)

#: Interval to the next resolution after a change, in seconds; each further one is twice as long.
_RESOLVE_AFTER_CHANGE = 0.5

#: Interval between resolutions while no stream is open, in seconds.
_RESOLVE_DISCONNECTED = 1.0


class Replicas(Generic[T]):
    """Replicas of one stage, each with at most one open stream."""

    def __init__(
        self,
        stage: str,
        addresses: list[Address],
        resolve_interval: float,
        dial: Callable[[str], Awaitable[T]],
        use: Callable[[str, T], Awaitable[None]],
    ) -> None:
        self._stage = stage
        self._addresses = addresses
        #: Maximum interval between two resolutions, in seconds.
        self._resolve_interval = resolve_interval
        #: Next interval.
        self._next_resolve_interval = _RESOLVE_AFTER_CHANGE
        self._dial = dial
        #: Uses a stream, and returns when it has ended.
        self._use = use
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._open: set[str] = set()
        self._changed = asyncio.Event()
        self._resolve_error: str | None = None

    async def run(self) -> None:
        """Resolves the name periodically, until it is cancelled."""
        try:
            while True:
                self._changed.clear()
                await self._resolve()
                interval = self._next_resolve_interval if self._open else _RESOLVE_DISCONNECTED
                self._next_resolve_interval = min(2 * self._next_resolve_interval, self._resolve_interval)
                await wait_for_event(self._changed, interval)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _resolve(self) -> None:
        """Resolves all addresses, adds new replicas and removes missing ones. One failing address hides no other."""
        for task in self._tasks.values():
            if task.done():
                # A bug in this package: such a task runs until it is cancelled. Its exception stops the stage.
                task.result()
        targets: set[str] = set()
        error: OSError | None = None
        for address in self._addresses:
            try:
                targets |= await address.resolve()
            except OSError as resolve_error:
                error = resolve_error
        if error is not None and not targets:
            if self._resolve_error != str(error):
                addresses = ",".join(map(str, self._addresses))
                _log.warning("cannot find the next stage: %s at %s: %s", self._stage, addresses, error)
            self._resolve_error = str(error)
            return
        self._resolve_error = None
        for target in set(self._tasks) - targets - self._open:
            self._tasks.pop(target).cancel()
        for target in targets - set(self._tasks):
            self._tasks[target] = asyncio.ensure_future(self._maintain(target))
            self._tasks[target].add_done_callback(lambda _: self._changed.set())
            self._next_resolve_interval = _RESOLVE_AFTER_CHANGE

    async def _maintain(self, target: str) -> None:
        """Maintains a stream to one replica: dials it again after each end or failure."""
        back_off, failure = _BACK_OFF[0], None
        while True:
            try:
                stream = await self._dial(target)
            except DialError as error:
                # Log each text once.
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
                await self._use(target, stream)
            finally:
                self._open.discard(target)
            self._next_resolve_interval = _RESOLVE_AFTER_CHANGE
            self._changed.set()
            await asyncio.sleep(back_off)
