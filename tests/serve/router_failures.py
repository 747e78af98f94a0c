#!/usr/bin/env python3
"""Two replicas of `loopspec serve` behind each router, while clients with shared prefixes send requests and one replica fails.

  router_failures.py --server BINARY --model FOLDER --venv FOLDER [--nginx-config FILE] [--only NAME ...] [--faults NAME ...]
                     [--defaults] [--json FILE]

Faults: "killed" (SIGKILL, started again 5 s later), "drained" (SIGTERM, the same), "slow" (three bursts: stopped for 2 s, going for half a
second). A client tries a request that failed once more. Text that differs from that of one server alone fails the test, and so does a request
that is sent after the fault has passed and not answered. Everything else is what the table shows: what each router was seen to do.
Then the same requests without a fault, with the router's way to keep a conversation at one replica and without: prefix tokens found.

--defaults leaves out the options that make a router notice sooner. Routers that cannot be installed are skipped, one by one.
"""

import argparse
import http.client
import itertools
import json
import os
import pathlib
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from client_support import SKIPPED
from nginx_replicas import start_nginx
from real_server import RealServer
from routers import check, free_port, install

KEY = "sk-" + secrets.token_hex(32)  # litellm does not start without one; the others and the replicas do not ask
MODEL = "demo/story"
CLIENTS = 3
PAUSE = 0.25  # of a client between two requests
TRY = 15  # seconds for one try of a request
CONVERSATIONS = 8  # that go on through a run; one request in five begins another
OUTAGE = 5  # seconds that a replica is away
STREAMS = 4  # running when the fault comes
STREAM_TOKENS = 500
USED_AGAIN = 40  # seconds that a router has to use the replica again, else "never"
USED_AGAIN_BY_DEFAULT = 200
CALM = 3  # seconds of load after that
PREFIX_CACHE = "32M"  # 13 pages of 64 tokens: six of the ten conversations, so it matters where they go
AFFINITY_REQUESTS = 100
AFFINITY_CONVERSATIONS = 10

# What makes the three routers of one family notice within seconds; by themselves they ask every 60 s.
NOTICE = ("--health-check-interval-secs 1 --health-check-timeout-secs 1 --health-failure-threshold 2 --health-success-threshold 1 "
          "--cb-failure-threshold 3 --cb-success-threshold 1 --cb-timeout-duration-secs 3").split()
FAMILY = {  # package: the program
    "sglang-router": ["python", "-m", "sglang_router.launch_router"],
    "vllm-router": ["vllm-router"],
    "smg": ["smg", "launch"],
}
FAULTS = ("killed", "drained", "slow")
NAMES = ("Lily", "Tom", "Anna", "Ben", "Mia", "Sam", "Lucy", "Tim", "Sue", "Max")
THINGS = ("cat", "red ball", "boat", "small bird", "cake", "toy car", "big tree", "blue hat")
QUESTIONS = ("What did {} do next?", "Where did {} go?", "Who came to see {}?", "What did {} find there?", "Was {} happy?", "What did {} say?")


def messages(conversation, question):
    """A conversation of some 150 tokens that are its own, and a question."""
    name, thing = NAMES[conversation % len(NAMES)], THINGS[conversation // len(NAMES) % len(THINGS)]
    story = f"Story {conversation}. " + " ".join(
        f"On day {day} {name} went to the garden with the {thing} and looked for {number} new friends." for day, number in enumerate(range(conversation, conversation + 6)))
    return [{"role": "user", "content": story}, {"role": "assistant", "content": "I have read it."},
            {"role": "user", "content": QUESTIONS[question].format(name)}]


def body(conversation, question, **more):
    return {"model": MODEL, "messages": messages(conversation, question), "max_tokens": 8, "temperature": 0, **more}


def open_request(url, conversation, content):
    """The conversation's name is in the headers that these routers go by."""
    key = f"conversation-{conversation}"
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}", "X-Prefix-Key": key, "x-litellm-session-id": key}
    return urllib.request.urlopen(urllib.request.Request(url + "/v1/chat/completions", json.dumps(content).encode(), headers), timeout=TRY)


def ask(url, conversation, question, **more):
    with open_request(url, conversation, body(conversation, question, **more)) as answer:
        return json.loads(answer.read())["choices"][0]["message"]["content"]


FAILED = (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError)  # all that a bad answer may raise


class Alone:
    """One server without a router, and what it says."""

    def __init__(self, server, model):
        self.server, self.texts = RealServer(server, model, "--threads", 1, "--served-model-name", MODEL), {}

    def text(self, conversation, question, **more):
        key = (conversation, question, *more.items())
        if key not in self.texts:
            self.texts[key] = ask(self.server.url, conversation, question, **more)
        return self.texts[key]


class Replica:
    """A server that can be started again at its address."""

    def __init__(self, server, model, *arguments):
        self.start = lambda port=0: RealServer(server, model, "--threads", 1, "--served-model-name", MODEL, *arguments, port=port)
        self.server = self.start()
        self.url, self.port = self.server.url, self.server.port

    def answered(self):
        return self.server.metric("vllm:request_success_total")

    def kill(self):
        self.server.process.kill()
        self.server.process.wait(timeout=20)

    def again(self):
        check(self.server.process.poll() is not None, "the replica still runs")
        self.server.log.close()
        self.server = self.start(self.port)

    def close(self):
        if self.server.process.poll() is None:
            self.server.process.send_signal(signal.SIGCONT)
        self.server.__exit__()


class Router:
    def __init__(self, name, options, replicas, affinity, place):
        port = free_port()
        self.url, self.log, urls = f"http://127.0.0.1:{port}", place / "router.log", [replica.url for replica in replicas]
        if name == "nginx":
            config = options.nginx_config.read_text(encoding="utf-8")
            rule = "    hash $prefix_key consistent;\n"
            check(rule in config, "nginx.conf has another rule now")
            file = place / "shipped.conf"
            file.write_text(config if affinity else config.replace(rule, ""), encoding="utf-8")
            self.process = start_nginx(options.nginx, file, str(place), port, replicas)
            return
        environment = dict(os.environ)
        program = options.venv / name / "bin"
        if name == "litellm":
            file = place / "litellm.yaml"
            file.write_text(json.dumps(litellm_config(urls, affinity, options.defaults)), encoding="utf-8")  # JSON is YAML
            command = [program / "litellm", "--config", file, "--host", "127.0.0.1", "--port", port]
            environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks outside for prices
        else:
            first, *rest = FAMILY[name]
            command = [program / first, *rest, "--policy", "cache_aware" if affinity else "round_robin", "--worker-urls", *urls, "--host", "127.0.0.1", "--port", port,
                       "--prometheus-host", "127.0.0.1", "--prometheus-port", free_port(), *([] if options.defaults else NOTICE)]
        with open(self.log, "w", encoding="utf-8") as output:
            self.process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=output, env=environment)

    def await_ready(self):
        end = time.monotonic() + 180
        while time.monotonic() < end:
            check(self.process.poll() is None, self.said())
            try:
                ask(self.url, 0, 0)
                return
            except FAILED:
                time.sleep(0.2)
        raise AssertionError(self.said())

    def said(self):
        return self.log.read_text(encoding="utf-8")[-3000:] if self.log.exists() else ""

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=20)


def litellm_config(urls, affinity, defaults):
    settings = {} if defaults else {"num_retries": 2, "allowed_fails": 1, "cooldown_time": 3}
    if affinity:
        settings["optional_pre_call_checks"] = ["session_affinity"]
    return {"model_list": [{"model_name": MODEL, "litellm_params": {"model": f"hosted_vllm/{MODEL}", "api_base": url + "/v1", "api_key": "none"}} for url in urls],
            "router_settings": settings, "general_settings": {"master_key": KEY}}


class Load:
    """Clients that send until they are told to stop. `sent` has (begun, tries, seconds, text or None, conversation, question)."""

    def __init__(self, url):
        self.url, self.sent, self.failures, self.lock, self.stop = url, [], [], threading.Lock(), threading.Event()
        self.new = itertools.count(CONVERSATIONS)
        self.threads = [threading.Thread(target=self.client, args=(random.Random(seed),)) for seed in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def client(self, draw):
        while not self.stop.is_set():
            with self.lock:
                conversation = next(self.new) if draw.random() < 0.2 else draw.randrange(CONVERSATIONS)
            question, begun, text = draw.randrange(len(QUESTIONS)), time.monotonic(), None
            for tries in (1, 2):
                try:
                    text = ask(self.url, conversation, question)
                    break
                except FAILED as error:
                    with self.lock:
                        self.failures.append((begun, time.monotonic(), describe(error)))
                    time.sleep(0.2)
            with self.lock:
                self.sent.append((begun, tries, time.monotonic() - begun, text, conversation, question))
            self.stop.wait(PAUSE)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(timeout=3 * TRY)
            check(not thread.is_alive(), "a client does not end")


def describe(error):
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code}: {error.read(300).decode(errors='replace')}"
    return repr(error)


class Stream(threading.Thread):
    """A long answer, streamed: its text, and whether it came to its end."""

    def __init__(self, url, conversation):
        super().__init__()
        self.url, self.conversation, self.text, self.whole, self.begun = url, conversation, "", False, threading.Event()
        self.more = {"max_tokens": STREAM_TOKENS, "ignore_eos": True}
        self.start()

    def run(self):
        try:
            with open_request(self.url, self.conversation, body(self.conversation, 0, stream=True, **self.more)) as answer:
                for line in answer:
                    if line.startswith(b"data: {"):
                        for choice in json.loads(line[6:]).get("choices", []):
                            self.text += choice.get("delta", {}).get("content") or ""
                            self.whole = self.whole or choice.get("finish_reason") == "length"
                        if self.text:
                            self.begun.set()
        except FAILED:
            pass
        self.begun.set()

    def end(self, alone):
        self.join(timeout=4 * TRY)
        check(not self.is_alive(), "a stream does not end")
        right = alone.text(self.conversation, 0, **self.more)
        check(self.text == right if self.whole else right.startswith(self.text), ("a stream", self.text, right))


def wait_until(what, seconds):
    """Seconds until it holds, or None."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        if what():
            return time.monotonic() - begun
        time.sleep(0.05)
    return None


def bring_about(fault, replica):
    """Until the replica is there again. Seconds that the fault itself took to happen (the drain)."""
    begun = time.monotonic()
    if fault == "slow":
        for _ in range(3):
            replica.server.process.send_signal(signal.SIGSTOP)
            time.sleep(2)
            replica.server.process.send_signal(signal.SIGCONT)
            time.sleep(0.5)
        return 0.0
    if fault == "killed":
        replica.kill()
    else:
        check(replica.server.stop() == 0, "the drained replica did not end well")
    took = time.monotonic() - begun
    time.sleep(OUTAGE)
    replica.again()
    return took


def run_fault(name, fault, options, alone):
    with tempfile.TemporaryDirectory(prefix="loopspec-test-") as place:
        replicas = [Replica(options.server, options.model) for _ in range(2)]
        router = load = None
        try:
            router = Router(name, options, replicas, True, pathlib.Path(place))
            router.await_ready()
            load = Load(router.url)
            check(wait_until(lambda: min(replica.answered() for replica in replicas) >= 3, 60) is not None, (name, "uses one replica alone", router.said()))
            time.sleep(2)
            streams = [Stream(router.url, conversation) for conversation in range(STREAMS)]
            check(all(stream.begun.wait(timeout=60) for stream in streams), "a stream does not begin")
            running, survivor = sum(stream.is_alive() for stream in streams), replicas[1].answered()
            begun = time.monotonic()
            took = bring_about(fault, replicas[0])
            passed = time.monotonic()
            check(replicas[1].answered() > survivor, (name, fault, "the survivor answered nothing", router.said()))
            before = replicas[0].answered()
            used = wait_until(lambda: replicas[0].answered() > before, USED_AGAIN_BY_DEFAULT if options.defaults else USED_AGAIN)
            time.sleep(CALM)
            load.end()
            for stream in streams:
                stream.end(alone)
        finally:
            if load:
                load.stop.set()
            if router:
                router.close()
            for replica in replicas:
                replica.close()
    wrong = [each for each in load.sent if each[3] is not None and each[3] != alone.text(each[4], each[5])]
    check(not wrong, (name, fault, "wrong text", wrong[:3]))
    unanswered = [each for each in load.sent if each[3] is None]
    late = [each for each in unanswered if each[0] > passed]
    check(not late, (name, fault, "not answered after the fault", late[:3], load.failures[-3:]))
    during = [ended - begun for sent, ended, _ in load.failures if ended > begun]
    return {"router": name, "fault": fault, "sent": len(load.sent), "right": len(load.sent) - len(unanswered), "second try": sum(each[1] == 2 and each[3] is not None for each in load.sent),
            "unanswered": len(unanswered), "streams": running, "streams whole": sum(stream.whole for stream in streams) - (STREAMS - running),
            "last failure after": max(during) if during else None, "slowest": max(each[2] for each in load.sent if each[0] > begun - TRY),
            "drain": took, "away": passed - begun, "used again after": used, "failures": sorted({what[:160] for _, _, what in load.failures})[:4]}


def run_affinity(name, affinity, options, alone):
    """Tokens of prompts that were found in a replica's cache, of all."""
    with tempfile.TemporaryDirectory(prefix="loopspec-test-") as place:
        replicas = [Replica(options.server, options.model, "--prefix-cache", PREFIX_CACHE) for _ in range(2)]
        router = None
        try:
            router = Router(name, options, replicas, affinity, pathlib.Path(place))
            router.await_ready()
            time.sleep(2)  # until both replicas are known
            draw = random.Random(7)
            for _ in range(AFFINITY_REQUESTS):
                conversation, question = draw.randrange(AFFINITY_CONVERSATIONS), draw.randrange(len(QUESTIONS))
                check(ask(router.url, conversation, question) == alone.text(conversation, question), (name, "wrong text"))
            asked, found = (sum(replica.server.metric(f"vllm:prefix_cache_{what}_total") for replica in replicas) for what in ("queries", "hits"))
            shares = [replica.answered() for replica in replicas]
        finally:
            if router:
                router.close()
            for replica in replicas:
                replica.close()
    check(asked > 0 and sum(shares) >= AFFINITY_REQUESTS, (name, asked, shares))
    return {"router": name, "affinity": affinity, "asked": asked, "found": found, "share": found / asked, "requests": shares}


def version_of(name, options):
    if name == "nginx":
        if not options.nginx or not options.nginx_config:
            print("| nginx | | there is none, or no --nginx-config |", flush=True)
            return None
        said = subprocess.run([options.nginx, "-v"], capture_output=True, text=True, check=True).stderr
        return re.search(r"nginx/(\S+)", said).group(1)
    return install(options.venv / name, name, "litellm[proxy]" if name == "litellm" else name)


def seconds(value, missing):
    return missing if value is None else f"{value:.1f}"


def line(row):
    return (f"| {row['router']} {row['version']} | {row['fault']} | {row['sent']} | {row['right']} | {row['second try']} | {row['unanswered']} "
            f"| {row['streams whole']} of {row['streams']} | {row['slowest']:.1f} | {seconds(row['last failure after'], '-')} | {seconds(row['used again after'], 'never')} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--venv", required=True, type=pathlib.Path)
    parser.add_argument("--nginx-config", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=[*FAMILY, "litellm", "nginx"])
    parser.add_argument("--faults", nargs="*", default=list(FAULTS))
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--no-affinity", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    options.nginx = os.environ.get("NGINX") or shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    versions = {name: version for name in options.only for version in [version_of(name, options)] if version}
    if not versions:
        print("SKIPPED: no router can be installed")
        sys.exit(SKIPPED)
    alone, faults, prefixes, broken = Alone(options.server, options.model), [], [], []

    def tried(what, *arguments):
        """Its result; a router that breaks a promise leaves the others to be seen."""
        try:
            return what(*arguments, options, alone)
        except (AssertionError, *FAILED) as error:
            broken.append(f"{arguments}: {error!r}")
            print(f"| {broken[-1][:600]} |", flush=True)
            return None

    with alone.server:
        print("| router | fault | sent | right | by the second try | unanswered | running streams whole | slowest, s | last failure after, s | used again after, s |")
        print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
        for name, fault in itertools.product(versions, options.faults):
            row = tried(run_fault, name, fault)
            if row:
                faults.append({**row, "version": versions[name]})
                print(line(faults[-1]), flush=True)
        print("\n| router | prefix tokens found, with affinity | without |\n|---|---|---|", flush=True)
        for name in [] if options.no_affinity else versions:
            pair = [tried(run_affinity, name, affinity) for affinity in (True, False)]
            if all(pair):
                prefixes += pair
                print(f"| {name} {versions[name]} | {pair[0]['share']:.1%} | {pair[1]['share']:.1%} |", flush=True)
    result = json.dumps({"faults": faults, "prefixes": prefixes, "broken": broken}, indent=1)
    print(result)
    if options.json:
        options.json.write_text(result + "\n", encoding="utf-8")
    check(not broken, broken)


if __name__ == "__main__":
    main()
