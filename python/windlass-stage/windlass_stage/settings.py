"""Limits of a stage with their defaults, and the names of a process in a pipeline."""

from dataclasses import dataclass

#: Maximum payload bytes in flight to one replica. It limits the window for large payloads.
MAX_UNACKNOWLEDGED_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Settings:
    """Limits of a stage. Times are in seconds."""

    #: Number of concurrent batches: usually one per device.
    workers: int = 1
    #: Maximum number of items per call of the work function.
    batch: int = 1
    #: Maximum wait for a batch to fill, from the arrival of its first item.
    batch_wait: float = 0.002
    #: Capacity of the queue. Default: twice `workers` × `batch`, at least four.
    queue: int | None = None
    #: Maximum number of items in flight to one replica of a next stage, that is, without a receipt `Taken`.
    window: int = 8
    #: Maximum payload in bytes. Between two stages the smaller limit applies.
    max_payload: int = 16 * 1024 * 1024
    #: Timeout of one call of the work function.
    work_timeout: float = 60.0
    #: Timeout of the drain on SIGTERM.
    drain_timeout: float = 30.0
    #: Timeout of a join for the missing parts of an item.
    join_timeout: float = 10.0
    #: Maximum number of items with missing parts at a join.
    join_capacity: int = 1024
    #: Maximum interval between two resolutions of a next stage's name.
    resolve_interval: float = 10.0

    def __post_init__(self) -> None:
        """Validates the limits. Raises a `ValueError` for one that would block all items."""
        for name in ("workers", "batch", "queue", "window", "max_payload", "join_capacity"):
            count = getattr(self, name)
            if not (isinstance(count, int) and count >= 1) and (name, count) != ("queue", None):
                raise ValueError(f"{name} is {count!r}: write a whole number of at least 1")
        for name in ("batch_wait", "work_timeout", "drain_timeout", "join_timeout", "resolve_interval"):
            time = getattr(self, name)
            if not (isinstance(time, (int, float)) and 0 <= time < float("inf")):
                raise ValueError(f"{name} is {time!r}: write a time in seconds")

    def queue_capacity(self) -> int:
        """Effective capacity of the queue."""
        return self.queue or max(2 * self.batch * self.workers, 4)


@dataclass(frozen=True)
class Identity:
    """Names of a process in a pipeline: its stage and its replica."""

    stage: str
    replica: str
