"""Items in transit: from arrival to the end of processing, and from there to the next stage."""

from __future__ import annotations

from dataclasses import dataclass

from . import stage_pb2 as pb
from .custody import Custody
from .settings import Identity


@dataclass(slots=True)
class Queued:
    """An item between its arrival and the end of its processing. Times are monotonic, in nanoseconds."""

    id: int
    #: Payloads, one per sending stage. Only a join has more than one; a failed item has none.
    parts: list[bytes]
    #: Failure; `None` while the item has not failed.
    failure: pb.Failure | None
    visits: list[pb.Visit]
    deadline: int | None
    custodies: list[Custody]
    arrived: int
    #: Estimated time on the link to this stage.
    link: int
    #: Result of the work function.
    result: bytes | None = None


@dataclass(slots=True)
class Outgoing:
    """An item that waits to be sent to a next stage."""

    id: int
    payload: bytes
    failure: pb.Failure | None
    visits: list[pb.Visit]
    deadline: int | None
    #: End of processing.
    ready: int
    #: Released when the next stage has taken the item.
    custodies: list[Custody]

    def fail(self, failure: pb.Failure) -> None:
        """Turns a payload into a failure. An existing failure stays unchanged, so the first reason counts."""
        self.payload = b""
        if self.failure is None:
            self.failure = failure

    def to_wire(self, sender: str, sequence: int, sent: int, half_round_trip: int, zero: int) -> pb.Item:
        """The wire message. Sets the send wait in the visit of this stage."""
        item = pb.Item(
            id=self.id,
            sequence=sequence,
            payload=self.payload,
            visits=self.visits,
            failure=self.failure,
            sent_ns=sent - zero,
            half_round_trip_ns=half_round_trip,
            # On the wire, zero means no deadline.
            remaining_us=0 if self.deadline is None else max((self.deadline - sent) // 1000, 1),
            **{"from": sender},
        )
        if item.visits:
            item.visits[-1].sending_us = (sent - self.ready) // 1000
        return item


def from_wire(item: pb.Item, arrived: int, excess: int, custody: Custody) -> Queued:
    """An item that has arrived. `excess` is its delay beyond the fastest recent message, in nanoseconds."""
    is_failure = item.HasField("failure")
    link = excess + item.half_round_trip_ns
    return Queued(
        id=item.id,
        parts=[] if is_failure else [item.payload],
        failure=item.failure if is_failure else None,
        visits=list(item.visits),
        # The remaining time was measured when the item was sent.
        deadline=arrived - link + item.remaining_us * 1000 if item.remaining_us else None,
        custodies=[custody],
        arrived=arrived,
        link=link,
    )


def failure(identity: Identity, kind: pb.FailureKind, reason: str) -> pb.Failure:
    """Makes a failure at this stage."""
    return pb.Failure(stage=identity.stage, replica=identity.replica, reason=reason, kind=kind)
