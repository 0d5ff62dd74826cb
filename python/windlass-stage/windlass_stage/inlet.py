"""The gRPC service of a stage: describes the stage, opens streams of items, and publishes ends to listeners."""

import asyncio

import grpc
from grpc import aio

from . import stage_pb2 as pb
from . import wire
from .custody import Receipts
from .exit import Exit
from .item_queue import ItemQueue
from .join import Join
from .reader import Reader


class Inlet:
    """The gRPC service of one stage."""

    def __init__(
        self, description: pb.DescribeResponse, copies: int, items: ItemQueue, join: Join | None, exit: Exit | None
    ) -> None:
        self._description = description
        #: Copies of each result: one per next stage, or one for the exit.
        self._copies = copies
        self._items = items
        self._join = join
        self._exit = exit
        #: Open streams of senders.
        self._open_streams: set[Receipts] = set()
        self._stream_ended = asyncio.Event()
        self._is_draining = False

    def handler(self) -> grpc.GenericRpcHandler:
        """The handlers of the methods, for the gRPC server."""
        methods = {
            "Describe": grpc.unary_unary_rpc_method_handler(
                self._describe, pb.DescribeRequest.FromString, pb.DescribeResponse.SerializeToString
            ),
            "Pass": grpc.stream_stream_rpc_method_handler(
                self._pass, pb.Parcel.FromString, pb.Receipt.SerializeToString
            ),
            "Ends": grpc.unary_stream_rpc_method_handler(
                self._ends, pb.EndsRequest.FromString, pb.End.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(wire.SERVICE, methods)

    async def drain(self) -> None:
        """Refuses new streams, asks the senders to end theirs, and waits for the end of all streams."""
        self._is_draining = True
        for receipts in self._open_streams:
            receipts.closing()
        while self._open_streams:
            self._stream_ended.clear()
            await self._stream_ended.wait()

    async def _describe(self, _request: pb.DescribeRequest, _context: object) -> pb.DescribeResponse:
        return self._description

    async def _pass(self, _requests: object, context: wire.PassContext) -> None:
        if self._is_draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "drains")
        receipts = Receipts(self._copies)
        self._open_streams.add(receipts)
        receipts_task = asyncio.ensure_future(receipts.send(context))
        try:
            try:
                await Reader(context, receipts, self._items, self._join).run()
            finally:
                self._open_streams.discard(receipts)
                self._stream_ended.set()
            receipts.sender_done()
            await receipts_task
        finally:
            # A lost sender cancels this call. Its receipts are dropped, and its items continue.
            receipts_task.cancel()

    async def _ends(self, _request: pb.EndsRequest, context: aio.ServicerContext) -> None:
        exit = self._exit
        if exit is None:
            text = f"no item leaves the pipeline at {self._description.stage}: other stages follow"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
            return
        if exit.is_closed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "drains")
        listener = exit.listen()
        try:
            # The initial metadata confirms the subscription: the listener gets every later end.
            await context.send_initial_metadata(())
            while (end := await listener.next()) is not None:
                await context.write(end)
        finally:
            exit.remove(listener)
