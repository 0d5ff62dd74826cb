"""The items that leave a pipeline, at any replica of its last stage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeAlias

from grpc import aio

from . import stage_pb2 as pb
from .address import parse_all
from .dial import Listening, open_ends
from .replicas import Replicas
from .seen import Seen
from .settings import Settings

#: An item that left, or the number of items that left while the listener was too slow.
Told: TypeAlias = pb.Ended | pb.Missed

#: Ends that wait for the listener. The stage keeps more of them.
_WAITING = 64


class Ends:
    """A listener, within `async with`; `async for` then yields each item once, and how many were missed.

    `at` has the address of a last stage, or several. Replicas that end are dialed again.
    """

    def __init__(self, at: str | Iterable[str]) -> None:
        pause = Settings().resolve_every
        self._replicas = Replicas("the last stage", parse_all(at), pause, open_ends, self._use)
        self._told: asyncio.Queue[Told] = asyncio.Queue(_WAITING)
        self._seen = Seen()
        self._is_open = asyncio.Event()

    async def __aenter__(self) -> Ends:
        """Waits for the first replica."""
        self._running = asyncio.ensure_future(self._replicas.run())
        try:
            await self._is_open.wait()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    def __aiter__(self) -> Ends:
        return self

    async def __anext__(self) -> Told:
        return await self._told.get()

    async def _use(self, _: str, listening: Listening) -> None:
        """Reads one stream until its end."""
        self._is_open.set()
        try:
            while (end := await listening.call.read()) is not aio.EOF:
                if end.HasField("missed"):
                    await self._told.put(end.missed)
                elif self._seen.is_first(end.ended.id):
                    await self._told.put(end.ended)
        except aio.AioRpcError:
            # The replica is dialed again.
            pass
        finally:
            await listening.channel.close()
