#!/usr/bin/env python3
"""How long a new request waits for its first token beside running streams, as a table.

Starts `loopspec serve`, keeps --streams streams decoding, and sends newcomers whose prompts are --chunks chunks of
prefill long, alone and beside the streams in turn. The streams' share is the time that the tokens which they got during
the wait would have taken them by themselves. Asked: one chunk and two steps for a prompt of one chunk; otherwise 1.5
times what the newcomer takes alone, plus the streams' share.

    scripts/first-token.py [--binary build/release/bin/loopspec] [--model models/raven-demo] [--decode ar]
"""
import argparse
import contextlib
import http.client
import json
import random
import statistics
import subprocess
import sys
import threading
import time

HOST = "127.0.0.1"


class Server:
    def __init__(self, options):
        self.process = subprocess.Popen(
            [options.binary, "serve", "--model", options.model, "--host", HOST, "--port", str(options.port)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.port = options.port
        self.decode = options.decode
        for _ in range(300):
            try:
                connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                sys.exit(f"first-token.py: {options.binary} serve ended with exit code {self.process.returncode}")
            time.sleep(0.1)
        sys.exit("first-token.py: the server did not start within 30 s")

    def tokens(self, prompt, most):
        """Yields the time of every token of an answer."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        body = {"prompt": prompt, "max_tokens": most, "stream": True, "temperature": 0, "ignore_eos": True,
                "decode": self.decode}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"first-token.py: the server answered {answer.status}: {answer.read().decode()}")
        try:
            for line in answer:
                if line.startswith(b"data: {"):
                    yield time.monotonic()
        finally:
            connection.close()

    def close(self):
        self.process.terminate()
        self.process.wait(30)


class Streams:
    """Streams that begin anew when they end, and how many tokens they got so far."""

    def __init__(self, server, count, prompts):
        self.server, self.prompts, self.stopped, self.got = server, prompts, False, [0] * count
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(count)]
        for thread in self.threads:
            thread.start()
        while min(self.got) < 4:
            time.sleep(0.05)

    def run(self, i):
        while not self.stopped:
            with contextlib.closing(self.server.tokens(self.prompts(16), 400)) as tokens:
                for _ in tokens:
                    self.got[i] += 1
                    if self.stopped:
                        return

    def total(self):
        return sum(self.got)

    def close(self):
        self.stopped = True
        for thread in self.threads:
            thread.join()
        time.sleep(2)  # the server notices within a second that they have hung up


def first_token(server, prompt):
    begin = time.monotonic()
    with contextlib.closing(server.tokens(prompt, 2)) as tokens:
        for moment in tokens:
            return moment - begin
    sys.exit("first-token.py: an answer had no token")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/loopspec")
    parser.add_argument("--model", default="models/raven-demo")
    parser.add_argument("--decode", default="loopspec", choices=["loopspec", "ar"])
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--chunk", type=int, default=64, help="tokens of a chunk of prefill")
    parser.add_argument("--chunks", default="1,4,8,16")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=250, help="token ids of prompts are below")
    parser.add_argument("--port", type=int, default=18080)
    options = parser.parse_args()
    random.seed(1)

    def prompts(length):
        return [random.randrange(3, options.vocab) for _ in range(length)]

    server = Server(options)
    try:
        print(f"{options.model}, {options.decode}, beside {options.streams} streams, medians of {options.repeat}, ms")
        print(f"{'chunks':>6} {'alone':>8} {'beside':>8} {'share':>8} {'limit':>8}  beside/limit")
        for chunks in [int(item) for item in options.chunks.split(",")]:
            alone, beside, share = [], [], []
            length = chunks * options.chunk
            for _ in range(options.repeat):
                alone.append(first_token(server, prompts(length)))
                streams = Streams(server, options.streams, prompts)
                begin, got = time.monotonic(), streams.total()
                time.sleep(1)
                rate = (streams.total() - got) / (time.monotonic() - begin)
                got = streams.total()
                beside.append(first_token(server, prompts(length)))
                share.append((streams.total() - got) / rate)
                streams.close()
            a, b, s = (statistics.median(v) * 1e3 for v in (alone, beside, share))
            limit = 1.5 * a + s
            print(f"{chunks:>6} {a:>8.1f} {b:>8.1f} {s:>8.1f} {limit:>8.1f}  {b / limit:.2f}", flush=True)
    finally:
        server.close()


if __name__ == "__main__":
    main()
