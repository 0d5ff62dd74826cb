"""A worker: takes batches from the queue, works on them, and hands the results on."""

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
    """One call of the work at a time."""

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        metrics: Metrics,
        work: Work,
        items: ItemQueue,
        way_out: Exit | list[Outlet],
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._metrics = metrics
        self._work = work
        self._items = items
        self._way_out = way_out

    async def run(self) -> None:
        """Works until nothing more comes and the last result is handed on."""
        while batch := await self._items.batch():
            await self._process(batch)

    async def _process(self, batch: list[Queued]) -> None:
        """Failures among the items skip the work."""
        begun = time.monotonic_ns()
        for item in batch:
            if item.failure is None and item.deadline is not None and item.deadline <= begun:
                reason = f"deadline passed in the queue of {self._identity.stage}"
                item.failure = self._failure(pb.FAILURE_KIND_DEADLINE, reason)
        inputs = [item for item in batch if item.failure is None]
        if inputs:
            await self._work_on(inputs)
        ready = time.monotonic_ns()
        worked_on = set(map(id, inputs))
        for item in batch:
            was_worked_on = id(item) in worked_on
            self._count(item, was_worked_on, begun, ready)
            item.visits.append(
                pb.Visit(
                    stage=self._identity.stage,
                    replica=self._identity.replica,
                    link_us=item.link // 1000,
                    waited_us=(begun - item.arrived) // 1000,
                    worked_us=(ready - begun) // 1000 if was_worked_on else 0,
                )
            )
            await self._hand_on(item, ready)

    async def _work_on(self, inputs: list[Queued]) -> None:
        """Gives each item a result or a failure."""
        try:
            results = await self._work.run([item.parts for item in inputs], self._settings.work_timeout)
        except WorkFailed as error:
            of_all = self._failure(error.kind, str(error))
            for item in inputs:
                item.failure = of_all
            return
        for item, result in zip(inputs, results):
            if isinstance(result, str):
                item.failure = self._failure(pb.FAILURE_KIND_WORK, result)
            else:
                item.result = result

    def _count(self, item: Queued, was_worked_on: bool, begun: int, ready: int) -> None:
        self._metrics.time("link", item.link)
        self._metrics.time("waited", begun - item.arrived)
        if was_worked_on:
            self._metrics.time("worked", ready - begun)
            self._metrics.item("worked" if item.failure is None else "failed")
        else:
            self._metrics.item("passed_on")

    def _failure(self, kind: pb.FailureKind, reason: str) -> pb.Failure:
        self._metrics.failure(kind)
        return failure(self._identity, kind, reason)

    async def _hand_on(self, item: Queued, ready: int) -> None:
        if isinstance(self._way_out, Exit):
            self._way_out.end(item)
            return
        payload = item.result or b""
        for outlet in self._way_out:
            outgoing = Outgoing(
                item.id, payload, item.failure, item.visits, item.deadline, ready, list(item.custodies)
            )
            await outlet.send(outgoing)
