#!/usr/bin/env python3
"""Two replicas of `loopspec serve` behind each of the routers from PyPI, without a shim in between: every form of request gets the text that a
replica gives by itself, and the replicas refuse and ignore nothing of what the router adds or asks.

  routers.py --server BINARY --model FOLDER --venv FOLDER [--only NAME ...]

Prints a line for each router with its version; those that cannot be installed are skipped, one by one.
"""

import argparse
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from client_support import SKIPPED
from real_server import RealServer

ROUTERS = {  # package: the command line before the replicas
    "sglang-router": ["python", "-m", "sglang_router.launch_router", "--policy", "cache_aware"],
    "vllm-router": ["vllm-router", "--policy", "cache_aware"],
    "smg": ["smg", "launch", "--policy", "cache_aware"],
}
CHAT = {"model": "demo/story", "messages": [{"role": "user", "content": "Tell me a story about a cat."}], "max_tokens": 12, "temperature": 0}
FORMS = (("/v1/chat/completions", CHAT), ("/v1/chat/completions", {**CHAT, "stream": True}),
         ("/v1/completions", {"model": "demo/story", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}),
         ("/v1/completions", {"model": "demo/story", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "stream": True}),
         ("/generate", {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 12, "temperature": 0}}))


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def text_of(body):
    if body.startswith("data:"):
        events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
        pieces = [event["choices"][0] for event in events if event["choices"]]
        return "".join(piece.get("text", piece.get("delta", {}).get("content") or "") for piece in pieces)
    answer = json.loads(body)
    if "text" in answer:
        return answer["text"]
    choice = answer["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def ask(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return text_of(answer.read().decode())


def await_ready(process, url, log):
    for _ in range(1200):
        check(process.poll() is None, log.read_text()[-3000:])
        try:
            ask(url, *FORMS[0])
            return
        except (OSError, urllib.error.HTTPError):
            time.sleep(0.1)
    raise AssertionError(log.read_text()[-3000:])


def run(name, folder, replicas, expected):
    url = f"http://127.0.0.1:{free_port()}"
    command = ROUTERS[name]
    command = [str(folder / "bin" / command[0]), *command[1:], "--worker-urls", *[replica.url for replica in replicas], "--host", "127.0.0.1",
               "--port", url.rsplit(":", 1)[1], "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    with tempfile.TemporaryDirectory() as place:
        log = pathlib.Path(place) / "log"
        with open(log, "w", encoding="utf-8") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            await_ready(process, url, log)
            for form, text in zip(FORMS, expected):
                check(ask(url, *form) == text, (name, form))
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
    for replica in replicas:
        said = replica.log_text()
        check("is ignored" not in said, said)
        check(not re.search(r"status=4\d\d", said), said)


def install(folder, name, requirement=None):
    """The version in a virtual environment of its own, or None."""
    python = folder / "bin" / "python"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        show = [python, "-m", "pip", "show", name]
        if subprocess.run(show, capture_output=True, check=False).returncode != 0:
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement or name], check=True, timeout=900)
        return re.search(r"Version: (\S+)", subprocess.run(show, capture_output=True, text=True, check=True).stdout).group(1)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"| {name} | | cannot be installed: {error} |", flush=True)
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--venv", required=True, type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=list(ROUTERS))
    options = parser.parse_args()
    ran = 0
    for name in options.only:
        version = install(options.venv / name, name)
        if version is None:
            continue
        arguments = (options.server, options.model, "--served-model-name", "demo/story")
        with RealServer(*arguments) as one, RealServer(*arguments) as two:
            expected = [ask(one.url, *form) for form in FORMS]
            run(name, options.venv / name, [one, two], expected)
        print(f"| {name} | {version} | chat and completions, whole and streamed, /generate |", flush=True)
        ran += 1
    if ran == 0:
        print("SKIPPED: no router can be installed")
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
