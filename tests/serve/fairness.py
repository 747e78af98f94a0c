#!/usr/bin/env python3
"""How long requests wait for each other, on the real server with a demo model: sixteen equal prompts, and one token behind a batch of 128.

  fairness.py --server BINARY --model FOLDER [--check]

Times are compared with those of the same requests alone, in the same run.
"""

import argparse
import random
import threading
import time

from bad_clients import check, post
from real_server import RealServer

PROMPTS, TOKENS = 16, 1900


def prompt(seed, tokens=TOKENS):
    numbers = random.Random(seed)
    return [numbers.randrange(300, 8000) for _ in range(tokens)]


def timed(server, body):
    start = time.monotonic()
    status, answer = post(server.url, body, timeout=600)
    check(status == 200, answer)
    return time.monotonic() - start


def equal_prompts(server, max_tokens):
    """Seconds of one alone, before and after, on average; and of each of sixteen that come one right after the other."""
    body = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    alone = [timed(server, {**body, "prompt": prompt(-1 - i)}) for i in range(2)]
    ended, threads = [0.0] * PROMPTS, []
    start = time.monotonic()

    def one(i):
        post(server.url, {**body, "prompt": prompt(i)}, timeout=600)
        ended[i] = time.monotonic() - start

    for i in range(PROMPTS):
        threads.append(threading.Thread(target=one, args=(i,)))
        threads[-1].start()
        time.sleep(0.005)
    for thread in threads:
        thread.join()
    alone += [timed(server, {**body, "prompt": prompt(-3 - i)}) for i in range(2)]
    return sum(alone) / len(alone), ended


def behind_a_batch(server, beside):
    """Seconds of a batch of 128 long answers, and of requests for one token that come while it runs."""
    body = {"prompt": ["Once upon a time"] * 8, "n": 16, "max_tokens": 120, "temperature": 1, "ignore_eos": True, "seed": 1}
    short, seconds = [], [0.0]
    batch = threading.Thread(target=lambda: seconds.__setitem__(0, timed(server, body)))
    batch.start()
    time.sleep(1)
    while beside and batch.is_alive() and len(short) < 8:
        short.append(timed(server, {"prompt": "The", "max_tokens": 1, "temperature": 0}))
    batch.join()
    return seconds[0], short


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    with RealServer(options.server, options.model, "--prefix-cache", "0") as server:
        alone, ended = equal_prompts(server, 16)
        print(f"{PROMPTS} prompts of {TOKENS} tokens: {alone:.2f} s alone; the first ended after {min(ended):.2f} s ({min(ended) / alone:.2f} x), "
              f"the mean {sum(ended) / PROMPTS:.2f} s, the last {max(ended):.2f} s ({max(ended) / (PROMPTS * alone):.2f} x of {PROMPTS} alone)", flush=True)
        batch, _ = behind_a_batch(server, False)
        beside, short = behind_a_batch(server, True)
        print(f"a batch of 128: {batch:.2f} s alone, {beside:.2f} s beside requests for one token, which took "
              + ", ".join(f"{s:.2f}" for s in short) + " s", flush=True)
        if options.check:
            check(min(ended) < 1.5 * alone + 0.5, (alone, ended))
            # A place after a second, and the step and the chunk that are under way.
            check(short and max(short) < max(2, batch / 4), short)
        check(server.stop() == 0, "the exit code")


if __name__ == "__main__":
    main()
