"""The work function of a stage: maps payloads to results, for one item, for a batch, or for the parts of a join."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from . import stage_pb2 as pb
from .quantity import format_time
from .threads import Threads

_log = logging.getLogger("windlass_stage")

#: Outcome of one item: its result, or the reason of its failure as text.
Result: TypeAlias = bytes | str

#: The three forms of a work function: for one item, for the parts of one item, for a batch.
ItemFunction: TypeAlias = Callable[[bytes], bytes | Awaitable[bytes]]
PartsFunction: TypeAlias = Callable[..., bytes | Awaitable[bytes]]
BatchFunction: TypeAlias = Callable[[list[bytes]], list[bytes] | Awaitable[list[bytes]]]

#: Outcome of a batch: one outcome per item, or an exception that fails all items.
Outcome: TypeAlias = list[Result] | BaseException

#: Makes the arguments of a call for one item from its parts.
MakeArguments: TypeAlias = Callable[[list[bytes]], tuple[bytes, ...]]

#: Maximum characters of an exception's text. The size of a message is limited.
_MAX_TEXT = 2000


class WorkFailed(Exception):
    """All items of a batch fail."""

    def __init__(self, kind: pb.FailureKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Work:
    """A work function in one of its three forms. A coroutine function runs on the event loop, others on a thread."""

    def __init__(self, function: Callable[..., Any], arguments: MakeArguments | None) -> None:
        self._function = function
        #: Makes the arguments of a call for one item; `None` for a function of the whole batch.
        self._arguments = arguments
        self._threads: Threads[Outcome] = Threads()
        self._is_coroutine = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))

    @classmethod
    def each(cls, function: ItemFunction) -> Work:
        """Calls the function for each item of a batch in turn."""
        return cls(function, lambda parts: (concat_parts(parts),))

    @classmethod
    def join(cls, function: PartsFunction) -> Work:
        """Calls the function for each item, with its parts as arguments."""
        return cls(function, tuple)

    @classmethod
    def batch(cls, function: BatchFunction) -> Work:
        """Calls the function with the whole batch."""
        return cls(function, None)

    async def run(self, batch: list[list[bytes]], limit: float) -> list[Result]:
        """Calls the function within `limit` seconds. Returns one result per item, or raises `WorkFailed`."""
        call = _Call(self._function, self._arguments, batch)
        running: asyncio.Future[Outcome]
        if self._is_coroutine:
            running = asyncio.ensure_future(call.run_coroutine())
        else:
            running = self._threads.call(call.run)
        try:
            await asyncio.wait((running,), timeout=limit)
            if not running.done():
                raise WorkFailed(pb.FAILURE_KIND_SILENT, f"did not answer within {format_time(limit)}")
        finally:
            # Ends a coroutine. A thread cannot be stopped, but starts no further item.
            call.is_abandoned = True
            running.cancel()
        outcome = running.result()
        if isinstance(outcome, BaseException):
            raise WorkFailed(pb.FAILURE_KIND_WORK, failure_reason(outcome))
        if len(outcome) != len(batch):
            reason = f"returned {len(outcome)} results for {len(batch)} items"
            raise WorkFailed(pb.FAILURE_KIND_COUNT, reason)
        return outcome


class _Call:
    """One call of the work function. Every exception fails items, including `SystemExit` and `CancelledError`."""

    def __init__(self, function: Callable[..., Any], arguments: MakeArguments | None, batch: list[list[bytes]]) -> None:
        self._function = function
        self._arguments = arguments
        self._batch = batch
        #: True once the results are no longer needed.
        self.is_abandoned = False

    def run(self) -> Outcome:
        """Calls a function."""
        if self._arguments is None:
            try:
                return to_bytes_list(self._function(list(map(concat_parts, self._batch))))
            except BaseException as error:
                return error
        results: list[Result] = []
        for parts in self._batch:
            if self.is_abandoned:
                break
            try:
                results.append(to_bytes(self._function(*self._arguments(parts))))
            except BaseException as error:
                results.append(failure_reason(error))
        return results

    async def run_coroutine(self) -> Outcome:
        """Calls a coroutine function."""
        if self._arguments is None:
            try:
                return to_bytes_list(await self._function(list(map(concat_parts, self._batch))))
            except BaseException as error:
                return error
        results: list[Result] = []
        for parts in self._batch:
            if self.is_abandoned:
                break
            try:
                results.append(to_bytes(await self._function(*self._arguments(parts))))
            except BaseException as error:
                results.append(failure_reason(error))
        return results


def concat_parts(parts: list[bytes]) -> bytes:
    """Concatenates the parts of an item."""
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def forward(payload: bytes) -> bytes:
    """The default work function: returns the payload unchanged."""
    return payload


def to_bytes(result: Any) -> bytes:
    """Converts a result to bytes: from `bytes`, `bytearray` or `memoryview`."""
    if isinstance(result, bytes):
        return result
    if isinstance(result, (bytearray, memoryview)):
        return bytes(result)
    raise TypeError(f"the work returned {type(result).__name__}, not bytes")


def to_bytes_list(results: Any) -> list[Result]:
    """Converts the results of a batch to bytes."""
    if isinstance(results, (bytes, bytearray, memoryview, str)) or not isinstance(results, Iterable):
        raise TypeError(f"the work returned {type(results).__name__}, not a list of results")
    return [to_bytes(result) for result in results]


def failure_reason(error: BaseException) -> str:
    """Text of an exception for the reason of a failure, with its causes and its source line."""
    _log.debug("the work raised", exc_info=error)
    texts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(texts) < 4:
        texts.append("".join(traceback.format_exception_only(cause)).strip())
        cause = cause.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    # An invalid return value raises in this file, which is no useful location.
    is_outside = bool(frames) and frames[-1].filename != __file__
    location = f" (line {frames[-1].lineno} of {frames[-1].filename})" if is_outside else ""
    text = ": ".join(texts)
    if len(text) > _MAX_TEXT:
        text = text[:_MAX_TEXT] + "..."
    # A protobuf string holds no lone surrogates, which Python uses for undecodable bytes in file names.
    return (text + location).encode("utf-8", "backslashreplace").decode()
