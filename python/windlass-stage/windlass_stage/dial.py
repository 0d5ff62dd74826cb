"""Connects to one replica of a stage and asks it who it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

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


T = TypeVar("T")


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


@dataclass(slots=True)
class Listening:
    """A stream of the items that leave at one replica."""

    channel: aio.Channel
    call: aio.UnaryStreamCall


async def open_stream(target: str, expected: str, zero: int) -> Opened:
    """Opens a stream for items, and measures its round trip by a clock that began at `zero`."""
    return await _open(target, lambda channel: _open_items(channel, target, expected, zero))


async def open_ends(target: str) -> Listening:
    """Opens a stream of the items that leave at a replica of a last stage."""
    return await _open(target, lambda channel: _open_ends(channel, target))


async def _open(target: str, ask: Callable[[aio.Channel], Coroutine[Any, Any, T]]) -> T:
    """The answer to questions on a new connection, which is closed if there is none."""
    channel = aio.insecure_channel(dialed(target), options=wire.CHANNEL)
    try:
        return await within(LIMIT, ask(channel))
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


async def _open_ends(channel: aio.Channel, target: str) -> Listening:
    _check(await wire.describe(channel)(pb.DescribeRequest()), target, None)
    call = wire.ends(channel)(pb.EndsRequest())
    await call.initial_metadata()
    return Listening(channel, call)


async def _open_items(channel: aio.Channel, target: str, expected: str, zero: int) -> Opened:
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


def _check(description: pb.DescribeResponse, target: str, expected: str | None) -> None:
    stage, protocol = description.stage, description.protocol
    if protocol != wire.PROTOCOL:
        raise DialError(
            f"stage {stage} at {target} speaks protocol {protocol}, this one {wire.PROTOCOL}: "
            "run the same version of windlass-stage on both"
        )
    if expected is not None and stage != expected:
        raise DialError(f"stage {stage} serves at {target}, where {expected} was expected")
