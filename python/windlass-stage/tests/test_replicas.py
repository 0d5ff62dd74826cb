"""Replicas of a next stage: the choice for each item, and draining replicas."""

import asyncio
import unittest

from windlass_stage import Stage
from windlass_stage import stage_pb2 as pb
from windlass_stage.address import Address
from windlass_stage.choice import replica
from windlass_stage.deadline import with_timeout
from windlass_stage.dial import ItemStream
from windlass_stage.item import Outgoing
from windlass_stage.link import Link
from windlass_stage.replicas import Replicas

from .pipeline import ANYWHERE, TIMEOUT, Case, Ends, Source, failures, served

SECOND = 1_000_000_000


class Receipts:
    """The stream of a replica. The test sends the receipts."""

    def __init__(self) -> None:
        self._receipts: asyncio.Queue[pb.Receipt] = asyncio.Queue()

    def passed(self, sequence: int) -> None:
        self._receipts.put_nowait(pb.Receipt(passed=pb.Passed(sequence=sequence)))

    async def read(self) -> pb.Receipt:
        return await self._receipts.get()


def link() -> tuple[Link, Receipts]:
    """A link to a replica, with the stream behind it."""
    receipts = Receipts()
    description = pb.DescribeResponse(stage="detect", replica="one", max_payload=100)
    return Link(ItemStream(description, None, receipts, 0), "camera", 0), receipts


def item(ready: int = 0) -> Outgoing:
    return Outgoing(1, b"x", None, [], None, ready, [])


class Choice(unittest.IsolatedAsyncioTestCase):
    """Choice by the expected time."""

    async def test_the_replica_that_will_pass_an_item_first_gets_it(self) -> None:
        (slow, slow_receipts), (fast, fast_receipts) = link(), link()
        links = {"slow": slow, "fast": fast}

        def chosen() -> Link | None:
            return replica(links, 7, False, lambda _: True)

        # A replica that has passed no item yet is tried first.
        slow.send(item())
        await asyncio.sleep(0.2)
        slow_receipts.passed(0)
        await slow.receive()
        self.assertIs(chosen(), fast)
        fast.send(item())
        fast_receipts.passed(0)
        await fast.receive()
        # The fast replica has more pending items, and is still expected to pass one first.
        for _ in range(3):
            fast.send(item())
        self.assertEqual((slow.pending_count, fast.pending_count), (0, 3))
        self.assertIs(chosen(), fast)

    async def test_the_expected_time_of_an_idle_replica_decays(self) -> None:
        slow, receipts = link()
        slow.send(item())
        sent = slow._last_sent
        await asyncio.sleep(0.05)
        receipts.passed(0)
        await slow.receive()
        item_time = slow.expected_wait(sent)
        self.assertGreaterEqual(item_time, 0.05 * SECOND)
        self.assertAlmostEqual(slow.expected_wait(sent + 10 * SECOND), item_time / 2)
        self.assertAlmostEqual(slow.expected_wait(sent + 30 * SECOND), item_time / 8)

    async def test_items_that_were_sent_together_share_their_time(self) -> None:
        one, receipts = link()
        for _ in range(4):
            one.send(item())
        sent = one._last_sent
        await asyncio.sleep(0.1)
        receipts.passed(3)
        await one.receive()
        # The newest item had three before it, so its time per item is a quarter. Three items are pending.
        self.assertTrue(0.1 * SECOND <= one.expected_wait(sent) <= 0.35 * SECOND, one.expected_wait(sent))


class Name(Address):
    """A DNS name that gets a second replica after 1.3 seconds."""

    started: float | None = None

    async def resolve(self) -> set[str]:
        now = asyncio.get_running_loop().time()
        started = Name.started = Name.started or now
        return {"one"} if now < started + 1.3 else {"one", "two"}


class Names(unittest.IsolatedAsyncioTestCase):
    """Resolution of a name."""

    async def test_a_name_is_resolved_again_soon_after_a_change(self) -> None:
        opened: asyncio.Queue[str] = asyncio.Queue()

        async def dial(_target: str) -> ItemStream:
            return ItemStream(pb.DescribeResponse(), None, None, 0)

        async def use(target: str, _stream: ItemStream) -> None:
            opened.put_nowait(target)
            await asyncio.Event().wait()

        replicas_task = asyncio.ensure_future(Replicas("detect", [Name("detect", 7000)], 10.0, dial, use).run())
        try:
            self.assertEqual([await with_timeout(5, opened.get()) for _ in range(2)], ["one", "two"])
        finally:
            replicas_task.cancel()
            await asyncio.wait((replicas_task,))


class Spread(Case):
    """Distribution of items between stages of this process."""

    async def test_few_items_go_to_a_slow_replica(self) -> None:
        async def slow(payload: bytes) -> bytes:
            # Far slower than the other one, even if the machine is busy.
            await asyncio.sleep(0.3)
            return payload

        async with served(Stage("store", listen=ANYWHERE)) as (_, store), Ends(store) as ends:
            one = Stage("detect", listen=ANYWHERE, next={"store": store}, replica="slow").work(slow)
            other = Stage("detect", listen=ANYWHERE, next={"store": store}, replica="fast")
            async with served(one) as (_, left), served(other) as (_, right):
                async with Source("detect", f"{left},{right}") as source:
                    await source.load(200)
                    arrived = await ends.count(200)
        by_slow = sum(end.visits[0].replica == "slow" for end in arrived.values())
        self.assertTrue(1 <= by_slow < 50, by_slow)

    async def test_stages_of_one_pod_that_drain_together_lose_nothing(self) -> None:
        opened = asyncio.Event()

        async def waits(payload: bytes) -> bytes:
            await opened.wait()
            return payload

        async with served(Stage("store", listen=ANYWHERE)) as (_, store), Ends(store) as ends:
            second = Stage("decode", listen=ANYWHERE, next={"store": store}).work(waits)
            async with served(second) as (decode, address):
                first = Stage("camera", listen=ANYWHERE, next={"decode": address})
                async with served(first) as (camera, address), Source("camera", address) as source:
                    # More than the window: the camera still has items when its only next stage drains.
                    for _ in range(14):
                        await source.send(b"x")
                    drain_tasks = [asyncio.ensure_future(stage.drain()) for stage in (decode, camera)]
                    await asyncio.sleep(0.05)
                    opened.set()
                    arrived = await ends.count(14)
                    await source.finish()
                    for drain_task in drain_tasks:
                        await with_timeout(TIMEOUT, drain_task)
        self.assertEqual(failures(arrived), [])

    async def test_a_serving_stage_ends_its_stream_to_a_draining_one(self) -> None:
        async with served(Stage("store", listen=ANYWHERE)) as (store, address):
            first = Stage("detect", listen=ANYWHERE, next={"store": address})
            async with served(first) as (_, detect), Source("detect", detect) as source:
                await source.send(b"x")
                await source.finish()
                # The sender ends its stream after the grace period, although it has no other replica.
                await with_timeout(5, store.drain())
