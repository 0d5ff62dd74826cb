"""Prometheus metrics of one stage, with the names, labels and buckets of the Rust crate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import stage_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry, Metric

#: Upper bounds of the histograms' buckets in seconds: 1, 2.5 and 5 per decade.
_BUCKETS = [
    *(5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0),
]

#: Values of the label `result`: outcomes of an item.
_OUTCOMES = ("worked", "failed", "passed_on")

#: Values of the label `part`: phases of an item's time.
_PHASES = ("link", "waited", "worked", "sending")


class Metrics:
    """Metrics that are disabled: every method does nothing."""

    def queue(self, items: int) -> None:
        """Sets the number of items in the queue."""

    def time(self, part: str, nanoseconds: int) -> None:
        """Records one phase of an item's time."""

    def item(self, outcome: str) -> None:
        """Counts an item that left the queue, by outcome."""

    def failure(self, kind: pb.FailureKind) -> None:
        """Counts a failure that this process made."""

    def connected(self, stage: str, replicas: int) -> None:
        """Sets the number of replicas of a next stage with an open stream."""


class PrometheusMetrics(Metrics):
    """Metrics in a Prometheus registry of their own."""

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        except ImportError as error:
            text = "metrics need the package prometheus-client: pip install 'windlass-stage[metrics]'"
            raise ImportError(text) from error
        self._registry = registry = CollectorRegistry()
        items = Counter(
            "windlass_stage_items",
            "Items that left this stage's queue, by outcome: worked, failed here, or passed on as an earlier failure.",
            ["result"],
            registry=registry,
        )
        failures = Counter(
            "windlass_stage_failures", "Failures that this process made, by reason.", ["reason"], registry=registry
        )
        times = Histogram(
            "windlass_stage_time",
            "Time of items at this stage, by part: on the link to it, in the queue, in the work function, waiting for"
            " the next stage.",
            ["part"],
            unit="seconds",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._queue = Gauge("windlass_stage_queue_items", "Items in the queue.", registry=registry)
        self._replicas = Gauge(
            "windlass_stage_connected_replicas",
            "Replicas of each next stage with an open stream.",
            ["next"],
            registry=registry,
        )
        # Known label values start at zero.
        self._items = {outcome: items.labels(outcome) for outcome in _OUTCOMES}
        self._failures: dict[int, Counter] = {kind: failures.labels(_reason(kind)) for kind in pb.FailureKind.values()}
        self._times = {part: times.labels(part) for part in _PHASES}

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
        """All metrics in the OpenMetrics text format."""
        from prometheus_client.openmetrics.exposition import generate_latest

        text: bytes = generate_latest(_WithoutCreated(self._registry))  # type: ignore[no-untyped-call]
        return text


class _WithoutCreated:
    """A registry without the `_created` series, which the Rust crate does not have."""

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
