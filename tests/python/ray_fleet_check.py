#!/usr/bin/env python3
"""loopspec.ray.run on a local cluster of six logical CPUs while workers are killed at random, and the driver once, half-way: the second
driver goes on with what is on disk. Rows lost, rows twice and texts that differ from those of one process must all be 0.

  ray_fleet_check.py --venv FOLDER [--rows N] [--workers N] [--seed N]      the job
  ray_fleet_check.py --venv FOLDER --throughput [--rows N]                  one engine against Ray with 1, 2 and 4 workers
"""

import argparse
import glob
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "serve"))

from client_support import inside_venv  # noqa: E402

MODEL = str(ROOT / "models" / "ouro-demo")
PARAMS = {"max_tokens": 3, "temperature": 1.0, "seed": 5, "ignore_eos": True}
BATCH = 64
CPUS = 6
JOB_SECONDS = 3000


def make_rows(count):
    names = ["Tom", "Lily", "Ben", "Mia", "Sam"]
    return [{"prompt": f"{names[index % 5]} had {index} cats and"} for index in range(count)]


def check(condition, what):
    if not condition:
        raise AssertionError(what)


# ---- One process ----


def one_process(rows, threads=0, params=PARAMS):
    """The texts of all rows by one engine without Ray, and the seconds they took after loading."""
    import numpy

    from loopspec.ray import Predictor

    predictor = Predictor(MODEL, params=params, key="row", engine={"threads": threads})
    texts = []
    start = time.monotonic()
    for begin in range(0, len(rows), BATCH):
        prompts = [row["prompt"] for row in rows[begin:begin + BATCH]]
        out = predictor({"row": numpy.arange(begin, begin + len(prompts)), "prompt": numpy.array(prompts, dtype=object)})
        texts += list(out["text"])
    return texts, time.monotonic() - start


# ---- The job ----


def driver(address, folder, count, workers):
    import ray

    from loopspec.ray import run

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    run(make_rows(count), folder, model=MODEL, params=PARAMS, workers=workers, batch_size=BATCH)


def worker_processes():
    """Ids of the engines' processes: among our own descendants, those that Ray names after its map operator."""
    parents, names = {}, {}
    for path in glob.glob("/proc/[0-9]*"):
        try:
            pid = int(path[6:])
            with open(path + "/stat", encoding="utf-8", errors="replace") as file:
                parents[pid] = int(file.read().rsplit(")", 1)[1].split()[1])
            with open(path + "/cmdline", encoding="utf-8", errors="replace") as file:
                names[pid] = file.read()
        except (OSError, ValueError):
            continue  # it is gone
    found = []
    for pid, name in names.items():
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid() and name.startswith("ray::") and "MapWorker" in name:
            found.append(pid)
    return found


def count_lines(folder):
    return sum(open(path, "rb").read().count(b"\n") for path in glob.glob(f"{folder}/*.jsonl"))


class Killer:
    """Ends a random worker every few seconds."""

    def __init__(self, chance, pause):
        self.chance, self.pause = chance, pause
        self.kills = 0
        self.next = time.monotonic() + pause

    def step(self):
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + self.chance.uniform(0.3, 1.7) * self.pause
        workers = worker_processes()
        if workers:
            os.kill(self.chance.choice(workers), signal.SIGKILL)
            self.kills += 1


def fleet(options):
    import ray

    from loopspec.ray import read_results

    rows = make_rows(options.rows)
    texts, seconds = one_process(rows)
    print(f"one process: {len(rows)} rows in {seconds:.0f} s, {len(rows) / seconds:.0f} a second", flush=True)
    killer = Killer(random.Random(options.seed), options.kill_seconds)
    with tempfile.TemporaryDirectory(prefix="loopspec-test-") as temporary:
        folder = f"{temporary}/answers"
        address = ray.init(num_cpus=CPUS, _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False,
                           logging_level="ERROR").address_info["gcs_address"]
        command = [sys.executable, os.path.abspath(__file__), "--venv", options.venv, "--driver", address, "--folder", folder,
                   "--rows", str(options.rows), "--workers", str(options.workers)]
        start = time.monotonic()
        log = open(f"{temporary}/log", "w+", encoding="utf-8")
        process = subprocess.Popen(command, stdout=log, stderr=log)
        at_kill = None
        try:
            while process.poll() is None:
                check(time.monotonic() - start < JOB_SECONDS, f"{count_lines(folder)} rows after {JOB_SECONDS} s")
                killer.step()
                if at_kill is None and count_lines(folder) >= options.rows / 2:
                    process.kill()
                    process.wait()
                    at_kill = len(read_results(folder))
                    print(f"driver killed with {at_kill} rows on disk, after {killer.kills} killed workers", flush=True)
                    process = subprocess.Popen(command, stdout=log, stderr=log)
                time.sleep(0.2)
        finally:
            process.kill()
            process.wait()
        seconds = time.monotonic() - start
        log.seek(0)
        check(process.returncode == 0, f"the driver ended with {process.returncode}:\n{log.read()[-6000:]}")
        check(at_kill is not None and at_kill < options.rows, f"the driver was killed with {at_kill} rows")
        check(killer.kills >= options.least_kills, f"only {killer.kills} workers were killed")
        found = list(read_results(folder))
        lines = count_lines(folder)
        ray.shutdown()
    by_row = {}
    for row in found:
        by_row.setdefault(row["row"], []).append(row)
    lost = sum(index not in by_row for index in range(len(rows)))
    twice = sum(len(entries) > 1 for entries in by_row.values()) + sum(index not in range(len(rows)) for index in by_row)
    different = sum(entry["text"] != texts[index] or entry["prompt"] != rows[index]["prompt"]
                    for index, entries in by_row.items() for entry in entries)
    print(f"{len(rows)} rows, {options.workers} workers, {killer.kills} killed, the driver once, {seconds:.0f} s: {lost} lost, "
          f"{twice} twice, {different} different; {lines - len(found)} finished rows were answered again", flush=True)
    check(lost == twice == different == 0, "expected none of these")


# ---- Throughput ----


def ray_rate(rows, workers, cpus, params):
    """Rows a second between the first tenth and the last, and the seconds of the whole job."""
    from loopspec.ray import read_results, run

    with tempfile.TemporaryDirectory(prefix="loopspec-test-") as folder:
        samples = []
        done = threading.Event()

        def watch():
            while not done.wait(0.05):
                samples.append((time.monotonic(), count_lines(folder)))

        start = time.monotonic()
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            run(rows, folder, model=MODEL, params=params, workers=workers, num_cpus=cpus, batch_size=BATCH)
        finally:
            done.set()
            watcher.join()
        seconds = time.monotonic() - start
        check(len(read_results(folder)) == len(rows), "rows are missing")
    inside = [(when, count) for when, count in samples if 0.1 * len(rows) <= count <= 0.9 * len(rows)]
    (first, low), (last, high) = inside[0], inside[-1]
    return (high - low) / (last - first), seconds


def throughput(options):
    import ray

    params = {**PARAMS, "max_tokens": 32}
    rows = make_rows(options.rows)
    ray.init(num_cpus=CPUS, _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    one_process(rows[:BATCH], 0, params)
    for round_ in range(options.repeat):
        for threads in (2, 1):
            _, seconds = one_process(rows, threads, params)
            print(json.dumps({"round": round_, "what": f"one engine, {threads} threads", "rows/s": round(len(rows) / seconds, 1)}), flush=True)
        for workers, cpus in ((1, 2), (2, 1), (4, 1)):
            rate, seconds = ray_rate(rows, workers, cpus, params)
            print(json.dumps({"round": round_, "what": f"Ray, {workers} workers of {cpus}", "rows/s": round(rate, 1),
                              "job seconds": round(seconds, 1)}), flush=True)
    ray.shutdown()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--venv", required=True)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-seconds", type=float, default=4.0, help="between kills, on average")
    parser.add_argument("--least-kills", type=int, default=20)
    parser.add_argument("--throughput", action="store_true")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--driver", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rows = options.rows or (3000 if options.throughput else 20000)
    inside_venv(options.venv, ["ray[data,serve]", "nanobind-backend>=1,<2", "numpy"], "ray.data, ray.serve, nanobind_backend, numpy")
    os.environ.update(RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
    if options.driver:
        driver(options.driver, options.folder, options.rows, options.workers)
    elif options.throughput:
        throughput(options)
    else:
        fleet(options)
        print("ray fleet: all checks passed")


if __name__ == "__main__":
    main()
