#!/usr/bin/env python3
"""Clients that behave badly, against `loopspec serve` on a demo model, while a well-behaved one keeps asking: every bad one gets a clear
answer or is dropped, the good one always gets the same text, and the process stays as it was.

  bad_clients.py --server BINARY --model FOLDER
"""

import argparse
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request

from real_server import RealServer

JSON = {"Content-Type": "application/json"}  # headers of every request, with the key once there is one
GOOD = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def post(url, body, path="/v1/completions", headers=None, timeout=300):
    """Status and JSON of an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {**JSON, **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=120)


def speak_as(key):
    """From now on every request of this process has a key."""
    JSON["Authorization"] = "Bearer " + key


def raw_head(length, path="/v1/completions", extra=""):
    headers = "".join(f"{name}: {value}\r\n" for name, value in JSON.items())
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}{extra}Content-Length: {length}\r\n\r\n".encode()


def raw_request(body, extra=""):
    data = json.dumps(body).encode()
    return raw_head(len(data), extra=extra) + data


def read_all(connection):
    data = b""
    while True:
        piece = connection.recv(65536)
        if not piece:
            return data
        data += piece


def resident_mb(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Pulse:
    """Asks the same again and again; the answer must never change."""

    def __init__(self, server):
        self.server = server
        self.ending = threading.Event()
        self.count, self.longest, self.wrong = 0, 0.0, None
        self.expected = post(server.url, GOOD)[1]["choices"][0]["text"]
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ending.is_set():
            start = time.monotonic()
            try:
                status, body = post(self.server.url, GOOD)
                if status != 200 or body["choices"][0]["text"] != self.expected:
                    self.wrong = (status, body)
            except OSError as error:
                self.wrong = error
            self.longest = max(self.longest, time.monotonic() - start)
            self.count += 1
            time.sleep(0.02)

    def end(self):
        self.ending.set()
        self.thread.join()
        check(self.wrong is None, f"the good client was disturbed: {self.wrong}")


def slow_reader(server):
    """Long streams with every step in them, of which nothing is read."""
    before = resident_mb(server.process.pid)
    readers = []
    for _ in range(8):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(raw_request({"prompt": "Once", "max_tokens": 600, "ignore_eos": True, "temperature": 0, "stream": True,
                                        "trace": True, "token_details": True}))
        readers.append(connection)
    end = time.monotonic() + 300
    while server.metric("vllm:num_requests_running") > 1:  # the pulse may be one
        check(time.monotonic() < end, "streams that nobody reads do not end")
        time.sleep(0.2)
    grown = resident_mb(server.process.pid) - before
    check(grown < 200, f"8 answers that nobody reads take {grown:.0f} MB")
    text = b""  # and what was kept is whole
    while b"[DONE]" not in text:
        piece = readers[0].recv(65536)
        check(piece, "the kept answer is cut off")
        text += piece
    for connection in readers:
        connection.close()
    return f"{grown:.0f} MB for 8 answers of 600 tokens with their steps"


def slow_writers(server, seconds, results):
    """A header, and a body, a byte at a time: dropped with 408 when their time is up."""
    def drip(name, start, rest):
        connection = connect(server)
        connection.sendall(start)
        begin = time.monotonic()
        answer = b""
        try:
            for byte in rest:
                connection.sendall(bytes([byte]))
                connection.settimeout(0.5)
                try:
                    answer = connection.recv(65536)
                    break
                except TimeoutError:
                    pass
                if time.monotonic() - begin > seconds:
                    break
        except OSError:
            answer = answer or b"reset"
        results[name] = (answer[:12], time.monotonic() - begin)
        connection.close()

    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n"
    jobs = [threading.Thread(target=drip, args=("header", b"POST /v1/compl", b"etions HTTP/1.1\r\nX: " + b"y" * 4000)),
            threading.Thread(target=drip, args=("body", head, b"x" * 4000))]
    for job in jobs:
        job.start()
    return jobs


def large_prompts(server):
    status, body = post(server.url, {"prompt": "word " * 2_000_000})
    check(status == 400 and body["error"]["code"] == "context_length_exceeded", (status, body))
    status, body = post(server.url, {"prompt": [5] * 2_000_000})
    check(status == 400 and body["error"]["code"] == "context_length_exceeded", (status, body))
    check("token" in body["error"]["message"] and "2048" in body["error"]["message"], body)
    # Over the limit: refused before it is read, chunked or not.
    connection = connect(server)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99000000\r\n\r\n")
    check(b" 413 " in connection.recv(65536), "99 MB were not refused")
    connection.close()
    connection = connect(server)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    answer = b""
    try:
        for _ in range(40):
            connection.sendall(chunk)
    except OSError:
        pass
    try:
        answer = connection.recv(65536)
    except OSError:  # a reset may overtake the answer
        answer = b" 413 "
    check(b" 413 " in answer, answer[:100])
    connection.close()
    return "10 MB: 400 with the numbers; 99 MB and 40 MB chunked: 413"


def broken_bodies(server):
    count = 0
    for body in (b"", b"{", b"nonsense", b"[]", b"null", b'{"prompt": "x", "prompt": "y"', b'{"prompt": "\xff\xfe"}', b"\x00" * 100,
                 b"[" * 200_000, b'{"prompt": ' + b"[" * 100_000, b'{"prompt": "\\ud800"}', b'{"max_tokens": 1e999, "prompt": "x"}',
                 b'{"prompt": "x", "temperature": "hot"}', b'{"prompt": "x", "logit_bias": {"-1": 3}}'):
        status, answer = post(server.url, body)
        check(400 <= status < 500 or b"ud800" in body, (status, answer, body[:40]))
        count += 1
    for noise in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"\r\n" * 50, b"POST / HTTP/9.9\r\n\r\n", os.urandom(4000)):
        connection = connect(server)
        try:
            connection.sendall(noise)
            connection.shutdown(socket.SHUT_WR)
            answer = read_all(connection)
            check(answer == b"" or b" 4" in answer[:20] or b" 505 " in answer[:20], (noise[:20], answer[:80]))
        except OSError:
            pass  # a reset is an answer too
        connection.close()
        count += 1
    return f"{count} kinds refused"


def half_closed(server):
    connection = connect(server)
    connection.sendall(raw_request({**GOOD, "max_tokens": 40}, "Connection: close\r\n"))
    connection.shutdown(socket.SHUT_WR)
    answer = read_all(connection)
    check(b" 200 OK" in answer and answer.rstrip().endswith(b"}"), answer[:200])
    return "the answer came whole"


def idle_connections(server):
    before = descriptors(server.process.pid)
    connections = [connect(server) for _ in range(1000)]
    status, _ = post(server.url, GOOD)
    check(status == 200, "with 1,000 idle connections")
    held = descriptors(server.process.pid)
    for connection in connections:
        connection.close()
    end = time.monotonic() + 20
    while descriptors(server.process.pid) > before + 4:
        check(time.monotonic() < end, f"{descriptors(server.process.pid)} descriptors, {before} before")
        time.sleep(0.05)
    return f"{held - before} descriptors more while they were open, {descriptors(server.process.pid) - before} after"


def full_disk(options):
    """/dev/full has no room for a single line."""
    with RealServer(options.server, options.model) as reference:
        expected = post(reference.url, GOOD)[1]["choices"][0]["text"]
    port = free_port()
    import subprocess

    process = subprocess.Popen([options.server, "serve", "--model", options.model, "--port", str(port), "--log-file", "/dev/full"],
                               stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(url)
        for _ in range(20):
            check(post(url, GOOD)[1]["choices"][0]["text"] == expected, "an answer with a full disk under the log")
        end = time.monotonic() + 10
        while lost(url) < 20:
            check(time.monotonic() < end, f"{lost(url)} lines counted as lost")
            time.sleep(0.1)
        return f"{lost(url):.0f} lines counted as lost, every answer right"
    finally:
        process.terminate()
        check(process.wait(timeout=60) == 0, "the exit code")


def lost(url):
    with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("loopspec:log_lines_lost_total"):
                return float(line.rsplit(" ", 1)[1])
    return 0.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_ready(url):
    for _ in range(1200):
        try:
            with urllib.request.urlopen(url + "/health", timeout=10):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server is not ready")


def killed(options):
    """kill -9 in the midst of a stream: the client notices; the same port serves the same text at once after a restart."""
    import subprocess

    port = free_port()
    command = [options.server, "serve", "--model", options.model, "--port", str(port)]
    seeded = {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0.8, "seed": 11}
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(url)
        before = post(url, seeded)[1]["choices"][0]["text"]
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        connection.sendall(raw_request({"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}))
        check(b"200 OK" in connection.recv(65536), "the stream")
        process.send_signal(signal.SIGKILL)
        process.wait()
        start = time.monotonic()
        try:
            rest = read_all(connection)
        except OSError:
            rest = b""
        check(b"[DONE]" not in rest, "a killed server finished its answer")
        check(time.monotonic() - start < 5, "the client was left waiting")
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_ready(url)
        after = post(url, seeded)[1]["choices"][0]["text"]
        check(before == after, (before, after))
        return "the same port, the same seeded text"
    finally:
        process.kill()
        process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    with RealServer(options.server, options.model) as server:
        pulse = Pulse(server)
        slow = {}
        try:
            writers = slow_writers(server, 200, slow)
            for scene in (broken_bodies, large_prompts, half_closed, idle_connections, slow_reader):
                print(f"{scene.__name__}: {scene(server)}", flush=True)
            for job in writers:
                job.join()
            print("slow writers:", {name: (answer.decode(errors="replace"), round(seconds)) for name, (answer, seconds) in slow.items()})
            check(all(b" 408" in answer for answer, _ in slow.values()), slow)
        finally:
            pulse.end()
        print(f"the good client: {pulse.count} answers, all the same, the slowest in {pulse.longest:.2f} s")
        check(server.metric("loopspec:http_responses_total", 'code="5') == 0, "a 5xx")
        check(server.stop() == 0, "the exit code")
    print("full disk:", full_disk(options), flush=True)
    print("kill -9:", killed(options), flush=True)
    print("bad clients: all checks passed")


if __name__ == "__main__":
    main()
