"""Life cycle of a stage: bind, serve, drain.

     serving ──(SIGTERM)──> closing ──(senders end their streams)──> finishing ──(all items passed)──> ended
                               └──────────────(drain_timeout)────────────────────────────────────────────^

A drain ends the tasks in this order: readers, join, queue, outlets, and last the server: its streams carry the
receipts that tell the senders about their items.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from typing import TYPE_CHECKING

from grpc import aio

from . import stage_pb2 as pb
from . import wire
from .address import Address
from .deadline import with_timeout
from .exit import Exit
from .inlet import Inlet
from .item_queue import ItemQueue
from .join import Join
from .metrics import PrometheusMetrics
from .outlet import Outlet
from .page import Page
from .worker import Worker

if TYPE_CHECKING:
    from .stage import Stage

_log = logging.getLogger("windlass_stage")


class Tasks:
    """The tasks of one stage."""

    def __init__(self, stage: Stage) -> None:
        settings, identity, metrics = stage.settings, stage.identity, stage.metrics
        self._settings = settings
        self._items = ItemQueue(settings, metrics)
        joins = len(stage.from_) > 1
        self._join = Join(stage.from_, identity, settings, metrics, self._items) if joins else None
        self._outlets = [Outlet(identity, name, addresses, settings, metrics) for name, addresses in stage.next.items()]
        self._exit = None if self._outlets else Exit()
        destination = self._exit or self._outlets
        self._workers = [
            Worker(identity, settings, metrics, stage.function, self._items, destination)
            for _ in range(settings.workers)
        ]
        description = pb.DescribeResponse(
            protocol=wire.PROTOCOL,
            stage=identity.stage,
            replica=identity.replica,
            max_payload=settings.max_payload,
            joins=joins,
        )
        self._inlet = Inlet(description, max(len(self._outlets), 1), self._items, self._join, self._exit)
        self._page = Page(metrics) if isinstance(metrics, PrometheusMetrics) else None
        self._page_address = stage.page
        self._server = aio.server(options=wire.server(settings.max_payload))
        self._server.add_generic_rpc_handlers((self._inlet.handler(),))
        self._worker_tasks: list[asyncio.Task[None]] = []
        self._outlet_tasks: list[asyncio.Task[None]] = []

    async def start(self, address: Address) -> Address:
        """Starts to serve, and returns the bound address with the port that the system chose."""
        if address.port is None and _has_listener(address.host):
            raise OSError(f"cannot listen on {address}: another process does")
        try:
            port = self._server.add_insecure_port(str(address))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        if self._page and self._page_address:
            await self._page.start(self._page_address)
        self._worker_tasks = [asyncio.ensure_future(worker.run()) for worker in self._workers]
        if self._join:
            self._worker_tasks.append(asyncio.ensure_future(self._join.run()))
        self._outlet_tasks = [asyncio.ensure_future(outlet.run()) for outlet in self._outlets]
        await self._server.start()
        return address if address.port is None else Address(address.host, port)

    async def until(self, stop: asyncio.Event) -> None:
        """Waits for `stop`. Raises the exception of a task that ends before."""
        stop_task = asyncio.ensure_future(stop.wait())
        tasks = [*self._worker_tasks, *self._outlet_tasks]
        await asyncio.wait((stop_task, *tasks), return_when=asyncio.FIRST_COMPLETED)
        stop_task.cancel()
        for task in tasks:
            if task.done():
                task.result()

    async def drain(self) -> None:
        """Stops accepting items, and returns when all items are passed."""
        stop_task = asyncio.ensure_future(self._server.stop(self._settings.drain_timeout))
        for outlet in self._outlets:
            outlet.drain()
        await self._inlet.drain()
        (self._join or self._items).close()
        await asyncio.gather(*self._worker_tasks)
        if self._exit:
            self._exit.close()
        for outlet in self._outlets:
            await outlet.finish()
        # Ends the streams to the next stages, for which their own drains wait.
        await _cancel_all(self._outlet_tasks)
        await stop_task

    async def end(self) -> None:
        """Cancels the tasks and closes all connections."""
        await _cancel_all([*self._worker_tasks, *self._outlet_tasks])
        if self._page:
            self._page.stop()
        await self._server.stop(None)


async def serve(stage: Stage) -> None:
    """Serves until SIGTERM or SIGINT, then drains."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    tasks, name = Tasks(stage), stage.identity.stage
    try:
        address = await tasks.start(stage.listen)
        next_stages = [f"{name} at {','.join(map(str, addresses))}" for name, addresses in stage.next.items()]
        print(f"stage {name} listens on {address}; next: {', '.join(next_stages) or 'none'}", flush=True)
        await tasks.until(stop)
        _log.info("stopping, the stage drains: %s", name)
        try:
            await with_timeout(stage.settings.drain_timeout, tasks.drain())
            _log.info("the stage has finished everything: %s", name)
        except asyncio.TimeoutError:
            _log.warning("the stage ends with items that it could not pass on in time: %s", name)
    finally:
        await tasks.end()


async def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    """Cancels tasks, and waits for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _has_listener(path: str) -> bool:
    """True if a process listens on the unix socket. gRPC replaces a stale socket."""
    with socket.socket(socket.AF_UNIX) as peer:
        return peer.connect_ex(path) == 0
