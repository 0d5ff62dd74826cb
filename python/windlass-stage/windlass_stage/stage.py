"""Configuration of a stage: its name, address, work function and neighbours."""

import asyncio
import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import arguments
from .address import Address, parse_all
from .metrics import Metrics, PrometheusMetrics
from .serve import serve
from .settings import Identity, Settings
from .work import BatchFunction, ItemFunction, PartsFunction, Work, forward


class Stage:
    """Configuration of a stage. Without a work function the stage returns payloads unchanged.

    `next` has the next stages with their addresses; each next stage gets a copy of each result. Two or more names in
    `from_` make the stage a join. `metrics` is the address of `/metrics`, as `host:port`. `limits` are those of
    `Settings`, such as `batch=16` or `workers=2`.
    """

    def __init__(
        self,
        name: str,
        *,
        listen: str,
        next: Mapping[str, str | Iterable[str]] | None = None,
        from_: Sequence[str] = (),
        replica: str | None = None,
        metrics: str | None = None,
        **limits: Any,
    ) -> None:
        #: In Kubernetes, the host name is the name of the pod.
        self.identity = Identity(name, replica or os.environ.get("POD_NAME") or socket.gethostname())
        self.listen = Address.parse(listen)
        self.next = {stage: parse_all(addresses) for stage, addresses in (next or {}).items()}
        self.from_ = list(from_)
        if len(set(self.from_)) < len(self.from_):
            raise ValueError("from_: a stage is named twice")
        self.settings = Settings(**limits)
        #: Address of `/metrics`.
        self.page = None if metrics is None else Address.parse(metrics)
        self.metrics = Metrics() if metrics is None else PrometheusMetrics()
        self.function = Work.each(forward)

    @classmethod
    def from_arguments(cls, words: Sequence[str] | None = None) -> "Stage":
        """Makes a stage from the flags of `windlass stage`. `words` defaults to the arguments of this process."""
        values = arguments.read(words)
        try:
            return cls(**values)
        except ImportError as error:
            sys.exit(f"--metrics: {error}")

    def work(self, function: ItemFunction) -> "Stage":
        """Processes one item per call. An exception makes the item a failure with its text.

        A function runs on a thread, a coroutine function on the event loop."""
        self.function = Work.each(function)
        return self

    def batch(self, function: BatchFunction) -> "Stage":
        """Processes up to `batch` items per call. The results must be as many, in the order of the items."""
        self.function = Work.batch(function)
        return self

    def join(self, function: PartsFunction) -> "Stage":
        """Processes the parts of one item per call: one argument per stage of `from_`, in that order."""
        self.function = Work.join(function)
        return self

    def serve(self) -> None:
        """Serves until SIGTERM or SIGINT, then drains."""
        asyncio.run(serve(self))
