#!/usr/bin/env python3
"""Thousands of requests over `loopspec serve` on a demo model, one client in ten hanging up at a random moment: afterwards pages, cells,
memory, threads and descriptors are what they were, and every greedy answer was the one that the server gives alone. With --abuse
the scenes of abuse.py go on beside them, one after another in any order; then some are told to come back later, and do.

  soak.py --server BINARY --model FOLDER [--requests N | --seconds S] [--clients N] [--abuse]
"""

import argparse
import json
import os
import random
import socket
import threading
import time

import abuse
from bad_clients import check, descriptors, post, raw_request, resident_mb
from real_server import RealServer

PROMPTS = ["Once upon a time", "Tom had a cat", "The little dog ran", "Question: What is 2 + 3?\nAnswer:"]
WARM_UP = 400  # requests before the baseline: allocators keep what they once needed
MOST_GROWTH_MB = 24


class Counts:
    def __init__(self):
        self.lock = threading.Lock()
        self.done, self.hung_up, self.refused, self.later, self.started = 0, 0, 0, 0, 0
        self.wrong = None
        self.abused, self.scenes, self.odd = False, {}, 0

    def add(self, name):
        with self.lock:
            setattr(self, name, getattr(self, name) + 1)


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def make_body(random_numbers, index):
    body = {"prompt": PROMPTS[index], "max_tokens": random_numbers.randint(1, 6), "temperature": 0,
            "decode": random_numbers.choice(["ar", "loopspec", "loopspec"])}
    if random_numbers.random() < 0.15:
        body["logprobs"] = 2
    if random_numbers.random() < 0.1:
        body["n"] = 2
    if random_numbers.random() < 0.2:
        body.update(token_details=True, trace=True)
    return body


def hang_up(port, body, random_numbers):
    """Sends all or part of a request, waits or not, reads a little or not, and goes."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    data = raw_request({**body, "max_tokens": 60, "stream": random_numbers.random() < 0.7})
    connection.sendall(data[:len(data) if random_numbers.random() < 0.8 else random_numbers.randrange(len(data))])
    if random_numbers.random() < 0.7:
        time.sleep(random_numbers.random() * 0.05)
    elif random_numbers.random() < 0.5:
        connection.settimeout(0.05)
        try:
            connection.recv(random_numbers.randint(1, 2000))
        except OSError:
            pass
    connection.close()


def stream_text(port, body):
    connection = socket.create_connection(("127.0.0.1", port), timeout=300)
    connection.sendall(raw_request({**body, "stream": True}, "Connection: close\r\n"))
    with connection.makefile("rb") as lines:
        status = int(lines.readline().split()[1])
        texts = {}
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    connection.close()
    return status, list(texts.values())


def work(server, expected, seed, goes_on, counts):
    numbers = random.Random(seed)
    while goes_on():
        index = numbers.randrange(len(PROMPTS))
        body = make_body(numbers, index)
        try:
            if numbers.random() < 0.1:
                hang_up(server.port, body, numbers)
                counts.add("hung_up")
                continue
            if numbers.random() < 0.03:
                status, _ = post(server.url, {**body, "temperature": -1})
                later = status == 503 and counts.abused
                check(status == 400 or later, status)
                counts.add("later" if later else "refused")
                continue
            if numbers.random() < 0.5:
                status, texts = stream_text(server.port, body)
            else:
                status, answer = post(server.url, body)
                texts = [choice["text"] for choice in answer.get("choices", [])]
            if status == 503 and counts.abused:
                counts.add("later")
                time.sleep(0.2)
                continue
            check(status == 200, status)
            wanted = expected[index, body["max_tokens"]]
            check(all(text == wanted for text in texts) and len(texts) == body.get("n", 1), (texts, wanted))
            counts.add("done")
        except Exception as error:  # noqa: BLE001: told by the main thread
            counts.wrong = counts.wrong or repr(error)
            return


def drive(server, expected, clients, requests, seconds, seed, abused=False):
    counts = Counts()
    counts.abused = abused
    end = time.monotonic() + seconds if seconds else None

    def goes_on():
        if counts.wrong is not None or (end is not None and time.monotonic() > end):
            return False
        with counts.lock:
            counts.started += 1
            return end is not None or counts.started <= requests

    jobs = [threading.Thread(target=work, args=(server, expected, seed + i, goes_on, counts)) for i in range(clients)]
    for job in jobs:
        job.start()
    scenes = random.Random(seed)
    while abused and any(job.is_alive() for job in jobs):
        scene = scenes.choice(abuse.SCENES)
        counts.scenes[scene.__name__] = counts.scenes.get(scene.__name__, 0) + 1
        try:
            scene(server)
        except (AssertionError, OSError):
            counts.odd += 1  # an abuser that was told to come back later; what matters is what the others get
    for job in jobs:
        job.join()
    check(counts.wrong is None, counts.wrong)
    return counts


def state_when_idle(server):
    end = time.monotonic() + 60
    while server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") > 0:
        check(time.monotonic() < end, "requests are left")
        time.sleep(0.1)
    time.sleep(1)  # connections that are just being closed
    pid = server.process.pid
    return {"threads": threads(pid), "descriptors": descriptors(pid), "pages": server.metric("vllm:kv_cache_usage_perc"),
            "cells": server.metric("loopspec:cells_usage"), "memory": resident_mb(pid)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--abuse", action="store_true")
    options = parser.parse_args()
    # No page is kept for later requests, so that a page in use at rest is a lost one.
    with RealServer(options.server, options.model, "--prefix-cache", "0", "--kv-memory", "256M") as server:
        expected = {(index, count): post(server.url, {"prompt": prompt, "max_tokens": count, "temperature": 0})[1]["choices"][0]["text"]
                    for index, prompt in enumerate(PROMPTS) for count in range(1, 7)}
        post(server.url, {"prompt": [PROMPTS[0]] * 8, "n": 16, "max_tokens": 100, "temperature": 1, "ignore_eos": True})
        drive(server, expected, options.clients, WARM_UP, 0, 1000)
        before = state_when_idle(server)
        print("before:", before, flush=True)
        start = time.monotonic()
        counts = drive(server, expected, options.clients, options.requests, options.seconds, 1, options.abuse)
        seconds = time.monotonic() - start
        after = state_when_idle(server)
        print("after: ", after)
        print(f"{counts.done} answers as expected, {counts.hung_up} clients hung up, {counts.refused} refused, "
              f"{counts.later} told to come back later, in {seconds:.0f} s")
        if options.abuse:
            print(f"beside {counts.scenes}, {counts.odd} of them turned away")
        check(after["pages"] == before["pages"] == 0, "pages are lost")
        check(after["cells"] == before["cells"] == 0, "cells are lost")
        check(after["threads"] == before["threads"], "threads are left")
        check(after["descriptors"] <= before["descriptors"], "descriptors are left")
        growth = 0.2 * before["memory"] if options.abuse else MOST_GROWTH_MB
        check(after["memory"] - before["memory"] < growth, "memory has grown")
        failures = server.metric("loopspec:http_responses_total", 'code="5')
        if options.abuse:
            failures -= server.metric("loopspec:http_responses_total", 'code="503"')
        check(failures == 0, "a 5xx")
        check(server.stop() == 0, "the exit code")
    print("soak: all checks passed")


if __name__ == "__main__":
    main()
