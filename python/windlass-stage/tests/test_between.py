"""A stage in Python between stages of `windlass`: items are counted at both ends."""

import asyncio
import signal
import tempfile

from windlass_stage import stage_pb2 as pb

from .pipeline import Case, Ends, Source, failures, follows, held_back, python, route, rust


class Between(Case):
    """`first` and `end` are of `windlass`; the others are as each test says."""

    async def test_each_item_passes_both_kits_and_arrives_once(self) -> None:
        end = rust(self, "end")
        mid = python(self, "letter", "mid", *follows("end", end))
        first = rust(self, "first", *follows("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            loading = asyncio.ensure_future(source.load(1000, b"frame"))
            arrived = await ends.count(1000)
            await loading
            await source.finish()
        self.assertEqual(set(arrived), set(source.sent))
        for one in arrived.values():
            self.assertFalse(one.HasField("failure"), one.failure)
            self.assertEqual(route(one), ["first", "mid", "end"])
            self.assertEqual(one.payload_bytes, len(b"framep"))
        visits = [one.visits[1] for one in arrived.values()]
        self.assertTrue(all(visit.replica for visit in visits))
        for part in ("link_us", "waited_us", "worked_us", "sending_us"):
            times = [getattr(visit, part) for visit in visits]
            self.assertLess(max(times), 10_000_000, part)
            self.assertGreater(sum(times), 0, part)

    async def test_items_on_a_killed_stage_are_failures_that_name_it(self) -> None:
        end = rust(self, "end")
        mid = python(self, "slow", "mid", "--replica", "one", *follows("end", end))
        first = rust(self, "first", *follows("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            loading = asyncio.ensure_future(source.load(400))
            await ends.count(100)
            # It has items for certain.
            mid.signal(signal.SIGSTOP)
            await held_back(source)
            mid.kill()
            python(self, "slow", "mid", "--replica", "two", *follows("end", end), listen=mid.address)
            arrived = await ends.count(400)
            await loading
            await source.finish()
        self.assertEqual(set(arrived), set(source.sent))
        failed = failures(arrived)
        # A window on the way there, a queue, one at work, two that wait for the end, and a window on the way on.
        self.assertTrue(8 <= len(failed) <= 8 + 4 + 1 + 2 + 8, len(failed))
        for failure in failed:
            self.assertEqual((failure.stage, failure.replica), ("mid", "one"))
            self.assertEqual(failure.kind, pb.FAILURE_KIND_STOPPED)
            self.assertEqual(failure.reason, "the stage stopped while it had the item")

    async def test_a_stage_in_python_answers_for_the_items_of_a_killed_next_one(self) -> None:
        end = rust(self, "end")
        mid = rust(self, "mid", "--replica", "one", "--sleep", "5ms", *follows("end", end))
        first = python(self, "letter", "first", *follows("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            loading = asyncio.ensure_future(source.load(400))
            await ends.count(100)
            # It has items for certain.
            mid.signal(signal.SIGSTOP)
            await held_back(source)
            mid.kill()
            rust(self, "mid", "--replica", "two", *follows("end", end), listen=mid.address)
            arrived = await ends.count(400)
            await loading
            await source.finish()
        self.assertEqual(set(arrived), set(source.sent))
        failed = failures(arrived)
        # A window on the way there, a queue, one at work, two that wait for the end, and a window on the way on.
        self.assertTrue(8 <= len(failed) <= 8 + 4 + 1 + 2 + 8, len(failed))
        self.assertEqual({(it.stage, it.replica, it.kind) for it in failed}, {("mid", "one", pb.FAILURE_KIND_STOPPED)})

    async def test_a_drain_under_load_loses_nothing(self) -> None:
        end = rust(self, "end")
        mids = [python(self, "slow", "mid", "--replica", name, *follows("end", end)) for name in ("one", "two")]
        first = rust(self, "first", *follows("mid", *mids))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            loading = asyncio.ensure_future(source.load(600))
            await ends.count(100)
            one = asyncio.ensure_future(mids[0].terminated())
            await ends.count(300)
            # The other one is alone now; it is replaced while it drains.
            two = asyncio.ensure_future(mids[1].terminated())
            self.assertEqual(await two, 0)
            python(self, "slow", "mid", "--replica", "three", *follows("end", end), listen=mids[1].address)
            arrived = await ends.count(600)
            await loading
            await source.finish()
            self.assertEqual(await one, 0)
        self.assertEqual(set(arrived), set(source.sent))
        self.assertEqual(failures(arrived), [])
        replicas = {it.visits[1].replica for it in arrived.values()}
        self.assertEqual(replicas, {"one", "two", "three"})

    async def test_the_next_stage_may_drain_under_load(self) -> None:
        end = rust(self, "end")
        mids = [rust(self, "mid", "--sleep", "2ms", "--replica", name, *follows("end", end)) for name in ("one", "two")]
        first = python(self, "letter", "first", *follows("mid", *mids))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            loading = asyncio.ensure_future(source.load(400))
            await ends.count(100)
            self.assertEqual(await mids[0].terminated(), 0)
            arrived = await ends.count(400)
            await loading
        self.assertEqual(failures(arrived), [])

    async def test_a_stage_that_stands_still_holds_the_source_back(self) -> None:
        end = rust(self, "end")
        mid = python(self, "letter", "mid", *follows("end", end))
        first = rust(self, "first", *follows("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            await source.load(10)
            await ends.count(10)
            mid.signal(signal.SIGSTOP)
            loading = asyncio.ensure_future(source.load(500))
            await held_back(source)
            self.assertLess(len(source.sent), 10 + 8 + 4 + 8 + 4 + 4)
            mid.signal(signal.SIGCONT)
            arrived = await ends.count(510)
            await loading
        self.assertEqual(failures(arrived), [])

    async def test_an_item_whose_deadline_passes_in_the_queue_is_not_worked_on(self) -> None:
        end = rust(self, "end")
        mid = python(self, "slow", "mid", *follows("end", end))
        first = rust(self, "first", *follows("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            await source.load(4)
            late = await source.send(b"x", 0.001)
            arrived = await ends.count(5)
        [failed] = failures(arrived)
        self.assertEqual(arrived[late].failure, failed)
        self.assertEqual(failed.kind, pb.FAILURE_KIND_DEADLINE)
        self.assertRegex(failed.reason, r"^deadline passed (in the queue of|on the way to) (mid|first)$")

    async def test_an_exception_fails_its_item_and_the_stage_goes_on(self) -> None:
        end = rust(self, "end")
        mid = python(self, "picky", "mid", "--max-payload", "1MiB", *follows("end", end))
        first = rust(self, "first", *follows("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            payloads = [b"bad", b"exit", b"text", b"large", bytes(3 << 20), b"good"]
            ids = [await source.send(payload) for payload in payloads]
            arrived = await ends.count(len(ids))
        told = [arrived[number].failure for number in ids]
        self.assertRegex(told[0].reason, r"^ValueError: no frame: KeyError: 'header' \(line \d+ of .*program.py\)$")
        self.assertRegex(told[1].reason, "^SystemExit: 3")
        self.assertEqual(told[2].reason, "TypeError: the work returned str, not bytes")
        self.assertEqual(told[3].reason, "is 2 MiB, the limit is 1 MiB")
        self.assertEqual((told[4].stage, told[4].reason), ("first", "is 3 MiB, the limit is 1 MiB"))
        self.assertEqual({(it.stage, it.kind) for it in told[:3]}, {("mid", pb.FAILURE_KIND_WORK)})
        self.assertEqual((told[3].stage, told[3].kind), ("mid", pb.FAILURE_KIND_TOO_LARGE))
        self.assertFalse(arrived[ids[5]].HasField("failure"))

    async def test_a_coroutine_function_is_work_too(self) -> None:
        end = rust(self, "end")
        mid = python(self, "later", "mid", *follows("end", end))
        async with Ends(end.address) as ends, Source("mid", mid.address) as source:
            good, bad = await source.send(b"good"), await source.send(b"bad")
            arrived = await ends.count(2)
        self.assertEqual(arrived[good].payload_bytes, len(b"goodc"))
        self.assertRegex(arrived[bad].failure.reason, "^ValueError: no frame")

    async def test_a_batch_is_one_call(self) -> None:
        end = rust(self, "end", "--from", "mid")
        flags = ("--batch", "8", "--batch-wait", "60s", *follows("end", end))
        mid = python(self, "sizes", "mid", *flags)
        first = rust(self, "first", *follows("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            # A batch that does not fill would wait for longer than a test does.
            await source.load(32)
            self.assertEqual(failures(await ends.count(32)), [])
            for payload in [b"few", *[b"x"] * 7]:
                await source.send(payload)
            arrived = await ends.count(40)
        told = failures(arrived)
        self.assertEqual({it.reason for it in told}, {"returned 0 results for 8 items"})
        self.assertEqual({it.kind for it in told}, {pb.FAILURE_KIND_COUNT})
        self.assertEqual(len(told), 8)

    async def test_a_batch_that_does_not_fill_begins_in_time(self) -> None:
        end = rust(self, "end")
        mid = python(self, "sizes", "mid", "--batch", "8", "--batch-wait", "20ms", *follows("end", end))
        async with Ends(end.address) as ends, Source("mid", mid.address) as source:
            await source.send(b"x")
            [one] = (await ends.count(1)).values()
        self.assertGreaterEqual(one.visits[0].waited_us, 20_000)


class Joins(Case):
    """Splits and joins of both kits."""

    async def test_a_join_in_python_gets_the_parts_in_their_order(self) -> None:
        end = rust(self, "end")
        join = python(self, "both", "join", "--from", "left", "--from", "right", *follows("end", end))
        left = python(self, "letter", "left", *follows("join", join))
        right = rust(self, "right", *follows("join", join))
        first = rust(self, "first", *follows("left", left), *follows("right", right))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            await source.load(300, b"abc")
            arrived = await ends.count(300)
            await source.finish()
        self.assertEqual(failures(arrived), [])
        self.assertEqual({it.payload_bytes for it in arrived.values()}, {len(b"abcp|abc")})
        for one in arrived.values():
            self.assertEqual(sorted(route(one)), ["end", "first", "join", "left", "right"])

    async def test_both_kits_choose_the_same_replica_of_a_join(self) -> None:
        end = rust(self, "end")
        flags = ("--from", "left", "--from", "right", *follows("end", end))
        joins = [python(self, "both", "join", "--replica", "py", *flags), rust(self, "join", "--replica", "rs", *flags)]
        left = python(self, "letter", "left", *follows("join", *joins))
        right = rust(self, "right", *follows("join", *joins))
        first = python(self, "letter", "first", *follows("left", left), *follows("right", right))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            await source.load(200)
            arrived = await ends.count(200)
        self.assertEqual(failures(arrived), [])
        replicas = [visit.replica for it in arrived.values() for visit in it.visits if visit.stage == "join"]
        self.assertEqual(len(replicas), 200)
        self.assertTrue(60 < replicas.count("py") < 140, replicas.count("py"))

    async def test_an_item_of_which_a_part_failed_is_one_failure(self) -> None:
        end = rust(self, "end")
        join = python(self, "both", "join", "--from", "left", "--from", "right", *follows("end", end))
        left = python(self, "picky", "left", *follows("join", join))
        right = rust(self, "right", *follows("join", join))
        first = rust(self, "first", *follows("left", left), *follows("right", right))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            for payload in [b"good", b"bad"] * 50:
                await source.send(payload)
            arrived = await ends.count(100)
            await source.finish()
        told = failures(arrived)
        self.assertEqual(len(told), 50)
        self.assertEqual({it.stage for it in told}, {"left"})
        # Nobody holds an item: each stage ends at once.
        for stage in (first, left, right, join, end):
            self.assertEqual(await stage.terminated(), 0)


class UnixSockets(Case):
    """Stages of one node."""

    async def test_a_unix_socket_that_is_stale_is_replaced(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            listen = f"unix:{folder}/mid"
            end = rust(self, "end")
            mid = python(self, "letter", "mid", *follows("end", end), listen=listen)
            first = rust(self, "first", *follows("mid", mid))
            async with Ends(end.address) as ends, Source("first", first.address) as source:
                await source.send(b"x")
                await ends.count(1)
                mid.kill()
                python(self, "letter", "mid", *follows("end", end), listen=listen)
                await source.send(b"x")
                self.assertEqual(failures(await ends.count(2)), [])
