#!/usr/bin/env python3
"""`loopspec serve` as an operator meets it: what it says when it starts, empty keys, keys and logs that are changed while it runs, signals.

  operation.py --server BINARY --model FOLDER
"""

import argparse
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from real_server import RealServer


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def eventually(condition, what):
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(what)


def status(server, key=None, path="/v1/models"):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, headers=headers), timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def refuses_empty_keys(binary, model, folder):
    """A key that is set but empty would let everybody in."""
    empty = folder / "empty"
    empty.write_text("\n# none yet\n")
    for arguments, environment in ((["--api-key", ""], {}), (["--api-key-file", empty], {}), ([], {"LOOPSPEC_API_KEY": ""})):
        command = [binary, "serve", "--model", model, "--port", "0", *arguments]
        result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False)
        check(result.returncode == 2, (arguments, environment, result))
        check(re.search(r"API key|--api-key is empty", result.stderr), result.stderr)


def says_what_it_is(server, model):
    ready = re.search(r"ready: loopspec (\S+), model (\S+), (.+), context (\d+), (http://\S+)", server.log_text())
    check(ready, server.log_text())
    check(ready.group(2) == pathlib.Path(model).name, ready.group(0))
    check(ready.group(5) == server.url and int(ready.group(4)) > 0, ready.group(0))
    version = subprocess.run([server.process.args[0], "--version"], capture_output=True, text=True, check=True).stdout
    check(ready.group(1) in version, (ready.group(1), version))
    check(float(re.search(r", weights (\d+\.\d\d), keys and values", ready.group(3)).group(1)) > 0, ready.group(0))
    check(str(pathlib.Path(model).resolve()) not in server.log_text(), "the log has the model's path")


def reads_keys_again(server, keys):
    check((status(server, "one"), status(server, "two"), status(server)) == (200, 401, 401), "the first keys")
    keys.write_text("two\nthree\n")
    os.kill(server.process.pid, signal.SIGHUP)
    eventually(lambda: status(server, "two") == 200, "the new key is not let in")
    check((status(server, "one"), status(server, "three")) == (401, 200), "the old key is let in")
    keys.write_text("")  # half written, say: nobody is locked out and nobody let in
    os.kill(server.process.pid, signal.SIGHUP)
    eventually(lambda: "the API keys stay as they are" in server.log_text(), server.log_text())
    check((status(server, "two"), status(server, "one"), status(server)) == (200, 401, 401), "keys after a bad file")


def opens_the_log_again(server, log):
    check(status(server) == 200, "no keys here")
    eventually(lambda: "ready" in log.read_text(), log.read_text())  # the terminal hears it first
    moved = log.with_suffix(".1")
    log.rename(moved)
    os.kill(server.process.pid, signal.SIGHUP)
    eventually(log.exists, "there is no new log")
    status(server, path="/nowhere")
    eventually(lambda: "/nowhere" in log.read_text(), log.read_text())
    check("/nowhere" not in moved.read_text() and "ready" in moved.read_text(), moved.read_text())


def serves_with_few_descriptors(binary, model):
    """The number of connections follows the limit of open files, and silent ones keep nobody out."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with RealServer(binary, model, preexec_fn=limit) as server:
        said = re.search(r"(\d+) connections at once, not 4096: the limit of open files", server.log_text())
        check(said and 0 < int(said.group(1)) < 64, server.log_text())
        silent = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(100)]
        for _ in range(5):
            check(status(server, path="/health") == 200, "silent connections keep others out")
        for connection in silent:
            connection.close()


def ignores_other_signals(server):
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(server.process.pid, number)
    time.sleep(0.1)
    check(status(server, path="/health") == 200, "a signal ended it")
    check(server.process.poll() is None, "a signal ended it")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        refuses_empty_keys(options.server, options.model, folder)
        keys = folder / "keys"
        keys.write_text("one\n")
        with RealServer(options.server, options.model, "--api-key-file", keys) as server:
            says_what_it_is(server, options.model)
            reads_keys_again(server, keys)
            ignores_other_signals(server)
            check(server.stop() == 0, "the end")
        serves_with_few_descriptors(options.server, options.model)
        # With a log of its own the terminal still hears what it is and that it is ready.
        log = folder / "log"
        with open(folder / "terminal", "w+", encoding="utf-8") as terminal:
            command = [options.server, "serve", "--model", options.model, "--port", "0", "--log-file", str(log)]
            process = subprocess.Popen(command, stderr=terminal, stdout=subprocess.DEVNULL)
            try:
                eventually(lambda: "ready: loopspec" in pathlib.Path(terminal.name).read_text(), "no word on the terminal")
                server = type("Running", (), {"process": process, "url": re.search(r"http://\S+", log.read_text()).group(0)})
                opens_the_log_again(server, log)
            finally:
                process.terminate()
                process.wait(timeout=60)
    print("operation: all checks passed")


if __name__ == "__main__":
    main()
