"""Work functions that fail in various ways: each item ends, and the stage continues."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from windlass_stage import Stage
from windlass_stage import stage_pb2 as pb
from windlass_stage.deadline import with_timeout

from .pipeline import ANYWHERE, TIMEOUT, Case, Ends, Source, failures, served, until


class Later:
    """A callable object with a coroutine method."""

    async def __call__(self, payload: bytes) -> bytes:
        return payload + b"c"


class Work(Case):
    """One stage in this process."""

    async def ends(self, stage: Stage, *payloads: bytes) -> list[pb.Ended]:
        """Sends the payloads and a valid one at last, which must not fail. Returns the ends in this order."""
        name = stage.identity.stage
        async with served(stage) as (_, address), Ends(address) as ends, Source(name, address) as source:
            ids = [await source.send(payload) for payload in (*payloads, b"good")]
            arrived = await ends.count(len(ids))
        self.assertFalse(arrived[ids[-1]].HasField("failure"), arrived[ids[-1]].failure)
        return [arrived[item_id] for item_id in ids]

    async def reason(self, work: Callable[[bytes], Any], payload: bytes = b"bad") -> str:
        """The reason of the failure of `payload`."""
        [end, _] = await self.ends(Stage("mid", listen=ANYWHERE).work(work), payload)
        self.assertEqual(end.failure.kind, pb.FAILURE_KIND_WORK)
        return end.failure.reason

    async def test_a_coroutine_may_exit_or_be_cancelled_and_only_its_item_fails(self) -> None:
        async def work(payload: bytes) -> bytes:
            if payload == b"exit":
                sys.exit(3)
            if payload == b"cancelled":
                inner = asyncio.ensure_future(asyncio.sleep(60))
                asyncio.get_running_loop().call_soon(inner.cancel)
                await inner
            return payload

        self.assertRegex(await self.reason(work, b"exit"), "^SystemExit: 3")
        self.assertRegex(await self.reason(work, b"cancelled"), "^asyncio.exceptions.CancelledError")

    async def test_a_reason_that_is_invalid_unicode_is_escaped(self) -> None:
        def work(payload: bytes) -> bytes:
            if payload == b"bad":
                raise ValueError("no file frame-\udcff.png")
            return payload

        self.assertRegex(await self.reason(work), r"^ValueError: no file frame-\\udcff.png \(line \d+ of")

    async def test_a_long_reason_is_shortened_since_it_would_exceed_a_message_and_break_the_stream(self) -> None:
        def work(payload: bytes) -> bytes:
            if payload == b"bad":
                raise ValueError("x" * (20 << 20))
            return payload

        first = Stage("first", listen=ANYWHERE).work(work)
        self.assertLess(len((await self.ends(first, b"bad"))[0].failure.reason), 3000)

    async def test_an_object_with_a_coroutine_can_be_a_work_function(self) -> None:
        [end] = await self.ends(Stage("mid", listen=ANYWHERE).work(Later()))
        self.assertEqual(end.payload_bytes, len(b"goodc"))

    async def test_invalid_results_of_a_batch_are_reported_with_their_type(self) -> None:
        def work(payloads: list[bytes]) -> Any:
            wrong = {b"none": None, b"bytes": b"x", b"number": 7, b"text": ["x"], b"array": [bytearray(b"x")]}
            return wrong.get(payloads[0], payloads)

        names = [b"none", b"bytes", b"number", b"text", b"array"]
        stage = Stage("mid", listen=ANYWHERE).batch(work)
        ends = await self.ends(stage, *names)
        self.assertEqual(
            [end.failure.reason for end in ends[:4]],
            [
                "TypeError: the work returned NoneType, not a list of results",
                "TypeError: the work returned bytes, not a list of results",
                "TypeError: the work returned int, not a list of results",
                "TypeError: the work returned str, not bytes",
            ],
        )
        self.assertFalse(ends[4].HasField("failure"), "a bytearray is accepted")

    async def test_an_abandoned_batch_starts_no_further_item(self) -> None:
        started: list[bytes] = []
        released = threading.Event()

        def blocks(payload: bytes) -> bytes:
            started.append(payload)
            if payload == b"stuck":
                released.wait(TIMEOUT)
            return payload

        async def suspends(payload: bytes) -> bytes:
            started.append(payload)
            if payload == b"stuck":
                await asyncio.sleep(TIMEOUT)
            return payload

        for work in (blocks, suspends):
            started.clear()
            stage = Stage("mid", listen=ANYWHERE, batch=2, batch_wait=5.0, work_timeout=0.1).work(work)
            async with served(stage) as (_, address), Ends(address) as ends, Source("mid", address) as source:
                await source.send(b"stuck")
                await source.send(b"never")
                failed = failures(await ends.count(2))
                self.assertEqual({failure.reason for failure in failed}, {"did not answer within 100ms"})
                released.set()
                await source.send(b"good")
                await source.send(b"good")
                await ends.count(4)
            self.assertEqual(started, [b"stuck", b"good", b"good"])

    async def test_a_drain_does_not_wait_for_a_batch_to_fill(self) -> None:
        stage = Stage("mid", listen=ANYWHERE, batch=8, batch_wait=60.0)
        async with served(stage) as (running, address), Ends(address) as ends, Source("mid", address) as source:
            await source.send(b"x")
            await until("the item suspends", lambda: running._items._waiting)
            started = time.monotonic()
            drain_task = asyncio.ensure_future(running.drain())
            self.assertEqual(failures(await ends.count(1)), [])
            await with_timeout(TIMEOUT, drain_task)
            self.assertLess(time.monotonic() - started, 10)
