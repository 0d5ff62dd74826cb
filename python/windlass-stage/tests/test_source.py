"""The public classes `Source` and `Ends`, with a stage between them."""

import asyncio
import unittest

from windlass_stage import Ended, Ends, Missed, Source, Stage
from windlass_stage.deadline import with_timeout

from .pipeline import ANYWHERE, TIMEOUT, Case, served


def ids(received: list[Ended | Missed]) -> list[int]:
    """The ids of ends. Fails if an end was missed."""
    assert all(isinstance(end, Ended) for end in received)
    return [end.id for end in received if isinstance(end, Ended)]


async def receive(ends: Ends, count: int) -> list[Ended | Missed]:
    """Receives the next `count` events."""
    return [await with_timeout(TIMEOUT, anext(ends)) for _ in range(count)]


class SourceTest(Case):
    """Items from a source to a listener."""

    async def test_a_listener_gets_each_item_of_a_source_once(self) -> None:
        async with served(Stage("only", listen=ANYWHERE)) as (_, address), Ends(address) as ends:
            async with Source("camera", "only", address, window=4) as source:
                sent = [await source.send(b"x" * 10) for _ in range(50)]
            received = await receive(ends, 50)
        self.assertEqual(ids(received), sent)
        self.assertEqual({end.payload_bytes for end in received if isinstance(end, Ended)}, {10})

    async def test_the_end_of_the_block_waits_for_the_items_and_an_exception_does_not(self) -> None:
        nowhere = "127.0.0.1:1"
        with self.assertRaises(KeyError):
            async with Source("camera", "only", nowhere) as source:
                await source.send(b"waits")
                raise KeyError
        source = Source("camera", "only", nowhere)

        async def block() -> None:
            async with source:
                await source.send(b"waits")

        with self.assertRaises(asyncio.TimeoutError):
            await with_timeout(0.3, block())

    async def test_a_deadline_that_passes_on_the_way_makes_a_failure(self) -> None:
        async with served(Stage("only", listen=ANYWHERE)) as (_, address), Ends(address) as ends:
            async with Source("camera", "only", address) as source:
                await source.send(b"late", deadline=0)
            [end] = await receive(ends, 1)
        assert isinstance(end, Ended)
        self.assertIn("deadline passed", end.failure.reason)

    async def test_a_listener_continues_with_a_new_replica_at_the_address(self) -> None:
        stage = Stage("only", listen=ANYWHERE)
        async with served(stage) as (running, address):
            ends = Ends(address)
            await with_timeout(TIMEOUT, ends.__aenter__())
            try:
                async with Source("camera", "only", address) as source:
                    sent = [await source.send(b"1")]
                    received = ids(await receive(ends, 1))
                    await running.end()
                    async with served(Stage("only", listen=address)):
                        sent.append(await source.send(b"2"))
                        received += ids(await receive(ends, 1))
                        # The listener may learn of an end before the source does. Without a stage, it would wait.
                        await with_timeout(TIMEOUT, source.finish())
            finally:
                await ends.__aexit__()
        self.assertEqual(received, sent)


if __name__ == "__main__":
    unittest.main()
