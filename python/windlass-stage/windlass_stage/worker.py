"""A worker: takes batches from the queue, processes them, and sends the results on."""

from __future__ import annotations

import time

from . import stage_pb2 as pb
from .exit import Exit
from .item import Outgoing, Queued, failure
from .item_queue import ItemQueue
from .metrics import Metrics
from .outlet import Outlet
from .settings import Identity, Settings
from .work import Work, WorkFailed


class Worker:
    """Processes one batch at a time."""

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        metrics: Metrics,
        work: Work,
        items: ItemQueue,
        destination: Exit | list[Outlet],
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._metrics = metrics
        self._work = work
        self._items = items
        self._destination = destination

    async def run(self) -> None:
        """Processes batches until the queue is closed and empty."""
        while batch := await self._items.batch():
            await self._process(batch)

    async def _process(self, batch: list[Queued]) -> None:
        """Processes a batch and sends the results on. Failed items skip the work function."""
        started = time.monotonic_ns()
        for item in batch:
            if item.failure is None and item.deadline is not None and item.deadline <= started:
                reason = f"deadline passed in the queue of {self._identity.stage}"
                item.failure = self._failure(pb.FAILURE_KIND_DEADLINE, reason)
        inputs = [item for item in batch if item.failure is None]
        if inputs:
            await self._call_work(inputs)
        ready = time.monotonic_ns()
        processed = set(map(id, inputs))
        for item in batch:
            was_processed = id(item) in processed
            self._count(item, was_processed, started, ready)
            item.visits.append(
                pb.Visit(
                    stage=self._identity.stage,
                    replica=self._identity.replica,
                    link_us=item.link // 1000,
                    waited_us=(started - item.arrived) // 1000,
                    worked_us=(ready - started) // 1000 if was_processed else 0,
                )
            )
            await self._send_result(item, ready)

    async def _call_work(self, inputs: list[Queued]) -> None:
        """Calls the work function, and sets the result or the failure of each item."""
        try:
            results = await self._work.run([item.parts for item in inputs], self._settings.work_timeout)
        except WorkFailed as error:
            shared_failure = self._failure(error.kind, str(error))
            for item in inputs:
                item.failure = shared_failure
            return
        for item, result in zip(inputs, results):
            if isinstance(result, str):
                item.failure = self._failure(pb.FAILURE_KIND_WORK, result)
            else:
                item.result = result

    def _count(self, item: Queued, was_processed: bool, started: int, ready: int) -> None:
        self._metrics.time("link", item.link)
        self._metrics.time("waited", started - item.arrived)
        if was_processed:
            self._metrics.time("worked", ready - started)
            self._metrics.item("worked" if item.failure is None else "failed")
        else:
            self._metrics.item("passed_on")

    def _failure(self, kind: pb.FailureKind, reason: str) -> pb.Failure:
        self._metrics.failure(kind)
        return failure(self._identity, kind, reason)

    async def _send_result(self, item: Queued, ready: int) -> None:
        if isinstance(self._destination, Exit):
            self._destination.end(item)
            return
        payload = item.result or b""
        for outlet in self._destination:
            outgoing = Outgoing(item.id, payload, item.failure, item.visits, item.deadline, ready, list(item.custodies))
            await outlet.send(outgoing)
