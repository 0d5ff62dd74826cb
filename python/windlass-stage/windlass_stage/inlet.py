"""The way into a stage: describes it, opens its streams, and lets listeners hear of its ends."""

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
    """The service of one stage."""

    def __init__(
        self, description: pb.DescribeResponse, copies: int, items: ItemQueue, join: Join | None, exit: Exit | None
    ) -> None:
        self._description = description
        #: Copies of each result: one per next stage, or the end.
        self._copies = copies
        self._items = items
        self._join = join
        self._exit = exit
        #: Streams whose senders may still send.
        self._read: set[Receipts] = set()
        self._all_read = asyncio.Event()
        self._drains = False

    def handler(self) -> grpc.GenericRpcHandler:
        """The methods, as the server needs them."""
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
        """Takes no new stream, asks the senders to end theirs, and waits until they did."""
        self._drains = True
        for receipts in self._read:
            receipts.closing()
        while self._read:
            self._all_read.clear()
            await self._all_read.wait()

    async def _describe(self, _request: pb.DescribeRequest, _context: object) -> pb.DescribeResponse:
        return self._description

    async def _pass(self, _requests: object, context: wire.PassContext) -> None:
        if self._drains:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "drains")
        receipts = Receipts(self._copies)
        self._read.add(receipts)
        sending = asyncio.ensure_future(receipts.send(context))
        try:
            try:
                await Reader(context, receipts, self._items, self._join).run()
            finally:
                self._read.discard(receipts)
                self._all_read.set()
            receipts.was_read()
            await sending
        finally:
            # A sender that is gone cancels this call. It needs no receipt; the items go on.
            sending.cancel()

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
            # The listener knows by this that it hears of every end from now on.
            await context.send_initial_metadata(())
            while (end := await listener.next()) is not None:
                await context.write(end)
        finally:
            exit.forget(listener)
