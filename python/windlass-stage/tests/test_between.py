"""Stages in Python between stages of `windlass`: every item that was sent must end once."""

import asyncio
import signal
import tempfile

from windlass_stage import stage_pb2 as pb

from .pipeline import Case, Ends, Source, failures, next_flags, python, route, rust, wait_until_blocked


class Between(Case):
    """Pipelines with stages in Rust and in Python."""

    async def test_each_item_passes_both_kits_and_arrives_once(self) -> None:
        end = rust(self, "end")
        mid = python(self, "letter", "mid", *next_flags("end", end))
        first = rust(self, "first", *next_flags("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            load_task = asyncio.ensure_future(source.load(300, b"frame"))
            arrived = await ends.count(300)
            await load_task
            await source.finish()
        self.assertEqual(set(arrived), set(source.sent))
        for item in arrived.values():
            self.assertFalse(item.HasField("failure"), item.failure)
            self.assertEqual(route(item), ["first", "mid", "end"])
            self.assertEqual(item.payload_bytes, len(b"framep"))
        visits = [item.visits[1] for item in arrived.values()]
        self.assertTrue(all(visit.replica for visit in visits))
        for part in ("link_us", "waited_us", "worked_us", "sending_us"):
            times = [getattr(visit, part) for visit in visits]
            self.assertLess(max(times), 10_000_000, part)
            self.assertGreater(sum(times), 0, part)

    async def test_items_on_a_killed_stage_are_failures_that_name_it(self) -> None:
        end = rust(self, "end")
        mid = python(self, "slow", "mid", "--replica", "one", *next_flags("end", end))
        first = rust(self, "first", *next_flags("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            load_task = asyncio.ensure_future(source.load(200))
            await ends.count(20)
            # Stopped while it has items.
            mid.signal(signal.SIGSTOP)
            await wait_until_blocked(source)
            mid.kill()
            python(self, "slow", "mid", "--replica", "two", *next_flags("end", end), listen=mid.address)
            arrived = await ends.count(200)
            await load_task
            await source.finish()
        self.assertEqual(set(arrived), set(source.sent))
        failed = failures(arrived)
        # A window to the stage, its queue, one item in processing, two that wait to be sent, and a window to the end.
        self.assertTrue(8 <= len(failed) <= 8 + 4 + 1 + 2 + 8, len(failed))
        for failure in failed:
            self.assertEqual((failure.stage, failure.replica), ("mid", "one"))
            self.assertEqual(failure.kind, pb.FAILURE_KIND_STOPPED)
            self.assertEqual(failure.reason, "the stage stopped while it had the item")

    async def test_a_stage_in_python_fails_the_items_of_a_killed_next_stage(self) -> None:
        end = rust(self, "end")
        mid = rust(self, "mid", "--replica", "one", "--sleep", "5ms", *next_flags("end", end))
        first = python(self, "letter", "first", *next_flags("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            load_task = asyncio.ensure_future(source.load(200))
            await ends.count(20)
            # Stopped while it has items.
            mid.signal(signal.SIGSTOP)
            await wait_until_blocked(source)
            mid.kill()
            rust(self, "mid", "--replica", "two", *next_flags("end", end), listen=mid.address)
            arrived = await ends.count(200)
            await load_task
            await source.finish()
        self.assertEqual(set(arrived), set(source.sent))
        failed = failures(arrived)
        # A window to the stage, its queue, one item in processing, two that wait to be sent, and a window to the end.
        self.assertTrue(8 <= len(failed) <= 8 + 4 + 1 + 2 + 8, len(failed))
        causes = {(failure.stage, failure.replica, failure.kind) for failure in failed}
        self.assertEqual(causes, {("mid", "one", pb.FAILURE_KIND_STOPPED)})

    async def test_a_drain_under_load_loses_nothing(self) -> None:
        end = rust(self, "end")
        mids = [python(self, "slow", "mid", "--replica", name, *next_flags("end", end)) for name in ("one", "two")]
        first = rust(self, "first", *next_flags("mid", *mids))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            load_task = asyncio.ensure_future(source.load(300))
            await ends.count(20)
            first_exit = asyncio.ensure_future(mids[0].terminated())
            await ends.count(100)
            # Now the other replica is the only one. It is replaced while it drains.
            second_exit = asyncio.ensure_future(mids[1].terminated())
            self.assertEqual(await second_exit, 0)
            python(self, "slow", "mid", "--replica", "three", *next_flags("end", end), listen=mids[1].address)
            arrived = await ends.count(300)
            await load_task
            await source.finish()
            self.assertEqual(await first_exit, 0)
        self.assertEqual(set(arrived), set(source.sent))
        self.assertEqual(failures(arrived), [])
        replicas = {item.visits[1].replica for item in arrived.values()}
        self.assertEqual(replicas, {"one", "two", "three"})

    async def test_the_next_stage_may_drain_under_load(self) -> None:
        end = rust(self, "end")
        flags = ("--sleep", "2ms", *next_flags("end", end))
        mids = [rust(self, "mid", "--replica", name, *flags) for name in ("one", "two")]
        first = python(self, "letter", "first", *next_flags("mid", *mids))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            load_task = asyncio.ensure_future(source.load(200))
            await ends.count(20)
            self.assertEqual(await mids[0].terminated(), 0)
            arrived = await ends.count(200)
            await load_task
        self.assertEqual(failures(arrived), [])

    async def test_a_blocked_stage_applies_back_pressure_to_the_source(self) -> None:
        end = rust(self, "end")
        mid = python(self, "letter", "mid", *next_flags("end", end))
        first = rust(self, "first", *next_flags("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            await source.load(10)
            await ends.count(10)
            mid.signal(signal.SIGSTOP)
            load_task = asyncio.ensure_future(source.load(200))
            await wait_until_blocked(source)
            self.assertLess(len(source.sent), 10 + 8 + 4 + 8 + 4 + 4)
            mid.signal(signal.SIGCONT)
            arrived = await ends.count(210)
            await load_task
        self.assertEqual(failures(arrived), [])

    async def test_an_item_whose_deadline_passes_in_the_queue_is_not_processed(self) -> None:
        end = rust(self, "end")
        mid = python(self, "slow", "mid", *next_flags("end", end))
        first = rust(self, "first", *next_flags("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            await source.load(4)
            late = await source.send(b"x", 0.001)
            arrived = await ends.count(5)
        [failed] = failures(arrived)
        self.assertEqual(arrived[late].failure, failed)
        self.assertEqual(failed.kind, pb.FAILURE_KIND_DEADLINE)
        self.assertRegex(failed.reason, r"^deadline passed (in the queue of|on the way to) (mid|first)$")

    async def test_an_exception_fails_its_item_and_the_stage_continues(self) -> None:
        end = rust(self, "end")
        mid = python(self, "picky", "mid", "--max-payload", "1MiB", *next_flags("end", end))
        first = rust(self, "first", *next_flags("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            payloads = [b"bad", b"exit", b"text", b"large", bytes(3 << 20), b"good"]
            ids = [await source.send(payload) for payload in payloads]
            arrived = await ends.count(len(ids))
        failed = [arrived[item_id].failure for item_id in ids]
        self.assertRegex(failed[0].reason, r"^ValueError: no frame: KeyError: 'header' \(line \d+ of .*program.py\)$")
        self.assertRegex(failed[1].reason, "^SystemExit: 3")
        self.assertEqual(failed[2].reason, "TypeError: the work returned str, not bytes")
        self.assertEqual(failed[3].reason, "is 2 MiB, the limit is 1 MiB")
        self.assertEqual((failed[4].stage, failed[4].reason), ("first", "is 3 MiB, the limit is 1 MiB"))
        self.assertEqual({(failure.stage, failure.kind) for failure in failed[:3]}, {("mid", pb.FAILURE_KIND_WORK)})
        self.assertEqual((failed[3].stage, failed[3].kind), ("mid", pb.FAILURE_KIND_TOO_LARGE))
        self.assertFalse(arrived[ids[5]].HasField("failure"))

    async def test_a_coroutine_function_can_be_a_work_function(self) -> None:
        end = rust(self, "end")
        mid = python(self, "later", "mid", *next_flags("end", end))
        async with Ends(end.address) as ends, Source("mid", mid.address) as source:
            good, bad = await source.send(b"good"), await source.send(b"bad")
            arrived = await ends.count(2)
        self.assertEqual(arrived[good].payload_bytes, len(b"goodc"))
        self.assertRegex(arrived[bad].failure.reason, "^ValueError: no frame")

    async def test_a_batch_is_one_call(self) -> None:
        end = rust(self, "end", "--from", "mid")
        flags = ("--batch", "8", "--batch-wait", "60s", *next_flags("end", end))
        mid = python(self, "sizes", "mid", *flags)
        first = rust(self, "first", *next_flags("mid", mid))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            # An incomplete batch would wait longer than the timeout of the test.
            await source.load(32)
            self.assertEqual(failures(await ends.count(32)), [])
            for payload in [b"few", *[b"x"] * 7]:
                await source.send(payload)
            arrived = await ends.count(40)
        failed = failures(arrived)
        self.assertEqual({failure.reason for failure in failed}, {"returned 0 results for 8 items"})
        self.assertEqual({failure.kind for failure in failed}, {pb.FAILURE_KIND_COUNT})
        self.assertEqual(len(failed), 8)

    async def test_an_incomplete_batch_starts_after_batch_wait(self) -> None:
        end = rust(self, "end")
        mid = python(self, "sizes", "mid", "--batch", "8", "--batch-wait", "20ms", *next_flags("end", end))
        async with Ends(end.address) as ends, Source("mid", mid.address) as source:
            await source.send(b"x")
            [only] = (await ends.count(1)).values()
        self.assertGreaterEqual(only.visits[0].waited_us, 20_000)


class Joins(Case):
    """Splits and joins with stages of both kits."""

    async def test_a_join_in_python_gets_the_parts_in_their_order(self) -> None:
        end = rust(self, "end")
        join = python(self, "both", "join", "--from", "left", "--from", "right", *next_flags("end", end))
        left = python(self, "letter", "left", *next_flags("join", join))
        right = rust(self, "right", *next_flags("join", join))
        first = rust(self, "first", *next_flags("left", left), *next_flags("right", right))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            await source.load(150, b"abc")
            arrived = await ends.count(150)
            await source.finish()
        self.assertEqual(failures(arrived), [])
        self.assertEqual({item.payload_bytes for item in arrived.values()}, {len(b"abcp|abc")})
        for item in arrived.values():
            self.assertEqual(sorted(route(item)), ["end", "first", "join", "left", "right"])

    async def test_both_kits_choose_the_same_replica_of_a_join(self) -> None:
        end = rust(self, "end")
        flags = ("--from", "left", "--from", "right", *next_flags("end", end))
        joins = [python(self, "both", "join", "--replica", "py", *flags), rust(self, "join", "--replica", "rs", *flags)]
        left = python(self, "letter", "left", *next_flags("join", *joins))
        right = rust(self, "right", *next_flags("join", *joins))
        first = python(self, "letter", "first", *next_flags("left", left), *next_flags("right", right))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            await source.load(200)
            arrived = await ends.count(200)
        self.assertEqual(failures(arrived), [])
        replicas = [visit.replica for item in arrived.values() for visit in item.visits if visit.stage == "join"]
        self.assertEqual(len(replicas), 200)
        self.assertTrue(60 < replicas.count("py") < 140, replicas.count("py"))

    async def test_an_item_with_a_failed_part_ends_as_one_failure(self) -> None:
        end = rust(self, "end")
        join = python(self, "both", "join", "--from", "left", "--from", "right", *next_flags("end", end))
        left = python(self, "picky", "left", *next_flags("join", join))
        right = rust(self, "right", *next_flags("join", join))
        first = rust(self, "first", *next_flags("left", left), *next_flags("right", right))
        async with Ends(end.address) as ends, Source("first", first.address) as source:
            for payload in [b"good", b"bad"] * 50:
                await source.send(payload)
            arrived = await ends.count(100)
            await source.finish()
        failed = failures(arrived)
        self.assertEqual(len(failed), 50)
        self.assertEqual({failure.stage for failure in failed}, {"left"})
        # No stage has an item, so each drains immediately.
        for stage in (first, left, right, join, end):
            self.assertEqual(await stage.terminated(), 0)


class UnixSockets(Case):
    """Stages that listen on unix sockets."""

    async def test_a_stale_unix_socket_is_replaced(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            listen = f"unix:{folder}/mid"
            end = rust(self, "end")
            mid = python(self, "letter", "mid", *next_flags("end", end), listen=listen)
            first = rust(self, "first", *next_flags("mid", mid))
            async with Ends(end.address) as ends, Source("first", first.address) as source:
                await source.send(b"x")
                await ends.count(1)
                mid.kill()
                python(self, "letter", "mid", *next_flags("end", end), listen=listen)
                await source.send(b"x")
                self.assertEqual(failures(await ends.count(2)), [])
