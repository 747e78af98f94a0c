#!/usr/bin/env python3
"""How keys divide the decoder, on the real server with a demo model: one answer of a key beside 64 of another, and tokens/s by weight.

  shares.py --server BINARY --model FOLDER [--check]

Speeds are compared with each other in the same run, never with a clock.
"""

import argparse
import http.client
import json
import tempfile
import threading
import time

from bad_clients import check
from real_server import RealServer

CROWD = 64
TOKENS = 64  # of the single answer
WINDOW = 20.0  # seconds over which tokens are counted


def headers(key):
    return {"Content-Type": "application/json", "Authorization": "Bearer " + key}


class Streams:
    """Endless answers of one key; counts the tokens that arrive."""

    def __init__(self, server, key, count, seed=0):
        self.server, self.key, self.tokens = server, key, [0] * count
        self.ending = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(i, seed + i)) for i in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, i, seed):
        while not self.ending.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=300)
            body = {"input_ids": [300 + seed, 301 + seed, 302], "stream": True,
                    "sampling_params": {"max_new_tokens": 1000, "temperature": 0, "ignore_eos": True}}
            connection.request("POST", "/generate", json.dumps(body), headers(self.key))
            answer = connection.getresponse()
            check(answer.status == 200, answer.status)
            for line in answer:
                if self.ending.is_set():
                    break
                self.tokens[i] += line.startswith(b"data: {")
            connection.close()

    def total(self):
        return sum(self.tokens)

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join()


def single(server, key, crowd=None):
    """One answer: seconds in all, its text, and tokens/s of itself and of the crowd between its first token and its last."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    body = {"text": "Once upon a time", "stream": True, "sampling_params": {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}}
    start = time.monotonic()
    connection.request("POST", "/generate", json.dumps(body), headers(key))
    answer = connection.getresponse()
    check(answer.status == 200, answer.status)
    times, counts, text = [], [], ""
    for line in answer:
        if line.startswith(b"data: {"):
            text = json.loads(line[6:])["text"]
            times.append(time.monotonic())
            counts.append(crowd.total() if crowd else 0)
    connection.close()
    seconds = times[-1] - times[0]
    return {"seconds": times[-1] - start, "text": text, "mine": (len(times) - 1) / seconds, "crowd": (counts[-1] - counts[0]) / seconds}


def settled(streams, least):
    """Waits until the streams have tokens."""
    while streams.total() < least:
        time.sleep(0.01)


def one_beside_many(server):
    """The quickest of three single answers alone, and the middle one of three beside the crowd."""
    alone = [single(server, "light") for _ in range(3)]
    crowd = Streams(server, "other", CROWD)
    settled(crowd, 4 * CROWD)
    beside = [single(server, "light", crowd) for _ in range(3)]
    crowd.end()
    check(len({one["text"] for one in alone + beside}) == 1, "the text changed")
    by_time = lambda one: one["seconds"]
    return min(alone, key=by_time), sorted(beside, key=by_time)[1]


def rates(server, first, second):
    """Tokens of two keys in the same time; each is (key, answers)."""
    streams = [Streams(server, key, count, 100 * i) for i, (key, count) in enumerate((first, second))]
    for one in streams:
        settled(one, 2 * len(one.threads))
    before = [one.total() for one in streams]
    time.sleep(WINDOW)
    after = [one.total() for one in streams]
    for one in streams:
        one.end()
    return [(a - b) / WINDOW for a, b in zip(after, before)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("light\nother\nheavy weight=3\n")
        keys.flush()
        with RealServer(options.server, options.model, "--api-key-file", keys.name) as server:
            alone, beside = one_beside_many(server)
            print(f"one answer of {TOKENS} tokens: {alone['seconds']:.2f} s alone, {beside['seconds']:.2f} s beside {CROWD} answers of another key; "
                  f"from its first token on {beside['mine']:.0f} tokens/s beside {beside['crowd']:.0f} of the {CROWD}", flush=True)
            found = {}
            for name, first, second, due in (("8 answers beside 48, equal weights", ("light", 8), ("other", 48), 1),
                                             ("24 answers beside 24, weights 1 and 3", ("light", 24), ("heavy", 24), 3),
                                             ("48 answers beside 12, weights 1 and 3", ("light", 48), ("heavy", 12), 3)):
                mine, others = rates(server, first, second)
                found[name] = others / mine / due
                print(f"{name}: {mine:.0f} and {others:.0f} tokens/s, 1 to {others / mine:.2f}", flush=True)
            if options.check:
                # An equal part of the tokens, which a few tokens more or less do not change.
                check(beside["mine"] > 0.8 * beside["crowd"], beside)
                for name, ratio in found.items():
                    check(1 / 1.1 < ratio < 1.1, (name, ratio))
            check(server.stop() == 0, "the exit code")


if __name__ == "__main__":
    main()
