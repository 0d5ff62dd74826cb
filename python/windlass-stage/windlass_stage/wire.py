"""The gRPC protocol: its version, its methods, and the options of channels and servers."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from grpc import aio

from . import stage_pb2 as pb

#: Server side of a stream of items.
PassContext: TypeAlias = aio.ServicerContext

Describe: TypeAlias = Callable[[pb.DescribeRequest], Awaitable[pb.DescribeResponse]]

#: Protocol version of this package. Stages with different versions refuse each other.
PROTOCOL = 1

#: Maximum bytes of a message beyond its payload: mostly visits, of which an item has tens.
MESSAGE_OVERHEAD = 256 * 1024

#: Name of the gRPC service.
SERVICE = "windlass.stage.v1.Stage"

#: HTTP/2 keep-alive: interval and timeout. They detect a node that lost power and so closes no connection.
_KEEP_ALIVE_MS = 5000

_BOTH_SIDES = [
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", _KEEP_ALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEP_ALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # HTTP/2 flow-control window of a stream in bytes: 200 MB/s at a round trip of 20 ms.
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
]

#: Options of a channel to another stage. Each dial opens a separate connection, to exactly that address.
CHANNEL = [
    *_BOTH_SIDES,
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
]


def server(max_payload: int) -> list[tuple[str, int]]:
    """Options of a stage's server. gRPC's default limit would treat the keep-alive pings of the peers as abuse."""
    return [
        *_BOTH_SIDES,
        ("grpc.max_receive_message_length", max_payload + MESSAGE_OVERHEAD),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]


def describe(channel: aio.Channel) -> Describe:
    """The method `Describe`."""
    request, answer = pb.DescribeRequest.SerializeToString, pb.DescribeResponse.FromString
    method: Describe = channel.unary_unary(f"/{SERVICE}/Describe", request, answer)
    return method


def pass_items(channel: aio.Channel) -> Callable[[], aio.StreamStreamCall]:
    """The method `Pass`: a stream of items, and a stream of receipts back."""
    request, answer = pb.Parcel.SerializeToString, pb.Receipt.FromString
    method: Callable[[], aio.StreamStreamCall] = channel.stream_stream(f"/{SERVICE}/Pass", request, answer)
    return method


def ends(channel: aio.Channel) -> Callable[[pb.EndsRequest], aio.UnaryStreamCall]:
    """The method `Ends`: a stream of the items that leave."""
    request, answer = pb.EndsRequest.SerializeToString, pb.End.FromString
    method: Callable[[pb.EndsRequest], aio.UnaryStreamCall] = channel.unary_stream(f"/{SERVICE}/Ends", request, answer)
    return method
