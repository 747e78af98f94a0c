#!/usr/bin/env python3
"""Clients that would starve or lock out the others, against `loopspec serve` on a demo model. Beside each of them /health and /metrics
answer within 50 ms, a well-behaved client keeps getting its answer, and afterwards the process has the memory that it had before.

  abuse.py --server BINARY --model FOLDER [--only NAME]

A machine on which a sleeping process wakes up late cannot answer in 50 ms either: how late that is is measured in the same run and added.
"""

import argparse
import http.client
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

from bad_clients import JSON, Pulse, check, connect, post, raw_head, raw_request, resident_mb
from real_server import RealServer

MIB = 1 << 20
PROMPT_SECONDS = 0.050
# Processes of their own: in this one they would wait for the abusers' Python.
SLEEPER = """
import time
while True:
    start = time.monotonic()
    time.sleep(0.01)
    print(time.monotonic() - start - 0.01, flush=True)
"""
ASKER = """
import http.client, sys, time
while True:
    for path in ("/health", "/metrics"):
        start = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=120)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read(), path
        connection.close()
        print(time.monotonic() - start, flush=True)
    time.sleep(0.02)
"""


class Probe:
    """Asks for /health and /metrics all the time, on a connection of its own each time."""

    def __init__(self, server):
        self.outputs = [tempfile.TemporaryFile(mode="w+") for _ in range(2)]
        self.processes = [subprocess.Popen([sys.executable, "-c", code, str(server.port)], stdout=out)
                          for code, out in zip((ASKER, SLEEPER), self.outputs)]

    def end(self):
        seconds = []
        for process, out in zip(self.processes, self.outputs):
            check(process.poll() is None, "a probe has ended by itself")
            process.kill()
            process.wait()
            out.seek(0)
            seconds.append(sorted(map(float, out.read().splitlines()[:-1])) or [0.0])
        times, late = seconds
        rare = lambda values: values[int(0.999 * (len(values) - 1))]
        return {"asked": len(times), "median": times[len(times) // 2], "rare": rare(times), "worst": times[-1], "rarely late": rare(late), "late": late[-1]}


def at_once(count, action):
    threads = [threading.Thread(target=action, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def large_prompts(server, text, rounds=4):
    def one(_):
        for _ in range(rounds):
            status, answer = post(server.url, {"prompt": text, "max_tokens": 1})
            check(status == 400 and answer["error"]["code"] == "context_length_exceeded", (status, answer))

    at_once(4, one)


def blanks(server):
    large_prompts(server, " " * (16 * MIB - 100))


def one_letter(server):
    large_prompts(server, "a" * (10 * MIB))


def conversations(server):
    def one(_):
        body = {"messages": [{"role": "user", "content": " " * (15 * MIB)}], "max_tokens": 1}
        check(post(server.url, body, "/v1/chat/completions")[0] == 400, "a conversation of 15 MiB")

    at_once(4, one)


def tokenized(server):
    """/tokenize has no context to hold a text against: the work is done, or given up when the client is gone."""

    def one(i):
        data = json.dumps({"prompt": "a" * (8 * MIB)}).encode()
        with connect(server) as connection:
            connection.sendall(raw_head(len(data), "/tokenize") + data)
            if i % 2 == 0:
                connection.settimeout(0.5)
            try:
                connection.recv(100)
            except TimeoutError:
                pass  # and hangs up

    at_once(4, one)


def never_read(server):
    body = {"prompt": ["Once upon a time"] * 8, "n": 16, "max_tokens": 100, "temperature": 1, "logprobs": 20, "trace": True, "stream": True, "ignore_eos": True}
    clients = []
    for _ in range(4):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(raw_request(body))
        clients.append(connection)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        time.sleep(0.2)
    for connection in clients:
        connection.close()


def whole_answers(server):
    body = {"text": "Once upon a time", "stream": True, "return_logprob": True, "top_logprobs_num": 20,
            "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True, "temperature": 1}}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    connection.request("POST", "/generate", json.dumps(body), JSON)
    size = len(connection.getresponse().read())
    connection.close()
    check(size < 24 * MIB, f"{size} bytes for 1,500 tokens")
    return f"{size / MIB:.1f} MiB for 1,500 tokens"


def held_bodies(server):
    """16 connections that send all but the last byte of their bodies."""
    held = []
    for _ in range(16):
        connection = connect(server)
        try:
            connection.sendall(raw_head(16 * MIB))
            connection.sendall(b" " * (16 * MIB - 1))
        except OSError:
            pass  # refused
        held.append(connection)
    time.sleep(1)
    for connection in held:
        connection.close()


def unknown_fields(server):
    """A body of a million fields that nobody knows."""
    data = ("{" + "".join(f'"f{i:x}":0,' for i in range(1_000_000)) + '"prompt":"x","max_tokens":1}').encode()

    def one(_):
        check(post(server.url, data)[0] == 200, "a body with unknown fields")

    at_once(2, one)


def slow_bodies(server):
    """64 bodies that come a few bytes at a time."""
    connections = [connect(server) for _ in range(64)]
    for connection in connections:
        connection.sendall(raw_head(100_000))
    for _ in range(50):
        for connection in connections:
            connection.sendall(b" " * 100)
        time.sleep(0.05)
    for connection in connections:
        connection.close()


def silent_connections(server):
    """More connections than one address may have, of which none sends anything."""
    silent = []
    for _ in range(1500):
        try:
            silent.append(connect(server))
        except OSError:
            break
    time.sleep(2)
    for connection in silent:
        connection.close()


SCENES = (blanks, one_letter, conversations, tokenized, held_bodies, whole_answers, never_read, unknown_fields, slow_bodies, silent_connections)


def settled(pid, bound):
    """The process's memory, once it is below the bound or does not fall any more."""
    end = time.monotonic() + 30
    while resident_mb(pid) > bound and time.monotonic() < end:
        time.sleep(0.5)
    return resident_mb(pid)


def keys(options):
    """Strangers without a key are refused before their bodies; whoever has one goes on."""
    with tempfile.NamedTemporaryFile(mode="w", suffix=".keys") as file:
        file.write("secret weight=2\nother\n")
        file.flush()
        with RealServer(options.server, options.model, "--api-key-file", file.name) as server:
            strangers = []
            for _ in range(16):
                connection = connect(server)
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (16 * MIB))
                check(b" 401 " in connection.recv(100), "a stranger was let in")
                strangers.append(connection)
            for key in ("secret", "other"):
                status, answer = post(server.url, {"prompt": "x", "max_tokens": 1}, headers={"Authorization": f"Bearer {key}"})
                check(status == 200, (status, answer))
            return "16 strangers refused before their bodies, both keys served"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--only")
    options = parser.parse_args()
    scenes = [scene for scene in SCENES if options.only in (None, scene.__name__)]
    # So little memory for keys and values that the first request touches all of it: what is touched later for the first time
    # would look like something that is kept.
    with RealServer(options.server, options.model, "--kv-memory", "256M") as server:
        pid = server.process.pid
        pulse = Pulse(server)
        try:
            post(server.url, {"prompt": ["Once upon a time"] * 8, "n": 16, "max_tokens": 100, "temperature": 1, "ignore_eos": True})
            before = settled(pid, 0)
            for scene in scenes:
                probe = Probe(server)
                start = time.monotonic()
                try:
                    said = scene(server)
                finally:
                    seconds = time.monotonic() - start
                    told = probe.end()
                after = settled(pid, 1.2 * before)
                print(f"{scene.__name__}: {seconds:.1f} s; /health and /metrics {told['asked']} times, median {1e3 * told['median']:.1f} ms, "
                      f"p99.9 {1e3 * told['rare']:.1f} ms, worst {1e3 * told['worst']:.1f} ms (a sleeper {1e3 * told['rarely late']:.1f} and {1e3 * told['late']:.1f} ms late); {before:.0f} MB before, {after:.0f} after" + (f"; {said}" if said else ""), flush=True)
                check(told["worst"] < PROMPT_SECONDS + 2 * told["late"], f"{scene.__name__}: {told}")
                check(after < 1.2 * before, f"{scene.__name__}: {before} MB became {after}")
        finally:
            pulse.end()
        print(f"the good client: {pulse.count} answers, all the same, the slowest in {pulse.longest:.2f} s")
        check(server.stop() == 0, "the exit code")
    if options.only in (None, "keys"):
        print("keys:", keys(options))
    print("abuse: all checks passed")


if __name__ == "__main__":
    main()
