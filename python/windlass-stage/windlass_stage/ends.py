"""Listener for the ends of a pipeline: the items that leave at any replica of its last stage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeAlias

from grpc import aio

from . import stage_pb2 as pb
from .address import parse_all
from .dial import EndStream, open_ends
from .recent_ids import RecentIds
from .replicas import Replicas
from .settings import Settings

#: An item that left, or the number of ends that were dropped because the listener was too slow.
EndEvent: TypeAlias = pb.Ended | pb.Missed

#: Maximum number of ends that wait here for the listener. The stage buffers more.
_CAPACITY = 64


class Ends:
    """A listener, used within `async with`. `async for` yields the end of each item once, and counts of missed ends.

    `at` has one or more addresses of a last stage. A replica whose stream ends is dialed again.
    """

    def __init__(self, at: str | Iterable[str]) -> None:
        interval = Settings().resolve_interval
        self._replicas = Replicas("the last stage", parse_all(at), interval, open_ends, self._use)
        self._events: asyncio.Queue[EndEvent] = asyncio.Queue(_CAPACITY)
        self._recent_ids = RecentIds()
        self._is_open = asyncio.Event()

    async def __aenter__(self) -> Ends:
        """Waits for the first replica."""
        self._replicas_task = asyncio.ensure_future(self._replicas.run())
        try:
            await self._is_open.wait()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._replicas_task.cancel()
        await asyncio.gather(self._replicas_task, return_exceptions=True)

    def __aiter__(self) -> Ends:
        return self

    async def __anext__(self) -> EndEvent:
        return await self._events.get()

    async def _use(self, _: str, stream: EndStream) -> None:
        """Reads one stream until its end."""
        self._is_open.set()
        try:
            while (end := await stream.call.read()) is not aio.EOF:
                if end.HasField("missed"):
                    await self._events.put(end.missed)
                elif self._recent_ids.insert(end.ended.id):
                    await self._events.put(end.ended)
        except aio.AioRpcError:
            # `Replicas` dials the replica again.
            pass
        finally:
            await stream.channel.close()
