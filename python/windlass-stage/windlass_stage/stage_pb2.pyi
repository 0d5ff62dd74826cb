from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    FAILURE_KIND_DEADLINE: _ClassVar[FailureKind]
    FAILURE_KIND_STOPPED: _ClassVar[FailureKind]
    FAILURE_KIND_TOO_LARGE: _ClassVar[FailureKind]
    FAILURE_KIND_WORK: _ClassVar[FailureKind]
    FAILURE_KIND_PANIC: _ClassVar[FailureKind]
    FAILURE_KIND_COUNT: _ClassVar[FailureKind]
    FAILURE_KIND_SILENT: _ClassVar[FailureKind]
    FAILURE_KIND_PART: _ClassVar[FailureKind]
FAILURE_KIND_UNSPECIFIED: FailureKind
FAILURE_KIND_DEADLINE: FailureKind
FAILURE_KIND_STOPPED: FailureKind
FAILURE_KIND_TOO_LARGE: FailureKind
FAILURE_KIND_WORK: FailureKind
FAILURE_KIND_PANIC: FailureKind
FAILURE_KIND_COUNT: FailureKind
FAILURE_KIND_SILENT: FailureKind
FAILURE_KIND_PART: FailureKind

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("protocol", "stage", "replica", "max_payload", "joins")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    MAX_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    stage: str
    replica: str
    max_payload: int
    joins: bool
    def __init__(self, protocol: _Optional[int] = ..., stage: _Optional[str] = ..., replica: _Optional[str] = ..., max_payload: _Optional[int] = ..., joins: _Optional[bool] = ...) -> None: ...

class Parcel(_message.Message):
    __slots__ = ("ping", "item")
    PING_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    ping: Ping
    item: Item
    def __init__(self, ping: _Optional[_Union[Ping, _Mapping]] = ..., item: _Optional[_Union[Item, _Mapping]] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("sent_ns",)
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    sent_ns: int
    def __init__(self, sent_ns: _Optional[int] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("id", "sequence", "payload", "remaining_us", "visits", "failure", "sent_ns", "half_round_trip_ns")
    ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    REMAINING_US_FIELD_NUMBER: _ClassVar[int]
    VISITS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    HALF_ROUND_TRIP_NS_FIELD_NUMBER: _ClassVar[int]
    id: int
    sequence: int
    payload: bytes
    remaining_us: int
    visits: _containers.RepeatedCompositeFieldContainer[Visit]
    failure: Failure
    sent_ns: int
    half_round_trip_ns: int
    def __init__(self, id: _Optional[int] = ..., sequence: _Optional[int] = ..., payload: _Optional[bytes] = ..., remaining_us: _Optional[int] = ..., visits: _Optional[_Iterable[_Union[Visit, _Mapping]]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., sent_ns: _Optional[int] = ..., half_round_trip_ns: _Optional[int] = ..., **kwargs) -> None: ...

class Visit(_message.Message):
    __slots__ = ("stage", "replica", "link_us", "waited_us", "worked_us", "sending_us")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    LINK_US_FIELD_NUMBER: _ClassVar[int]
    WAITED_US_FIELD_NUMBER: _ClassVar[int]
    WORKED_US_FIELD_NUMBER: _ClassVar[int]
    SENDING_US_FIELD_NUMBER: _ClassVar[int]
    stage: str
    replica: str
    link_us: int
    waited_us: int
    worked_us: int
    sending_us: int
    def __init__(self, stage: _Optional[str] = ..., replica: _Optional[str] = ..., link_us: _Optional[int] = ..., waited_us: _Optional[int] = ..., worked_us: _Optional[int] = ..., sending_us: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("stage", "replica", "reason", "kind")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    stage: str
    replica: str
    reason: str
    kind: FailureKind
    def __init__(self, stage: _Optional[str] = ..., replica: _Optional[str] = ..., reason: _Optional[str] = ..., kind: _Optional[_Union[FailureKind, str]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("pong", "taken", "passed", "closing")
    PONG_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    pong: Pong
    taken: Taken
    passed: Passed
    closing: Closing
    def __init__(self, pong: _Optional[_Union[Pong, _Mapping]] = ..., taken: _Optional[_Union[Taken, _Mapping]] = ..., passed: _Optional[_Union[Passed, _Mapping]] = ..., closing: _Optional[_Union[Closing, _Mapping]] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("sent_ns",)
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    sent_ns: int
    def __init__(self, sent_ns: _Optional[int] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("sequence", "held_ns")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HELD_NS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    held_ns: int
    def __init__(self, sequence: _Optional[int] = ..., held_ns: _Optional[int] = ...) -> None: ...

class Passed(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class Closing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class End(_message.Message):
    __slots__ = ("ended", "missed")
    ENDED_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    ended: Ended
    missed: Missed
    def __init__(self, ended: _Optional[_Union[Ended, _Mapping]] = ..., missed: _Optional[_Union[Missed, _Mapping]] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("id", "visits", "failure", "payload_bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    VISITS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: int
    visits: _containers.RepeatedCompositeFieldContainer[Visit]
    failure: Failure
    payload_bytes: int
    def __init__(self, id: _Optional[int] = ..., visits: _Optional[_Iterable[_Union[Visit, _Mapping]]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., payload_bytes: _Optional[int] = ...) -> None: ...

class Missed(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...
