"""Limits of a stage, with their defaults, and the name of a process in a pipeline."""

from dataclasses import dataclass

#: Payload bytes on the way to one replica: the window is smaller where payloads are large.
UNTAKEN_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Settings:
    """Limits of a stage. Times are in seconds."""

    #: Calls of the work side by side, one per device.
    workers: int = 1
    #: Most items of one call of the work.
    batch: int = 1
    #: Longest wait for a batch to fill, once there is one item.
    batch_wait: float = 0.002
    #: Items in the queue; none: twice those in work, and at least four.
    queue: int | None = None
    #: Items on the way to one replica of a next stage, that this replica has not taken yet.
    window: int = 8
    #: Largest payload, in bytes. Neighbours of different limits keep to the smaller one.
    max_payload: int = 16 * 1024 * 1024
    #: Longest time of one call of the work.
    work_timeout: float = 60.0
    #: Longest time to finish on SIGTERM.
    drain_timeout: float = 30.0
    #: Longest wait of a join for the other parts of an item.
    join_timeout: float = 10.0
    #: Items of which a join has some parts.
    join_capacity: int = 1024
    #: Pause between two looks at the names of the next stages.
    resolve_every: float = 10.0

    def __post_init__(self) -> None:
        """Refuses limits with which nothing would ever pass."""
        for name in ("workers", "batch", "queue", "window", "max_payload", "join_capacity"):
            count = getattr(self, name)
            if not (isinstance(count, int) and count >= 1) and (name, count) != ("queue", None):
                raise ValueError(f"{name} is {count!r}: write a whole number of at least 1")
        for name in ("batch_wait", "work_timeout", "drain_timeout", "join_timeout", "resolve_every"):
            time = getattr(self, name)
            if not (isinstance(time, (int, float)) and 0 <= time < float("inf")):
                raise ValueError(f"{name} is {time!r}: write a time in seconds")

    def room(self) -> int:
        """Items in the queue."""
        return self.queue or max(2 * self.batch * self.workers, 4)


@dataclass(frozen=True)
class Identity:
    """Name of a process in a pipeline."""

    stage: str
    replica: str
