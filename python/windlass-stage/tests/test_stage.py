"""Single stages of this package, in this process."""

import asyncio
import tempfile
import time
import unittest.mock

import grpc
from grpc import aio

from windlass_stage import Stage, wire
from windlass_stage import stage_pb2 as pb
from windlass_stage.deadline import with_timeout
from windlass_stage.settings import Settings

from .pipeline import ANYWHERE, TIMEOUT, Case, Ends, Source, failures, rust, served, until, wait_until_blocked


class Stages(Case):
    """Behaviour of a single stage."""

    async def test_work_that_does_not_return_fails_its_items_and_the_next_ones_are_processed(self) -> None:
        def work(payload: bytes) -> bytes:
            time.sleep(3 if payload == b"stuck" else 0)
            return payload

        async with served(Stage("mid", listen=ANYWHERE, replica="one", work_timeout=0.2).work(work)) as (_, address):
            async with Ends(address) as ends, Source("mid", address) as source:
                stuck, good = await source.send(b"stuck"), await source.send(b"good")
                arrived = await ends.count(2)
        self.assertEqual(arrived[stuck].failure.reason, "did not answer within 200ms")
        self.assertEqual(arrived[stuck].failure.kind, pb.FAILURE_KIND_SILENT)
        self.assertFalse(arrived[good].HasField("failure"))

    async def test_the_failure_names_missing_parts(self) -> None:
        stage = Stage("join", listen=ANYWHERE, from_=["camera", "radar", "lidar"], join_timeout=0.2)
        async with served(stage.join(lambda *parts: b"".join(parts))) as (running, address):
            async with Ends(address) as ends, Source("join", address) as source:
                await source.send(b"x")
                [failure] = failures(await ends.count(1))
                await source.finish()
                self.assertEqual(failure.reason, "part from radar, lidar did not come")
                self.assertEqual(failure.kind, pb.FAILURE_KIND_PART)
            await with_timeout(TIMEOUT, running.drain())

    async def test_a_full_join_blocks_the_stream_that_is_ahead(self) -> None:
        stage = Stage("join", listen=ANYWHERE, from_=["camera", "radar"], join_capacity=4)
        async with served(stage.join(lambda left, right: left + right)) as (_, address):
            async with Ends(address) as ends, Source("join", address, Settings(window=2)) as ahead:
                load_task = asyncio.ensure_future(ahead.load(50))
                await wait_until_blocked(ahead)
                # Items in the table, in flight, and one that waits to be sent.
                self.assertLessEqual(len(ahead.sent), 4 + 2 + 1)
                async with Source("join", address, name="radar", first_id=ahead.sent[0]) as behind:
                    await behind.load(50)
                    await load_task
                    self.assertEqual(failures(await ends.count(50)), [])

    async def test_an_item_is_passed_once_all_copies_of_a_split_are_taken(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            right = f"unix:{folder}/right"
            async with served(Stage("left", listen=ANYWHERE)) as (_, left):
                first = Stage("first", listen=ANYWHERE, next={"left": left, "right": right})
                async with served(first) as (_, address), Source("first", address) as source, Ends(left) as ends:
                    await source.send(b"x")
                    await ends.count(1)
                    with self.assertRaises(asyncio.TimeoutError):
                        await with_timeout(0.3, source.outlet.finish())
                    # The other branch starts.
                    async with served(Stage("right", listen=right)):
                        await source.finish()

    async def test_a_stage_of_another_protocol_is_refused_by_name(self) -> None:
        calls = 0

        async def describe(_request: pb.DescribeRequest, _context: object) -> pb.DescribeResponse:
            nonlocal calls
            calls += 1
            return pb.DescribeResponse(protocol=2, stage="next", replica="r", max_payload=1)

        methods = {
            "Describe": grpc.unary_unary_rpc_method_handler(
                describe, pb.DescribeRequest.FromString, pb.DescribeResponse.SerializeToString
            )
        }
        server = aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.SERVICE, methods),))
        address = f"127.0.0.1:{server.add_insecure_port(ANYWHERE)}"
        await server.start()
        with self.assertLogs("windlass_stage", "WARNING") as logs:
            async with Source("next", address):
                await until("the stage is dialed again", lambda: calls == 4)
        await server.stop(None)
        text = f"stage next at {address} speaks protocol 2, this one 1: run the same version of windlass-stage on both"
        messages = [record.getMessage() for record in logs.records]
        self.assertEqual(len([line for line in messages if line.endswith(text)]), 1, "not for each dial")

    async def test_a_stage_of_another_name_is_refused(self) -> None:
        async with served(Stage("mid", listen=ANYWHERE)) as (_, address):
            with self.assertLogs("windlass_stage", "WARNING") as logs:
                async with Source("next", address):
                    await until("a warning", lambda: logs.records)
        text = f"stage mid serves at {address}, where next was expected"
        self.assertTrue(logs.records[0].getMessage().endswith(text))

    async def test_items_wait_for_a_stage_that_starts_later_until_their_deadline(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            listen = f"unix:{folder}/first"
            async with Source("first", listen) as source:
                await source.send(b"x", 0.05)
                # Accepted once the previous item was sent.
                waiting = asyncio.ensure_future(source.send(b"y"))
                head = source.outlet._waiting[0]
                await until("the deadline", lambda: head.failure)
                assert head.failure is not None
                self.assertEqual(head.failure.reason, "deadline passed on the way to first")
                self.assertFalse(waiting.done())
                async with served(Stage("first", listen=listen)):
                    await waiting
                    await source.finish()

    async def test_the_wait_for_a_slow_stage_is_time_in_its_queue_and_not_on_the_link(self) -> None:
        gate = asyncio.Event()

        async def slow(payload: bytes) -> bytes:
            await gate.wait()
            await asyncio.sleep(0.005)
            return payload

        async with served(Stage("detect", listen=ANYWHERE).work(slow)) as (_, address):
            started = time.monotonic()
            async with Ends(address) as ends, Source("detect", address, Settings(window=1)) as source:
                ids = [await source.send(b"frame") for _ in range(5)]
                # With one item in flight, the stage has taken all but the last two. On a busy machine their way and the
                # round trip of the connection are long, but no longer than this.
                await asyncio.sleep(4 * (time.monotonic() - started))
                gate.set()
                visits = {item: end.visits[0] for item, end in (await ends.count(5)).items()}
        for visit in [visits[item] for item in ids[1:3]]:
            self.assertLess(visit.link_us, visit.waited_us / 2)
        self.assertTrue(all(visit.worked_us >= 5000 for visit in visits.values()))

    async def test_a_late_listener_gets_the_most_recent_ends(self) -> None:
        async with served(Stage("end", listen=ANYWHERE)) as (_, address), Source("end", address) as source:
            await source.load(20)
            await source.finish()
            async with Ends(address) as ends:
                self.assertEqual(set(await ends.count(20)), set(source.sent))

    async def test_a_blocked_join_fails_no_item_whose_parts_have_arrived(self) -> None:
        async def slow(left: bytes, right: bytes) -> bytes:
            await asyncio.sleep(0.03)
            return left + right

        stage = Stage("join", listen=ANYWHERE, from_=["camera", "radar"], queue=1, join_timeout=0.2)
        async with served(stage.join(slow)) as (_, address), Ends(address) as ends:
            one = Source("join", address, first_id=1)
            async with one, Source("join", address, name="radar", first_id=1) as other:
                await asyncio.gather(one.load(30), other.load(30))
                self.assertEqual(failures(await ends.count(30)), [])

    async def test_only_the_last_stage_publishes_ends(self) -> None:
        async with served(Stage("mid", listen=ANYWHERE, next={"end": "127.0.0.1:1"})) as (_, address):
            with self.assertRaises(aio.AioRpcError) as raised:
                async with Ends(address) as ends:
                    await ends.count(1)
        self.assertEqual(raised.exception.details(), "no item leaves the pipeline at mid: other stages follow")

    async def test_a_port_in_use_is_an_error(self) -> None:
        async with served(Stage("mid", listen=ANYWHERE)) as (_, address):
            with self.assertRaisesRegex(OSError, f"cannot listen on {address}"):
                async with served(Stage("mid", listen=address)):
                    pass

    async def test_windlass_refuses_another_protocol_version_of_this_package(self) -> None:
        # The description of a stage is fixed when the stage starts.
        with unittest.mock.patch.object(wire, "PROTOCOL", 2):
            serving = served(Stage("mid", listen=ANYWHERE))
            _, address = await serving.__aenter__()
        try:
            first = rust(self, "first", "--next", f"mid={address}")
            await asyncio.to_thread(first.wait_for_line, "speaks protocol 2, this one 1: run the same version")
        finally:
            await serving.__aexit__(None, None, None)
