"""Dials one replica of a stage: connects, checks its name and version, and opens a stream."""

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
from .address import grpc_target
from .deadline import with_timeout

#: Timeout of a dial in seconds, including all its calls.
DIAL_TIMEOUT = 5

#: Number of pings that measure the round trip of a new stream.
_PINGS = 3


T = TypeVar("T")


class DialError(Exception):
    """A replica cannot be used now. The text is the reason."""


@dataclass(slots=True)
class ItemStream:
    """A stream to one replica, ready for items."""

    description: pb.DescribeResponse
    channel: aio.Channel
    call: aio.StreamStreamCall
    #: Half of the smallest measured round trip, in nanoseconds.
    half_round_trip: int


@dataclass(slots=True)
class EndStream:
    """A stream of the items that leave at one replica."""

    channel: aio.Channel
    call: aio.UnaryStreamCall


async def open_stream(target: str, expected: str, zero: int) -> ItemStream:
    """Opens a stream for items and measures its round trip. `zero` is the zero of the sender's clock."""
    return await _open(target, lambda channel: _open_items(channel, target, expected, zero))


async def open_ends(target: str) -> EndStream:
    """Opens a stream of the items that leave at a replica of a last stage."""
    return await _open(target, lambda channel: _open_ends(channel, target))


async def _open(target: str, open_on: Callable[[aio.Channel], Coroutine[Any, Any, T]]) -> T:
    """Calls `open_on` on a new connection, and closes the connection if `open_on` fails. Raises `DialError`."""
    channel = aio.insecure_channel(grpc_target(target), options=wire.CHANNEL)
    try:
        return await with_timeout(DIAL_TIMEOUT, open_on(channel))
    except BaseException as error:
        await channel.close()
        if isinstance(error, asyncio.TimeoutError):
            raise DialError(f"did not answer within {DIAL_TIMEOUT}s") from error
        if isinstance(error, grpc.RpcError):
            raise DialError(f"the call failed: {error.details()}") from error
        if isinstance(error, asyncio.InvalidStateError):
            raise DialError("drains") from error
        raise


def ping(zero: int) -> pb.Parcel:
    """A ping with the time since `zero`."""
    return pb.Parcel(ping=pb.Ping(sent_ns=time.monotonic_ns() - zero))


async def _open_ends(channel: aio.Channel, target: str) -> EndStream:
    _check(await wire.describe(channel)(pb.DescribeRequest()), target, None)
    call = wire.ends(channel)(pb.EndsRequest())
    await call.initial_metadata()
    return EndStream(channel, call)


async def _open_items(channel: aio.Channel, target: str, expected: str, zero: int) -> ItemStream:
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
    return ItemStream(description, channel, call, half_round_trip)


def _check(description: pb.DescribeResponse, target: str, expected: str | None) -> None:
    stage, protocol = description.stage, description.protocol
    if protocol != wire.PROTOCOL:
        raise DialError(
            f"stage {stage} at {target} speaks protocol {protocol}, this one {wire.PROTOCOL}: "
            "run the same version of windlass-stage on both"
        )
    if expected is not None and stage != expected:
        raise DialError(f"stage {stage} serves at {target}, where {expected} was expected")
