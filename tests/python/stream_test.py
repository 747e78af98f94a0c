"""Tokens as they come, in threads and in asyncio."""

import asyncio
import gc
import threading
import time
import unittest

from support import OURO, PROBLEM, PROMPTS, engine

import loopspec
from loopspec import Engine


def until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.002)


def idle(of):
    metrics = of.metrics
    return metrics["waiting"] + metrics["prefilling"] + metrics["decoding"] + metrics["preempted"] == 0


class Streams(unittest.TestCase):
    def test_tokens_are_those_of_generate(self):
        whole = engine().generate(PROBLEM, max_tokens=40, logprobs=1)
        stream = engine().stream(PROBLEM, max_tokens=40, logprobs=1)
        tokens = list(stream)
        self.assertEqual("".join(token.text for token in tokens), whole.text)
        self.assertEqual([token.id for token in tokens], whole.token_ids)
        self.assertEqual([(token.logprob, token.top) for token in tokens], [(token.logprob, token.top) for token in whole.tokens])
        self.assertEqual(stream.output.text, whole.text)
        self.assertTrue(stream.output.finished)
        self.assertEqual(stream.output.finish_reason, whole.finish_reason)
        self.assertEqual(list(stream), [])  # and stays so

    def test_choices_are_told_apart(self):
        texts = ["", ""]
        stream = engine().stream(PROMPTS[0], n=2, temperature=1, seed=1, max_tokens=12)
        for token in stream:
            texts[token.choice] += token.text
        self.assertEqual(texts, [choice.text for choice in stream.output.outputs])

    def test_sources(self):
        tokens = list(engine().stream(PROBLEM, max_tokens=64))
        self.assertTrue({token.source for token in tokens} >= {1})
        self.assertTrue(all(0 <= token.source <= 2 for token in tokens))
        self.assertTrue(all(a.time <= b.time for a, b in zip(tokens, tokens[1:])))
        self.assertLess(abs(tokens[-1].time - time.monotonic()), 60)

    def test_a_block_that_is_left_cancels(self):
        with engine().stream(PROMPTS[0], max_tokens=900, ignore_eos=True) as stream:
            for index, _ in enumerate(stream):
                if index == 3:
                    break
        self.assertEqual(stream.output.finish_reason, "cancelled")
        until(lambda: idle(engine()), "a cancelled request ends")

    def test_a_dropped_stream_cancels(self):
        before = engine().metrics["cancelled"]
        stream = engine().stream(PROMPTS[0], max_tokens=900, ignore_eos=True)
        next(stream)
        del stream
        gc.collect()
        until(lambda: engine().metrics["cancelled"] == before + 1, "a dropped request ends")

    def test_many_threads(self):
        alone = [engine().generate(prompt, max_tokens=24).text for prompt in PROMPTS]
        found = [None] * 12

        def read(index):
            prompt = PROMPTS[index % len(PROMPTS)]
            if index % 2:
                found[index] = engine().generate(prompt, max_tokens=24).text
            else:
                found[index] = "".join(token.text for token in engine().stream(prompt, max_tokens=24))

        threads = [threading.Thread(target=read, args=(index,)) for index in range(len(found))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [alone[index % len(PROMPTS)] for index in range(len(found))])

    def test_others_run_while_one_waits(self):
        """Python's lock is away: another thread counts while this one waits for tokens."""
        counted = 0
        stop = threading.Event()

        def count():
            nonlocal counted
            while not stop.is_set():
                counted += 1

        thread = threading.Thread(target=count)
        thread.start()
        try:
            before = counted
            engine().generate(PROMPTS[0], max_tokens=200, ignore_eos=True)
            self.assertGreater(counted - before, 1000)
        finally:
            stop.set()
            thread.join()

    def test_a_full_queue(self):
        with Engine(OURO, max_queued=2, max_running=1, threads=1) as small:
            streams = []
            with self.assertRaises(loopspec.QueueFull):
                for _ in range(200):
                    streams.append(small.stream(PROMPTS[0], max_tokens=900, ignore_eos=True))
            self.assertTrue(issubclass(loopspec.QueueFull, RuntimeError))
            for stream in streams:
                stream.cancel()
            self.assertEqual(len(small.generate(PROMPTS, max_tokens=2)), len(PROMPTS))  # waits for room

    def test_closing_ends_what_is_under_way(self):
        other = Engine(OURO, threads=1)
        failed = []

        def wait():
            try:
                other.generate(["Once upon a time"] * 40, max_tokens=900, ignore_eos=True)
            except RuntimeError as error:
                failed.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        stream = other.stream(PROMPTS[1], max_tokens=900, ignore_eos=True)
        next(stream)
        other.close()
        thread.join(60)
        self.assertIn("closed", failed[0])
        list(stream)
        self.assertEqual(stream.output.finish_reason, "cancelled")
        self.assertTrue(other.closed)
        with self.assertRaisesRegex(RuntimeError, "the engine is closed"):
            other.generate("Hello")
        other.close()  # again is nothing


class Async(unittest.TestCase):
    def test_tokens_are_those_of_generate(self):
        async def read():
            stream = engine().astream(PROBLEM, max_tokens=40)
            text = ""
            async for token in stream:
                text += token.text
            return text, stream.output

        text, output = asyncio.run(read())
        self.assertEqual(text, engine().generate(PROBLEM, max_tokens=40).text)
        self.assertEqual(output.text, text)

    def test_many_at_once_and_the_loop_goes_on(self):
        async def read(prompt):
            return "".join([token.text async for token in engine().astream(prompt, max_tokens=32)])

        async def tick(ticks):
            while True:
                ticks.append(time.monotonic())
                await asyncio.sleep(0.001)

        async def all_of_them():
            ticks = []
            ticking = asyncio.ensure_future(tick(ticks))
            texts = await asyncio.gather(*(read(prompt) for prompt in PROMPTS * 3))
            ticking.cancel()
            return texts, len(ticks)

        texts, ticks = asyncio.run(all_of_them())
        self.assertEqual(texts, [engine().generate(prompt, max_tokens=32).text for prompt in PROMPTS] * 3)
        self.assertGreater(ticks, 3)

    def test_a_cancelled_task_cancels_its_request(self):
        async def cancel():
            before = engine().metrics["cancelled"]
            got = asyncio.Event()

            async def read():
                async for _ in engine().astream(PROMPTS[0], max_tokens=900, ignore_eos=True):
                    got.set()

            task = asyncio.ensure_future(read())
            await got.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            return before

        before = asyncio.run(cancel())
        until(lambda: engine().metrics["cancelled"] == before + 1, "the request ends")

    def test_left_early(self):
        async def leave():
            async with engine().astream(PROMPTS[0], max_tokens=900, ignore_eos=True) as stream:
                await stream.__anext__()
            return stream.output

        self.assertEqual(asyncio.run(leave()).finish_reason, "cancelled")

    def test_a_bad_request_raises_where_it_is_read(self):
        async def read():
            async for _ in engine().astream([10**6]):
                pass

        with self.assertRaisesRegex(ValueError, "token 1000000"):
            asyncio.run(read())


if __name__ == "__main__":
    unittest.main()
