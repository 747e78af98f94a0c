#!/usr/bin/env python3
"""Everything at once: well-behaved clients of three keys beside the abuses of abuse.py and bad_clients.py, clients that hang up or are killed,
keys and logs that change, a full disk under the log and preemption, on `loopspec serve` with a demo model.

  siege.py --server BINARY --model FOLDER [--seconds S] [--quiet S]

First, and at the end again, the same clients alone, for what they are compared with: what else the machine does may change meanwhile. Between,
minute by minute: tokens of each key, the slowest first tokens, memory; and how long /health and /metrics took. At the end: no answer was wrong, no
key had less than 80 % of what is due to its weight in any minute, memory is within 20 % of the first minute's, and the 99th percentile of first
tokens within twice that of the quiet server.

Whoever would be elsewhere on the network, abusers and clients that hang up, runs in a process of its own at the lowest priority: what such clients
compute themselves would not be the server's loss.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import abuse
import bad_clients
import soak
from bad_clients import check, post, resident_mb, speak_as
from real_server import RealServer

KEYS = {"first": 1, "second": 1, "third": 2}  # with their weights
CLIENTS = 6  # of each key
PROMPTS = soak.PROMPTS
TOKENS = 48
SCENES = (*abuse.SCENES, bad_clients.broken_bodies, bad_clients.large_prompts, bad_clients.half_closed, bad_clients.idle_connections)
MINUTE = 60.0
KILLED = """
import http.client, json, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "n": 8, "max_tokens": 500, "ignore_eos": True, "stream": True}),
                   {"Content-Type": "application/json", "Authorization": "Bearer " + sys.argv[2]})
answer = connection.getresponse()
while answer.read(100):
    pass
"""


def ask(port, key, prompt, came=lambda text: None):
    """The text of a streamed answer, and when its pieces came; `came` is told each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    start = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", "Authorization": "Bearer " + key})
    answer = connection.getresponse()
    if answer.status != 200:
        answer.read()
        connection.close()
        return answer.status, "", []
    text, times = "", []
    for line in answer:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            check("error" not in event, event)
            for choice in event["choices"]:
                text += choice["text"]
                came(choice["text"])
            times.append(time.monotonic() - start)
    connection.close()
    return 200, text, times


class Good:
    """Clients of the three keys. What they got is counted by key since the last look."""

    def __init__(self, server, expected):
        self.server, self.expected = server, expected
        self.lock, self.ending = threading.Lock(), threading.Event()
        self.tokens, self.first, self.answers, self.later, self.wrong = dict.fromkeys(KEYS, 0.0), [], 0, 0, []
        self.threads = [threading.Thread(target=self.run, args=(key, i)) for key in KEYS for i in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self, key, seed):
        numbers = random.Random(seed)
        while not self.ending.is_set():
            prompt = numbers.choice(PROMPTS)

            def came(text, prompt=prompt):
                # As it comes: on a slow machine a minute has few whole answers. An answer's bytes count alike, whatever its tokens are.
                with self.lock:
                    self.tokens[key] += TOKENS * len(text) / len(self.expected[prompt])

            try:
                status, text, times = ask(self.server.port, key, prompt, came)
            except Exception as error:  # noqa: BLE001: told by the main thread
                with self.lock:
                    self.wrong.append(repr(error))
                continue
            with self.lock:
                if status in (429, 503):
                    self.later += 1
                elif status != 200 or text != self.expected[prompt]:
                    self.wrong.append((status, text))
                else:
                    self.answers += 1
                    self.first.append(times[0])
            if status != 200:
                time.sleep(0.2)

    def look(self):
        with self.lock:
            tokens, first = dict(self.tokens), sorted(self.first)
            self.tokens, self.first = dict.fromkeys(KEYS, 0.0), []
        return tokens, first

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join()


def percentile(values, part):
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def abuses(server, ending, counts):
    numbers = random.Random(5)
    while not ending.is_set():
        scene = numbers.choice(SCENES)
        counts[scene.__name__] = counts.get(scene.__name__, 0) + 1
        try:
            scene(server)
        except (AssertionError, OSError):
            counts["turned away"] = counts.get("turned away", 0) + 1


def kills(server, ending, counts):
    """Clients that hang up at any moment, and processes that are killed."""
    numbers = random.Random(6)
    while not ending.is_set():
        for _ in range(10):
            try:
                soak.hang_up(server.port, {"prompt": "Once upon a time"}, numbers)
            except OSError:
                pass
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(server.port), "abuser"])
        time.sleep(numbers.random() * 3)
        process.kill()
        process.wait()
        counts["killed"] = counts.get("killed", 0) + 1


class Elsewhere:
    """What abusers know of the server: where it is, and its memory and figures, which they check afterwards."""

    def __init__(self, port, pid):
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        self.process = argparse.Namespace(pid=pid, poll=lambda: None)

    metric = RealServer.metric


def be_elsewhere(port, pid):
    """The process of the abusers: until its input ends. Prints how often each did what it does."""
    os.nice(19)
    speak_as("abuser")
    server, ending, counts = Elsewhere(port, pid), threading.Event(), {}
    threads = [threading.Thread(target=action, args=(server, ending, counts)) for action in (abuses, kills)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ending.set()
    for thread in threads:
        thread.join()
    print(json.dumps(counts))


def changes(server, folder, ending, counts):
    """Keys that come and go, and a log that is moved away, or whose disk is full."""
    log, keys = folder / "server.log", folder / "keys"
    usual = keys.read_text()
    for i in range(1_000_000):
        if ending.wait(7):
            break
        keys.write_text(usual + f"passing{i}\n")
        full = i % 3 == 1
        log.unlink(missing_ok=True)
        if full:
            log.symlink_to("/dev/full")
        server.process.send_signal(signal.SIGHUP)
        counts["reloads"] = counts.get("reloads", 0) + 1
        counts["full disks"] = counts.get("full disks", 0) + full


def minutes(good, server, seconds):
    """What each minute was like; the last is the rest."""
    rows, end = [], time.monotonic() + seconds
    while (left := end - time.monotonic()) > 1:
        length = min(MINUTE, left)
        time.sleep(length)
        tokens, first = good.look()
        total, weights = sum(tokens.values()), sum(KEYS.values())
        due = {key: tokens[key] / (total * weight / weights) if total else 0.0 for key, weight in KEYS.items()}
        row = {"tokens": tokens, "due": due, "first": first, "memory": resident_mb(server.process.pid), "whole": length == MINUTE}
        rows.append(row)
        print(f"minute {len(rows)}: tokens/s " + " ".join(f"{tokens[key] / length:.0f}" for key in KEYS) + "; of what is due "
              + " ".join(f"{due[key]:.2f}" for key in KEYS) + f"; first token median {percentile(first, 0.5):.2f} s, p99 {percentile(first, 0.99):.2f} s; "
              f"{row['memory']:.0f} MB; {server.metric('vllm:num_preemptions_total'):.0f} preemptions; {len(good.wrong)} wrong", flush=True)
    return rows


def main():
    if sys.argv[1:2] == ["elsewhere"]:
        be_elsewhere(*map(int, sys.argv[2:]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--quiet", type=float, default=120)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "keys").write_text("".join(f"{key} weight={weight}\n" for key, weight in {**KEYS, "abuser": 1}.items()))
        with RealServer(options.server, options.model, "--api-key-file", folder / "keys", "--log-file", folder / "server.log",
                        "--kv-memory", "256M", "--max-running", 12) as server:
            speak_as("abuser")
            # Touches all of the memory for keys and values: what is touched later for the first time would look like something that is kept.
            status, _ = post(server.url, {"prompt": ["Once upon a time"] * 8, "n": 16, "max_tokens": 100, "temperature": 1, "ignore_eos": True})
            check(status == 200, status)
            expected = {}
            for prompt in PROMPTS:
                status, expected[prompt], _ = ask(server.port, "first", prompt)
                check(status == 200, status)
            good = Good(server, expected)
            print("alone:", flush=True)
            quiet = minutes(good, server, options.quiet)
            print("beside everything else:", flush=True)
            ending, counts = threading.Event(), {}
            elsewhere = subprocess.Popen([sys.executable, __file__, "elsewhere", str(server.port), str(server.process.pid)],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            changing = threading.Thread(target=changes, args=(server, folder, ending, counts))
            probe = abuse.Probe(server)
            changing.start()
            rows = minutes(good, server, options.seconds)
            ending.set()
            changing.join()
            counts |= json.loads(elsewhere.communicate()[0])
            probed = probe.end()
            good.look()
            print("alone again:", flush=True)
            quiet += minutes(good, server, options.quiet)
            good.end()
            print(f"{good.answers} answers as expected, {good.later} told to come back later, beside {counts}")
            print(f"/health and /metrics {probed['asked']} times: median {1e3 * probed['median']:.1f} ms, p99.9 {1e3 * probed['rare']:.1f} ms, worst "
                  f"{1e3 * probed['worst']:.1f} ms; a sleeper was late by {1e3 * probed['rarely late']:.1f} ms at p99.9, {1e3 * probed['late']:.1f} ms at worst")
            least = min(part for row in rows if row["whole"] for part in row["due"].values())
            before = percentile(sorted(value for row in quiet for value in row["first"]), 0.99)
            after = percentile(sorted(value for row in rows for value in row["first"]), 0.99)
            time.sleep(10)  # memory goes back within seconds
            memory = resident_mb(server.process.pid)
            print(f"least part of what is due in a minute {least:.2f}; first tokens p99 {before:.2f} s alone, {after:.2f} s; memory {rows[0]['memory']:.0f} MB "
                  f"in the first minute, {memory:.0f} at the end; {server.metric('loopspec:log_lines_lost_total'):.0f} log lines lost")
            failed = [what for what, holds in ((f"wrong answers: {good.wrong[:3]}", not good.wrong), ("a share", least >= 0.8),
                                               ("memory", memory < 1.2 * rows[0]["memory"]), ("first tokens", after < 2 * before)) if not holds]
            check(server.stop() == 0, "the exit code")
            check(not failed, failed)
    print("siege: all checks passed")


if __name__ == "__main__":
    main()
