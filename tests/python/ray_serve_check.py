#!/usr/bin/env python3
"""loopspec.ray.server with Ray Serve from PyPI, against `loopspec serve` itself: the same answers, streams and errors; a client that goes
away, a server that dies, a replica that is killed; ray.data.llm's processors, as docs/python.md has them.

  ray_serve_check.py --venv FOLDER       LOOPSPEC_BINARY: the server
"""

import argparse
import glob
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "serve"))

from client_support import inside_venv  # noqa: E402
from real_server import RealServer  # noqa: E402

MODEL = str(ROOT / "models" / "ouro-demo")
NAME = ["--served-model-name", "demo"]
WAIT_SECONDS = 120
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 24, "temperature": 1.0, "seed": 3}
COMPLETION = {"model": "demo", "prompt": ["Once upon a time", "Tom had"], "max_tokens": 12, "temperature": 1.0, "seed": 4, "logprobs": 2}


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def until(condition, what):
    """Waits for it, up to a limit."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        check(time.monotonic() < end, f"{what} did not come within {WAIT_SECONDS} s")
        time.sleep(0.2)


def ask(url, path, body=None, raw=None):
    """Status, content type and body."""
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def without_names(text):
    """Ids and times are each request's own."""
    return re.sub(r'"(id|created|tokens_per_second)":("[^"]*"|[\d.e+-]+)', r'"\1":0', text)


def same_answers(ours, theirs):
    cases = [("/v1/models", None), ("/health", None), ("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT),
             ("/v1/completions", {**COMPLETION, "stream": True, "stream_options": {"include_usage": True}}),
             ("/v1/chat/completions", {**CHAT, "stream": True}), ("/v1/completions", {"model": "demo", "prompt": "a", "max_tokens": -1}),
             ("/v1/nothing", None), ("/v1/completions?x=1", COMPLETION)]
    for path, body in cases:
        mine, its = ask(ours, path, body), ask(theirs, path, body)
        check(mine[:2] == its[:2] and parts(mine[2]) == parts(its[2]), f"{path} {body}:\n{mine}\n{its}")
    bad = ask(ours, "/v1/completions", raw=b"{no json")
    check(bad[0] == 400 and "error" in json.loads(bad[2]), bad)
    return len(cases)


def parts(text):
    """What an answer says, whatever parts a stream came in."""
    events = re.findall(r"(?m)^data: (.*)$", text)
    if not events:
        return without_names(text)
    check(events[-1] == "[DONE]", text)
    said = {}
    for event in map(json.loads, events[:-1]):
        said.setdefault("usage", []).append(event.get("usage"))
        for choice in event["choices"]:
            written = choice.get("text", "") or choice.get("delta", {}).get("content") or ""
            said[choice["index"]] = said.get(choice["index"], "") + written
            said["end", choice["index"]] = choice["finish_reason"]
    said["usage"] = [usage for usage in said["usage"] if usage]
    return said


def events_come_one_by_one(port):
    """The first event of a long answer is there long before the last; a client that goes away cancels the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
    body = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    first = answer.fp.readline()
    check(answer.status == 200 and first, first)
    url = f"http://127.0.0.1:{port}"
    check(running(url) == 1, "expected the answer to be under way after its first event")
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    until(lambda: running(url) == 0, "the end of an answer that nobody reads")
    made = json.loads(ask(url, "/v1/completions", {"model": "demo", "prompt": "a", "max_tokens": 1})[2])
    check(made["usage"]["completion_tokens"] == 1, made)


def running(url):
    found = re.search(r"(?m)^vllm:num_requests_running(?:\{[^}]*\})? (\S+)$", ask(url, "/metrics")[2])
    check(found, "the metrics have no vllm:num_requests_running")
    return float(found[1])


def servers():
    """Servers of this build on free ports, and their parents."""
    found = {}
    for path in glob.glob("/proc/[0-9]*"):
        try:
            with open(path + "/cmdline", encoding="utf-8", errors="replace") as file:
                words = file.read().split("\0")
            with open(path + "/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it is gone
        if len(words) > 2 and words[0] == os.environ["LOOPSPEC_BINARY"] and words[1] == "serve" and "0" in words and fields[0] != "Z":
            found[int(path[6:])] = int(fields[1])
    return found


def survives(url, own):
    """A dead server and a killed replica are replaced, and no server is left behind."""
    ours = {pid: parent for pid, parent in servers().items() if pid not in own}
    check(len(ours) == 2, f"expected a server for each of 2 replicas, found {ours}")
    (first, _), (second, replica) = ours.items()
    os.kill(first, signal.SIGKILL)
    until(lambda: len(servers()) - len(own) == 2 and first not in servers(), "a server in place of the dead one")
    os.kill(replica, signal.SIGKILL)
    until(lambda: second not in servers(), "the end of a killed replica's server")
    until(lambda: len(servers()) - len(own) == 2, "a server in place of the killed replica's")
    until(lambda: ask(url, "/v1/completions", COMPLETION)[0] == 200, "an answer")


def ends_with_its_starter():
    """A server whose starter is killed ends by itself, also where Ray does not see to it."""
    program = ("import os, time; from loopspec._ray_serve import ServerProcess; "
               f"ServerProcess(os.environ['LOOPSPEC_BINARY'], ['--model', {MODEL!r}, '--threads', '1'], 100); print('up', flush=True); time.sleep(600)")
    before = set(servers())
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as starter:
        check(starter.stdout.readline() == "up\n", "the server did not start")
        [server] = set(servers()) - before
        starter.kill()
    until(lambda: server not in servers(), "the end of a server whose starter was killed")


def guide_blocks():
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    return [block for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M) if "ray.data.llm" in block]


def processors(url):
    """The examples of docs/python.md: ray.data.llm over HTTP and by handle, with the same answers."""
    [block] = guide_blocks()
    names = {}
    exec(compile(block.replace("http://127.0.0.1:8000", url), "docs/python.md", "exec"), names)  # pylint: disable=exec-used
    over_http, by_handle = names["over_http"], names["by_handle"]
    check(len(over_http) == 8 and sorted(over_http) == sorted(by_handle) and len(set(over_http)) > 1, (over_http, by_handle))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--venv", required=True)
    options = parser.parse_args()
    inside_venv(options.venv, ["ray[data,serve]", "nanobind-backend>=1,<2", "numpy"], "ray.data, ray.serve, nanobind_backend, numpy")
    os.environ.update(RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0")
    import ray
    from ray import serve

    from loopspec.ray import server

    try:
        from loopspec._ray_serve import find_binary

        find_binary("/no/such/loopspec")
    except FileNotFoundError as error:
        check("expected the command loopspec" in str(error), error)
    ends_with_its_starter()
    ray.init(num_cpus=6, _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    more = {"arguments": NAME, "ray_actor_options": {"num_cpus": 1}, "health_check_period_s": 1, "health_check_timeout_s": 30}
    with RealServer(os.environ["LOOPSPEC_BINARY"], MODEL, "--threads", "1", *NAME) as real:
        serve.run(server(MODEL, num_replicas=1, **more))
        count = same_answers(url, real.url)
        events_come_one_by_one(port)
        serve.run(server(MODEL, num_replicas=2, **more))
        processors(url)
        survives(url, {real.process.pid})
        serve.shutdown()
        until(lambda: set(servers()) <= {real.process.pid}, "the end of all servers")
        ray.shutdown()
    print(f"ray {ray.__version__}: {count} kinds of request as from the server, all checks passed")


if __name__ == "__main__":
    main()
