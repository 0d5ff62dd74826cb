"""The protocol on gRPC: its version, its methods, and the options of both sides of a connection."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from grpc import aio

from . import stage_pb2 as pb

#: A stream of items at the stage that takes them.
PassContext: TypeAlias = aio.ServicerContext

Describe: TypeAlias = Callable[[pb.DescribeRequest], Awaitable[pb.DescribeResponse]]

#: Version of the protocol that this kit speaks. Stages of different versions refuse each other.
PROTOCOL = 1

#: Bytes of a message beyond its payload: names and times of the stages before, of which a pipeline has tens.
SLACK = 256 * 1024

#: Name of the service.
SERVICE = "windlass.stage.v1.Stage"

#: A connection without an answer for so long is lost: a node without power sends no end.
_KEEP_ALIVE_MS = 5000

_BOTH_SIDES = [
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", _KEEP_ALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEP_ALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Bytes of one stream that may be under way: 200 MB/s over 20 ms of round trip.
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
]

#: Options of a connection to another stage. Each dial is a connection of its own, to exactly that address.
CHANNEL = [
    *_BOTH_SIDES,
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
]


def server(max_payload: int) -> list[tuple[str, int]]:
    """Options of a stage's server. Peers ping as often as this side does, which gRPC takes for abuse by default."""
    return [
        *_BOTH_SIDES,
        ("grpc.max_receive_message_length", max_payload + SLACK),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]


def describe(channel: aio.Channel) -> Describe:
    """The method that asks a stage who it is."""
    request, answer = pb.DescribeRequest.SerializeToString, pb.DescribeResponse.FromString
    method: Describe = channel.unary_unary(f"/{SERVICE}/Describe", request, answer)
    return method


def pass_items(channel: aio.Channel) -> Callable[[], aio.StreamStreamCall]:
    """The method that carries items one way and receipts the other."""
    request, answer = pb.Parcel.SerializeToString, pb.Receipt.FromString
    method: Callable[[], aio.StreamStreamCall] = channel.stream_stream(f"/{SERVICE}/Pass", request, answer)
    return method


def ends(channel: aio.Channel) -> Callable[[pb.EndsRequest], aio.UnaryStreamCall]:
    """The method that tells the items that leave."""
    request, answer = pb.EndsRequest.SerializeToString, pb.End.FromString
    method: Callable[[pb.EndsRequest], aio.UnaryStreamCall] = channel.unary_stream(f"/{SERVICE}/Ends", request, answer)
    return method
