"""The work of a stage: a function from payloads to results, for one item, for a batch, or for the parts of a join."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from . import stage_pb2 as pb
from .quantity import shown
from .threads import Threads

_log = logging.getLogger("windlass_stage")

#: A result, or the text of the reason that there is none.
Result: TypeAlias = bytes | str

#: The three forms of work: for one item, for the parts of one, for a batch.
OfOne: TypeAlias = Callable[[bytes], bytes | Awaitable[bytes]]
OfParts: TypeAlias = Callable[..., bytes | Awaitable[bytes]]
OfBatch: TypeAlias = Callable[[list[bytes]], list[bytes] | Awaitable[list[bytes]]]

#: Results of a batch, or the reason that there are none.
Outcome: TypeAlias = list[Result] | BaseException

#: Arguments of a call for one item.
One: TypeAlias = Callable[[list[bytes]], tuple[bytes, ...]]

#: Longest text of an exception, in characters: a message has room for a few.
_LONGEST = 2000


class WorkFailed(Exception):
    """A whole batch has no results."""

    def __init__(self, kind: pb.FailureKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Work:
    """A function in one of its three forms. A coroutine runs on the event loop, another function on a thread."""

    def __init__(self, function: Callable[..., Any], one: One | None) -> None:
        self._function = function
        #: Arguments of a call for one item; none: one call has the whole batch.
        self._one = one
        self._threads: Threads[Outcome] = Threads()
        self._is_coroutine = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))

    @classmethod
    def each(cls, function: OfOne) -> Work:
        """Works on the items of a batch one after the other."""
        return cls(function, lambda parts: (together(parts),))

    @classmethod
    def join(cls, function: OfParts) -> Work:
        """Works on the parts of one item, each an argument."""
        return cls(function, tuple)

    @classmethod
    def batch(cls, function: OfBatch) -> Work:
        """Works on a whole batch."""
        return cls(function, None)

    async def run(self, batch: list[list[bytes]], limit: float) -> list[Result]:
        """Results of a batch, as many as items, or `WorkFailed`."""
        call = _Call(self._function, self._one, batch)
        running: asyncio.Future[Outcome]
        if self._is_coroutine:
            running = asyncio.ensure_future(call.run_coroutine())
        else:
            running = self._threads.call(call.run)
        try:
            await asyncio.wait((running,), timeout=limit)
            if not running.done():
                raise WorkFailed(pb.FAILURE_KIND_SILENT, f"did not answer within {shown(limit)}")
        finally:
            # A coroutine ends here. A thread cannot be stopped, but begins no further item.
            call.is_given_up = True
            running.cancel()
        outcome = running.result()
        if isinstance(outcome, BaseException):
            raise WorkFailed(pb.FAILURE_KIND_WORK, told(outcome))
        if len(outcome) != len(batch):
            reason = f"returned {len(outcome)} results for {len(batch)} items"
            raise WorkFailed(pb.FAILURE_KIND_COUNT, reason)
        return outcome


class _Call:
    """One call of the work. Whatever it raises fails items, `sys.exit` and a cancellation of its own too."""

    def __init__(self, function: Callable[..., Any], one: One | None, batch: list[list[bytes]]) -> None:
        self._function = function
        self._one = one
        self._batch = batch
        #: Nobody waits for the results any more.
        self.is_given_up = False

    def run(self) -> Outcome:
        """Calls a function."""
        if self._one is None:
            try:
                return checked_all(self._function(list(map(together, self._batch))))
            except BaseException as error:
                return error
        results: list[Result] = []
        for parts in self._batch:
            if self.is_given_up:
                break
            try:
                results.append(checked(self._function(*self._one(parts))))
            except BaseException as error:
                results.append(told(error))
        return results

    async def run_coroutine(self) -> Outcome:
        """Calls a coroutine function."""
        if self._one is None:
            try:
                return checked_all(await self._function(list(map(together, self._batch))))
            except BaseException as error:
                return error
        results: list[Result] = []
        for parts in self._batch:
            if self.is_given_up:
                break
            try:
                results.append(checked(await self._function(*self._one(parts))))
            except BaseException as error:
                results.append(told(error))
        return results


def together(parts: list[bytes]) -> bytes:
    """One payload of all parts."""
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def pass_on(payload: bytes) -> bytes:
    """The work of a stage that has none."""
    return payload


def checked(result: Any) -> bytes:
    """The bytes of a result, such as a `bytearray` or a buffer of an array."""
    if isinstance(result, bytes):
        return result
    if isinstance(result, (bytearray, memoryview)):
        return bytes(result)
    raise TypeError(f"the work returned {type(result).__name__}, not bytes")


def checked_all(results: Any) -> list[Result]:
    """The bytes of the results of a batch."""
    if isinstance(results, (bytes, bytearray, memoryview, str)) or not isinstance(results, Iterable):
        raise TypeError(f"the work returned {type(results).__name__}, not a list of results")
    return [checked(result) for result in results]


def told(error: BaseException) -> str:
    """An exception as the reason of a failure, with its place, and the exceptions that caused it."""
    _log.debug("the work raised", exc_info=error)
    texts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(texts) < 4:
        texts.append("".join(traceback.format_exception_only(cause)).strip())
        cause = cause.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    # A mistake in what the function returned shows itself here, which helps nobody.
    is_outside = bool(frames) and frames[-1].filename != __file__
    place = f" (line {frames[-1].lineno} of {frames[-1].filename})" if is_outside else ""
    text = ": ".join(texts)
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + "..."
    # A message holds no half of a surrogate pair, which names of files have for bytes that are no text.
    return (text + place).encode("utf-8", "backslashreplace").decode()
