#!/usr/bin/env python3
"""Every metric that docs/serving.md names, and every query of the dashboard, moves under load.

The real server on a demo model; the queries are asked of Debian's `prometheus`, which scrapes it. Without it only the names are looked at.

  metrics_move.py --server BINARY --model FOLDER --docs docs/serving.md --dashboard deploy/grafana/loopspec.json
"""

import argparse
import json
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request

from bad_clients import check, connect, post, raw_request
from real_server import RealServer

SCRAPE_SECONDS = 1
PATIENCE_SECONDS = 300


def documented(text):
    """Names as the documentation has them: `..._hits_total` goes with the stem of the name before it."""
    section = text.split("## Logs and metrics", 1)[1].split("\n## ", 1)[0]
    names, last = [], None
    for name in re.findall(r"`((?:vllm:|loopspec:|\.\.\.)[a-z0-9_.]+)`", section):
        if name.startswith("..."):
            names.append((last, name[3:]))
        elif name.endswith("..."):
            names.append((name[:-3], ""))
        else:
            last = name
            names.append((name, None))
    return names


def samples(url):
    with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    values = {}
    for line in lines:
        if not line.startswith("#"):
            key, value = line.rsplit(" ", 1)
            values[key] = float(value)
    return values


def family(key):
    name = key.split("{", 1)[0]
    return re.sub(r"_(bucket|count|sum)$", "", name)


def load(server, stop):
    """All that metrics tell of: answers, hits of the prefix cache, cancellations, preemptions, errors, refused connections, a full log."""
    number = 0
    while not stop.is_set():
        number += 1
        # What repeats itself is guessed at, which makes early tokens.
        repeat = "one two three four five " * 12
        post(server.url, {"prompt": [repeat + str(number % 3)] * 4, "max_tokens": 200, "temperature": 0, "ignore_eos": True})
        post(server.url, {"prompt": "Once upon a time", "max_tokens": 20, "n": 16, "temperature": 1})
        post(server.url, {"prompt": "2 + 2 =", "max_tokens": 60, "temperature": 0, "stop": ["\n"]})
        post(server.url, {"prompt": 7.5})
        with connect(server) as bad:
            bad.sendall(b"NONSENSE\r\n\r\n")
            bad.recv(1000)
        with connect(server) as leaving:
            leaving.sendall(raw_request({"prompt": repeat, "max_tokens": 300, "stream": True, "ignore_eos": True}))
            leaving.recv(100)
        many = []
        try:
            for _ in range(12):  # idle afterwards: the oldest make room
                many.append(connect(server))
                many[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for _ in range(14):  # busy: no room is left
                many.append(connect(server))
                many[-1].sendall(raw_request({"prompt": repeat, "max_tokens": 300, "stream": True, "ignore_eos": True}))
        except OSError:
            pass
        time.sleep(0.1)
        for one in many:
            one.close()


class Prometheus:
    def __init__(self, target):
        self.folder = tempfile.TemporaryDirectory()
        config = pathlib.Path(self.folder.name) / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: {SCRAPE_SECONDS}s}}\nscrape_configs:\n- job_name: loopspec\n  static_configs:\n  - targets: ['{target}']\n"
        )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.folder.name}/data", f"--web.listen-address=127.0.0.1:{self.port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, query):
        """Values of the answer's series that are numbers."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                result = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from error
        except OSError:
            return []  # it starts
        values = [float(series["value"][1]) for series in result["data"]["result"]]
        return [value for value in values if value == value]

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.folder.cleanup()


def queries(dashboard):
    text = json.loads(pathlib.Path(dashboard).read_text())
    found = []

    def walk(node):
        if isinstance(node, dict):
            if isinstance(node.get("expr"), str):
                found.append(node["expr"])
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(text)
    plain = [q.replace("$__rate_interval", "30s").replace("$model", ".*").replace("$instance", ".*") for q in found]
    check(len(plain) > 20, f"the dashboard has {len(plain)} queries")
    return plain


def main():
    parser = argparse.ArgumentParser()
    for name in ("server", "model", "docs", "dashboard"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args()
    names = documented(pathlib.Path(options.docs).read_text())
    check(len(names) > 15, f"the documentation names {len(names)} metrics")

    # So little memory that requests are preempted, so few connections that some are refused, a log that nobody can write.
    arguments = ("--kv-memory", "16M", "--max-connections", 10, "--log-file", "/dev/full")
    with RealServerWithoutLog(options.server, options.model, *arguments) as server:
        before = samples(server.url)
        seen = {key: {value} for key, value in before.items()}
        stop = threading.Event()
        thread = threading.Thread(target=load, args=(server, stop))
        thread.start()
        prometheus = Prometheus(f"127.0.0.1:{server.port}") if shutil.which("prometheus") else None
        try:
            asked = queries(options.dashboard) if prometheus else []
            still, end = set(asked), time.monotonic() + PATIENCE_SECONDS
            unmoved = names
            while time.monotonic() < end and (still or unmoved):
                time.sleep(0.5)
                try:
                    now = samples(server.url)
                except OSError:
                    continue  # refused: that is part of the load
                for key, value in now.items():
                    seen.setdefault(key, {0.0}).add(value)
                moved = {family(key) for key, values in seen.items() if len(values) > 1}
                unmoved = [name for name in names if not any(matches(name, other) for other in moved)]
                still = {query for query in still if not any(value > 0 for value in prometheus.ask(query))} if prometheus else set()
        finally:
            stop.set()
            thread.join()
            if prometheus:
                prometheus.stop()
        check(not unmoved, f"these metrics of the documentation did not move: {unmoved}")
        check(not still, f"these queries of the dashboard stayed without a value above 0: {sorted(still)}")
        # And back: what says how things are now is at rest when nothing runs.
        end = time.monotonic() + 60
        while time.monotonic() < end:
            now = samples(server.url)
            rest = {family(key): value for key, value in now.items()}
            if all(rest[name] == 0 for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "loopspec:cells_usage")):
                break
            time.sleep(0.2)
        else:
            raise AssertionError(f"not at rest: {rest}")
    print(f"{len(names)} metrics moved; {len(asked)} queries of the dashboard had values" + ("" if asked else ": there is no prometheus"))


def matches(name, other):
    stem, end = name
    if end is None:
        return other in (stem, stem.removesuffix("_total") + "_total")
    if end == "":
        return other.startswith(stem)
    # `vllm:num_requests_running`, `..._waiting`: the stem is as long as it takes.
    return other.endswith(end) and other.split("_")[0] == stem.split("_")[0]


class RealServerWithoutLog(RealServer):
    """With --log-file nothing but warnings reaches stderr: the port is chosen here, and /health says when it is ready."""

    def __init__(self, binary, model, *arguments):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log")
        command = [binary, "serve", "--model", model, "--port", str(self.port), *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=self.log, stdout=subprocess.DEVNULL)
        for _ in range(2400):
            try:
                urllib.request.urlopen(self.url + "/health", timeout=10).close()
                return
            except OSError:
                check(self.process.poll() is None, f"the server did not start:\n{self.log_text()}")
                time.sleep(0.05)
        raise AssertionError("the server did not become ready")


if __name__ == "__main__":
    main()
