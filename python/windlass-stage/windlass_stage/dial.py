"""Connects to one replica of a stage and asks it who it is."""

import asyncio
import time
from dataclasses import dataclass

import grpc
from grpc import aio

from . import stage_pb2 as pb
from . import wire
from .address import dialed
from .deadline import within

#: Longest time of a dial with all its questions, in seconds.
LIMIT = 5

#: Pings by which a new stream's round trip is measured.
_PINGS = 3


class DialError(Exception):
    """A replica that cannot be used now."""


@dataclass(slots=True)
class Opened:
    """A stream to one replica, ready for items."""

    description: pb.DescribeResponse
    channel: aio.Channel
    call: aio.StreamStreamCall
    #: In nanoseconds.
    half_round_trip: int


async def open_stream(target: str, expected: str, zero: int) -> Opened:
    """Opens a stream for items, and measures its round trip by a clock that began at `zero`."""
    channel = aio.insecure_channel(dialed(target), options=wire.CHANNEL)
    try:
        return await within(LIMIT, _open(channel, target, expected, zero))
    except BaseException as error:
        await channel.close()
        if isinstance(error, asyncio.TimeoutError):
            raise DialError(f"did not answer within {LIMIT}s") from error
        if isinstance(error, grpc.RpcError):
            raise DialError(f"the call failed: {error.details()}") from error
        if isinstance(error, asyncio.InvalidStateError):
            raise DialError("drains") from error
        raise


def ping(zero: int) -> pb.Parcel:
    """A ping that is sent now by a clock that began at `zero`."""
    return pb.Parcel(ping=pb.Ping(sent_ns=time.monotonic_ns() - zero))


async def _open(channel: aio.Channel, target: str, expected: str, zero: int) -> Opened:
    description = await wire.describe(channel)(pb.DescribeRequest())
    _check(description, target, expected)
    call = wire.pass_items(channel)()
    half_round_trip = 1 << 62
    for _ in range(_PINGS):
        sent = time.monotonic_ns()
        await call.write(ping(zero))
        receipt = await call.read()
        if receipt is aio.EOF or receipt.WhichOneof("content") != "pong":
            raise DialError("drains")
        half_round_trip = min(half_round_trip, (time.monotonic_ns() - sent) // 2)
    return Opened(description, channel, call, half_round_trip)


def _check(description: pb.DescribeResponse, target: str, expected: str) -> None:
    stage, protocol = description.stage, description.protocol
    if protocol != wire.PROTOCOL:
        raise DialError(
            f"stage {stage} at {target} speaks protocol {protocol}, this one {wire.PROTOCOL}: "
            "run the same version of windlass-stage on both"
        )
    if stage != expected:
        raise DialError(f"stage {stage} serves at {target}, where {expected} was expected")
