"""Describes a stage: its name, its address, its work and its neighbours."""

import asyncio
import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import arguments
from .address import Address, parse_all
from .metrics import Counted, Metrics
from .serve import serve
from .settings import Identity, Settings
from .work import OfBatch, OfOne, OfParts, Work, pass_on


class Stage:
    """A stage that does not serve yet. Without work it passes payloads on.

    `next` has the stages after this one, each with its address or addresses; each gets every result. With two or more
    names, `from_` makes the stage a join. `metrics` is the address of `/metrics`, as `host:port`. `limits` are those of
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
        #: This machine's name is that of the pod in Kubernetes.
        self.identity = Identity(name, replica or os.environ.get("POD_NAME") or socket.gethostname())
        self.listen = Address.parse(listen)
        self.next = {stage: parse_all(addresses) for stage, addresses in (next or {}).items()}
        self.from_ = list(from_)
        if len(set(self.from_)) < len(self.from_):
            raise ValueError("from_: a stage is named twice")
        self.settings = Settings(**limits)
        #: Address of `/metrics`.
        self.page = None if metrics is None else Address.parse(metrics)
        self.metrics = Metrics() if metrics is None else Counted()
        self.function = Work.each(pass_on)

    @classmethod
    def from_arguments(cls, words: Sequence[str] | None = None) -> "Stage":
        """A stage as the flags of `windlass stage` describe it; by default those of this process."""
        given = arguments.read(words)
        try:
            return cls(**given)
        except ImportError as error:
            sys.exit(f"--metrics: {error}")

    def work(self, function: OfOne) -> "Stage":
        """Works on one item at a time. An exception makes the item a failure with its text.

        A function runs on a thread, a coroutine function on the event loop."""
        self.function = Work.each(function)
        return self

    def batch(self, function: OfBatch) -> "Stage":
        """Works on up to `batch` items at a time, and returns as many results in their order."""
        self.function = Work.batch(function)
        return self

    def join(self, function: OfParts) -> "Stage":
        """Works on the parts of one item at a time: an argument from each stage of `from_`, in that order."""
        self.function = Work.join(function)
        return self

    def serve(self) -> None:
        """Serves until SIGTERM or SIGINT, then finishes what it has."""
        asyncio.run(serve(self))
