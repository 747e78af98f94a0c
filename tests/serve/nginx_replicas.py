#!/usr/bin/env python3
"""deploy/nginx.conf in front of two replicas on loopback: events pass as they come, conversations stay with their
replica, a hang-up is noticed behind the proxy, and a replica that drains loses no request.

  nginx_replicas.py --server BINARY --config deploy/nginx.conf

Skipped where there is no nginx (the variable NGINX names one that is not on the path).
"""

import argparse
import http.client
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from client_support import SKIPPED, FakeServer


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_nginx(binary, config, folder, port, replicas):
    """The file as it is shipped, with our addresses and folders."""
    text = pathlib.Path(config).read_text()
    for index, replica in enumerate(replicas, 1):
        check(f"replica-{index}:8080" in text, "the names of the replicas have changed")
        text = text.replace(f"replica-{index}:8080", replica.url.removeprefix("http://"))
    text = text.replace("listen 8080;", f"listen 127.0.0.1:{port};")
    folders = "".join(f"  {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    text = text.replace("http {\n", "http {\n  access_log off;\n" + folders, 1)
    head = f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n"
    path = pathlib.Path(folder) / "nginx.conf"
    path.write_text(head + text)
    (pathlib.Path(folder) / "error.log").touch()  # read below, perhaps before nginx has made it
    process = subprocess.Popen([binary, "-p", folder, "-e", f"{folder}/error.log", "-c", str(path)])
    for _ in range(1200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return process
        except OSError:
            if process.poll() is not None:
                raise AssertionError((pathlib.Path(folder) / "error.log").read_text()) from None
            time.sleep(0.05)
    raise AssertionError("nginx does not listen")


def post(port, body, key=""):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Content-Type": "application/json"}
    if key:
        headers["X-Prefix-Key"] = key
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    return connection, connection.getresponse()


def sticks(port, replicas):
    for key in ("one", "two", "three"):
        before = [replica.ask("submitted") for replica in replicas]
        for _ in range(6):
            _, response = post(port, {"prompt": "x", "max_tokens": 2}, key)
            check(response.status == 200, response.status)
        after = [replica.ask("submitted") for replica in replicas]
        check(sorted(b - a for a, b in zip(before, after)) == [0, 6], (key, before, after))


def streams(port):
    start = time.monotonic()
    _, response = post(port, {"prompt": "x", "max_tokens": 60, "stream": True})
    first = response.readline()
    first_after = time.monotonic() - start
    rest = response.read()
    check(first.startswith(b"data: {"), first)
    check(rest.endswith(b"data: [DONE]\n\n"), rest[-100:])
    check(first_after < (time.monotonic() - start) / 2, "the first event came with the last")


def passes_names_on(port):
    """A client's own name for its request comes back; another gets one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/v1/models", headers={"X-Request-Id": "mine-17"})
    response = connection.getresponse()
    check(response.status == 200 and response.headers["X-Request-Id"] == "mine-17", dict(response.headers))
    response.read()
    connection.request("GET", "/v1/models")
    made_up = connection.getresponse().headers["X-Request-Id"]
    check(len(made_up) == 32, made_up)  # nginx' own


def notices_hang_ups(port, replicas):
    before = sum(replica.ask("cancelled") for replica in replicas)
    for stream in (True, False):
        connection, response = None, None
        if stream:
            connection, response = post(port, {"prompt": "x", "max_tokens": 4000, "stream": True})
            response.readline()
            response.close()
            connection.close()
        else:
            body = json.dumps({"prompt": "x", "max_tokens": 4000}).encode()
            raw = socket.create_connection(("127.0.0.1", port))
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            while sum(replica.ask("running") for replica in replicas) == 0:
                time.sleep(0.01)
            raw.close()
        start = time.monotonic()
        before += 1
        while sum(replica.ask("cancelled") for replica in replicas) < before:
            check(time.monotonic() - start < 1, f"a hang-up was not noticed (stream: {stream})")
            time.sleep(0.01)


def drains(port, replicas):
    """One replica is told to end while it works: nobody sees a failure."""
    running = [post(port, {"prompt": "x", "max_tokens": 100, "stream": True}, f"key {i}")[1] for i in range(8)]
    replicas[0].process.terminate()
    for i in range(20):
        _, response = post(port, {"prompt": "x", "max_tokens": 2}, f"key {i}")
        check(response.status == 200, (i, response.status, response.read()))
    for response in running:
        check(response.read().endswith(b"data: [DONE]\n\n"), "a running answer was cut off")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--config", required=True)
    options = parser.parse_args()
    nginx = os.environ.get("NGINX") or shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if not nginx:
        print("SKIPPED: there is no nginx")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder, FakeServer(options.server, 0.01) as one, FakeServer(options.server, 0.01) as two:
        port = free_port()
        process = start_nginx(nginx, options.config, folder, port, [one, two])
        try:
            sticks(port, [one, two])
            streams(port)
            passes_names_on(port)
            notices_hang_ups(port, [one, two])
            _, response = post(port, {"prompt": "x" * (10 << 20)})
            check(response.status == 400, response.status)  # the server's own refusal, with its numbers
            drains(port, [one, two])
        finally:
            process.terminate()
            process.wait(timeout=10)
    print("nginx in front of two replicas: all checks passed")


if __name__ == "__main__":
    main()
