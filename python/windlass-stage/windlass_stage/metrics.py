"""Metrics of one stage, with the names, labels and buckets of the kit for Rust."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import stage_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry, Metric

#: Borders of the histograms' buckets in seconds: 1, 2.5 and 5 per decade.
_BORDERS = [
    *(5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0),
]

#: Names of the outcomes of an item.
_OUTCOMES = ("worked", "failed", "passed_on")

#: Names of the parts of an item's time.
_PARTS = ("link", "waited", "worked", "sending")


class Metrics:
    """Counts nothing, since nobody asked for metrics."""

    def queue(self, items: int) -> None:
        """Items in the queue."""

    def time(self, part: str, nanoseconds: int) -> None:
        """One part of an item's time."""

    def item(self, outcome: str) -> None:
        """An item left the queue and was worked on, or was not."""

    def failure(self, kind: pb.FailureKind) -> None:
        """This process made a failure."""

    def connected(self, stage: str, replicas: int) -> None:
        """Replicas of a next stage with an open stream."""


class Counted(Metrics):
    """Counts in a registry of its own."""

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        except ImportError as error:
            text = "metrics need the package prometheus-client: pip install 'windlass-stage[metrics]'"
            raise ImportError(text) from error
        self._registry = registry = CollectorRegistry()
        items = Counter(
            "windlass_stage_items",
            "Items that left this stage's queue, by their outcome: worked, failed here, or passed on as a failure of"
            " before.",
            ["result"],
            registry=registry,
        )
        failures = Counter(
            "windlass_stage_failures", "Failures that this process made, by reason.", ["reason"], registry=registry
        )
        times = Histogram(
            "windlass_stage_time",
            "Time of items at this stage, by part: on the link that led here, in the queue, in the work, waiting for"
            " the next stage.",
            ["part"],
            unit="seconds",
            buckets=_BORDERS,
            registry=registry,
        )
        self._queue = Gauge("windlass_stage_queue_items", "Items in the queue.", registry=registry)
        self._replicas = Gauge(
            "windlass_stage_connected_replicas",
            "Replicas of each next stage with an open stream.",
            ["next"],
            registry=registry,
        )
        # Known labels begin at zero.
        self._items = {outcome: items.labels(outcome) for outcome in _OUTCOMES}
        self._failures: dict[int, Counter] = {kind: failures.labels(_reason(kind)) for kind in pb.FailureKind.values()}
        self._times = {part: times.labels(part) for part in _PARTS}

    def queue(self, items: int) -> None:
        self._queue.set(items)

    def time(self, part: str, nanoseconds: int) -> None:
        self._times[part].observe(nanoseconds / 1e9)

    def item(self, outcome: str) -> None:
        self._items[outcome].inc()

    def failure(self, kind: pb.FailureKind) -> None:
        self._failures[kind].inc()

    def connected(self, stage: str, replicas: int) -> None:
        self._replicas.labels(stage).set(replicas)

    def text(self) -> bytes:
        """All metrics in the format OpenMetrics."""
        from prometheus_client.openmetrics.exposition import generate_latest

        text: bytes = generate_latest(_WithoutTimes(self._registry))  # type: ignore[no-untyped-call]
        return text


class _WithoutTimes:
    """A registry without the series that tell when each other one began, which the kit for Rust does not have."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _reason(kind: int) -> str:
    if kind == pb.FAILURE_KIND_UNSPECIFIED:
        return "other"
    return pb.FailureKind.Name(kind).removeprefix("FAILURE_KIND_").lower()
