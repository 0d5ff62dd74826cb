"""The work of a stage: a function from payloads to results, for one item, for a batch, or for the parts of a join."""

import asyncio
import inspect
import logging
import traceback
from collections.abc import Callable
from typing import Any

from . import stage_pb2 as pb
from .threads import Threads

_log = logging.getLogger("windlass_stage")

#: A result, or the text of the reason that there is none.
Result = bytes | str


class WorkFailed(Exception):
    """A whole batch has no results."""

    def __init__(self, kind: int, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Work:
    """A function in one of its three forms. A coroutine runs on the event loop, another function on a thread."""

    def __init__(self, function: Callable[..., Any], one: Callable[[list[bytes]], tuple] | None) -> None:
        self._function = function
        #: Arguments of a call for one item; none: one call has the whole batch.
        self._one = one
        self._threads = Threads()
        self._is_coroutine = inspect.iscoroutinefunction(function)

    @classmethod
    def each(cls, function: Callable[[bytes], bytes]) -> "Work":
        """Works on the items of a batch one after the other."""
        return cls(function, lambda parts: (together(parts),))

    @classmethod
    def join(cls, function: Callable[..., bytes]) -> "Work":
        """Works on the parts of one item, each an argument."""
        return cls(function, tuple)

    @classmethod
    def batch(cls, function: Callable[[list[bytes]], list[bytes]]) -> "Work":
        """Works on a whole batch."""
        return cls(function, None)

    async def run(self, batch: list[list[bytes]], limit: float) -> list[Result]:
        """Results of a batch, as many as items, or `WorkFailed`."""
        if self._is_coroutine:
            running = asyncio.ensure_future(self._outcome_of_coroutine(batch))
        else:
            running = self._threads.call(self._results, batch)
        done, _ = await asyncio.wait((running,), timeout=limit)
        if not done:
            # A coroutine ends here; a thread cannot be stopped.
            running.cancel()
            raise WorkFailed(pb.FAILURE_KIND_SILENT, f"did not answer within {limit:g}s")
        results, error = running.result()
        if error is not None:
            raise WorkFailed(pb.FAILURE_KIND_WORK, told(error))
        if len(results) != len(batch):
            reason = f"returned {len(results)} results for {len(batch)} items"
            raise WorkFailed(pb.FAILURE_KIND_COUNT, reason)
        return results

    def _results(self, batch: list[list[bytes]]) -> list[Result]:
        if self._one is None:
            return [checked(result) for result in self._function([together(parts) for parts in batch])]
        results: list[Result] = []
        for parts in batch:
            try:
                results.append(checked(self._function(*self._one(parts))))
            except BaseException as error:  # noqa: BLE001
                results.append(told(error))
        return results

    async def _outcome_of_coroutine(self, batch: list[list[bytes]]) -> tuple[list[Result], BaseException | None]:
        try:
            return await self._results_of_coroutine(batch), None
        except Exception as error:  # noqa: BLE001
            return [], error

    async def _results_of_coroutine(self, batch: list[list[bytes]]) -> list[Result]:
        if self._one is None:
            return [checked(result) for result in await self._function([together(parts) for parts in batch])]
        results: list[Result] = []
        for parts in batch:
            try:
                results.append(checked(await self._function(*self._one(parts))))
            except Exception as error:  # noqa: BLE001
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


def told(error: BaseException) -> str:
    """An exception as the reason of a failure, with its place, and the exceptions that caused it."""
    _log.debug("the work raised", exc_info=error)
    texts = []
    cause: BaseException | None = error
    while cause is not None and len(texts) < 4:
        texts.append("".join(traceback.format_exception_only(cause)).strip())
        cause = cause.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    # A mistake in what the function returned shows itself here, which helps nobody.
    is_outside = bool(frames) and frames[-1].filename != __file__
    place = f" (line {frames[-1].lineno} of {frames[-1].filename})" if is_outside else ""
    return ": ".join(texts) + place
