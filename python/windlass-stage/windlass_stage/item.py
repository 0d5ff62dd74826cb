"""Items on their way: between their arrival and the end of the work, and from there to the next stage."""

from __future__ import annotations

from dataclasses import dataclass

from . import stage_pb2 as pb
from .custody import Custody
from .settings import Identity


@dataclass(slots=True)
class Queued:
    """An item between its arrival and the end of its work. Times are those of the monotonic clock, in nanoseconds."""

    id: int
    #: Payloads, one per stage that it came from; only a join has several.
    parts: list[bytes]
    #: The reason that it has none.
    failure: pb.Failure | None
    visits: list[pb.Visit]
    deadline: int | None
    custodies: list[Custody]
    arrived: int
    #: Time on the link that led here.
    link: int
    #: Result of the work. An item has a result, a failure, or still its parts.
    result: bytes | None = None


@dataclass(slots=True)
class Outgoing:
    """An item on its way to one next stage."""

    id: int
    payload: bytes
    failure: pb.Failure | None
    visits: list[pb.Visit]
    deadline: int | None
    #: End of its work.
    ready: int
    #: Released when the next stage has the item.
    custodies: list[Custody]

    def fail(self, failure: pb.Failure) -> None:
        """Turns a payload into a failure. A failure stays what it is: the first reason counts."""
        self.payload = b""
        if self.failure is None:
            self.failure = failure

    def to_wire(self, sender: str, sequence: int, sent: int, half_round_trip: int, zero: int) -> pb.Item:
        """The message, with the time that it waited for room as a part of this stage's visit."""
        item = pb.Item(
            id=self.id,
            sequence=sequence,
            payload=self.payload,
            visits=self.visits,
            failure=self.failure,
            sent_ns=sent - zero,
            half_round_trip_ns=half_round_trip,
            # Zero would mean none.
            remaining_us=0 if self.deadline is None else max((self.deadline - sent) // 1000, 1),
            **{"from": sender},
        )
        if item.visits:
            item.visits[-1].sending_us = (sent - self.ready) // 1000
        return item


def from_wire(item: pb.Item, arrived: int, excess: int, custody: Custody) -> Queued:
    """An item that has arrived, `excess` later than the fastest message of late."""
    is_failure = item.HasField("failure")
    link = excess + item.half_round_trip_ns
    return Queued(
        id=item.id,
        parts=[] if is_failure else [item.payload],
        failure=item.failure if is_failure else None,
        visits=list(item.visits),
        # The time that remained was that of the sender.
        deadline=arrived - link + item.remaining_us * 1000 if item.remaining_us else None,
        custodies=[custody],
        arrived=arrived,
        link=link,
    )


def failure(identity: Identity, kind: pb.FailureKind, reason: str) -> pb.Failure:
    """A failure at this stage."""
    return pb.Failure(stage=identity.stage, replica=identity.replica, reason=reason, kind=kind)
